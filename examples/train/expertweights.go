package main

import (
	"math"
	"math/rand/v2"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// weightIDs returns the weights of a layer's experts: W1 and W2, and with LoRA the factors of the
// adapter.
func weightIDs(c moe.Config) []moe.TensorID {
	ids := []moe.TensorID{spec.TensorW1, spec.TensorW2}
	if c.LoRARank > 0 {
		ids = append(ids, spec.TensorLoraA1, spec.TensorLoraB1, spec.TensorLoraA2, spec.TensorLoraB2)
	}
	return ids
}

// learns reports whether a weight of the experts is trained. With LoRA only the adapter is.
func learns(c moe.Config, frozen bool, id moe.TensorID) bool {
	isBase := id == spec.TensorW1 || id == spec.TensorW2
	return !frozen && isBase == (c.LoRARank == 0)
}

// drawWeights returns the first weights of a layer's experts. The adapter's second factors are 0,
// so that the adapter adds nothing at first.
func drawWeights(r *rand.Rand, c moe.Config) (w reference.Weights) {
	shapes := c.Shapes(0)
	for _, id := range weightIDs(c) {
		n := shapes.Of(id).Elements()
		switch id {
		case spec.TensorLoraB1, spec.TensorLoraB2:
			*w.Bits(id) = make([]uint16, n)
		case spec.TensorW2, spec.TensorLoraA2:
			*w.Bits(id) = reference.NewNormal(r.Uint64(), 1/math.Sqrt(float64(c.Intermediate))).Values(n)
		default:
			*w.Bits(id) = reference.NewNormal(r.Uint64(), 1/math.Sqrt(float64(c.Hidden))).Values(n)
		}
	}
	return w
}
