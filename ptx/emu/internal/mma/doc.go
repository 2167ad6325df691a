// Package mma multiplies matrices like the tensor cores of a Hopper GPU, bit for bit, one k
// step of wgmma at a time.
//
// The rule of wgmma and mma.sync was measured on an H200. Each step takes the accumulator and
// the exact products, and aligns all of them to the largest exponent. It cuts each toward zero
// at 25 fraction bits below that exponent, adds exactly, and cuts the sum toward zero to FP32.
// A product's exponent is the sum of its factors' exponents: 1.5*1.5 has exponent 0, not 1. FP8
// keeps 13 fraction bits of each term and of the sum. The result does not depend on N, on the
// layout of A or B, or on whether A comes from registers. Integers add exactly, and wrap around
// or saturate.
//
// FP16 sums are added like FP32 sums, and the exact sum is rounded to the nearest FP16 number;
// a result that rounds to zero is +0. For mma.sync of FP8 the assembler emits two FP16
// products.
//
// Subnormal inputs count with their value at the exponent of the smallest normal number. A
// zero, or a product with a zero, takes no part in the alignment. A sum of zero, or one that is
// cut to zero, is +0. A sum below FP32's normal range is cut to a subnormal, one beyond the
// range becomes infinite. Infinities and NaN follow IEEE rules, with 0x7fffffff for every NaN
// result.
//
// A sparse product takes one step for the elements that A has and the elements of B that they
// multiply. The number of products equals that of a dense step with half the k, and all are
// aligned together. Other elements of B take no part, not even infinities. In K-major B with
// the 32-byte swizzle, the second 32 bytes of a row lie the leading byte offset after the
// first.
//
// chip_test.go compares these bits with the chip's, for tiles of every element type and shape,
// dense and sparse, over all ranges of exponents.
//
// [A] and [B] hold the operands of a step, decoded into the order in which [Add] reads them. It
// matches the accumulator's registers, so sums never leave the register file. Add uses AVX-512
// or AVX2 if the CPU has them. Otherwise, and for exponents outside the vector code's range, it
// uses the definition in Go (dot.go), with the same bits.
package mma
