package arith

import (
	"math"
	"math/big"

	"sonicmoe/ptx/isa"
)

// This file computes with every float format and rounding mode, on exact numbers (big.Float), which
// is slow. Sums, products and fused products of 16-bit numbers, the only operations here that the
// layer's kernels use, take a faster path.

// Format is a binary float format all of whose values float64 can represent.
type Format struct {
	precision int // bits of the significand, including the hidden bit
	Least     int // exponent of the smallest normal number
	most      int // exponent of the largest number
	nan       uint64
	Bits      int
}

var (
	Format64   = Format{53, -1022, 1023, 0x7ff8000000000000, 64}
	Format32   = Format{24, -126, 127, canonicalNaN, 32}
	Format16   = Format{11, -14, 15, canonicalNaN16, 16}
	formatBF16 = Format{8, -126, 127, canonicalNaN16, 16}
	FormatE4M3 = Format{4, -6, 8, 0x7f, 8}
	FormatE5M2 = Format{3, -14, 15, 0x7f, 8}
)

// FormatOf returns the format of a type. For a pair it returns the format of the halves.
func FormatOf(t isa.Type) Format {
	switch t {
	case isa.F64:
		return Format64
	case isa.F16, isa.F16x2:
		return Format16
	case isa.BF16, isa.BF16x2:
		return formatBF16
	}
	return Format32
}

// FloatOf returns the value that bits x have in type t.
func FloatOf(t isa.Type, x uint64) float64 {
	switch t {
	case isa.F64:
		return math.Float64frombits(x)
	case isa.F16:
		return float64(ToF32(F32FromF16(uint16(x))))
	case isa.BF16:
		return float64(ToF32(F32FromBF16(uint16(x))))
	}
	return float64(ToF32(uint32(x)))
}

// Encode returns the bits of a number, which the format must be able to represent.
func (f Format) Encode(x float64) uint64 {
	if x != x {
		return f.nan
	}
	switch f.Bits {
	case 64:
		return math.Float64bits(x)
	case 32:
		return uint64(math.Float32bits(float32(x)))
	}
	sign := uint64(0)
	if math.Signbit(x) {
		sign = 1 << (f.Bits - 1)
	}
	fraction := f.precision - 1
	if math.IsInf(x, 0) {
		return sign | uint64(f.most-f.Least+2)<<fraction
	}
	if exponentOf(x) < f.Least {
		return sign | uint64(math.Abs(x)*powerOfTwo(fraction-f.Least))
	}
	return sign | uint64(exponentOf(x)-f.Least+1)<<fraction | math.Float64bits(x)&(1<<52-1)>>(52-fraction)
}

// exponentOf returns the exponent of a normal float64 number, and -1023 for smaller numbers.
func exponentOf(x float64) int { return int(math.Float64bits(x)>>52&0x7ff) - 1023 }

// powerOfTwo returns 2^e, which must be a normal float64 number.
func powerOfTwo(e int) float64 { return math.Float64frombits(uint64(e+1023) << 52) }

// Largest returns the largest finite number. E4M3 has no infinities: it uses their exponent for
// numbers, except for one code, which is NaN.
func (f Format) Largest() float64 {
	if f == FormatE4M3 {
		return 448
	}
	return math.Ldexp(2-math.Ldexp(1, 1-f.precision), f.most)
}

// Round rounds an exact number to the nearest or next number of the format, as mode says.
func (f Format) Round(x *big.Float, mode Rounding) float64 {
	if x.Sign() == 0 {
		z, _ := x.Float64()
		return z
	}
	quantum := max(x.MantExp(nil)-1, f.Least) - (f.precision - 1)
	scaled := new(big.Float).SetMantExp(x, -quantum)
	i, exact := scaled.Int(nil)
	if exact != big.Exact {
		up := false
		switch negative := x.Sign() < 0; mode {
		case RoundNearest:
			rest := new(big.Float).Sub(scaled, new(big.Float).SetInt(i))
			rest.Abs(rest)
			c := rest.Cmp(big.NewFloat(0.5))
			up = c > 0 || c == 0 && i.Bit(0) == 1
		case RoundDown:
			up = negative
		case RoundUp:
			up = !negative
		}
		if up {
			i.Add(i, big.NewInt(int64(x.Sign())))
		}
	}
	r, _ := new(big.Float).SetMantExp(new(big.Float).SetInt(i), quantum).Float64()
	if r == 0 {
		return math.Copysign(0, float64(x.Sign()))
	}
	if math.Abs(r) > f.Largest() {
		if mode == RoundZero || mode == RoundDown && r > 0 || mode == RoundUp && r < 0 {
			return math.Copysign(f.Largest(), r)
		}
		return math.Inf(x.Sign())
	}
	return r
}

// Op is an arithmetic operation on floats.
type Op uint8

const (
	OpAdd Op = iota
	OpSub
	OpMul
	OpFma
	OpDiv
	OpSqrt
)

