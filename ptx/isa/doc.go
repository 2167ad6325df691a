// Package isa holds the table of PTX instruction forms.
//
// A [Form] is a mnemonic, its modifiers in the order of the PTX manual, its
// operands, the lowest .version and .target that accept it, and its effects on
// control flow and on how results differ between a warp's lanes. The builder's
// methods are generated from the table. The printer, the parser, the verifier and
// the emulator read it. A form is added with the first kernel that uses it,
// together with its emulation. The builder has no methods for forms that only
// kernels of other compilers use (integers.go, exactfloats.go, conversions.go,
// spaces.go, warps.go, asyncs.go).
package isa

//go:generate go run ../internal/gen/write
