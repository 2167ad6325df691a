package checkpoint

import (
	"strings"

	"sonicmoe/internal/spec"
)

// This file reads families whose routers score with sigmoids.

// kind returns the model_type. For a text model it is the type of the model that contains
// the text model.
func (f *fields) kind() string { return strings.TrimSuffix(f.text("", "model_type"), "_text") }

// v3 has the defaults for missing fields of a family that descends from DeepSeek-V3.
type v3 struct {
	groups, kept  int
	scale         float64
	norm          bool
	shared, dense int // shared: number of shared experts, or -1 if the family has none; dense: number of dense layers before the first layer with experts
	by            choice
}

var v3s = map[string]v3{
	"axk1":           {8, 4, 2.5, true, 1, 1, byWord | byFirst | byFreq},
	"axk2":           {1, 1, 2.5, true, 1, 1, byWord | byFirst | byFreq},
	"bailing_hybrid": {8, 4, 2.5, true, 1, 2, byWord | byFirst},
	"beam":           {8, 4, 2.5, true, -1, 3, byWord},
	"deepseek_v32":   {8, 4, 2.5, true, 1, 3, byWord | byFirst},
	"dots1":          {1, 1, 1, false, 0, 0, byFirst},
	"dots3_note":     {1, 1, 1, true, 1, 1, byWord | byFirst | byFreq},
	"exaone_moe":     {1, 1, 2.5, true, 1, 1, byWord | byFirst},
	"glm4_moe":       {1, 1, 1, true, 1, 1, byFirst},
	"glm4_moe_lite":  {1, 1, 1.8, true, 1, 1, byWord},
	"glm4v_moe":      {1, 1, 1, true, 1, 1, byFirst},
	"glm5_next":      {1, 1, 2.5, true, 1, 3, byWord},
	"glm_moe_dsa":    {1, 1, 2.5, true, 1, 3, byWord | byFirst},
	"mimo_v2_flash":  {1, 1, 1, true, -1, 1, byWord},
	"solar_open":     {1, 1, 1, true, 1, 0, 0},
}

func deepseekV3(f *fields, c *spec.Config) func(int) bool {
	kind := f.kind()
	of, ok := v3s[kind]
	if !ok {
		of = v3{8, 4, 2.5, true, 1, 3, byFirst} // the defaults of DeepSeek-V3 and Kimi-K2
	}
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.fixed("mlp_bias", false)
	f.noaux(c, of.groups, of.kept, of.scale, of.norm)
	switch kind {
	case "axk1":
		f.outside = append(f.outside, "an RMS norm over the sum of experts and shared expert: apply it to O")
	case "axk2":
		f.fixed("n_group", 1.) // the model sets the scores of other groups to 0, not to -∞, which differs if a bias is negative
	case "glm5_next":
		f.fixed("hidden_act", "silu")
		if c.Limit = f.number(10, "swiglu_limit"); c.Limit == 0 {
			f.fail("swiglu_limit is 0, must be above 0: gate and up would be clamped to 0")
		}
	case "beam":
		c.RouterF32 = true
	}
	if of.shared < 0 {
		f.fixed("n_shared_experts", 0.)
	} else {
		width := c.Intermediate
		if kind == "dots3_note" {
			width = f.count(1536, "shared_experts_intermediate_size", "moe_shared_expert_intermediate_size")
		}
		f.shared(c, f.count(of.shared, "n_shared_experts", "num_shared_experts"), width)
	}
	if kind == "dots3_note" {
		f.cut("moe_layer_freq")
	}
	return f.after(of.dense, of.by)
}

// biased sets the scores of a router that selects by sigmoid plus bias. The scores are the chosen
// sigmoids divided by their sum.
func biased(c *spec.Config, logits spec.Type, epsilon float64) {
	c.Logits, c.Score, c.SelectionBias = logits, spec.Sigmoid, true
	c.Renormalize, c.NormEpsilon = spec.RenormSum, epsilon
}

func afmoe(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	biased(c, spec.BF16, 1e-20)
	f.scale(c, 1, "route_scale")
	f.fixed("route_norm", true)
	f.fixed("score_func", "sigmoid")
	for _, groups := range []string{"n_group", "topk_group", "num_expert_groups", "num_limited_groups"} {
		f.fixed(groups, 1.)
	}
	f.shared(c, f.count(2, "num_shared_experts"), c.Intermediate)
	first := f.count(1, "num_dense_layers")
	return func(i int) bool { return i >= first }
}

