// Package mma multiplies matrices as the tensor cores of a Hopper GPU do, bit
// for bit, one k step of wgmma at a time.
//
// How wgmma adds. Measured on an H200 for bf16 and f16 inputs with an FP32
// accumulator: each k16 step takes the accumulator and the 16 exact products,
// aligns all of them to the largest exponent, cuts each toward zero at 25
// fraction bits below it, adds exactly, and cuts the sum toward zero to FP32. A
// product's exponent is the sum of its factors' exponents: 1.5*1.5 has exponent
// 0, not 1. The result does not depend on N, on the layout of A or B, nor on
// whether A comes from registers.
//
// FP8 keeps 13 fraction bits of each term and, it is assumed, of the sum, as
// published measurements of other chips of the kind have it; tf32 is assumed to
// add as bf16 does. Integers add exactly.
//
// Not measured, and assumed: subnormal inputs count with their value at the
// exponent of the smallest normal number; a zero, or a product with a zero,
// takes no part in the alignment; a sum of zero is +0; a sum below FP32's
// normal range is cut to a subnormal, one beyond the range becomes infinite;
// infinities and NaN follow IEEE rules, every NaN result being 0x7fffffff.
//
// [A] and [B] hold the operands of a step, decoded into the order in which
// [Add] reads them: that of the accumulator's registers, so that sums never
// leave the register file. Add uses AVX-512 or AVX2 where the CPU has them, and
// the definition in Go (dot.go) elsewhere and for the exponents that the vector
// code leaves out; the bits are the same.
package mma
