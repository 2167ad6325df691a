package reference

import (
	"sonicmoe/internal/spec"
)

// Rounding selects which values are rounded.
type Rounding uint8

const (
	// Unrounded keeps everything after the 16-bit inputs in float64.
	Unrounded Rounding = iota
	// Rounded rounds where the kernels do. Logits are rounded to the layer's logit format.
	// Scores and their gradients are rounded to FP32. H, A, Y, O, dH, A' (the score times A),
	// dX~ (the gradient of X for each pair) and dX are each rounded once to the layer's type.
	Rounded
)

// rounder rounds values if its Rounding is Rounded, and returns them unchanged otherwise.
type rounder struct {
	rounding Rounding
	config   spec.Config
}

// store rounds x to the layer's type.
func (r rounder) store(x float64) float64 { return r.to(r.config.Type, x) }

// f32 rounds x to FP32.
func (r rounder) f32(x float64) float64 { return r.to(spec.F32, x) }

// logit rounds x to the layer's format of logits.
func (r rounder) logit(x float64) float64 { return r.to(r.config.Logits, x) }

func (r rounder) to(t spec.Type, x float64) float64 {
	switch {
	case r.rounding == Unrounded:
		return x
	case t == spec.F32:
		return float64(float32(x))
	}
	return stored([]uint16{toBits(t, x)}, t).at(0)
}

// Round rounds values to a layer's type, in place.
func Round(t spec.Type, values []float64) {
	for i, x := range values {
		values[i] = rounder{rounding: Rounded}.to(t, x)
	}
}
