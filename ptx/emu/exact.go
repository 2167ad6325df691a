package emu

import (
	"math"
	"math/big"

	"sonicmoe/ptx/isa"
)

// Arithmetic for every float format and rounding mode, on exact numbers. It is slow, and only
// instructions that the layer's kernels do not use need it.

// floatFormat is a binary format whose values float64 can represent.
type floatFormat struct {
	precision int // bits of the significand, with the hidden one
	least     int // exponent of the smallest normal number
	most      int // exponent of the largest number
	nan       uint64
	bits      int
}

var (
	format64   = floatFormat{53, -1022, 1023, 0x7ff8000000000000, 64}
	format32   = floatFormat{24, -126, 127, canonicalNaN, 32}
	format16   = floatFormat{11, -14, 15, canonicalNaN16, 16}
	formatBF16 = floatFormat{8, -126, 127, canonicalNaN16, 16}
	formatE4M3 = floatFormat{4, -6, 8, 0x7f, 8}
	formatE5M2 = floatFormat{3, -14, 15, 0x7f, 8}
)

// formatOf returns the format of a type, or of the halves of a pair.
func formatOf(t isa.Type) floatFormat {
	switch t {
	case isa.F64:
		return format64
	case isa.F16, isa.F16x2:
		return format16
	case isa.BF16, isa.BF16x2:
		return formatBF16
	}
	return format32
}

// floatOf returns the value of the bits of a type.
func floatOf(t isa.Type, x uint64) float64 {
	switch t {
	case isa.F64:
		return math.Float64frombits(x)
	case isa.F16:
		return float64(toF32(f32FromF16(uint16(x))))
	case isa.BF16:
		return float64(toF32(f32FromBF16(uint16(x))))
	}
	return float64(toF32(uint32(x)))
}

// encode returns the bits of a number that the format can represent.
func (f floatFormat) encode(x float64) uint64 {
	if x != x {
		return f.nan
	}
	switch f.bits {
	case 64:
		return math.Float64bits(x)
	case 32:
		return uint64(math.Float32bits(float32(x)))
	}
	sign := uint64(choose(math.Signbit(x))) << (f.bits - 1)
	fraction := f.precision - 1
	if math.IsInf(x, 0) {
		return sign | uint64(f.most-f.least+2)<<fraction
	}
	if x = math.Abs(x); x < math.Ldexp(1, f.least) {
		return sign | uint64(math.Ldexp(x, fraction-f.least))
	}
	m, e := math.Frexp(x)
	return sign | uint64(e-f.least)<<fraction | uint64(math.Ldexp(2*m-1, fraction))
}

// largest returns the largest finite number. E4M3 uses the exponent of infinities for numbers,
// except for one code, which is NaN.
func (f floatFormat) largest() float64 {
	if f == formatE4M3 {
		return 448
	}
	return math.Ldexp(2-math.Ldexp(1, 1-f.precision), f.most)
}

// round rounds an exact number to the format.
func (f floatFormat) round(x *big.Float, mode roundMode) float64 {
	if x.Sign() == 0 {
		z, _ := x.Float64()
		return z
	}
	quantum := max(x.MantExp(nil)-1, f.least) - (f.precision - 1)
	scaled := new(big.Float).SetMantExp(x, -quantum)
	i, exact := scaled.Int(nil)
	if exact != big.Exact {
		up := false
		switch negative := x.Sign() < 0; mode {
		case roundNearest:
			rest := new(big.Float).Sub(scaled, new(big.Float).SetInt(i))
			rest.Abs(rest)
			c := rest.Cmp(big.NewFloat(0.5))
			up = c > 0 || c == 0 && i.Bit(0) == 1
		case roundDown:
			up = negative
		case roundUp:
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
	if math.Abs(r) > f.largest() {
		if mode == roundZero || mode == roundDown && r > 0 || mode == roundUp && r < 0 {
			return math.Copysign(f.largest(), r)
		}
		return math.Inf(x.Sign())
	}
	return r
}

// floatOp is an arithmetic operation.
type floatOp uint8

const (
	opAdd floatOp = iota
	opSub
	opMul
	opFma
	opDiv
	opSqrt
)

// float computes the operation in float64. Its bits are used if the result is NaN, infinite, or
// a sum or product of zeros.
func (op floatOp) float(a, b, c float64) float64 {
	switch op {
	case opAdd:
		return a + b
	case opSub:
		return a - b
	case opMul:
		return a * b
	case opFma:
		return math.FMA(a, b, c)
	case opDiv:
		return a / b
	}
	return math.Sqrt(a)
}

const (
	exactBits = 4400 // enough for any sum of products of float64
	rootBits  = 256  // enough to round any quotient and root correctly
)

// compute returns the result of the operation, rounded once to the format.
func (f floatFormat) compute(op floatOp, mode roundMode, a, b, c float64) float64 {
	r := op.float(a, b, c)
	for _, x := range []float64{a, b, c} {
		if x != x || math.IsInf(x, 0) {
			return r
		}
	}
	if r != r || op == opDiv && b == 0 {
		return r
	}
	big64 := func(x float64) *big.Float { return new(big.Float).SetPrec(exactBits).SetFloat64(x) }
	x, zero := big64(a), false
	switch op {
	case opAdd:
		zero = a == 0 && b == 0
		x.Add(x, big64(b))
	case opSub:
		zero = a == 0 && b == 0
		x.Sub(x, big64(b))
	case opMul:
		zero = a == 0 || b == 0
		x.Mul(x, big64(b))
	case opFma:
		zero = (a == 0 || b == 0) && c == 0
		x.Mul(x, big64(b))
		x.Add(x, big64(c))
	case opDiv:
		zero = a == 0
		x.SetPrec(rootBits).SetMode(big.ToZero).Quo(x, big64(b))
	case opSqrt:
		zero = a == 0
		x.SetPrec(rootBits).SetMode(big.ToZero).Sqrt(x)
	}
	switch {
	case x.Sign() != 0:
		return f.round(x, mode)
	case mode == roundDown && (op == opAdd || op == opSub || op == opFma) && !(zero && !math.Signbit(r) && positiveZeros(op, a, b, c)):
		return math.Copysign(0, -1) // x - x
	case zero:
		return r
	}
	return 0
}

// positiveZeros reports whether a sum adds two positive zeros. It is +0 in every rounding mode.
func positiveZeros(op floatOp, a, b, c float64) bool {
	switch op {
	case opSub:
		b = -b
	case opFma:
		a, b = a*b, c
	}
	return !math.Signbit(a) && !math.Signbit(b)
}

// roundMode returns the rounding mode of an instruction; to nearest if it has none.
func (in *inst) roundMode() roundMode {
	return map[string]roundMode{".rz": roundZero, ".rm": roundDown, ".rp": roundUp, ".rzi": roundZero, ".rmi": roundDown, ".rpi": roundUp}[in.mod("rnd")]
}

// flushHalf is flush for FP16.
func flushHalf(x uint64, ftz bool) uint64 {
	if ftz && x&0x7c00 == 0 {
		return x & 0x8000
	}
	return x
}
