// Package element maps the types of a layer to the element types of tiles.
package element

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
)

// Of returns the element type of a layer's tokens, weights and everything computed from them.
func Of(c spec.Config) tile.Element { return ofType(c.Type) }

// OfLogits returns the element type of logits in a 16-bit format.
func OfLogits(l spec.Type) tile.Element { return ofType(l) }

func ofType(t spec.Type) tile.Element {
	if t == spec.F16 {
		return tile.F16
	}
	return tile.BF16
}
