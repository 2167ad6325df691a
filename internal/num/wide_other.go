//go:build !amd64

package num

// These functions convert slices of float32 one number after another.

func encodeBF16(dst []uint16, src []float32) { encodeBF16One(dst, src) }
func decodeBF16(dst []float32, src []uint16) { decodeBF16One(dst, src) }
func encodeF16(dst []uint16, src []float32)  { encodeF16One(dst, src) }
func decodeF16(dst []float32, src []uint16)  { decodeF16One(dst, src) }
