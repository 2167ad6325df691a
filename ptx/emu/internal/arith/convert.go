package arith

import (
	"math"

	"sonicmoe/internal/num"
)

// Rounding is a rounding mode: .rn, .rz, .rm or .rp. When rounding to integers, PTX calls the same
// modes .rni, .rzi, .rmi and .rpi.
type Rounding uint8

const (
	RoundNearest Rounding = iota // to nearest, ties to even
	RoundZero
	RoundDown
	RoundUp
)

const canonicalNaN16 = 0x7fff

// BF16FromF32 computes cvt.rn.bf16.f32.
func BF16FromF32(x uint32) uint16 { return num.Float32ToBF16(ToF32(x)) }

// BF16Nearest computes the same as BF16FromF32, with the result in the lower half of a register.
func BF16Nearest(x uint32) uint32 { return uint32(BF16FromF32(x)) }

// F16Nearest computes cvt.rn.f16.f32, with the result in the lower half of a register.
func F16Nearest(x uint32) uint32 { return uint32(num.Float32ToF16(ToF32(x))) }

// F32FromBF16 computes cvt.f32.bf16. It is a shift, so even a NaN keeps its payload.
func F32FromBF16(h uint16) uint32 { return uint32(h) << 16 }

// F32FromF16 computes cvt.f32.f16, which is exact. A NaN becomes the canonical NaN.
func F32FromF16(h uint16) uint32 { return FromF32(num.F16ToFloat32(h)) }

// RoundIntegral rounds a number to an integer and keeps it a float, as
// cvt.{rni,rzi,rmi,rpi}.f32.f32 does.
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
