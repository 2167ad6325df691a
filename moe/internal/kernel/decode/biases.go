package decode

import (
	"slices"
	"sonicmoe/ptx"
)

// biases has the initial values of a thread's sums, which are the experts' biases. If given is false,
// all initial values are 0.
type biases struct {
	given bool
	// of returns the initial values of the thread's upper and lower row. The list has two elements for
	// gate and up, or one for a product without a gate.
	of func(b block) [][2]ptx.F32
}

// noBias returns the initial value 0 for each part.
func noBias(parts int) biases {
	zero := [2]ptx.F32{ptx.Float(0), ptx.Float(0)}
	return biases{of: func(block) [][2]ptx.F32 { return slices.Repeat([][2]ptx.F32{zero}, parts) }}
}
