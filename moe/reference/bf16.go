package reference

import "math"

// nanBF16 is what cvt.rn.bf16.f32 makes of every NaN.
const nanBF16 = 0x7fff

// Poison is a NaN that no kernel computes (they give 0x7fff): the bits to
// preset outputs with, so that an element never written is told from a NaN
// that was computed. Memory filled with bytes of 0xff holds it.
const Poison uint16 = 0xffff

// FromBF16 decodes bf16 bits. It is exact.
func FromBF16(bits uint16) float64 {
	return float64(math.Float32frombits(uint32(bits) << 16))
}

// ToBF16 gives the bf16 nearest to x, ties to even, overflow to infinity, NaN
// to 0x7fff: what cvt.rn.bf16.f32 gives, but from a float64 in one rounding.
// (Rounding to FP32 first and then to bf16 would round twice.)
func ToBF16(x float64) uint16 {
	f := float32(x)
	if float64(f) == x || x != x {
		return Float32ToBF16(f)
	}
	// Round to odd: cut toward zero, and let the lowest bit say that
	// something was cut. No tie can then arise falsely in the next step.
	bits := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(x) {
		bits--
	}
	return Float32ToBF16(math.Float32frombits(bits | 1))
}

// Float32ToBF16 gives the bf16 nearest to f, as cvt.rn.bf16.f32 does.
func Float32ToBF16(f float32) uint16 {
	if f != f {
		return nanBF16
	}
	bits := math.Float32bits(f)
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// roundBF16 is the value of the bf16 nearest to x.
func roundBF16(x float64) float64 { return FromBF16(ToBF16(x)) }
