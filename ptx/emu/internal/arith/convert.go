package arith

import "math"

// Rounding is a rounding mode: .rn, .rz, .rm, .rp (and, to integers, the same with i).
type Rounding uint8

const (
	RoundNearest Rounding = iota // to nearest, ties to even
	RoundZero
	RoundDown
	RoundUp
)

// Narrow is a 16-bit floating-point format.
type Narrow struct {
	fractionBits int
	bias         int
	infinity     uint16 // exponent all ones, fraction zero
}

// Both formats' NaN is 0x7fff.
var (
	NarrowBF16 = Narrow{fractionBits: 7, bias: 127, infinity: 0x7f80}
	NarrowF16  = Narrow{fractionBits: 10, bias: 15, infinity: 0x7c00}
)

const canonicalNaN16 = 0x7fff

// FromF32 is cvt.{rn,rz}{.relu}.FORMAT.f32. relu turns negative numbers and -0 into +0; NaN
// stays NaN.
func (n Narrow) FromF32(x uint32, mode Rounding, relu bool) uint16 {
	sign := uint16(x >> 16 & 0x8000)
	magnitude := x &^ F32Sign
	switch {
	case magnitude > F32Inf:
		return canonicalNaN16
	case relu && sign != 0:
		return 0
	case magnitude == F32Inf:
		return sign | n.infinity
	}
	// The significand as an integer with 23 fraction bits, and the exponent; an FP32 subnormal
	// has exponent 1-127 and no hidden bit.
	exponent := max(int(magnitude>>23), 1) - 127
	significand := uint64(magnitude & 0x7fffff)
	if magnitude>>23 != 0 {
		significand |= 1 << 23
	}
	// Below the narrow format's smallest exponent more bits are dropped.
	drop := 23 - n.fractionBits
	if least := 1 - n.bias; exponent < least {
		drop = min(drop+least-exponent, 40)
		exponent = least
	}
	kept := significand >> drop
	if mode == RoundNearest {
		half := uint64(1) << (drop - 1)
		rest := significand & (2*half - 1)
		if rest > half || rest == half && kept&1 == 1 {
			kept++
		}
	}
	// A carry out of the fraction increments the exponent, and a significand without its hidden
	// bit gives a subnormal.
	bits := kept + uint64(exponent+n.bias-1)<<n.fractionBits
	if bits >= uint64(n.infinity) {
		if mode == RoundZero {
			return sign | (n.infinity - 1)
		}
		return sign | n.infinity
	}
	return sign | uint16(bits)
}

// BF16FromF32 is cvt.rn.bf16.f32.
func BF16FromF32(x uint32) uint16 {
	if isNaN32(x) {
		return canonicalNaN16
	}
	// Adding just under half of the last place, plus the last bit, rounds to nearest even; a
	// carry correctly reaches the exponent, up to infinity.
	return uint16((x + 0x7fff + x>>16&1) >> 16)
}

// BF16Nearest is bf16FromF32 with the result in the lower half of a register.
func BF16Nearest(x uint32) uint32 { return uint32(BF16FromF32(x)) }

// F16Nearest is cvt.rn.f16.f32 with the result in the lower half of a register.
func F16Nearest(x uint32) uint32 { return uint32(NarrowF16.FromF32(x, RoundNearest, false)) }

// packF32 is cvt.{rn,rz}{.relu}.{bf16x2,f16x2}.f32: the first source operand goes to the upper
// half.
func (n Narrow) packF32(first, second uint32, mode Rounding, relu bool) uint32 {
	return uint32(n.FromF32(first, mode, relu))<<16 | uint32(n.FromF32(second, mode, relu))
}

// F32FromBF16 is cvt.f32.bf16, a shift: even a NaN keeps its payload.
func F32FromBF16(h uint16) uint32 { return uint32(h) << 16 }

// F32FromF16 is cvt.f32.f16, always exact; NaN becomes canonical.
func F32FromF16(h uint16) uint32 {
	sign := uint32(h&0x8000) << 16
	exponent, fraction := uint32(h>>10&31), uint32(h&0x3ff)
	switch exponent {
	case 31:
		if fraction != 0 {
			return canonicalNaN
		}
		return sign | F32Inf
	case 0:
		return sign | math.Float32bits(float32(fraction)*0x1p-24)
	}
	return sign | (exponent+127-15)<<23 | fraction<<13
}

// RoundIntegral rounds to an integral value in floating point, as cvt.{rni,rzi,rmi,rpi}.f32.f32
// does.
func RoundIntegral(x float64, mode Rounding) float64 {
	switch mode {
	case RoundZero:
		return math.Trunc(x)
	case RoundDown:
		return math.Floor(x)
	case RoundUp:
		return math.Ceil(x)
	}
	return math.RoundToEven(x)
}
