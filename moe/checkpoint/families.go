package checkpoint

import (
	"slices"
	"strings"

	"sonicmoe/moe/spec"
)

// family reads a layer, and gives which of the model's layers are such: nil for all.
type family func(f *fields, c *spec.Config) (sparse func(layer int) bool)

// families are the known model types, as transformers 5 computes them.
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

// aliases are model types that have another's layer.
var aliases = map[string]string{
	"qwen3_5_moe_text": "qwen3_5_moe", "qwen3_vl_moe": "qwen3_moe", "qwen3_vl_moe_text": "qwen3_moe",
	"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3", "deepseek_v32": "deepseek_v3",
	"llama4": "llama4_text", "gemma4": "gemma4_text", "qwen3_omni_moe_thinker": "qwen3_omni_moe", "step3p7": "step3p5", "minimax_text_01": "minimax", "minimax_m1": "minimax",
}

// sizes reads d, n, E and K. Names are those of transformers and of checkpoints.
func (f *fields) sizes(c *spec.Config, intermediate ...string) {
	c.Hidden = f.size("hidden_size", "d_model")
	c.Intermediate = f.size(intermediate...)
	c.NumExperts = f.size("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
	c.TopK = f.size("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
}

// gated reads the activation of experts with a gate.
func (f *fields) gated(c *spec.Config, missing string, names ...string) {
	f.activation(c, missing, map[string]spec.Activation{
		"silu": spec.SwiGLU, "swish": spec.SwiGLU, "gelu": spec.GeGLUErf, "relu": spec.ReGLU,
		"gelu_pytorch_tanh": spec.GeGLUTanh, "gelu_new": spec.GeGLUTanh,
	}, names...)
}

func (f *fields) activation(c *spec.Config, missing string, kinds map[string]spec.Activation, names ...string) {
	text := f.text(missing, names...)
	kind, ok := kinds[text]
	if !ok {
		f.fail("%s is %q, which no activation here is", names[0], text)
	}
	c.Activation = kind
}

// jitter says that noise which a model adds in training is not added.
func (f *fields) jitter(names ...string) {
	for _, name := range names {
		if _, raw := f.find(name); raw != nil && f.number(0, name) > 0 {
			f.assumed = append(f.assumed, name+": the noise that training adds is not in the layer")
		}
	}
}

// normed is a softmax over all logits, divided by the sum of the chosen or not.
func normed(c *spec.Config, norm bool) {
	c.Score = spec.SoftmaxAll
	if norm {
		c.Score = spec.SoftmaxTopK // the same function
	}
}

// shared reads the width of shared experts, which is a multiple of an expert's.
func (f *fields) shared(c *spec.Config, width int) {
	if f.err != nil || width == 0 {
		return
	}
	if width%c.Intermediate != 0 {
		f.fail("the shared experts are %d wide, must be a multiple of an expert's %d", width, c.Intermediate)
		return
	}
	c.SharedExperts = width / c.Intermediate
}

// after are the layers from the first on that is not dense, every so many.
func (f *fields) after(missing int) func(int) bool {
	if _, raw := f.find("mlp_layer_types"); raw != nil {
		f.find("first_k_dense_replace", "moe_layer_freq") // the same once more
		return f.words("sparse", "mlp_layer_types")
	}
	first := f.count(missing, "first_k_dense_replace")
	every := 1
	if _, raw := f.find("moe_layer_freq"); raw != nil {
		every = f.size("moe_layer_freq")
	}
	return func(i int) bool { return i >= first && i%max(every, 1) == 0 }
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
		f.fixed("norm_topk_prob", true) // they have no such switch
		normed(c, true)
	} else {
		normed(c, f.truth(slices.Contains([]string{"qwen3_next", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen4_exp", "mellum"}, kind), "norm_topk_prob"))
	}
	if vision || slices.Contains([]string{"qwen3_moe", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "mellum"}, kind) {
		f.fixed("shared_expert_intermediate_size", 0.)
	} else {
		f.shared(c, f.size("shared_expert_intermediate_size"))
		c.SharedGate = true
	}
	if _, raw := f.find("mlp_layer_types"); raw != nil {
		return f.words("sparse", "mlp_layer_types")
	}
	return f.stepped()
}

// stepped are every so many layers but those that are listed, or dense where no
// list is there.
func (f *fields) stepped(dense ...int) func(int) bool {
	step := 1
	if _, raw := f.find("decoder_sparse_step"); raw != nil {
		step = f.size("decoder_sparse_step")
	}
	if _, raw := f.find("mlp_only_layers"); raw != nil {
		dense = value[[]int](f, nil, "a list of layers", "mlp_only_layers")
	}
	return func(i int) bool { return !slices.Contains(dense, i) && (i+1)%max(step, 1) == 0 }
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
	c.Logits, c.Score = spec.LogitsF32, spec.SoftmaxAll
	c.ScoreScale = f.number(1, "routed_scaling_factor")
	f.fixed("scoring_func", "softmax")
	f.fixed("norm_topk_prob", false)
	switch method := f.text("greedy", "topk_method"); method {
	case "greedy":
	case "group_limited_greedy":
		f.groups(c, 1, 1)
	default:
		f.fail("topk_method is %q, must be \"greedy\" or \"group_limited_greedy\"", method)
	}
	f.find("n_group", "topk_group") // null or 1 without groups
	f.shared(c, c.Intermediate*f.count(2, "n_shared_experts"))
	if f.kind() != "deepseek_v2" && f.object["first_k_dense_replace"] == nil {
		return f.listedSparse()
	}
	return f.after(0)
}

// groups reads in how many groups experts stand; one is none.
func (f *fields) groups(c *spec.Config, groups, kept int) {
	c.Groups, c.TopGroups = f.count(groups, "n_group", "num_expert_group"), f.count(kept, "topk_group")
	if c.Groups <= 1 {
		c.Groups, c.TopGroups = 0, 0
	}
}

// noaux is the routing of DeepSeek-V3: sigmoids, chosen with a bias and in groups.
func (f *fields) noaux(c *spec.Config, groups, kept int, scale float64, norm bool) {
	c.Logits, c.Score, c.SelectionBias = spec.LogitsF32, spec.Sigmoid, true
	f.fixed("scoring_func", "sigmoid")
	f.fixed("moe_router_activation_func", "sigmoid")
	f.fixed("topk_method", "noaux_tc")
	f.groups(c, groups, kept)
	if c.Groups > 0 {
		c.GroupScore = spec.GroupSumOfTwo
	}
	if f.truth(norm, "norm_topk_prob", "moe_renormalize") {
		c.Renormalize, c.NormEpsilon = spec.RenormSum, 1e-20
	}
	c.ScoreScale = f.number(scale, "routed_scaling_factor")
}

func kimiLinear(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.noaux(c, 1, 1, 2.446, true)
	f.find("use_grouped_topk") // one group is none
	f.shared(c, c.Intermediate*f.count(1, "num_shared_experts", "n_shared_experts"))
	return f.after(1)
}

func nemotron(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "moe_intermediate_size")
	f.activation(c, "relu2", map[string]spec.Activation{"relu2": spec.ReLU2, "relu": spec.ReLU, "silu": spec.SiLU, "gelu": spec.GELUErf, "gelu_pytorch_tanh": spec.GELUTanh}, "mlp_hidden_act")
	f.fixed("mlp_bias", false)
	f.noaux(c, 1, 1, 1, true)
	if _, raw := f.find("moe_latent_size"); raw != nil {
		f.fail("moe_latent_size is %s: its experts work in a space of their own, between two projections that no layer here has", raw)
	}
	f.find("n_shared_experts") // one, of the width that follows
	f.shared(c, f.size("moe_shared_expert_intermediate_size"))
	return f.pattern()
}

// pattern are the layers of a hybrid model that have experts: a letter a layer,
// or a word.
func (f *fields) pattern() func(int) bool {
	if _, raw := f.find("hybrid_override_pattern"); raw != nil {
		text := f.text("", "hybrid_override_pattern")
		return func(i int) bool { return i < len(text) && text[i] == 'E' }
	}
	return f.words("moe", "layers_block_type", "layer_types")
}

// words are the layers that a list has a word for.
func (f *fields) words(sparse string, names ...string) func(int) bool {
	list := value[[]string](f, nil, "a list of words", names...)
	f.listed = len(list)
	return func(i int) bool { return i < len(list) && list[i] == sparse }
}

func gptOSS(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.fixed("hidden_act", "silu")
	c.Activation, c.Alpha, c.Limit = spec.SwiGLUOAI, f.number(1.702, "swiglu_alpha"), f.number(7, "swiglu_limit")
	c.WeightOrder, c.GateUp, c.Bias, c.RouterBias = spec.InOut, spec.Interleaved, true, true
	f.find("experts_per_token") // num_experts_per_tok again
	return nil
}

func llama4(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.jitter("router_jitter_noise")
	c.Score, c.ScoreOnInput, c.WeightOrder, c.SharedExperts = spec.Sigmoid, true, spec.InOut, 1
	f.find("intermediate_size_mlp") // of the layers without experts
	if _, raw := f.find("moe_layers"); raw != nil {
		f.find("interleave_moe_layer_step") // not looked at then
		list := map[int]bool{}
		for _, i := range value[[]int](f, nil, "a list of layers", "moe_layers") {
			list[i] = true
		}
		return func(i int) bool { return list[i] }
	}
	step := f.count(1, "interleave_moe_layer_step")
	return func(i int) bool { return step > 0 && (i+1)%step == 0 }
}

func phi(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	f.jitter("input_jitter_noise")
	f.find("router_jitter_noise") // SparseMixer's threshold
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
	c.Logits, c.RouterF32, c.Score, c.SelectionBias = spec.LogitsF32, true, spec.SoftmaxAll, true
	c.Renormalize, c.NormEpsilon = spec.RenormClamp, f.number(1e-12, "moe_norm_min")
	if _, raw := f.find("moe_use_aux_free"); raw != nil {
		c.SelectionBias = f.truth(true, "moe_use_aux_free")
	}
	f.fixed("moe_gate", "topk")
	f.find("moe_capacity") // a bound of its training
	f.shared(c, c.Intermediate*f.count(2, "moe_num_shared_experts"))
	first, interval := f.count(1, "moe_layer_start_index"), f.size1("moe_layer_interval")
	last := -1
	if _, raw := f.find("moe_layer_end_index"); raw != nil && string(raw) != "-1" {
		last = f.count(-1, "moe_layer_end_index")
	}
	return func(i int) bool { return i >= first && (last < 0 || i <= last) && (i+1)%max(interval, 1) == 0 }
}

// size1 is a positive number that is 1 where it is missing.
func (f *fields) size1(name string) int {
	if _, raw := f.find(name); raw == nil {
		return assume(f, name, 1)
	}
	return f.size(name)
}

func hunyuan(f *fields, c *spec.Config) func(int) bool {
	f.sizes(c, "intermediate_size")
	f.gated(c, "silu", "hidden_act")
	c.Logits, c.RouterF32, c.SharedExperts = spec.LogitsF32, true, 1
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
	f.find("n_group", "topk_group") // of group_limited_greedy
	if _, raw := f.find("moe_layer_num_skipped"); raw != nil {
		first := f.count(0, "moe_layer_num_skipped")
		return func(i int) bool { return i >= first }
	}
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
	f.notNull("1", "moe_normalize_expert_weights") // which would be no normalisation
	f.fixed("moe_normalize_expert_weights", 1.)
	return nil
}
