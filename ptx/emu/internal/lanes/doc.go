// Package lanes computes FP32 operations for the 32 lanes of a warp at once. They round to nearest
// even, and every NaN result is PTX's canonical NaN, 0x7fffffff. With ftz, a subnormal input
// becomes a zero of its sign, and so does a result that is subnormal after rounding.
//
// The functions report false, and do nothing, if the CPU lacks the vector instructions.
package lanes

// Vector holds a 32-bit register of all lanes of a warp.
type Vector = [32]uint32
