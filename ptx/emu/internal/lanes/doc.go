// Package lanes does FP32 arithmetic on the 32 lanes of a warp at once. It rounds to nearest
// even and gives PTX's one NaN, 0x7fffffff. With ftz, subnormal inputs and results become zeros
// of their sign; this applies to results after rounding.
//
// Functions report false, and do nothing, if the CPU lacks the instructions.
package lanes

// Vector is a register of a warp.
type Vector = [32]uint32
