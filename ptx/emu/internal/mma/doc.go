// Package mma multiplies matrices as the tensor cores of a Hopper GPU do, bit
// for bit, one k step of wgmma at a time.
//
// How wgmma and mma.sync add. Measured on an H200, each step takes the accumulator
// and the exact products, aligns all of them to the largest exponent, cuts each
// toward zero at 25 fraction bits below it, adds exactly, and cuts the sum toward
// zero to FP32. A product's exponent is the sum of its factors' exponents: 1.5*1.5
// has exponent 0, not 1. FP8 keeps 13 fraction bits of each term and of the sum.
// The result does not depend on N, on the layout of A or B, nor on whether A comes
// from registers. Integers add exactly, wrap around or saturate.
//
// Sums in FP16 are added as those in FP32 are, and the exact sum is rounded to the
// nearest FP16 number; what is rounded to zero is +0. mma.sync of FP8 is what the assembler makes of it, two products of FP16.
//
// Subnormal inputs count with their value at the exponent of the smallest normal
// number; a zero, or a product with a zero, takes no part in the alignment; a sum
// of zero, or one that is cut to zero, is +0; a sum below FP32's normal range is
// cut to a subnormal, one beyond the range becomes infinite; infinities and NaN
// follow IEEE rules, every NaN result being 0x7fffffff.
//
// A sparse product takes a step for the elements of A that are there, with those of B
// that they multiply: as many products as a dense one of half the k, aligned together.
// What B has elsewhere takes no part, an infinity neither. In K-major B with the 32-byte
// swizzle the second 32 bytes of a row lie the leading byte offset behind the first.
//
// 10,000 tiles of each type of element summed in FP32 or 32 bits and of the shapes of
// mma.sync that Hopper has, in every range of exponents, had these bits on the chip but for the sign of a sum
// that is cut to zero, which was learnt from them, and so had 10,000 of each sparse type, shape and selector
// (chip_test.go).
//
// [A] and [B] hold the operands of a step, decoded into the order in which
// [Add] reads them: that of the accumulator's registers, so that sums never
// leave the register file. Add uses AVX-512 or AVX2 where the CPU has them, and
// the definition in Go (dot.go) elsewhere and for the exponents that the vector
// code leaves out; the bits are the same.
package mma
