// Package isa holds the table of PTX instruction forms.
//
// A [Form] describes one way to write an instruction: a mnemonic, its modifiers in the order of the
// PTX manual, and its operands. It also has the lowest .version and .target that accept it, and its
// effects on control flow and on the lanes of a warp. The builder's methods are generated from the
// table; the printer, the parser, the verifier and the emulator read it.
//
// A form is added with the first kernel that uses it, together with its emulation. Some files have
// forms that only kernels of other compilers use: integers.go, exactfloats.go, conversions.go,
// spaces.go, warps.go and asyncs.go. The builder has no methods for these forms.
package isa

//go:generate go run ../internal/gen/write
