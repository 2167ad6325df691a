package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What a model's config.json (Hugging Face) calls the sizes of its expert
// layer, the most telling name first: where both stand, intermediate_size is
// the width of the dense layers.
var (
	hiddenNames       = []string{"hidden_size", "d_model"}
	intermediateNames = []string{"moe_intermediate_size", "expert_intermediate_size", "ffn_hidden_size", "intermediate_size"}
	expertNames       = []string{"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"}
	topKNames         = []string{"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_top_k", "moe_k", "moe_topk"}
	activationNames   = []string{"hidden_act", "hidden_activation", "mlp_hidden_act"}
	// inner are the objects in which some models keep the text model's sizes.
	inner = []string{"text_config", "language_config", "llm_config", "ffn_config"}
)

const (
	sigmoidRouter = "its router is a sigmoid with a bias: route yourself and call Experts"
	plainRouter   = "its scores are not divided by their sum: route yourself and call Experts"
)

// families are the model types whose layer is known, with what of it these
// kernels do not compute.
var families = map[string][]string{
	"mixtral":     nil,
	"qwen3_moe":   nil,
	"granitemoe":  nil,
	"minimax":     nil,
	"dbrx":        nil,
	"olmoe":       {plainRouter},
	"qwen2_moe":   {plainRouter, "its shared expert is a dense layer of yours"},
	"qwen3_next":  {"its shared expert is a dense layer of yours"},
	"qwen3_5_moe": {"its shared expert is a dense layer of yours"},
	"phimoe":      {"its router (SparseMixer) is not the softmax of the largest logits: route yourself and call Experts"},
	"deepseek_v2": {"its router picks groups first: route yourself and call Experts", "its shared experts are a dense layer of yours"},
	"deepseek_v3": {sigmoidRouter, "its shared expert is a dense layer of yours"},
	"kimi_k2":     {sigmoidRouter, "its shared expert is a dense layer of yours"},
	"kimi_linear": {sigmoidRouter, "its shared expert is a dense layer of yours"},
	"glm4_moe":    {sigmoidRouter, "its shared expert is a dense layer of yours"},
	"minimax_m2":  {sigmoidRouter},
	"gpt_oss":     {"its experts have biases and a clamped SwiGLU, which these kernels do not compute"},
	"llama4_text": {"its router is a sigmoid that scales the expert's input: route yourself and call Experts", "its shared expert is a dense layer of yours"},
}

// aliases are the model types of wholes whose text part is a known one.
var aliases = map[string]string{
	"llama4": "llama4_text", "qwen3_5_moe_text": "qwen3_5_moe", "kimi_k25": "kimi_k2",
	"deepseek_v32": "deepseek_v3", "qwen3_vl_moe": "qwen3_moe", "qwen3_vl_moe_text": "qwen3_moe", "minimax_text_01": "minimax",
}

// readModel finds the expert layer that a model's config.json describes.
func readModel(path string) (layer, error) {
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		path = filepath.Join(path, "config.json")
	}
	data, err := readText(path)
	if err != nil {
		return layer{}, err
	}
	l, err := parseModel(data)
	if err != nil {
		return layer{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

func parseModel(data []byte) (layer, error) {
	var m model
	if err := json.Unmarshal(data, &m); err != nil {
		return layer{}, err
	}
	m, err := m.flat(0)
	if err != nil {
		return layer{}, err
	}
	kind := m.text("model_type")
	if to, ok := aliases[kind]; ok {
		kind = to
	}
	l := layer{name: kind, anyHint: true}
	for _, part := range []struct {
		of    string
		into  *int
		names []string
	}{
		{"the number of experts", &l.config.NumExperts, expertNames},
		{"the hidden size", &l.config.Hidden, hiddenNames},
		{"the width of an expert", &l.config.Intermediate, intermediateNames},
		{"the experts of a token", &l.config.TopK, topKNames},
	} {
		v, err := m.size(part.names)
		if err != nil {
			return layer{}, fmt.Errorf("%s (model type %q): %w", part.of, kind, err)
		}
		*part.into = v
	}
	for _, name := range activationNames {
		if raw := m[name]; len(raw) > 0 && raw[0] != '"' && string(raw) != "null" {
			return layer{}, fmt.Errorf("%s is %.40s, want a name", name, raw)
		}
		if a := m.text(name); a != "" && a != "silu" && a != "swish" {
			return layer{}, fmt.Errorf("%s is %q: these kernels are SwiGLU (silu)", name, a)
		}
	}
	notes, known := families[kind]
	l.notes = notes
	if !known {
		l.notes = []string{fmt.Sprintf("model type %q is not one of %s: check the sizes", kind, strings.Join(slices.Sorted(maps.Keys(families)), ", "))}
	}
	return l, nil
}

// model is the fields of a config.json.
type model map[string]json.RawMessage

// maxDepth bounds how deep text models lie in each other; known ones lie one
// or two deep.
const maxDepth = 4

// flat puts the fields of the text model over those around it.
func (m model) flat(depth int) (model, error) {
	out := maps.Clone(m)
	for _, name := range inner {
		var part model
		if json.Unmarshal(m[name], &part) != nil || part == nil {
			continue
		}
		if depth == maxDepth {
			return nil, fmt.Errorf("%s lies deeper than %d objects", name, maxDepth)
		}
		flat, err := part.flat(depth + 1)
		if err != nil {
			return nil, err
		}
		maps.Copy(out, flat)
	}
	return out, nil
}

// text is a field's string, "" if it is none.
func (m model) text(name string) (s string) {
	_ = json.Unmarshal(m[name], &s)
	return s
}

// size is the first of the fields that is there.
func (m model) size(names []string) (int, error) {
	for _, name := range names {
		raw, ok := m[name]
		if !ok || string(raw) == "null" {
			continue
		}
		var v int
		if err := json.Unmarshal(raw, &v); err != nil || v <= 0 {
			return 0, fmt.Errorf("%s is %s, want a positive number", name, raw)
		}
		return v, nil
	}
	return 0, fmt.Errorf("none of %s is there; is it a Mixture-of-Experts model?", strings.Join(names, ", "))
}
