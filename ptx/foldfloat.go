package ptx

import (
	"math"

	"sonicmoe/ptx/isa"
)

// nanBits is the only NaN that GPU arithmetic returns.
const nanBits = 0x7fffffff

// foldFloat computes operations that IEEE 754 defines exactly. It rounds once, to nearest even.
func foldFloat(f *isa.Form, m isa.Mods, a, b, c uint64) (uint64, bool) {
	ftz := f.Has(m, ".ftz")
	x, y, z := float(a, ftz), float(b, ftz), float(c, ftz)
	var d float32
	switch f.ID {
	case isa.AddF32:
		d = x + y
	case isa.SubF32:
		d = x - y
	case isa.MulF32:
		d = x * y
	case isa.FmaF32:
		d = fma(x, y, z)
	case isa.NegF32:
		d = -x
	case isa.MinF32, isa.MaxF32:
		d = extreme(x, y, f.ID == isa.MaxF32, f.Has(m, ".NaN"))
	case isa.SetpF32:
		return compareFloat(f.Mod(m, "cmp"), x, y), true
	case isa.CvtF32ToBF16:
		return toBF16(a), true
	case isa.CvtBF16ToF32:
		return a << 16, true
	default:
		return 0, false
	}
	return floatBits(d, ftz), true
}

// float returns the number that the bits represent. With ftz, a subnormal number becomes zero.
func float(b uint64, ftz bool) float32 {
	if ftz && b&0x7f800000 == 0 {
		b &= 0x80000000
	}
	return math.Float32frombits(uint32(b))
}

func floatBits(x float32, ftz bool) uint64 {
	if x != x {
		return nanBits
	}
	b := uint64(math.Float32bits(x))
	if ftz && b&0x7f800000 == 0 {
		b &= 0x80000000
	}
	return b
}

// fma returns x*y+z, rounded once. The product is exact in double precision. The sum in double
// precision is rounded to odd, so that the second rounding, to single precision, is correct.
func fma(x, y, z float32) float32 {
	p, q := float64(x)*float64(y), float64(z)
	s := p + q
	if s != s || math.IsInf(s, 0) {
		return float32(s)
	}
	v := s - p // TwoSum: p + q equals s + e exactly
	e := (p - (s - v)) + (q - v)
	if b := math.Float64bits(s); e != 0 && b&1 == 0 {
		if (e > 0) == (s > 0) {
			b++
		} else {
			b--
		}
		s = math.Float64frombits(b)
	}
	return float32(s)
}

// extreme returns the minimum or maximum of x and y. If one of them is NaN, the result is the
// other, unless nan is set. -0 is less than +0.
func extreme(x, y float32, max, nan bool) float32 {
	switch {
	case x != x && y != y || nan && (x != x || y != y):
		return float32(math.NaN())
	case x != x:
		return y
	case y != y:
		return x
	case max:
		return float32(math.Max(float64(x), float64(y)))
	}
	return float32(math.Min(float64(x), float64(y)))
}

func compareFloat(cmp string, x, y float32) uint64 {
	ordered := x == x && y == y
	var is bool
	switch cmp {
	case ".num":
		is = ordered
	case ".nan":
		is = !ordered
	case ".ne": // false if an operand is NaN
		is = ordered && x != y
	case ".eq", ".lt", ".le", ".gt", ".ge":
		is = lessEqual(cmp, x, y)
	case ".neu":
		is = !ordered || x != y
	default: // .equ .ltu .leu .gtu .geu: true if an operand is NaN
		is = !ordered || lessEqual(cmp[:3], x, y)
	}
	if is {
		return 1
	}
	return 0
}

func lessEqual(cmp string, x, y float32) bool {
	switch cmp {
	case ".eq":
		return x == y
	case ".lt":
		return x < y
	case ".le":
		return x <= y
	case ".gt":
		return x > y
	}
	return x >= y
}

// toBF16 rounds a float to the nearest bf16, ties to even.
func toBF16(b uint64) uint64 {
	if b&0x7fffffff > 0x7f800000 {
		return 0x7fff
	}
	return (b + 0x7fff + b>>16&1) >> 16
}

// convertConstant converts an integer constant to another integer type or to f32.
func convertConstant(x uint64, from, to isa.Type) uint64 {
	if from.Signed() {
		x = uint64(signed(x, from))
	}
	if to == isa.F32 {
		if from.Signed() {
			return uint64(math.Float32bits(float32(int64(x))))
		}
		return uint64(math.Float32bits(float32(x)))
	}
	return x & (^uint64(0) >> (64 - to.Bits()))
}
