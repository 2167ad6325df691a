// Package num converts the 16-bit numbers of a layer's tensors, bf16 and fp16, whose bits are
// stored as uint16. It also views slices as bytes, for copies to and from a device.
//
// Conversions have the same bits as a GPU's cvt.rn. They round to the nearest number with ties
// to even, keep NaN, and overflow to infinity. If the processor has AVX2, slices of float32 are
// converted 16 numbers at a time.
package num
