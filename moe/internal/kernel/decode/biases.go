package decode

import (
	"slices"
	"sonicmoe/ptx"
)

// biases has the initial values of a thread's sums of a block. given is false if they are 0.
type biases struct {
	given bool
	// of returns, for each part, the initial values of the thread's upper and lower row.
	of func(b block) [][2]ptx.F32
}

// noBias returns initial values of 0.
func noBias(parts int) biases {
	zero := [2]ptx.F32{ptx.Float(0), ptx.Float(0)}
	return biases{of: func(block) [][2]ptx.F32 { return slices.Repeat([][2]ptx.F32{zero}, parts) }}
}
