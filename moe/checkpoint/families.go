package checkpoint

import (
	"slices"
	"strings"

	"sonicmoe/internal/spec"
)

// family reads the fields of a layer into c. It returns a function that reports whether the layer
// with a number has experts. nil means that all layers have experts.
type family func(f *fields, c *spec.Config) (sparse func(layer int) bool)

// families lists the known model types, as transformers 5 computes them.
var families = map[string]family{
	"afmoe":                 afmoe,
	"aria":                  aria,
	"axk1":                  deepseekV3,
	"axk2":                  deepseekV3,
	"bailing_hybrid":        deepseekV3,
	"beam":                  deepseekV3,
	"cohere2_moe":           cohere2,
	"deepseek_ocr2":         deepseekV2,
	"diffusion_gemma":       diffusionGemma,
	"dots1":                 deepseekV3,
	"dots3_note":            deepseekV3,
	"exaone_moe":            deepseekV3,
	"flex_olmo":             olmoe,
	"flint":                 flint,
	"glm4_moe_lite":         deepseekV3,
	"glm4v_moe":             deepseekV3,
	"glm5_next":             deepseekV3,
	"glm_moe_dsa":           deepseekV3,
	"granitemoe_swa":        granite,
	"granitemoehybrid":      granite,
	"granitemoeshared":      granite,
	"hy_v3":                 hyV3,
	"jamba":                 jamba,
	"laguna":                laguna,
	"lfm2_moe":              lfm2,
	"mellum":                qwen,
	"mimo_v2_flash":         deepseekV3,
	"minimax_m3_vl":         minimaxM3,
	"mistral4":              mistral4,
	"mistral_large4":        mistral4,
	"openai_privacy_filter": privacyFilter,
	"qwen3_omni_moe":        qwen,
	"qwen3_omni_moe_talker": qwen,
	"qwen4_exp":             qwen,
	"solar_open":            deepseekV3,
	"step3p5":               step3,
	"unlimited_ocr":         deepseekV2,
	"mixtral":               mixtral,
	"minimax":               mixtral, // Text-01 and M1
	"granitemoe":            mixtral,
	"qwen2_moe":             qwen,
	"qwen3_moe":             qwen,
	"qwen3_next":            qwen,
	"qwen3_5_moe":           qwen,
	"olmoe":                 olmoe,
	"deepseek_v2":           deepseekV2,
	"deepseek_v3":           deepseekV3,
	"glm4_moe":              deepseekV3,
	"kimi_linear":           kimiLinear,
	"nemotron_h":            nemotron,
	"gpt_oss":               gptOSS,
	"minimax_m2":            minimaxM2,
	"llama4_text":           llama4,
	"phimoe":                phi,
	"gemma4_text":           gemma4,
	"ernie4_5_moe":          ernie,
	"hunyuan_v1_moe":        hunyuan,
	"dbrx":                  dbrx,
}

// aliases maps a model type to the type that has the same layer.
var aliases = map[string]string{
	"qwen3_5_moe_text": "qwen3_5_moe", "qwen3_vl_moe": "qwen3_moe", "qwen3_vl_moe_text": "qwen3_moe",
	"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3", "deepseek_v32": "deepseek_v3",
	"llama4": "llama4_text", "gemma4": "gemma4_text", "qwen3_omni_moe_thinker": "qwen3_omni_moe", "step3p7": "step3p5", "minimax_text_01": "minimax", "minimax_m1": "minimax",
}

func mixtral(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.jitter("router_jitter_noise")
	f.fixed("shared_intermediate_size", 0.)
	return nil
}

