// Package emu runs PTX kernels on the CPU and gives a Hopper GPU's own bits
// where those are specified or measured.
//
// Its parts that need no program: FP32 arithmetic (float.go) and the
// approximate functions (approx.go), conversions (convert.go), the way wgmma
// adds (wgmma.go), matrix descriptors and swizzles, tensor maps and the walk of
// their boxes, the mbarrier, and which element each thread's registers hold
// (fragment.go).
//
// What the emulator does not know is an error that names it, never a guess.
// Where a detail of the chip has not been measured and one reading is the
// obvious one, the comment beside it says that it is assumed.
package emu
