package checkpoint_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint"
)

// small returns the config.json of a small model of the given type, with every size field.
func small(kind, more string) []byte {
	return []byte(with(fmt.Sprintf(`{"model_type": %q, "hidden_size": 64, "intermediate_size": 32, "moe_intermediate_size": 32, "num_experts": 8,
		"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 32, "shared_intermediate_size": 32,
		"moe_shared_expert_intermediate_size": 32, "share_expert_dim": 32, "dtype": "bfloat16", "hidden_act": "silu"%%s}`, kind), more))
}

// TestLayers checks that the fields that a family reads in transformers, and no others, determine
// which layers have experts.
func TestLayers(t *testing.T) {
	for _, tt := range []struct {
		name, kind, more string
		want             []int
		layers           int
	}{
		{"a list and the first dense ones", "exaone_moe", `"mlp_layer_types": ["sparse", "dense", "sparse"], "num_hidden_layers": 3, "first_k_dense_replace": 1`, []int{0, 2}, 3},
		{"the first dense ones", "glm_moe_dsa", `"num_hidden_layers": 5, "moe_layer_freq": 1`, []int{3, 4}, 5},
		{"every so many", "axk1", `"num_hidden_layers": 5, "moe_layer_freq": 2`, []int{2, 4}, 5},
		{"every one", "deepseek_v3", `"num_hidden_layers": 4, "first_k_dense_replace": 2, "moe_layer_freq": 1`, []int{2, 3}, 4},
		{"flags after the dense ones", "dots3_note", `"num_hidden_layers": 4, "moe_layer_freq": [1, 1, 0, 1]`, []int{1, 3}, 4},
		{"flags of further tokens' layers", "dots3_note", `"num_hidden_layers": 3, "num_nextn_predict_layers": 1, "moe_layer_freq": [1, 1, 0, 1]`, []int{1}, 3},
		{"MiMo's flags, as published", "mimo_v2_flash", `"num_hidden_layers": 4, "moe_layer_freq": [0, 1, 1, 1], "routed_scaling_factor": null, "n_shared_experts": null, "topk_method": "noaux_tc"`, []int{1, 2, 3}, 4},
		{"MiniMax-M3's flags", "minimax_m3_vl", `"num_hidden_layers": 3, "moe_layer_freq": [0, 1, 1]`, []int{1, 2}, 3},
		{"MiniMax-M3 without any", "minimax_m3_vl", `"num_hidden_layers": 3`, []int{0, 1, 2}, 3},
		{"Step's list", "step3p5", `"num_hidden_layers": 5, "moe_layers_enum": "1, 2,4"`, []int{1, 2, 4}, 5},
		{"Step's list of numbers", "step3p5", `"num_hidden_layers": 3, "moe_layers_enum": [2]`, []int{2}, 3},
		{"Step without any", "step3p5", `"num_hidden_layers": 5`, []int{3, 4}, 5},
		{"Step's words of further tokens' layers", "step3p5", `"num_hidden_layers": 3, "num_nextn_predict_layers": 2, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "dense"],
			"swiglu_limits": [0, 0, 0, 7, 7]`, []int{1, 2}, 3},
		{"a list that GLM-4-Lite reads, over a field that it does not", "glm4_moe_lite", `"num_hidden_layers": 3, "mlp_layer_types": ["sparse", "dense", "sparse"], "first_k_dense_replace": 1`, []int{0, 2}, 3},
		{"Nemotron's letters", "nemotron_h", `"num_hidden_layers": 4, "hybrid_override_pattern": "ME*E"`, []int{1, 3}, 4},
		{"Nemotron's letters, which count the layers", "nemotron_h", `"num_hidden_layers": 9, "hybrid_override_pattern": "ME-E"`, []int{1, 3}, 4},
		{"Nemotron's letters and words", "nemotron_h", `"hybrid_override_pattern": "ME*-", "layer_types": ["mamba", "moe", "attention", "mlp"]`, []int{1}, 4},
		{"Qwen3.5's are all", "qwen3_5_moe", `"num_hidden_layers": 2, "decoder_sparse_step": 1, "mlp_only_layers": []`, []int{0, 1}, 2},
		{"words in place of flags that Qwen3.5 does not read", "qwen3_5_moe", `"num_hidden_layers": 2, "moe_layer_freq": ["a", "b"]`, []int{0, 1}, 2},
		{"Jamba's", "jamba", `"num_hidden_layers": 5`, []int{1, 3}, 5},
		{"Unlimited-OCR's", "unlimited_ocr", `"num_hidden_layers": 3`, []int{1, 2}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := checkpoint.Read(small(tt.kind, ", "+tt.more))
			require.NoError(t, err)
			assert.Equal(t, tt.want, m.MoE)
			assert.Equal(t, tt.layers, m.Layers)
		})
	}
}

