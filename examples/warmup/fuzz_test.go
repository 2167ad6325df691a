package main

import (
	"testing"
)

// FuzzModel checks that reading a config.json gives either an error or a layer with sizes.
func FuzzModel(f *testing.F) {
	f.Add([]byte(`{"model_type":"qwen3_moe","hidden_act":"silu","hidden_size":2048,"moe_intermediate_size":768,"num_experts":128,"num_experts_per_tok":8}`))
	f.Add([]byte(`{"model_type":"kimi_k25","text_config":{"model_type":"kimi_k2","hidden_size":7168,"moe_intermediate_size":2048,"n_routed_experts":384,"num_experts_per_tok":8}}`))
	f.Add([]byte(`{"d_model":6144,"ffn_config":{"ffn_hidden_size":10752,"moe_num_experts":16,"moe_top_k":4,"text_config":{"text_config":{"text_config":{}}}}}`))
	f.Add([]byte(`{"hidden_act":["gelu"],"hidden_size":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseModel(data, sizesOnly)
		if c := l.config; err == nil && (c.Hidden < 1 || c.Intermediate < 1 || c.NumExperts < 1 || c.TopK < 1) {
			t.Fatalf("sizes that are not positive: %+v", c)
		}
	})
}

// FuzzLayers checks that reading a file of layers gives either an error or layers that can be
// checked.
func FuzzLayers(f *testing.F) {
	f.Add([]byte(`{"layers":[{"name":"a","hidden":128,"intermediate":64,"experts":4,"topK":2,"gateUp":"interleaved","logits":"f32","tokensHint":8}]}`))
	f.Add([]byte(`{"layers":[{"hidden":128,"intermediate":64,"experts":4,"topK":2}]} x`))
	f.Fuzz(func(t *testing.T, data []byte) {
		layers, err := parseLayers(data)
		if (err == nil) == (len(layers) == 0) {
			t.Fatalf("%d layers and the error %v", len(layers), err)
		}
		for _, l := range layers {
			_ = l.config.Check()
			if l.name == "" {
				t.Fatal("a layer without a name")
			}
		}
	})
}