func lfm2(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.fixed("hidden_act", "silu")
	biased(c, spec.BF16, 1e-6)
	c.SelectionBias = f.truth(true, "use_expert_bias")
	if !f.truth(true, "norm_topk_prob") {
		c.Renormalize, c.NormEpsilon = spec.NoRenorm, 0
	}
	f.scale(c, 1, "routed_scaling_factor")
	first := f.count(2, "num_dense_layers")
	return func(i int) bool { return i >= first }
}

func hyV3(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.fixed("mlp_bias", false)
	biased(c, spec.F32, 1e-20)
	f.scale(c, 2.826, "router_scaling_factor")
	f.find("enable_moe_fp32_combine") // the layer always adds the shared expert in FP32
	f.shared(c, f.count(1, "num_shared_experts"), c.Intermediate)
	return f.after(1, byWord)
}

func laguna(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	biased(c, spec.BF16, 0)
	f.scale(c, 1, "moe_routed_scaling_factor")
	f.fixed("moe_router_logit_softcapping", 0.)
	f.fixed("moe_apply_router_weight_on_input", false)
	f.shared(c, 1, f.size("shared_expert_intermediate_size"))
	return f.after(1, byWord)
}

func minimaxM2(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.jitter("router_jitter_noise")
	c.Logits, c.RouterF32, c.Score, c.Renormalize = spec.F32, true, spec.Sigmoid, spec.RenormSum
	// The published router is FP32, and the model's own code computes in FP32.
	f.assumed = append(f.assumed, "the router's weight is f32, as published: transformers rounds it to the model's dtype where it loads one")
	c.SelectionBias = true
	if _, raw := f.find("use_routing_bias"); raw != nil {
		c.SelectionBias = f.truth(true, "use_routing_bias")
	}
	f.fixed("scoring_func", "sigmoid")
	f.fixed("shared_intermediate_size", 0.)
	return nil
}

func minimaxM3(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.jitter("router_jitter_noise")
	biased(c, spec.BF16, 0)
	c.Activation, c.Alpha, c.Limit = spec.SwiGLUOAI, f.number(1.702, "swiglu_alpha"), f.number(7, "swiglu_limit")
	f.find("hidden_act", "dense_intermediate_size") // the activation is always that of swiglu_alpha; the width is for layers without experts
	f.scale(c, 2, "routed_scaling_factor")
	f.shared(c, 1, f.size("shared_intermediate_size"))
	if f.find("moe_layer_freq"); f.has("moe_layer_freq") && !f.has("mlp_layer_types") {
		return f.flagged("moe_layer_freq")
	}
	return f.after(0, byWord)
}

func step3(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.fixed("mlp_bias", false)
	biased(c, spec.BF16, 0)
	f.scale(c, 1, "moe_router_scaling_factor")
	f.fixed("moe_router_activation", "sigmoid")
	f.fixed("norm_expert_weight", true)
	f.fixed("use_moe_router_bias", true)
	if f.has("need_fp32_gate") && f.truth(false, "need_fp32_gate") {
		f.assumed = append(f.assumed, "need_fp32_gate is true: the router's logits are bf16 all the same, as transformers has them")
	}
	f.cut("swiglu_limits", "swiglu_limits_shared", "mlp_layer_types")
	f.fixed("swiglu_limits", 0.) // the model clamps after the activation, which the kernels do not
	f.fixed("swiglu_limits_shared", 0.)
	f.shared(c, 1, f.size("share_expert_dim", "share_expert_dims"))
	if f.find("moe_layers_enum"); f.has("moe_layers_enum") && !f.has("mlp_layer_types") {
		return f.enumerated("moe_layers_enum")
	}
	return f.after(3, byWord)
}

func flint(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	c.Logits, c.RouterF32, c.Score = spec.F32, true, spec.Sigmoid
	if f.truth(true, "norm_topk_prob") {
		c.Renormalize = spec.RenormSum
	}
	f.shared(c, 1, f.size("shared_expert_intermediate_size"))
	return f.stepped(0, 1)
}
