package checkpoint

import "sonicmoe/moe/spec"

// This file has families whose routers are softmaxes, beside those of families.go.

// listedSparse are the layers that mlp_layer_types, which must be there, calls sparse.
func (f *fields) listedSparse() func(int) bool {
	if _, raw := f.find("mlp_layer_types"); raw == nil {
		f.fail("config.json has no mlp_layer_types")
	}
	return f.words("sparse", "mlp_layer_types")
}

// granite is Mixtral's layer, and a shared expert.
func granite(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.shared(c, f.count(0, "shared_intermediate_size"))
	return nil
}

func jamba(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	c.Score = spec.SoftmaxAll
	period, offset := f.size1("expert_layer_period"), f.count(1, "expert_layer_offset")
	return func(i int) bool { return i%max(period, 1) == offset }
}

func aria(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.fixed("hidden_act", "silu")
	f.fixed("mlp_bias", false)
	c.WeightOrder = spec.InOut
	f.shared(c, c.Intermediate*f.count(2, "moe_num_shared_experts"))
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
		f.shared(c, n*c.Intermediate)
		f.fixed("shared_expert_combination_strategy", "sum")
	} else {
		f.find("shared_expert_combination_strategy")
	}
	return f.after(0)
}

// mistral4 is DeepSeek's router with softmaxes in place of sigmoids.
func mistral4(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.groups(c, 1, 1)
	if c.Groups > 0 {
		c.GroupScore = spec.GroupSumOfTwo
	}
	c.Score = spec.SoftmaxAll
	large := f.kind() == "mistral_large4"
	if large {
		c.Logits = spec.LogitsF32
		f.fixed("norm_topk_prob", true) // it has no such switch
	}
	if large || f.truth(true, "norm_topk_prob") {
		c.Renormalize, c.NormEpsilon = spec.RenormSum, 1e-20
	}
	c.ScoreScale = f.number(1, "routed_scaling_factor")
	f.shared(c, c.Intermediate*f.count(1, "n_shared_experts"))
	if large {
		return f.after(1)
	}
	return f.after(0)
}

// privacyFilter is gpt-oss's layer with the router in f32 and gate above up.
func privacyFilter(f *fields, c *spec.Config) func(int) bool {
	gptOSS(f, c)
	c.GateUp, c.Logits = spec.Concatenated, spec.LogitsF32
	return nil
}

// diffusionGemma has Gemma-4's experts in every layer.
func diffusionGemma(f *fields, c *spec.Config) func(int) bool {
	f.object["enable_moe_block"] = []byte("true")
	return gemma4(f, c)
}
