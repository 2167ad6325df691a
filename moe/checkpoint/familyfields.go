package checkpoint

import (
	"encoding/json"

	"sonicmoe/internal/spec"
)

// numbersOfExperts are the names that config.json files use for E, the number of experts.
var numbersOfExperts = []string{"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"}

// sizes reads d, n, E and K, under the names that transformers and checkpoints use. intermediate
// has the names for n.
func (f *fields) sizes(c *spec.Config, intermediate ...string) {
	c.Hidden = f.size("hidden_size", "d_model")
	c.Intermediate = f.size(intermediate...)
	c.NumExperts = f.size(numbersOfExperts...)
	c.TopK = f.size("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
}

// one returns the value of a field that may have several names. If several are present,
// their values must be equal.
func (f *fields) one(names ...string) (name string, raw json.RawMessage) {
	name, raw = f.find(names...)
	for _, other := range names {
		if f.has(other) && !equal(single(raw), single(f.object[other])) {
			f.fail("%s is %s and %s is %s, must be the same: they are two names of one field", name, shown(raw), other, shown(f.object[other]))
		}
	}
	return name, raw
}

// single returns the common value of a list, or the value itself if it is no list.
func single(raw json.RawMessage) json.RawMessage {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || len(list) == 0 {
		return raw
	}
	for _, of := range list {
		if !equal(of, list[0]) {
			return raw
		}
	}
	return list[0]
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

// jitter records that the model adds noise in training, which the layer does not.
func (f *fields) jitter(names ...string) {
	for _, name := range names {
		if _, raw := f.find(name); raw != nil && f.number(0, name) > 0 {
			f.assumed = append(f.assumed, name+": the noise that training adds is not in the layer")
		}
	}
}

// normed sets the scores of a router that takes the softmax of all logits. norm reports whether the
// chosen scores are divided by their sum.
func normed(c *spec.Config, norm bool) {
	c.Score = spec.SoftmaxAll
	if norm {
		c.Score = spec.SoftmaxTopK // softmax over the chosen logits is the same function
	}
}

// shared sets n shared experts of the given width. Their total width must be a multiple of
// an expert's width.
func (f *fields) shared(c *spec.Config, n, width int) {
	if f.err != nil || n == 0 || width == 0 {
		return
	}
	if n > spec.MaxWidth/width {
		f.fail("there are %d shared experts of width %d, must be at most %d wide together", n, width, spec.MaxWidth)
		return
	}
	if n*width%c.Intermediate != 0 {
		f.fail("the shared experts are %d wide, must be a multiple of an expert's %d", n*width, c.Intermediate)
		return
	}
	c.SharedExperts = n * width / c.Intermediate
}

// scale reads the factor of the scores. It refuses 0: the model would multiply the scores by 0, but
// in a Config 0 means the factor 1.
func (f *fields) scale(c *spec.Config, missing float64, name string) {
	if c.ScoreScale = f.number(missing, name); c.ScoreScale == 0 {
		f.fail("%s is 0, must be above 0: the experts would add nothing", name)
	}
}

// groups reads the number of groups of experts. One group means no groups.
func (f *fields) groups(c *spec.Config, groups, kept int) {
	c.Groups, c.TopGroups = f.count(groups, "n_group", "num_expert_group"), f.count(kept, "topk_group")
	if c.Groups <= 1 {
		c.Groups, c.TopGroups = 0, 0
	}
}

// noaux reads the routing of DeepSeek-V3: sigmoid scores, selected with a bias and in groups.
func (f *fields) noaux(c *spec.Config, groups, kept int, scale float64, norm bool) {
	c.Logits, c.Score, c.SelectionBias = spec.F32, spec.Sigmoid, true
	f.fixed("scoring_func", "sigmoid")
	f.fixed("moe_router_activation_func", "sigmoid")
	f.fixed("topk_method", "noaux_tc")
	f.groups(c, groups, kept)
	if c.Groups > 0 {
		c.GroupSumOfTwo = true
	}
	if f.truth(norm, "norm_topk_prob", "moe_renormalize") {
		c.Renormalize, c.NormEpsilon = spec.RenormSum, 1e-20
	}
	f.scale(c, scale, "routed_scaling_factor")
}

// positive reads a size that is optional.
func (f *fields) positive(missing int, name string) int {
	if _, raw := f.find(name); raw == nil && !f.null(name) {
		return assume(f, name, missing)
	}
	return f.size(name)
}
