package emu

import "math"

// roundMode is a rounding mode: .rn, .rz, .rm, .rp (and, to integers, the same with i).
type roundMode uint8

const (
	roundNearest roundMode = iota // to nearest, ties to even
	roundZero
	roundDown
	roundUp
)

// narrowFormat is a 16-bit floating-point format.
type narrowFormat struct {
	fractionBits int
	bias         int
	infinity     uint16 // exponent all ones, fraction zero
}

// Both formats' NaN is 0x7fff.
var (
	bf16Format = narrowFormat{fractionBits: 7, bias: 127, infinity: 0x7f80}
	f16Format  = narrowFormat{fractionBits: 10, bias: 15, infinity: 0x7c00}
)

const canonicalNaN16 = 0x7fff

// fromF32 is cvt.{rn,rz}{.relu}.FORMAT.f32. relu turns negative numbers and -0 into +0; NaN
// stays NaN.
func (n narrowFormat) fromF32(x uint32, mode roundMode, relu bool) uint16 {
	sign := uint16(x >> 16 & 0x8000)
	magnitude := x &^ f32Sign
	switch {
	case magnitude > f32Inf:
		return canonicalNaN16
	case relu && sign != 0:
		return 0
	case magnitude == f32Inf:
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
	if mode == roundNearest {
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
		if mode == roundZero {
			return sign | (n.infinity - 1)
		}
		return sign | n.infinity
	}
	return sign | uint16(bits)
}

// bf16FromF32 is cvt.rn.bf16.f32.
func bf16FromF32(x uint32) uint16 {
	if isNaN32(x) {
		return canonicalNaN16
	}
	// Adding just under half of the last place, plus the last bit, rounds to nearest even; a
	// carry correctly reaches the exponent, up to infinity.
	return uint16((x + 0x7fff + x>>16&1) >> 16)
}

// bf16Nearest is bf16FromF32 with the result in the lower half of a register.
func bf16Nearest(x uint32) uint32 { return uint32(bf16FromF32(x)) }

// f16Nearest is cvt.rn.f16.f32 with the result in the lower half of a register.
func f16Nearest(x uint32) uint32 { return uint32(f16Format.fromF32(x, roundNearest, false)) }

// packF32 is cvt.{rn,rz}{.relu}.{bf16x2,f16x2}.f32: the first source operand goes to the upper
// half.
func (n narrowFormat) packF32(first, second uint32, mode roundMode, relu bool) uint32 {
	return uint32(n.fromF32(first, mode, relu))<<16 | uint32(n.fromF32(second, mode, relu))
}

// f32FromBF16 is cvt.f32.bf16, a shift: even a NaN keeps its payload.
func f32FromBF16(h uint16) uint32 { return uint32(h) << 16 }

// f32FromF16 is cvt.f32.f16, always exact; NaN becomes canonical.
func f32FromF16(h uint16) uint32 {
	sign := uint32(h&0x8000) << 16
	exponent, fraction := uint32(h>>10&31), uint32(h&0x3ff)
	switch exponent {
	case 31:
		if fraction != 0 {
			return canonicalNaN
		}
		return sign | f32Inf
	case 0:
		return sign | math.Float32bits(float32(fraction)*0x1p-24)
	}
	return sign | (exponent+127-15)<<23 | fraction<<13
}

// roundIntegral rounds to an integral value in floating point, as cvt.{rni,rzi,rmi,rpi}.f32.f32
// does.
func roundIntegral(x float64, mode roundMode) float64 {
	switch mode {
	case roundZero:
		return math.Trunc(x)
	case roundDown:
		return math.Floor(x)
	case roundUp:
		return math.Ceil(x)
	}
	return math.RoundToEven(x)
}

// intType is an integer type of PTX.
type intType struct {
	bits   uint // 8, 16, 32 or 64
	signed bool
}

// fromFloat is cvt.{rni,rzi,rmi,rpi}{.ftz}.TYPE.f32, with the source widened exactly to
// float64. Values out of range saturate. NaN gives 0 or, for 64-bit types, the top bit alone,
// as the manual says. The result is sign- or zero-extended to 64 bits.
func (t intType) fromFloat(x float64, mode roundMode) uint64 {
	if x != x {
		if t.bits == 64 {
			return 1 << 63
		}
		return 0
	}
	x = roundIntegral(x, mode)
	low, high := 0.0, math.Ldexp(1, int(t.bits)) // high is one past the largest
	if t.signed {
		high /= 2
		low = -high
	}
	switch {
	case x < low:
		return t.min()
	case x >= high:
		return t.max()
	case t.signed:
		return uint64(int64(x))
	}
	return uint64(x)
}

// min returns the smallest value, extended to 64 bits.
func (t intType) min() uint64 {
	if t.signed {
		return ^uint64(0) << (t.bits - 1)
	}
	return 0
}

// max returns the largest value.
func (t intType) max() uint64 {
	if t.signed {
		return 1<<(t.bits-1) - 1
	}
	return ^uint64(0) >> (64 - t.bits)
}

// toF32 is cvt.rn.f32.TYPE; x is extended to 64 bits.
func (t intType) toF32(x uint64) uint32 {
	x = t.extend(x)
	if t.signed {
		return math.Float32bits(float32(int64(x)))
	}
	return math.Float32bits(float32(x))
}

// extend reads the low bits of x as a value of the type, sign- or zero-extended to 64 bits.
func (t intType) extend(x uint64) uint64 {
	free := 64 - t.bits
	if t.signed {
		return uint64(int64(x<<free) >> free)
	}
	return x << free >> free
}

// convert is cvt{.sat}.TO.FROM between integers: x is read as a value of type from. The result
// is truncated to t, or clamped to its range, and extended.
func (t intType) convert(x uint64, from intType, saturate bool) uint64 {
	x = from.extend(x)
	if !saturate {
		return t.extend(x)
	}
	if from.signed && int64(x) < 0 {
		if !t.signed || int64(x) < int64(t.min()) {
			return t.min()
		}
		return x
	}
	return min(x, t.max())
}
