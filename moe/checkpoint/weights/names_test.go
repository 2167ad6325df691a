package weights

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
)

// TestNames checks the weight that each name of a tensor stands for. The names come from published
// files and transformers, and start after the layer's number.
func TestNames(t *testing.T) {
	for of, names := range map[string]string{
		"Router":        "mlp.gate.weight block_sparse_moe.gate.weight feed_forward.router.weight mixer.gate.weight block_sparse_moe.router.layer.weight ffn.router.layer.weight mlp.gate.wg.weight mlp.router.gate.weight mlp.router.weight router.proj.weight moe.gate.weight gate.weight",
		"RouterBias":    "mlp.router.bias",
		"SelectionBias": "mlp.gate.e_score_correction_bias block_sparse_moe.e_score_correction_bias mlp.e_score_correction_bias mlp.moe_statics.e_score_correction_bias mlp.gate.moe_statics.e_score_correction_bias mlp.experts.e_score_correction_bias mlp.expert_bias feed_forward.expert_bias mlp.gate.expert_bias moe.router_bias",
		"ExpertScale":   "router.per_expert_scale",
		"W1":            "mlp.experts.7.gate_proj.weight block_sparse_moe.experts.7.w1.weight mlp.experts.7.up_proj.weight experts.7.w3.weight mlp.experts.gate_up_proj experts.gate_up_proj mixer.experts.up_proj block_sparse_moe.input_linear.weight moe.gate_proj.weight ffn.experts.mlp.w1 mlp.experts.gate_up_proj_blocks mlp.experts.fc1.weight",
		"W3":            "moe.up_proj.weight ffn.experts.mlp.v1",
		"W2":            "mlp.experts.7.down_proj.weight experts.7.w2.weight mlp.experts.down_proj block_sparse_moe.output_linear.weight moe.down_proj.weight ffn.experts.mlp.w2 mlp.experts.fc2.weight",
		"B1":            "mlp.experts.gate_up_proj_bias",
		"B2":            "mlp.experts.down_proj_bias",
		"SharedW1":      "mlp.shared_experts.gate_proj.weight mlp.shared_expert.gate_proj.weight mlp.shared_mlp.gate_proj.weight shared_experts.w1.weight share_expert.gate_proj.weight shared_mlp.input_linear.weight",
		"SharedW3":      "mlp.shared_experts.up_proj.weight shared_experts.w3.weight share_expert.up_proj.weight",
		"SharedW2":      "mlp.shared_experts.down_proj.weight shared_experts.w2.weight shared_mlp.output_linear.weight",
		"SharedGate":    "mlp.shared_expert_gate.weight",
		// These names look like names of weights, but mean something else.
		"": "mlp.shared_experts.0.gate_proj.weight mlp.vision_experts.0.gate_proj.weight mlp.experts.0.gate.weight mlp.experts.0.w1.bias mlp.experts.0.w1.weight_scale mlp.gate.bias mlp.gate_proj.weight mlp.up_proj.weight mlp.attn.gate.weight mlp.experts.gate_up_proj.scale",
	} {
		for _, rest := range strings.Fields(names) {
			got := partsOf("x", rest)
			if of == "" {
				assert.Empty(t, got, rest)
			} else if assert.NotEmpty(t, got, rest) {
				assert.Equal(t, of, got[0].tensor.String(), rest)
			}
			assert.True(t, block.MatchString(rest), "%s is not passed over", rest)
		}
	}
	for _, rest := range []string{"self_attn.gate_proj.weight", "input_layernorm.weight", "post_mlp_layernorm.weight", "layer_scalar", "mamba.router_norm.weight"} {
		assert.False(t, block.MatchString(rest), rest)
	}
}

