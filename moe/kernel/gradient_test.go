package kernel

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/moe/reference"
)

// gradients are all ways to write one.
var gradients = []Gradient{{}, {F32: true}, {Accumulate: true}, {F32: true, Accumulate: true}}

// stored is a gradient on the device.
type stored struct {
	Gradient
	at   driver.DevicePtr
	size int
}

// newStored has the old values, bf16 ones, where they count, else poison.
func newStored(b *bed, g Gradient, old []float32) stored {
	s := stored{g, 0, len(old)}
	switch {
	case g == Gradient{F32: true, Accumulate: true}:
		s.at = upload(b, old)
	case g.Accumulate:
		short := make([]uint16, len(old))
		for i, v := range old {
			short[i] = reference.Float32ToBF16(v)
		}
		s.at = upload(b, short)
	default:
		s.at = b.room(g.elem() * len(old))
	}
	return s
}

// download gives the values as FP32 bits.
func (s stored) download(b *bed) []uint32 {
	if s.F32 {
		return download[uint32](b, s.at, s.size)
	}
	var bits []uint32
	for _, v := range download[uint16](b, s.at, s.size) {
		bits = append(bits, uint32(v)<<16)
	}
	return bits
}

// within reports whether FP32 bits are what the gradient stores for an FP32
// sum within slack of x.
func (g Gradient) within(bits uint32, old float32, x, slack float64) bool {
	if g.Accumulate {
		x += float64(old)
		slack += math.Abs(x) * 0x1p-23
	}
	if !g.F32 {
		return between(uint16(bits>>16), x, slack)
	}
	return math.Abs(float64(math.Float32frombits(bits))-x) <= slack+math.Abs(x)*0x1p-23
}
