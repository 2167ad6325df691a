package arith

import (
	"math"
	"math/bits"

	"sonicmoe/ptx/isa"
)

// Int is an integer type of PTX.
type Int struct {
	Bits   uint // 8, 16, 32 or 64
	Signed bool
}

// IntOf returns the Int of an integer type of the instruction table.
func IntOf(t isa.Type) Int { return Int{uint(t.Bits()), t.Signed()} }

// FromFloat computes cvt.{rni,rzi,rmi,rpi}{.ftz}.TYPE.f32. x is the source, converted exactly to
// float64. Values out of range saturate. NaN gives 0; for 64-bit types it gives only the top bit,
// as the manual says. The result is sign- or zero-extended to 64 bits.
func (t Int) FromFloat(x float64, mode Rounding) uint64 {
	if x != x {
		if t.Bits == 64 {
			return 1 << 63
		}
		return 0
	}
	x = RoundIntegral(x, mode)
	low, high := 0.0, math.Ldexp(1, int(t.Bits)) // high is the largest value plus one
	if t.Signed {
		high /= 2
		low = -high
	}
	switch {
	case x < low:
		return t.min()
	case x >= high:
		return t.max()
	case t.Signed:
		return uint64(int64(x))
	}
	return uint64(x)
}

// min returns the smallest value, extended to 64 bits.
func (t Int) min() uint64 {
	if t.Signed {
		return ^uint64(0) << (t.Bits - 1)
	}
	return 0
}

// max returns the largest value.
func (t Int) max() uint64 {
	if t.Signed {
		return 1<<(t.Bits-1) - 1
	}
	return ^uint64(0) >> (64 - t.Bits)
}

// Extend reads the low bits of x as a value of the type, and sign- or zero-extends it to 64 bits.
func (t Int) Extend(x uint64) uint64 {
	free := 64 - t.Bits
	if t.Signed {
		return uint64(int64(x<<free) >> free)
	}
	return x << free >> free
}

// Convert computes cvt{.sat}.TO.FROM between integers. Parameter from is the type of x. The result
// is truncated to the range of t, or clamped to it if saturate is set, and then extended to 64
// bits.
func (t Int) Convert(x uint64, from Int, saturate bool) uint64 {
	x = from.Extend(x)
	if !saturate {
		return t.Extend(x)
	}
	if from.Signed && int64(x) < 0 {
		if !t.Signed || int64(x) < int64(t.min()) {
			return t.min()
		}
		return x
	}
	return min(x, t.max())
}

// Product returns a*b in 128 bits.
func (t Int) Product(a, b uint64) (hi, lo uint64) {
	a, b = t.Extend(a), t.Extend(b)
	hi, lo = bits.Mul64(a, b)
	if t.Signed {
		if int64(a) < 0 {
			hi -= b
		}
		if int64(b) < 0 {
			hi -= a
		}
	}
	return hi, lo
}

// High returns the upper half of the product of two values of the type.
func (t Int) High(a, b uint64) uint64 {
	hi, lo := t.Product(a, b)
	if t.Bits == 64 {
		return hi
	}
	return t.Extend(lo >> t.Bits)
}

// Less compares two values of the type.
func (t Int) Less(a, b uint64) bool {
	a, b = t.Extend(a), t.Extend(b)
	if t.Signed {
		return int64(a) < int64(b)
	}
	return a < b
}

// Clamp clamps x, a sum of two 32-bit values, to the range of the type.
func (t Int) Clamp(x int64) uint64 {
	return uint64(max(min(x, int64(t.max())), int64(t.min())))
}

type integer interface {
	uint32 | int32 | uint64 | int64
}

// A division by zero gives all ones, and its remainder is the dividend. The chip's instruction
// sequence for unsigned numbers does the same; PTX leaves the results undefined.

func Divide[T integer](a, b T) T {
	if b == 0 {
		return ^T(0)
	}
	return a / b
}

func Remainder[T integer](a, b T) T {
	if b == 0 {
		return a
	}
	return a % b
}

// Permute computes prmt in its default mode. Each nibble of the selector picks one of the eight
// bytes of a and b. If the nibble's top bit is set, the result is eight copies of this byte's sign
// bit.
func Permute(a, b, selector uint32) uint32 {
	all := uint64(b)<<32 | uint64(a)
	var d uint32
	for i := range 4 {
		n := selector >> (4 * i) & 15
		v := byte(all >> (8 * (n & 7)))
		if n&8 != 0 {
			v = byte(int8(v) >> 7)
		}
		d |= uint32(v) << (8 * i)
	}
	return d
}

// PermuteSelector returns the selector of prmt's default mode that is equivalent to selector n of
// another mode.
func PermuteSelector(mode string, n uint32) uint32 {
	return map[string][4]uint32{
		".f4e": {0x3210, 0x4321, 0x5432, 0x6543}, ".b4e": {0x5670, 0x6701, 0x7012, 0x0123},
		".rc8": {0x0000, 0x1111, 0x2222, 0x3333}, ".ecl": {0x3210, 0x3211, 0x3222, 0x3333},
		".ecr": {0x0000, 0x1110, 0x2210, 0x3210}, ".rc16": {0x1010, 0x3232, 0x1010, 0x3232},
	}[mode][n]
}
