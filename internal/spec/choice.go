package spec

import (
	"slices"
	"strconv"
	"strings"
)

// A choice is a field of a Config whose value is a word. Its zero value, "", is the
// first word of the choice's list. Constants have "" for that word, and Normal maps
// the word to it.

// normal returns "" for the first word.
func normal[C ~string](words []C, v C) C {
	if v == words[0] {
		return ""
	}
	return v
}

// text returns the word of a choice.
func text[C ~string](words []C, v C) string {
	if v == "" {
		v = words[0]
	}
	return string(v)
}

// checkChoice returns nil for one of the words or "", else an error that lists them.
func checkChoice[C ~string](field string, words []C, v C) *ArgError {
	if v == "" || slices.Contains(words, v) {
		return nil
	}
	var want []string
	for _, w := range words {
		want = append(want, string(w))
	}
	return argErrorf(field, strconv.Quote(string(v)), "one of %s", strings.Join(want, ", "))
}

// Normal returns the Config with "" for each choice that has the word of its zero
// value. Kernels and their tests compare normal Configs.
func (c Config) Normal() Config {
	c.GateUp = normal(GateUps, c.GateUp)
	c.Weights = normal(WeightFormats, c.Weights)
	c.Activation = normal(Activations, c.Activation)
	c.Score = normal(Scores, c.Score)
	c.Renormalize = normal(Renorms, c.Renormalize)
	c.Rounding.Rule = normal(RoundingRules, c.Rounding.Rule)
	return c
}