// TestFamiliesOfOtherNames checks families whose files use other names or layouts.
func TestFamiliesOfOtherNames(t *testing.T) {
	const at = "model.layers.3."
	f32 := func(name string, shape ...int64) saved { return saved{name, "F32", shape} }
	shared := func(prefix, gate, up, down string) []saved {
		return []saved{bf16(prefix+gate+".weight", n, d), bf16(prefix+up+".weight", n, d), bf16(prefix+down+".weight", d, n)}
	}
	proj := experts(at+"mlp", "gate_proj", "up_proj", "down_proj")
	moe := `"moe_intermediate_size": 16, `
	for _, tt := range []struct {
		name, config string
		tensors      []saved
		want         map[string][]string
		order        bool
		gateUp       spec.GateUp
	}{
		{name: "hy_v3", config: moe + `"num_experts": 2, "num_shared_experts": 1, "first_k_dense_replace": 1, "router_scaling_factor": 1.0`,
			tensors: slices.Concat(proj, shared(at+"mlp.shared_mlp.", "gate_proj", "up_proj", "down_proj"), []saved{bf16(at+"mlp.router.gate.weight", e, d), f32(at+"mlp.expert_bias", e)}),
			want:    map[string][]string{"Router": {at + "mlp.router.gate.weight"}, "SelectionBias": {at + "mlp.expert_bias"}, "SharedW3": {at + "mlp.shared_mlp.up_proj.weight"}}},
		{name: "afmoe", config: moe + `"num_experts": 2, "num_shared_experts": 1, "num_dense_layers": 1, "route_scale": 1.0`,
			tensors: slices.Concat(proj, shared(at+"mlp.shared_experts.", "gate_proj", "up_proj", "down_proj"), []saved{bf16(at+"mlp.router.gate.weight", e, d), f32(at+"mlp.expert_bias", e)}),
			want:    map[string][]string{"SelectionBias": {at + "mlp.expert_bias"}}},
		{name: "lfm2_moe", config: moe + `"num_experts": 2, "num_dense_layers": 2, "use_expert_bias": true, "norm_topk_prob": true, "routed_scaling_factor": 1.0`,
			tensors: append(experts(at+"feed_forward", "w1", "w3", "w2"), bf16(at+"feed_forward.gate.weight", e, d), f32(at+"feed_forward.expert_bias", e)),
			want:    map[string][]string{"SelectionBias": {at + "feed_forward.expert_bias"}}},
		{name: "bailing_hybrid", config: moe + `"num_experts": 2, "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5`,
			tensors: slices.Concat(proj, shared(at+"mlp.shared_experts.", "gate_proj", "up_proj", "down_proj"), []saved{bf16(at+"mlp.gate.weight", e, d), f32(at+"mlp.gate.expert_bias", e)}),
			want:    map[string][]string{"SelectionBias": {at + "mlp.gate.expert_bias"}}},
		{name: "step3p7", config: moe + `"num_experts": 2, "share_expert_dim": 16, "moe_router_scaling_factor": 1.0, "mlp_layer_types": ["dense", "dense", "dense", "sparse", "sparse", "sparse", "sparse", "sparse"]`,
			tensors: append(shared(at+"share_expert.", "gate_proj", "up_proj", "down_proj"), bf16(at+"moe.gate.weight", e, d), f32(at+"moe.router_bias", e),
				bf16(at+"moe.gate_proj.weight", e, n, d), bf16(at+"moe.up_proj.weight", e, n, d), bf16(at+"moe.down_proj.weight", e, d, n)),
			want: map[string][]string{"SelectionBias": {at + "moe.router_bias"}, "W1": {at + "moe.gate_proj.weight"}, "W3": {at + "moe.up_proj.weight"},
				"W2": {at + "moe.down_proj.weight"}, "SharedW1": {at + "share_expert.gate_proj.weight"}},
			gateUp: spec.Apart},
		{name: "qwen3_vl_moe", config: moe + `"num_experts": 2`,
			tensors: []saved{bf16(at+"mlp.gate.weight", e, d), bf16(at+"mlp.experts.gate_up_proj", e, d, 2*n), bf16(at+"mlp.experts.down_proj", e, n, d), bf16("model.visual.blocks.3.mlp.linear_fc1.weight", 4, 4)},
			want:    map[string][]string{"W1": {at + "mlp.experts.gate_up_proj"}, "W2": {at + "mlp.experts.down_proj"}},
			order:   true}, // with d = 2n only W2 shows the order of the files' matrices
		{name: "qwen3_moe", config: moe + `"num_experts": 2, "norm_topk_prob": true`,
			tensors: []saved{bf16(at+"mlp.gate.weight", e, d), bf16(at+"mlp.experts.gate_up_proj", e, 2*n, d), bf16(at+"mlp.experts.down_proj", e, d, n)},
			want:    map[string][]string{"W1": {at + "mlp.experts.gate_up_proj"}, "W2": {at + "mlp.experts.down_proj"}}},
		{name: "aria", config: `"intermediate_size": 16, "moe_num_experts": 2, "moe_num_shared_experts": 1`,
			tensors: append(shared(at+"mlp.shared_experts.", "gate_proj", "up_proj", "down_proj"), bf16(at+"mlp.router.weight", e, d),
				bf16(at+"mlp.experts.fc1.weight", e, d, 2*n), bf16(at+"mlp.experts.fc2.weight", e, n, d)),
			want:  map[string][]string{"W1": {at + "mlp.experts.fc1.weight"}, "W2": {at + "mlp.experts.fc2.weight"}},
			order: true},
		{name: "axk1", config: moe + `"n_routed_experts": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5`,
			tensors: slices.Concat(proj, shared(at+"mlp.shared_experts.", "gate_proj", "up_proj", "down_proj"), []saved{bf16(at+"mlp.gate.weight", e, d), bf16(at+"mlp.post_mlp_layernorm.weight", d)}),
			want:    map[string][]string{"SelectionBias": nil}},
		{name: "mistral_large4", config: moe + `"n_routed_experts": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0`,
			tensors: slices.Concat(experts("layers.3", "w1", "w3", "w2"), shared("layers.3.shared_experts.", "w1", "w3", "w2"),
				[]saved{bf16("layers.3.gate.weight", e, d), bf16("layers.3.attention.wo.weight", 4, 4), bf16("vision_encoder.transformer.layers.3.feed_forward.w1.weight", 4, 4)}),
			want: map[string][]string{"SharedW3": {"layers.3.shared_experts.w3.weight"}, "W2": {"layers.3.experts.0.w2.weight", "layers.3.experts.1.w2.weight"}}},
		{name: "gemma4_text", config: moe + `"num_experts": 2, "enable_moe_block": true, "hidden_activation": "gelu_pytorch_tanh"`,
			tensors: append(shared(at+"mlp.", "gate_proj", "up_proj", "down_proj"), bf16(at+"router.proj.weight", e, d), bf16(at+"router.scale", d), f32(at+"router.per_expert_scale", e),
				bf16(at+"experts.gate_up_proj", e, 2*n, d), bf16(at+"experts.down_proj", e, d, n)),
			want: map[string][]string{"ExpertScale": {at + "router.per_expert_scale"}, "Router": {at + "router.proj.weight"}}},
		{name: "deepseek_ocr2", config: moe + `"n_routed_experts": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.0`,
			tensors: slices.Concat(proj, shared(at+"mlp.shared_experts.", "gate_proj", "up_proj", "down_proj"), shared("model.qwen2_model.model.model.layers.3.mlp.", "gate_proj", "up_proj", "down_proj"),
				[]saved{bf16(at+"mlp.gate.weight", e, d), bf16("model.sam_model.blocks.3.mlp.lin1.weight", e, d)}),
			want: map[string][]string{"Router": {at + "mlp.gate.weight"}, "SharedW1": {at + "mlp.shared_experts.gate_proj.weight"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := made(t, fmt.Sprintf(`{"model_type": %q, %s%s}`, tt.name, sizes, tt.config), tt.tensors, tt.want)
			assert.Equal(t, tt.order, l.Config.InOut)
			assert.Equal(t, tt.gateUp, l.Config.GateUp)
		})
	}

	t.Run("granitemoehybrid", func(t *testing.T) { // one matrix has the gate rows above the up rows
		up := bf16(at+"shared_mlp.input_linear.weight", 4*n, d)
		l := made(t, `{"model_type": "granitemoehybrid", `+sizes+`"intermediate_size": 16, "num_local_experts": 2, "shared_intermediate_size": 32}`,
			[]saved{bf16(at+"block_sparse_moe.router.layer.weight", e, d), bf16(at+"block_sparse_moe.input_linear.weight", e, 2*n, d), bf16(at+"block_sparse_moe.output_linear.weight", e, d, n),
				up, bf16(at+"shared_mlp.output_linear.weight", d, 2*n)}, map[string][]string{"SharedW2": {at + "shared_mlp.output_linear.weight"}})
		half := len(up.bytes()) / 2
		for name, want := range map[string][]byte{"SharedW1": up.bytes()[:half], "SharedW3": up.bytes()[half:]} {
			got, err := l.Tensor(t.Context(), idOf(name))
			require.NoError(t, err)
			assert.Equal(t, want, got, name)
		}
	})
}
