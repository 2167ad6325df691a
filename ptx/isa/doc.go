// Package isa is the one table of PTX instruction forms.
//
// A [Form] is a mnemonic, its modifiers in the order of the PTX manual, its
// operands, the lowest .version and .target that accept it, and its effects on
// control flow and on what a warp's lanes may differ in. The builder's methods
// are generated from the table; printer, parser, verifier and emulator read it.
// A form arrives with the first kernel that uses it, together with its emulation.
package isa

//go:generate go run ../internal/gen/write
