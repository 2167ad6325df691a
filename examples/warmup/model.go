package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sonicmoe/moe"
)

// readModel finds the expert layer that a model's config.json describes. With
// sizesOnly it is the plain layer of the same sizes, whatever else the model's
// router and experts do.
func readModel(path string, sizesOnly bool) (layer, error) {
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		path = filepath.Join(path, "config.json")
	}
	data, err := readText(path)
	if err != nil {
		return layer{}, err
	}
	l, err := parseModel(data, sizesOnly)
	if err != nil {
		return layer{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

func parseModel(data []byte, sizesOnly bool) (layer, error) {
	m, err := moe.FromConfig(data)
	if err == nil {
		err = moe.Check(m.Config)
	}
	if err != nil && !sizesOnly {
		return layer{}, fmt.Errorf("%w; -sizes-only takes the plain layer of its sizes", err)
	}
	if err == nil {
		l := layer{name: m.Type, config: m.Config, anyHint: true}
		for _, what := range []struct {
			title string
			list  []string
		}{{"not in the layer", m.Outside}, {"assumed", m.Assumed}, {"not read", m.Unknown}} {
			if len(what.list) > 0 {
				l.notes = append(l.notes, what.title+": "+strings.Join(what.list, "; "))
			}
		}
		return l, nil
	}
	l := layer{name: m.Type, anyHint: true, notes: []string{"sizes only: the model's own layer is another, " + err.Error()}}
	if c := m.Config; c.Hidden > 0 {
		l.config = moe.Config{Hidden: c.Hidden, Intermediate: c.Intermediate, NumExperts: c.NumExperts, TopK: c.TopK}
		return l, nil
	}
	if l.config, err = sizes(data); err != nil {
		return layer{}, err
	}
	l.name = "of unknown type"
	return l, nil
}

// sizes finds the sizes of a model of unknown type by their usual names, the most
// telling name first: where both stand, intermediate_size is the width of the
// dense layers.
func sizes(data []byte) (c moe.Config, err error) {
	m, err := flat(data, 4)
	if err != nil {
		return c, err
	}
	for _, part := range []struct {
		of    string
		into  *int
		names []string
	}{
		{"the number of experts", &c.NumExperts, []string{"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"}},
		{"the hidden size", &c.Hidden, []string{"hidden_size", "d_model"}},
		{"the width of an expert", &c.Intermediate, []string{"moe_intermediate_size", "expert_ffn_hidden_size", "expert_intermediate_size", "intermediate_size"}},
		{"the experts of a token", &c.TopK, []string{"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_k", "moe_topk"}},
	} {
		if *part.into, err = positive(m, part.names); err != nil {
			return c, fmt.Errorf("%s: %w", part.of, err)
		}
	}
	return c, nil
}

// flat puts the fields of inner objects over those around them.
func flat(data []byte, deep int) (map[string]json.RawMessage, error) {
	if deep == 0 {
		return nil, fmt.Errorf("its text_config lies deeper than 4 objects")
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	for _, name := range []string{"text_config", "language_config", "llm_config", "ffn_config"} {
		if raw, ok := m[name]; ok && strings.HasPrefix(string(raw), "{") {
			inner, err := flat(raw, deep-1)
			if err != nil {
				return nil, err
			}
			for k, v := range inner {
				m[k] = v
			}
		}
	}
	return m, nil
}

// positive is the first of the fields that is there.
func positive(m map[string]json.RawMessage, names []string) (int, error) {
	for _, name := range names {
		raw, ok := m[name]
		if !ok || string(raw) == "null" {
			continue
		}
		var v int
		if err := json.Unmarshal(raw, &v); err != nil || v <= 0 {
			return 0, fmt.Errorf("%s is %.60s, want a positive number", name, raw)
		}
		return v, nil
	}
	return 0, fmt.Errorf("none of %s is there; is it a Mixture-of-Experts model?", strings.Join(names, ", "))
}
