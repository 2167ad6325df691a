// Package element says which elements the tiles of a layer are made of.
package element

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
)

// Of are a layer's: of tokens, weights and all that is made of them.
func Of(c spec.Config) tile.Element { return ofType(c.Type) }

// OfLogits are those of router logits that are not FP32.
func OfLogits(l spec.Logits) tile.Element { return ofType(l.Type()) }

func ofType(t spec.Type) tile.Element {
	if t == spec.F16 {
		return tile.F16
	}
	return tile.BF16
}
