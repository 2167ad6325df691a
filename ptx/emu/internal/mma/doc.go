// Package mma multiplies matrices like the tensor cores of a Hopper GPU, bit for bit, one k step of
// wgmma at a time.
//
// The rule of wgmma and mma.sync was measured on an H200. The terms of each step are the
// accumulator and the exact products. They are aligned to the largest exponent among them. Each
// term is cut toward zero at 25 fraction bits below this exponent. The cut terms are added exactly,
// and the sum is cut toward zero to FP32. A product's exponent is the sum of its factors'
// exponents: 1.5*1.5 has exponent 0, not 1. For FP8, 13 fraction bits of each term and of the sum
// are kept. The result does not depend on N, on the layout of A or B, or on whether A comes from
// registers. Integers are added exactly; their sums wrap around or saturate.
//
// FP16 sums follow the same rule, except that the exact sum is rounded to the nearest FP16 number.
// A result that rounds to zero is +0. For mma.sync of FP8 the assembler emits two FP16 products.
//
// A subnormal input has its exact value, and the exponent of the smallest normal number. A zero, or
// a product with a zero, does not take part in the alignment. A sum of zero, or one that is cut to
// zero, is +0. A sum below FP32's normal range is cut to a subnormal number; one beyond the range
// becomes infinite. Infinities and NaN follow IEEE rules, and every NaN result is 0x7fffffff.
//
// A sparse product takes one step, with the elements that A keeps and the elements of B that they
// multiply. It has as many products as a dense step with half the k, and all are aligned together.
// Other elements of B do not take part, even if they are infinite. In K-major B with the 32-byte
// swizzle, the second 32 bytes of a row begin one leading byte offset after the first 32 bytes.
//
// chip_test.go of package emu compares the results with the chip's bits, for tiles of every element
// type and shape, dense and sparse, over all ranges of exponents.
//
// [A] and [B] hold the operands of a step. They are decoded into the order in which [Add] reads
// them, which follows the accumulator's registers, so sums never leave the register file. Add uses
// AVX-512 or AVX2 if the CPU has them. Otherwise, and for exponents outside the vector code's
// range, it uses the definition in Go (dot.go), with the same bits.
package mma