func qwen(f *fields, c *spec.Config) func(int) bool {
	kind := f.kind()
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	vision := strings.HasPrefix(kind, "qwen3_vl")
	if vision || strings.HasPrefix(kind, "qwen3_5") {
		f.fixed("norm_topk_prob", true) // these families have no field that turns normalisation off
		normed(c, true)
	} else {
		normed(c, f.truth(slices.Contains([]string{"qwen3_next", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen4_exp", "mellum"}, kind), "norm_topk_prob"))
	}
	if vision || slices.Contains([]string{"qwen3_moe", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "mellum"}, kind) {
		f.fixed("shared_expert_intermediate_size", 0.)
	} else {
		f.shared(c, 1, f.size("shared_expert_intermediate_size"))
		c.SharedGate = true
	}
	switch kind {
	case "mellum":
		return f.after(0, byWord)
	case "qwen3_5_moe", "qwen4_exp", "qwen3_omni_moe_talker":
		return nil
	}
	return f.stepped()
}

func olmoe(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	normed(c, f.truth(false, "norm_topk_prob"))
	return nil
}

func deepseekV2(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.fixed("mlp_bias", false)
	c.Logits, c.Score = spec.F32, spec.SoftmaxAll
	f.scale(c, 1, "routed_scaling_factor")
	f.fixed("scoring_func", "softmax")
	f.fixed("norm_topk_prob", false)
	switch method := f.text("greedy", "topk_method"); method {
	case "greedy":
	case "group_limited_greedy":
		f.groups(c, 1, 1)
	default:
		f.fail("topk_method is %q, must be \"greedy\" or \"group_limited_greedy\"", method)
	}
	f.find("n_group", "topk_group") // in a model without groups these fields are null or 1
	f.shared(c, f.count(2, "n_shared_experts"), c.Intermediate)
	switch f.kind() {
	case "deepseek_ocr2":
		if !f.has("mlp_layer_types") && !f.has("first_k_dense_replace") {
			f.fail("config.json has no mlp_layer_types or first_k_dense_replace")
		}
		return f.after(0, byWord|byFirst)
	case "unlimited_ocr":
		return f.after(1, byWord|byFirst)
	}
	return f.after(0, byFirst)
}

func kimiLinear(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.noaux(c, 1, 1, 2.446, true)
	f.find("use_grouped_topk") // the switch has no effect, because there is one group
	f.shared(c, f.count(1, "num_shared_experts", "n_shared_experts"), c.Intermediate)
	return f.after(1, byWord|byFirst)
}

func nemotron(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.activation(c, "relu2", map[string]spec.Activation{"relu2": spec.ReLU2, "relu": spec.ReLU, "silu": spec.SiLU, "gelu": spec.GELUErf, "gelu_pytorch_tanh": spec.GELUTanh}, "mlp_hidden_act")
	f.fixed("mlp_bias", false)
	f.noaux(c, 1, 1, 1, true)
	if _, raw := f.find("moe_latent_size"); raw != nil {
		f.fail("moe_latent_size is %s: its experts have another width than its tokens, between two projections that no layer here has", raw)
	}
	f.find("n_shared_experts") // accepted and not used: the model has one shared expert, and the next field has its width
	f.shared(c, 1, f.size("moe_shared_expert_intermediate_size"))
	return f.pattern()
}

func gptOSS(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.fixed("hidden_act", "silu")
	c.Activation, c.Alpha, c.Limit = spec.SwiGLUOAI, f.number(1.702, "swiglu_alpha"), f.number(7, "swiglu_limit")
	c.InOut, c.GateUp, c.Bias, c.RouterBias = true, spec.Interleaved, true, true
	f.one("num_experts_per_tok", "experts_per_token") // both names have the value that sizes has read
	return nil
}

func llama4(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.jitter("router_jitter_noise")
	c.Score, c.ScoreOnInput, c.InOut, c.SharedExperts = spec.Sigmoid, true, true, 1
	f.find("intermediate_size_mlp") // width of the layers without experts, which the expert layer does not need
	if _, raw := f.find("moe_layers"); raw != nil {
		f.find("interleave_moe_layer_step") // transformers ignores this field if moe_layers is present
		return among(value[[]int](f, nil, "a list of layers", "moe_layers"))
	}
	step := f.count(1, "interleave_moe_layer_step")
	return func(i int) bool { return step > 0 && (i+1)%step == 0 }
}

func phi(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.jitter("input_jitter_noise")
	f.find("router_jitter_noise") // a threshold of SparseMixer, see Outside
	f.outside = append(f.outside, "the router is SparseMixer, a softmax over the logits near the largest, for each choice anew: route yourself, and give the experts ids and scores")
	return nil
}

func gemma4(f *fields, c *spec.Config) func(int) bool {
	if !f.truth(false, "enable_moe_block") {
		f.fail("enable_moe_block is false: the model has no experts")
		return nil
	}
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "gelu_pytorch_tanh", "hidden_activation")
	c.ExpertScale = true
	f.outside = append(f.outside, "the router's input is another than the experts': RMS-normed, times a vector and d^-1/2; route that, and give the experts ids and scores",
		"a dense layer stands beside the experts, with norms of its own around both")
	return nil
}

func ernie(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	c.Logits, c.RouterF32, c.Score, c.SelectionBias = spec.F32, true, spec.SoftmaxAll, true
	c.Renormalize, c.NormEpsilon = spec.RenormClamp, f.number(1e-12, "moe_norm_min")
	if _, raw := f.find("moe_use_aux_free"); raw != nil {
		c.SelectionBias = f.truth(true, "moe_use_aux_free")
	}
	f.fixed("moe_gate", "topk")
	f.fixed("use_bias", false) // with use_bias the shared experts would have biases too
	f.find("moe_capacity")     // a limit that applies in training only
	f.shared(c, f.count(2, "moe_num_shared_experts"), c.Intermediate)
	first, interval := f.count(1, "moe_layer_start_index"), f.positive(1, "moe_layer_interval")
	last := -1
	if _, raw := f.find("moe_layer_end_index"); raw != nil && string(raw) != "-1" {
		last = f.count(-1, "moe_layer_end_index")
	}
	return func(i int) bool { return i >= first && (last < 0 || i <= last) && (i+1)%max(interval, 1) == 0 }
}

func hunyuan(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	c.Logits, c.RouterF32, c.SharedExperts = spec.F32, true, 1
	if _, raw := f.find("moe_intermediate_size"); raw != nil {
		if n := f.size("moe_intermediate_size"); n != c.Intermediate {
			f.fail("moe_intermediate_size is %d, must be intermediate_size, %d, which transformers takes", n, c.Intermediate)
		}
	}
	f.fixed("num_shared_expert", 1.)
	f.fixed("norm_topk_prob", true)
	f.fixed("use_mixed_mlp_moe", true)
	f.fixed("group_limited_greedy", false)
	f.fixed("routed_scaling_factor", 1.)
	f.find("n_group", "topk_group") // only group_limited_greedy reads these fields
	return nil
}

func dbrx(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "ffn_hidden_size")
	if _, raw := f.find("ffn_act_fn"); raw != nil {
		act := value[map[string]any](f, nil, "an object with a name", "ffn_act_fn")
		if act["name"] != "silu" {
			f.fail("ffn_act_fn is %v, must have the name \"silu\"", act)
		}
	}
	c.GateUp = spec.Apart
	f.jitter("moe_jitter_eps")
	f.notNull("1", "moe_normalize_expert_weights") // null would turn normalisation off
	f.fixed("moe_normalize_expert_weights", 1.)
	return nil
}
