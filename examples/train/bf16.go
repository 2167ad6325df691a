package main

import "sonicmoe/internal/num"

// widen decodes bf16 bits.
func widen(bits []uint16) []float64 {
	return convert(bits, num.BF16ToFloat64)
}

// narrow rounds to bf16 bits.
func narrow(values []float64) []uint16 {
	return convert(values, num.Float64ToBF16)
}

// singles rounds to FP32.
func singles(values []float64) []float32 {
	return convert(values, func(v float64) float32 { return float32(v) })
}

// doubles widens FP32.
func doubles(values []float32) []float64 {
	return convert(values, func(v float32) float64 { return float64(v) })
}

func convert[F, T any](from []F, one func(F) T) []T {
	to := make([]T, len(from))
	inParallel(len(from), func(first, last int) {
		for i := first; i < last; i++ {
			to[i] = one(from[i])
		}
	})
	return to
}
