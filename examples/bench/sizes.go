package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/moe"
	"sonicmoe/moe/spec"
)

// slice is the rows that stand for all: small and large, wide and narrow.
var slice = []string{"7B n=256", "30B n=1024", "120B n=2048", "Qwen3-30B-A3B"}

// models are real models' layers: those of the table and some beyond.
var models = []string{"gpt-oss-20b", "DeepSeek-V3", "Kimi-Linear-48B-A3B", "Qwen3-Next-80B", "OLMoE-1B-7B", "GLM-4.5-Air", "Mixtral 8x7B"}

// beyond are sizes that no other implementation was measured at.
func beyond() []spec.Row {
	return []spec.Row{
		size("gpt-oss-20b", 32768, 2880, 2880, 32, 4),
		size("Kimi-Linear-48B-A3B", 32768, 2304, 1024, 256, 8),
		size("GLM-4.5-Air", 32768, 4096, 1408, 128, 8),
		size("Mixtral 8x7B", 32768, 4096, 14336, 8, 2),
	}
}

func size(name string, tokens, d, n, e, k int) spec.Row {
	return spec.Row{Name: name, Tokens: tokens, Config: moe.Config{Hidden: d, Intermediate: n, NumExperts: e, TopK: k, TokensHint: tokens}}
}

// known are all sizes that have a name.
func known() []spec.Row { return append(spec.Rows(), beyond()...) }

// listed gives the rows that a -rows or -row flag means: all (those with
// recorded peers), slice, models, known, or names separated by commas.
func listed(list string) ([]spec.Row, error) {
	var names []string
	switch list {
	case "":
		return nil, nil
	case "all":
		return spec.Rows(), nil
	case "known":
		return known(), nil
	case "slice":
		names = slice
	case "models":
		names = models
	default:
		names = strings.Split(list, ",")
	}
	var rows []spec.Row
	for _, name := range names {
		i := slices.IndexFunc(known(), func(r spec.Row) bool { return strings.EqualFold(r.Name, strings.TrimSpace(name)) })
		if i < 0 {
			return nil, fmt.Errorf("no row is named %q; -list prints the names, all, slice, models and known are groups of them", name)
		}
		rows = append(rows, known()[i])
	}
	return rows, nil
}

// parseShape reads "T,d,n,E,K".
func parseShape(text string) (spec.Row, error) {
	fields := strings.Split(text, ",")
	var v [5]int
	if len(fields) != len(v) {
		return spec.Row{}, fmt.Errorf("-shape %q has %d numbers, must be T,d,n,E,K: tokens, hidden, intermediate, experts, top-K", text, len(fields))
	}
	for i, f := range fields {
		n, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil || n < 1 {
			return spec.Row{}, fmt.Errorf("-shape %q: %q must be a whole number from 1", text, f)
		}
		v[i] = n
	}
	return size(text, v[0], v[1], v[2], v[3], v[4]), nil
}

// shapeOf is the opposite of parseShape.
func shapeOf(r spec.Row) string {
	c := r.Config
	return fmt.Sprintf("%d,%d,%d,%d,%d", r.Tokens, c.Hidden, c.Intermediate, c.NumExperts, c.TopK)
}
