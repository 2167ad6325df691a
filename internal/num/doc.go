// Package num has the 16-bit numbers that a layer's tensors are made of, bf16
// and fp16, as bits in uint16, and slices as the bytes that copies to and from a
// device take.
//
// Conversions round to the nearest number, ties to even, keep every NaN a NaN,
// and overflow to infinity: bit for bit what a GPU's cvt.rn gives. Slices of
// float32 are converted 16 numbers at a time where the processor has AVX2.
package num
