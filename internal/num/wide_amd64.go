package num

import "golang.org/x/sys/cpu"

// Slices of float32 are converted 16 numbers at a time where the processor has
// AVX2, and the rest of them number by number, with the same bits.

var wide = cpu.X86.HasAVX2

// lanes is how many numbers the loops of assembly take at a time.
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

// convert converts what fills whole registers and then the rest.
func convert[T, F any](dst []T, src []F, many func(*T, *F, int), rest func([]T, []F)) {
	if n := len(src) &^ (lanes - 1); wide && n > 0 {
		many(&dst[0], &src[0], n)
		dst, src = dst[n:], src[n:]
	}
	rest(dst, src)
}
