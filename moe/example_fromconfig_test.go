package moe_test

import (
	"fmt"

	"sonicmoe/moe"
)

func ExampleFromConfig() {
	model, err := moe.FromConfig([]byte(`{
		"model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_experts": 64,
		"num_experts_per_tok": 8, "hidden_act": "silu", "num_hidden_layers": 16, "dtype": "bfloat16"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(model.Config)
	fmt.Println(model.Assumed)
	// Output:
	// d=2048 n=1024 E=64 K=8 w1=concatenated logits=bf16 score=softmax
	// [norm_topk_prob is not there: false, the default of transformers]
}
