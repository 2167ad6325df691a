// Package num converts the 16-bit numbers of a layer's tensors, bf16 and fp16, which are
// stored as bits in uint16. It also views slices as bytes, for copies to and from a device.
//
// Conversions round to the nearest number, ties to even, keep NaN, and overflow to
// infinity, bit for bit like a GPU's cvt.rn. Slices of float32 are converted 16 numbers at
// a time if the processor has AVX2.
package num
