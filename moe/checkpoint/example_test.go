package checkpoint_test

import (
	"fmt"

	"sonicmoe/moe/checkpoint"
)

// The config.json of a model becomes the Config of its expert layers.
func ExampleRead() {
	m, err := checkpoint.Read([]byte(`{
		"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
		"num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 32, "hidden_act": "silu"
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Config)

	_, err = checkpoint.Read([]byte(`{"model_type": "llama"}`))
	fmt.Println(err)
	// Output:
	// d=4096 n=14336 E=8 K=2 w1=concatenated logits=bf16
	// model_type "llama" is not known (the table of models in README.md lists those that are), and it has none of num_local_experts, num_experts, n_routed_experts, moe_num_experts: a dense model has no expert layer
}
