package main

import (
	"fmt"

	"sonicmoe/moe"
	"sonicmoe/moe/spec"
)

// emulatedRow is what the emulated device measures in seconds.
var emulatedRow = spec.Row{Name: "small", Tokens: 256,
	Config: moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, TokensHint: 256}}

// parseShape reads a report's "T,d,n,E,K".
func parseShape(text string) (spec.Row, error) {
	r := spec.Row{Name: text}
	c := &r.Config
	if _, err := fmt.Sscanf(text+";", "%d,%d,%d,%d,%d;", &r.Tokens, &c.Hidden, &c.Intermediate, &c.NumExperts, &c.TopK); err != nil {
		return r, fmt.Errorf("the shape %q of a report, must be T,d,n,E,K: %w", text, err)
	}
	c.TokensHint = r.Tokens
	return r, nil
}

// shapeOf is the opposite of parseShape.
func shapeOf(r spec.Row) string {
	c := r.Config
	return fmt.Sprintf("%d,%d,%d,%d,%d", r.Tokens, c.Hidden, c.Intermediate, c.NumExperts, c.TopK)
}