// TestLayersAssumed checks that Assumed tells which layers have experts if no field does.
func TestLayersAssumed(t *testing.T) {
	m, err := checkpoint.Read(small("glm4_moe_lite", `, "num_hidden_layers": 3`))
	require.NoError(t, err)
	assert.Contains(t, m.Assumed, "mlp_layer_types is not there: layers from 1 on have experts, the default of transformers")
}

func TestLayersRefused(t *testing.T) {
	for _, tt := range []struct{ name, kind, more, want string }{
		{"more words than layers", "exaone_moe", `"num_hidden_layers": 2, "mlp_layer_types": ["dense", "sparse", "sparse"]`, "mlp_layer_types has 3 entries, must have one for each of the 2 layers"},
		{"more flags than layers", "minimax_m3_vl", `"num_hidden_layers": 2, "moe_layer_freq": [0, 1, 1]`, "moe_layer_freq has 3 entries, must have one for each of the 2 layers"},
		{"another word", "glm4_moe_lite", `"num_hidden_layers": 3, "mlp_layer_types": ["dense", "Sparse", "sparse"]`, `mlp_layer_types has "Sparse" for layer 1, must be sparse or dense`},
		{"another letter", "nemotron_h", `"hybrid_override_pattern": "MXE"`, `hybrid_override_pattern has 'X' for layer 1, must be M, E, * or -`},
		{"another layer's word", "nemotron_h", `"layers_block_type": ["moe", "conv"]`, `layers_block_type has "conv" for layer 1, must be moe, mlp,`},
		{"two patterns", "nemotron_h", `"hybrid_override_pattern": "ME*E", "layers_block_type": ["moe", "mamba", "mlp", "attention"]`, "hybrid_override_pattern and layers_block_type say different layers"},
		{"no pattern", "nemotron_h", `"num_hidden_layers": 4`, "config.json has no layers_block_type, layer_types or hybrid_override_pattern"},
		{"dense layers that GLM-4-Lite does not read", "glm4_moe_lite", `"num_hidden_layers": 4, "first_k_dense_replace": 3`, "by first_k_dense_replace layer 1 is dense, must be sparse, as it is by the fields that transformers reads"},
		{"words that DeepSeek-V3 does not read", "deepseek_v3", `"num_hidden_layers": 4, "first_k_dense_replace": 1, "mlp_layer_types": ["sparse", "sparse", "sparse", "sparse"]`, "by mlp_layer_types layer 0 is sparse, must be dense"},
		{"a step that DeepSeek-V3 does not read", "deepseek_v3", `"num_hidden_layers": 4, "first_k_dense_replace": 0, "moe_layer_freq": 2`, "by moe_layer_freq layer 1 is dense, must be sparse"},
		{"flags that MiMo does not read", "mimo_v2_flash", `"num_hidden_layers": 3, "moe_layer_freq": [1, 1, 1]`, "by moe_layer_freq layer 0 is sparse, must be dense"},
		{"a step that Qwen3.5 does not read", "qwen3_5_moe", `"num_hidden_layers": 4, "decoder_sparse_step": 2`, "by decoder_sparse_step layer 0 is dense, must be sparse"},
		{"dense layers that Qwen4 does not read", "qwen4_exp", `"num_hidden_layers": 4, "mlp_only_layers": [2]`, "by mlp_only_layers layer 2 is dense, must be sparse"},
		{"skipped layers that Hunyuan does not read", "hunyuan_v1_moe", `"num_hidden_layers": 4, "moe_layer_num_skipped": 1`, "by moe_layer_num_skipped layer 0 is dense, must be sparse"},
		{"no layer's number", "step3p5", `"num_hidden_layers": 4, "moe_layers_enum": "1,two"`, `moe_layers_enum is "1,two", must be numbers of layers with commas between them`},
		{"one expert of Jamba", "jamba", `"num_hidden_layers": 4, "expert_layer_period": 2, "num_experts": 1, "num_experts_per_tok": 1`, "none of its 4 layers has experts"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := checkpoint.Read(small(tt.kind, ", "+tt.more))
			require.ErrorContains(t, err, tt.want)
		})
	}
}
