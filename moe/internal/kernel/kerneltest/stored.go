package kerneltest

import (
	"math"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/moe/internal/gradient"
)

// Stored is a gradient on the device.
type Stored struct {
	gradient.Mode
	At   driver.DevicePtr
	size int
}

// NewStored returns a gradient on the device. It holds the old values, in bf16, if
// gradients are added, else poison.
func NewStored(b *Bed, g gradient.Mode, old []float32) Stored {
	s := Stored{g, 0, len(old)}
	switch {
	case g == gradient.Mode{F32: true, Accumulate: true}:
		s.At = Upload(b, old)
	case g.Accumulate:
		short := make([]uint16, len(old))
		for i, v := range old {
			short[i] = num.Float32ToBF16(v)
		}
		s.At = Upload(b, short)
	default:
		s.At = b.Room(g.Bytes() * len(old))
	}
	return s
}

// Download returns the values as FP32 bits.
func (s Stored) Download(b *Bed) []uint32 {
	if s.F32 {
		return Download[uint32](b, s.At, s.size)
	}
	var bits []uint32
	for _, v := range Download[uint16](b, s.At, s.size) {
		bits = append(bits, uint32(v)<<16)
	}
	return bits
}

// Within reports whether these FP32 bits can be the stored form of an FP32 sum that is at
// most slack away from x.
func Within(g gradient.Mode, bits uint32, old float32, x, slack float64) bool {
	if g.Accumulate {
		x += float64(old)
		slack += math.Abs(x) * 0x1p-23
	}
	if !g.F32 {
		return Between(uint16(bits>>16), x, slack)
	}
	return math.Abs(float64(math.Float32frombits(bits))-x) <= slack+math.Abs(x)*0x1p-23
}
