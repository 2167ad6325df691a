package num

import "math"

// nanBF16 is the result of cvt.rn.bf16.f32 for every NaN.
const nanBF16 = 0x7fff

// BF16ToFloat32 decodes bf16 bits. It is exact.
func BF16ToFloat32(bits uint16) float32 { return math.Float32frombits(uint32(bits) << 16) }

// BF16ToFloat64 decodes bf16 bits. It is exact.
func BF16ToFloat64(bits uint16) float64 { return float64(BF16ToFloat32(bits)) }

// Float32ToBF16 returns the bf16 nearest to x, like cvt.rn.bf16.f32. Ties go to even, an
// overflow gives infinity, and NaN gives 0x7fff.
func Float32ToBF16(x float32) uint16 {
	if x != x {
		return nanBF16
	}
	bits := math.Float32bits(x)
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float64ToBF16 rounds a float64 once. (Rounding to FP32 and then to bf16 would round twice.)
func Float64ToBF16(x float64) uint16 { return Float32ToBF16(roundToOdd(x)) }

// roundToOdd converts x to FP32, rounded toward zero. If this is not exact, it sets the lowest
// bit. The bit prevents a false tie when the result is rounded again.
func roundToOdd(x float64) float32 {
	f := float32(x)
	if float64(f) == x || x != x {
		return f
	}
	bits := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(x) {
		bits--
	}
	return math.Float32frombits(bits | 1)
}

// EncodeBF16 rounds src once to dst, which must be at least as long.
func EncodeBF16[F Float](dst []uint16, src []F) {
	each(dst, src, encoding[F](encodeBF16, Float64ToBF16))
}

// DecodeBF16 decodes src to dst, which must be at least as long.
func DecodeBF16[F Float](dst []F, src []uint16) {
	each(dst, src, decoding[F](decodeBF16, BF16ToFloat32))
}

func encodeBF16One(dst []uint16, src []float32) {
	for i, x := range src {
		dst[i] = Float32ToBF16(x)
	}
}

func decodeBF16One(dst []float32, src []uint16) {
	for i, b := range src {
		dst[i] = BF16ToFloat32(b)
	}
}
