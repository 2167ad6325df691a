// Package isa is the one table of PTX instruction forms.
//
// A [Form] is a mnemonic, its modifiers in the order of the PTX manual, its
// operands, the lowest .version and .target that accept it, and its effects on
// control flow and on what a warp's lanes may differ in. The builder's methods
// are generated from the table; printer, parser, verifier and emulator read it.
// A form arrives with the first kernel that uses it, together with its emulation.
// Rows that only kernels of other compilers use (integers.go, exactfloats.go,
// conversions.go, spaces.go, warps.go, asyncs.go) have no methods of the builder.
package isa

//go:generate go run ../internal/gen/write