// Float computes the operation in float64. The callers use its result if it is NaN or infinite, or
// if the operands of a sum or product are zeros.
func (op Op) Float(a, b, c float64) float64 {
	switch op {
	case OpAdd:
		return a + b
	case OpSub:
		return a - b
	case OpMul:
		return a * b
	case OpFma:
		return math.FMA(a, b, c)
	case OpDiv:
		return a / b
	}
	return math.Sqrt(a)
}

const (
	exactBits = 4400 // number of mantissa bits that hold any sum of products of float64 values exactly
	rootBits  = 256  // number of mantissa bits that suffice to round any quotient or root correctly
)

// Compute returns the exact result of the operation, rounded once to the format.
func (f Format) Compute(op Op, mode Rounding, a, b, c float64) float64 {
	r := op.Float(a, b, c)
	for _, x := range [3]float64{a, b, c} {
		if x-x != 0 { // NaN or infinite
			return r
		}
	}
	if r != r || op == OpDiv && b == 0 {
		return r
	}
	if f.Bits == 16 && mode == RoundNearest && op <= OpFma {
		if op == OpFma {
			r = addOdd(a*b, c)
		}
		return f.nearest(r)
	}
	big64 := func(x float64) *big.Float { return new(big.Float).SetPrec(exactBits).SetFloat64(x) }
	x, zero := big64(a), false
	switch op {
	case OpAdd:
		zero = a == 0 && b == 0
		x.Add(x, big64(b))
	case OpSub:
		zero = a == 0 && b == 0
		x.Sub(x, big64(b))
	case OpMul:
		zero = a == 0 || b == 0
		x.Mul(x, big64(b))
	case OpFma:
		zero = (a == 0 || b == 0) && c == 0
		x.Mul(x, big64(b))
		x.Add(x, big64(c))
	case OpDiv:
		zero = a == 0
		x.SetPrec(rootBits).SetMode(big.ToZero).Quo(x, big64(b))
	case OpSqrt:
		zero = a == 0
		x.SetPrec(rootBits).SetMode(big.ToZero).Sqrt(x)
	}
	switch {
	case x.Sign() != 0:
		return f.Round(x, mode)
	case mode == RoundDown && (op == OpAdd || op == OpSub || op == OpFma) && !(zero && !math.Signbit(r) && positiveZeros(op, a, b, c)):
		return math.Copysign(0, -1) // x - x
	case zero:
		return r
	}
	return 0
}

// nearest returns the number of a 16-bit format that is nearest to a sum, difference, product or
// fused product of its numbers. r is the result in float64, and has the same nearest number as the
// exact result. A product of two numbers is exact in float64. If the sum of two numbers is not exact,
// then float64 cannot distinguish it from its larger term, and this term is the nearest number. A fused
// product is rounded to odd.
func (f Format) nearest(r float64) float64 {
	// Next to 1.5 * 2^52 * quantum, the float64 numbers are the multiples of quantum.
	quantum := max(exponentOf(r), f.Least) - (f.precision - 1)
	shift := 1.5 * powerOfTwo(quantum+52)
	n := math.Copysign(r+shift-shift, r)
	if exponentOf(n) > f.most {
		return math.Copysign(math.Inf(1), r)
	}
	return n
}

// positiveZeros reports whether the operation adds two positive zeros, which gives +0 in every
// rounding mode.
func positiveZeros(op Op, a, b, c float64) bool {
	switch op {
	case OpSub:
		b = -b
	case OpFma:
		a, b = a*b, c
	}
	return !math.Signbit(a) && !math.Signbit(b)
}

// FlushHalf applies .ftz to an FP16 number: a subnormal number becomes a zero of its sign.
func FlushHalf(x uint64, ftz bool) uint64 {
	if ftz && x&0x7c00 == 0 {
		return x & 0x8000
	}
	return x
}

// FromFP8 returns the value of an FP8 number.
func FromFP8(f Format, x uint64) float64 {
	fraction := f.precision - 1
	exponent, m := int(x>>fraction)&(1<<(7-fraction)-1), x&(1<<fraction-1)
	r := 0.0
	switch {
	case f == FormatE4M3 && x&0x7f == 0x7f, f == FormatE5M2 && exponent == 31 && m != 0:
		return math.NaN()
	case f == FormatE5M2 && exponent == 31:
		r = math.Inf(1)
	case exponent == 0:
		r = math.Ldexp(float64(m), f.Least-fraction)
	default:
		r = math.Ldexp(float64(m|1<<fraction), exponent-1+f.Least-fraction)
	}
	if x&0x80 != 0 {
		r = -r
	}
	return r
}

// Saturate applies .sat: it clamps x to [0, 1] and turns NaN into 0.
func Saturate(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, 1)
}

// Extreme64 computes min.f64 or max.f64. If one operand is NaN, the result is the other operand.
func Extreme64(x, y float64, op func(x, y float64) float64) float64 {
	switch {
	case x != x:
		return y
	case y != y:
		return x
	}
	return op(x, y)
}
