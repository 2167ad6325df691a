package main

import (
	"context"
	"math/rand/v2"
)

// temperature divides the logits. A value below 1 favours likely symbols.
const temperature = 0.5

// write continues a text with n random symbols. The parameter after has the symbols of the text.
// There must be at least as many symbols as the model's context.
func (m *model) write(ctx context.Context, after []uint8, n int, r *rand.Rand) ([]uint8, error) {
	text := append([]uint8(nil), after...)
	for range n {
		b := batch{context: m.size.context}
		for i := range m.size.context {
			b.before = append(b.before, text[len(text)-1-i])
		}
		x, err := m.hidden(ctx, b, false) // a batch of one token
		if err != nil {
			return nil, err
		}
		text = append(text, draw(m.head.logits(x), r.Float64()))
	}
	return text[len(after):], nil
}

// draw returns a symbol drawn from the softmax of the logits, which it overwrites. u is a
// uniform number in [0, 1).
func draw(logits []float64, u float64) uint8 {
	for i := range logits {
		logits[i] /= temperature
	}
	softmax(logits)
	for i, p := range logits {
		if u -= p; u < 0 {
			return uint8(i)
		}
	}
	return uint8(len(logits) - 1)
}
