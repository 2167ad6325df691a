package spec

import (
	"slices"
	"strconv"
	"strings"
)

// A choice is a field of a Config whose value is one word of a list. The first word of the list
// is the default. Its constant is the zero value "", and Normal replaces the word by "".

// normal returns "" if v is the first word, otherwise v.
func normal[C ~string](words []C, v C) C {
	if v == words[0] {
		return ""
	}
	return v
}

// text returns the word of a choice: the first word for "".
func text[C ~string](words []C, v C) string {
	if v == "" {
		v = words[0]
	}
	return string(v)
}

// checkChoice returns nil if v is one of the words or "". Otherwise it returns an error that
// lists the words.
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

// Normal returns the Config with "" for each choice that is spelled as its default word.
// Kernels and their tests compare Configs in this form.
func (c Config) Normal() Config {
	c.GateUp = normal(GateUps, c.GateUp)
	c.Weights = normal(WeightFormats, c.Weights)
	c.Activation = normal(Activations, c.Activation)
	c.Score = normal(Scores, c.Score)
	c.Renormalize = normal(Renorms, c.Renormalize)
	c.Rounding.Rule = normal(RoundingRules, c.Rounding.Rule)
	return c
}
