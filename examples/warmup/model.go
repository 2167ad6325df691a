package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"sonicmoe/examples/internal/command"
	"sonicmoe/internal/strict"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint"
)

// part says for which part of a model's layer the cache is filled.
type part int

const (
	whole       part = iota
	expertsOnly      // expertsOnly: a layer for calls with given expert ids and scores
	sizesOnly        // sizesOnly: the plain layer with the model's sizes
)

// readModel returns the expert layer that a model's config.json describes.
func readModel(ctx context.Context, path string, of part) (layer, error) {
	path, data, err := command.ReadConfig(ctx, path)
	if err != nil {
		return layer{}, err
	}
	l, err := parseModel(data, of)
	if err != nil {
		return layer{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

func parseModel(data []byte, of part) (layer, error) {
	m, err := checkpoint.Read(data)
	read := err == nil
	m.Config = m.Packed()
	if of == expertsOnly && read {
		m.Config = experts(m.Config)
	}
	if read {
		err = moe.Check(m.Config)
	}
	if err == nil && of == whole && len(m.Outside) > 0 {
		err = fmt.Errorf("%s: %s", m.Type, strings.Join(m.Outside, "; "))
	}
	if err == nil {
		l := layer{name: m.Type, config: m.Config, anyHint: true}
		if of == expertsOnly {
			l.notes = append(l.notes, "experts only: each call must give their ids and scores")
		}
		if m.Quantised != "" {
			l.note("quantised", []string{m.Quantised})
		}
		l.note("not in the layer", m.Outside)
		l.note("assumed", m.Assumed)
		l.note("not read", m.Unknown)
		return l, nil
	}
	plain, sizesErr := sizes(data)
	if sizesErr == nil {
		sizesErr = moe.Check(plain)
	}
	if of == sizesOnly && sizesErr == nil {
		l := layer{name: m.Type, config: plain, anyHint: true, notes: []string{"sizes only: the model's own layer is another, " + err.Error()}}
		if l.name == "" {
			l.name = "of unknown type"
		}
		l.note("not read", m.Unknown)
		return l, nil
	}
	if of == sizesOnly {
		return layer{}, fmt.Errorf("%w, and there are no sizes: %w", err, sizesErr)
	}
	if of == whole && read && moe.Check(experts(m.Config)) == nil {
		err = fmt.Errorf("%w; -experts-only takes its experts, for calls that give their ids and scores", err)
	}
	if sizesErr == nil {
		err = fmt.Errorf("%w; -sizes-only takes the plain layer of its sizes", err)
	}
	return layer{}, err
}

// experts returns the layer without its router.
func experts(c moe.Config) moe.Config {
	e := moe.Config{
		Hidden: c.Hidden, Intermediate: c.Intermediate, NumExperts: c.NumExperts, TopK: c.TopK, Type: c.Type,
		GateUp: c.GateUp, InOut: c.InOut, Weights: c.Weights, Activation: c.Activation, Alpha: c.Alpha, Limit: c.Limit, Bias: c.Bias,
		ScoreOnInput: c.ScoreOnInput, SharedExperts: c.SharedExperts, SharedGate: c.SharedGate, Lists: c.Lists, TokensHint: c.TokensHint,
	}
	if e.Type == moe.F16 {
		e.Logits = moe.F16 // a layer without router has no logits, but the field must fit the type
	}
	return e
}

// note adds a note that consists of a title and a list, unless the list is empty.
func (l *layer) note(title string, list []string) {
	if len(list) > 0 {
		l.notes = append(l.notes, title+": "+strings.Join(list, "; "))
	}
}

// sizes finds the sizes of a model of unknown type by the names that such fields usually have.
// The most specific name comes first: if a config.json has several widths, intermediate_size is
// the width of the dense layers.
func sizes(data []byte) (c moe.Config, err error) {
	var fields map[string]json.RawMessage
	if err := strict.Unmarshal(data, &fields); err != nil {
		return c, err
	}
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
		{"the experts of a token", &c.TopK, []string{"num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_k", "moe_topk", "top_k_experts"}},
	} {
		if *part.into, err = positive(m, part.names); err != nil {
			return c, fmt.Errorf("%s: %w", part.of, err)
		}
	}
	return c, nil
}

// flat returns the fields of a JSON object and of the objects in it. Fields of inner objects
// replace outer ones.
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

// positive returns the value of the first field in names that exists. A value that is not
// positive is an error.
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
