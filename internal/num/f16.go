package num

import (
	"math"
	"math/bits"
)

// nanF16 is the result of cvt.rn.f16.f32 for every NaN.
const nanF16 = 0x7fff

const (
	fractionF16 = 10 // number of fraction bits
	biasF16     = 15
	infinityF16 = 0x7c00
)

// F16ToFloat32 decodes fp16 bits. It is exact.
func F16ToFloat32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent, fraction := uint32(h>>fractionF16)&31, uint32(h)&(1<<fractionF16-1)
	switch {
	case exponent == 31:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	case exponent == 0 && fraction == 0:
		return math.Float32frombits(sign)
	case exponent == 0: // subnormal: the leading bit becomes the hidden bit
		shift := uint32(bits.LeadingZeros32(fraction)) - (31 - fractionF16)
		exponent, fraction = 1-shift, fraction<<shift&(1<<fractionF16-1)
	}
	return math.Float32frombits(sign | (exponent+127-biasF16)<<23 | fraction<<13)
}

// F16ToFloat64 decodes fp16 bits. It is exact.
func F16ToFloat64(h uint16) float64 { return float64(F16ToFloat32(h)) }

// Float32ToF16 returns the fp16 nearest to x, like cvt.rn.f16.f32. Ties go to even, an overflow
// gives infinity, and NaN gives 0x7fff.
func Float32ToF16(x float32) uint16 {
	if x != x {
		return nanF16
	}
	b := math.Float32bits(x)
	sign, magnitude := uint16(b>>16)&0x8000, b&0x7fffffff
	exponent := int(magnitude>>23) - 127 + biasF16
	significand := magnitude&(1<<23-1) | 1<<23
	drop := 23 - fractionF16
	if exponent <= 0 { // subnormal, or too small even for a subnormal
		drop += 1 - exponent
		exponent = 1
	}
	if drop > 24 {
		return sign
	}
	kept := significand >> drop
	rest, half := significand&(1<<drop-1), uint32(1)<<(drop-1)
	if rest > half || rest == half && kept&1 != 0 {
		kept++
	}
	// A carry out of the fraction raises the exponent. A significand without its hidden bit
	// gives a subnormal number. Both follow from the addition.
	h := kept + uint32(exponent-1)<<fractionF16
	return sign | uint16(min(h, infinityF16))
}

// Float64ToF16 is like [Float32ToF16] for a float64. It rounds once.
func Float64ToF16(x float64) uint16 { return Float32ToF16(roundToOdd(x)) }

// EncodeF16 rounds src once to dst, which must be at least as long.
func EncodeF16[F Float](dst []uint16, src []F) { each(dst, src, encoding[F](encodeF16, Float64ToF16)) }

// DecodeF16 decodes src to dst, which must be at least as long.
func DecodeF16[F Float](dst []F, src []uint16) { each(dst, src, decoding[F](decodeF16, F16ToFloat32)) }

func encodeF16One(dst []uint16, src []float32) {
	for i, x := range src {
		dst[i] = Float32ToF16(x)
	}
}

func decodeF16One(dst []float32, src []uint16) {
	for i, b := range src {
		dst[i] = F16ToFloat32(b)
	}
}
