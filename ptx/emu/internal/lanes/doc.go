// Package lanes does FP32 arithmetic on the 32 lanes of a warp at once, rounded
// to nearest even, with PTX's one NaN, 0x7fffffff. With ftz, subnormal inputs
// and results become zeros of their sign; results are looked at after rounding.
//
// Functions report false, and do nothing, where the CPU lacks the instructions.
package lanes

// Vector is a register of a warp.
type Vector = [32]uint32
