package checkpoint

import "sonicmoe/internal/spec"

// This file reads families whose routers use softmax, except for the families in families.go.

// granite reads Mixtral's layer with a shared expert.
func granite(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	missing := 0
	if f.kind() == "granitemoehybrid" {
		missing = 1024
	}
	f.shared(c, 1, f.count(missing, "shared_intermediate_size"))
	return nil
}

func jamba(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	c.Score = spec.SoftmaxAll
	period, offset := f.positive(2, "expert_layer_period"), f.count(1, "expert_layer_offset")
	one := c.NumExperts == 1 // transformers makes a layer with one expert dense
	return func(i int) bool { return !one && i%max(period, 1) == offset }
}

func aria(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.fixed("hidden_act", "silu")
	f.fixed("mlp_bias", false)
	c.InOut = true
	f.shared(c, f.count(2, "moe_num_shared_experts"), c.Intermediate)
	return nil
}

func cohere2(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	norm := f.truth(true, "norm_topk_prob")
	switch kind := f.text("softmax", "expert_selection_fn"); kind {
	case "softmax":
	case "sigmoid":
		c.Score = spec.Sigmoid
		if norm {
			c.Renormalize = spec.RenormSum
		}
	default:
		f.fail("expert_selection_fn is %q, must be \"softmax\" or \"sigmoid\"", kind)
	}
	if n := f.count(0, "num_shared_experts"); n > 0 {
		f.shared(c, n, c.Intermediate)
		if strategy := f.text("average", "shared_expert_combination_strategy"); strategy != "sum" {
			f.fail("shared_expert_combination_strategy is %s, must be \"sum\": no layer here halves what it adds up (where the field is missing, transformers averages)", strategy)
		}
	} else {
		f.find("shared_expert_combination_strategy")
	}
	return f.after(0, byWord|byFirst)
}

// mistral4 reads DeepSeek-V3's router with a softmax in place of the sigmoid.
func mistral4(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.groups(c, 1, 1)
	if c.Groups > 0 {
		c.GroupSumOfTwo = true
	}
	c.Score = spec.SoftmaxAll
	large := f.kind() == "mistral_large4"
	if large {
		c.Logits, c.RouterF32 = spec.F32, true
		f.fixed("norm_topk_prob", true) // the family has no field that turns normalisation off
	}
	if large || f.truth(true, "norm_topk_prob") {
		c.Renormalize, c.NormEpsilon = spec.RenormSum, 1e-20
	}
	f.scale(c, 1, "routed_scaling_factor")
	f.shared(c, f.count(1, "n_shared_experts"), c.Intermediate)
	if large {
		return f.after(1, byWord|byFirst)
	}
	return f.after(0, byFirst)
}

// privacyFilter reads gpt-oss's layer, but with an FP32 router, and with gate before up.
func privacyFilter(f *fields, c *spec.Config) func(int) bool {
	gptOSS(f, c)
	c.GateUp, c.Logits = spec.Concatenated, spec.F32
	return nil
}

// diffusionGemma reads Gemma-4's experts. In this model every layer has them.
func diffusionGemma(f *fields, c *spec.Config) func(int) bool {
	f.object["enable_moe_block"] = []byte("true")
	return gemma4(f, c)
}
