package checkpoint_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/checkpoint"
)

// TestFamilies checks how optional fields change the layer, both if they are present and if they
// are missing.
func TestFamilies(t *testing.T) {
	const sigmoid = "d=64 n=32 E=8 K=2 w1=concatenated logits=f32 router=f32 score=sigmoid "
	for _, tt := range []struct{ name, kind, more, want string }{
		// transformers keeps the weights of these routers in FP32.
		{"Beam's router", "beam", `, "num_hidden_layers": 4`, sigmoid + "selection-bias renorm=sum epsilon=1e-20 scale=2.5"},
		{"Flint's router", "flint", `, "num_hidden_layers": 4`, sigmoid + "renorm=sum shared=1"},
		{"Mistral-Large-4's router", "mistral_large4", `, "num_hidden_layers": 4`, "d=64 n=32 E=8 K=2 w1=concatenated logits=f32 router=f32 score=softmax renorm=sum epsilon=1e-20 shared=1"},
		{"Hy-V3's scale", "hy_v3", `, "num_hidden_layers": 4`, "d=64 n=32 E=8 K=2 w1=concatenated logits=f32 score=sigmoid selection-bias renorm=sum epsilon=1e-20 scale=2.826 shared=1"},
		{"dots3's shared experts", "dots3_note", `, "num_hidden_layers": 4, "moe_shared_expert_intermediate_size": 64`, "d=64 n=32 E=8 K=2 w1=concatenated logits=f32 score=sigmoid selection-bias renorm=sum epsilon=1e-20 shared=2"},
		{"one size by two names", "deepseek_v3", `, "num_hidden_layers": 4, "n_routed_experts": 8.0, "num_local_experts": [8, 8]`, "d=64 n=32 E=8 K=2 w1=concatenated logits=f32 score=sigmoid selection-bias renorm=sum epsilon=1e-20 scale=2.5 shared=1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := checkpoint.Read(small(tt.kind, tt.more))
			require.NoError(t, err)
			assert.Equal(t, tt.want, m.Config.String())
		})
	}
	t.Run("MiniMax-M2's router differs from transformers", func(t *testing.T) {
		m, err := checkpoint.Read(small("minimax_m2", `, "num_hidden_layers": 4, "shared_intermediate_size": 0`))
		require.NoError(t, err)
		assert.True(t, m.Config.RouterF32)
		assert.Contains(t, m.Assumed, "the router's weight is f32, as published: transformers rounds it to the model's dtype where it loads one")
	})
}

// TestStep checks Step-3.5, with the field names of its published file.
func TestStep(t *testing.T) {
	m, err := checkpoint.Read([]byte(`{"model_type": "step3p5", "hidden_size": 64, "moe_intermediate_size": 32, "moe_num_experts": 8, "moe_top_k": 2,
		"share_expert_dim": 32, "moe_layers_enum": "2,3", "num_hidden_layers": 4, "num_nextn_predict_layers": 1, "moe_router_activation": "sigmoid",
		"moe_router_scaling_factor": 3.0, "norm_expert_weight": true, "use_moe_router_bias": true, "need_fp32_gate": true, "hidden_act": "silu",
		"swiglu_limits": [0.0, 0.0, 0.0, 0.0, 7], "torch_dtype": "bfloat16"}`))
	require.NoError(t, err)
	assert.Equal(t, "d=64 n=32 E=8 K=2 w1=concatenated logits=bf16 score=sigmoid selection-bias renorm=sum scale=3 shared=1", m.Config.String())
	assert.Equal(t, []int{2, 3}, m.MoE)
	assert.Equal(t, []string{"need_fp32_gate is true: the router's logits are bf16 all the same, as transformers has them"}, m.Assumed)
	assert.Empty(t, m.Unknown)
}

func TestFamiliesRefuse(t *testing.T) {
	const layers = `, "num_hidden_layers": 4`
	for _, tt := range []struct{ name, kind, more, want string }{
		{"shared experts that are averaged, being nothing else", "cohere2_moe", `, "num_shared_experts": 1`, `shared_expert_combination_strategy is average, must be "sum"`},
		{"shared experts with biases", "ernie4_5_moe", `, "use_bias": true`, "use_bias is true, must be false"},
		{"no interval", "ernie4_5_moe", `, "moe_layer_interval": null`, "moe_layer_interval is null, must be a whole number"},
		{"another router of Step", "step3p5", `, "moe_router_activation": "softmax"`, `moe_router_activation is softmax, must be "sigmoid"`},
		{"no scale", "deepseek_v3", `, "routed_scaling_factor": 0`, "routed_scaling_factor is 0, must be above 0"},
		{"no scale of DeepSeek-V2", "deepseek_v2", `, "routed_scaling_factor": 0.0`, "routed_scaling_factor is 0, must be above 0"},
		{"no scale of Mistral-4", "mistral4", `, "routed_scaling_factor": 0`, "routed_scaling_factor is 0, must be above 0"},
		{"no scale of AFMoE", "afmoe", `, "route_scale": 0`, "route_scale is 0, must be above 0"},
		{"no scale of LFM2", "lfm2_moe", `, "routed_scaling_factor": 0`, "routed_scaling_factor is 0, must be above 0"},
		{"no scale of Hy-V3", "hy_v3", `, "router_scaling_factor": 0`, "router_scaling_factor is 0, must be above 0"},
		{"no scale of Laguna", "laguna", `, "moe_routed_scaling_factor": 0`, "moe_routed_scaling_factor is 0, must be above 0"},
		{"no scale of MiniMax-M3", "minimax_m3_vl", `, "routed_scaling_factor": 0`, "routed_scaling_factor is 0, must be above 0"},
		{"no scale of Step", "step3p5", `, "moe_router_scaling_factor": 0`, "moe_router_scaling_factor is 0, must be above 0"},
		{"a clamp at 0", "glm5_next", `, "swiglu_limit": 0`, "swiglu_limit is 0, must be above 0"},
		{"more shared experts than there can be", "deepseek_v3", `, "n_shared_experts": 576460752303423488`, "there are 576460752303423488 shared experts of width 32, must be at most 1048576 wide together"},
		{"wider shared experts than there can be", "dots3_note", `, "moe_shared_expert_intermediate_size": 4611686018427387904, "n_shared_experts": 4`, "there are 4 shared experts of width 4611686018427387904"},
		{"two numbers of experts", "deepseek_v3", `, "n_routed_experts": 4`, "num_experts is 8 and n_routed_experts is 4, must be the same: they are two names of one field"},
		{"two numbers of shared experts", "deepseek_v3", `, "n_shared_experts": 1, "num_shared_experts": 2`, "n_shared_experts is 1 and num_shared_experts is 2, must be the same"},
		{"two norms", "kimi_linear", `, "norm_topk_prob": true, "moe_renormalize": false`, "norm_topk_prob is true and moe_renormalize is false, must be the same"},
		{"two numbers of experts a token", "gpt_oss", `, "experts_per_token": 4`, "num_experts_per_tok is 2 and experts_per_token is 4, must be the same"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := checkpoint.Read(small(tt.kind, layers+tt.more))
			require.ErrorContains(t, err, tt.want)
		})
	}
}
