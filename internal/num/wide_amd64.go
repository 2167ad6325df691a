package num

import "golang.org/x/sys/cpu"

// wide reports whether slices of float32 are converted 16 numbers at a time, which needs AVX2.
// The remaining numbers are converted one by one, with the same bits.

var wide = cpu.X86.HasAVX2

// lanes is the number of numbers that one step of the assembly loops converts.
const lanes = 16

//go:noescape
func encodeBF16Wide(dst *uint16, src *float32, n int)

//go:noescape
func decodeBF16Wide(dst *float32, src *uint16, n int)

//go:noescape
func encodeF16Wide(dst *uint16, src *float32, n int)

//go:noescape
func decodeF16Wide(dst *float32, src *uint16, n int)

func encodeBF16(dst []uint16, src []float32) { convert(dst, src, encodeBF16Wide, encodeBF16One) }
func decodeBF16(dst []float32, src []uint16) { convert(dst, src, decodeBF16Wide, decodeBF16One) }
func encodeF16(dst []uint16, src []float32)  { convert(dst, src, encodeF16Wide, encodeF16One) }
func decodeF16(dst []float32, src []uint16)  { convert(dst, src, decodeF16Wide, decodeF16One) }

// convert converts as many numbers as fill whole registers with many, and the rest with rest.
func convert[T, F any](dst []T, src []F, many func(*T, *F, int), rest func([]T, []F)) {
	if n := len(src) &^ (lanes - 1); wide && n > 0 {
		many(&dst[0], &src[0], n)
		dst, src = dst[n:], src[n:]
	}
	rest(dst, src)
}
