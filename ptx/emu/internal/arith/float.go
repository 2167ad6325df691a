package arith

import "math"

// canonicalNaN is the only NaN that FP32 arithmetic produces in PTX.
const canonicalNaN = 0x7fffffff

// Masks and values of the bits of an FP32 register.
const (
	F32Sign = 0x80000000
	F32Inf  = 0x7f800000
)

func isNaN32(x uint32) bool { return x&^F32Sign > F32Inf }

func ToF32(x uint32) float32 { return math.Float32frombits(x) }

// FromF32 returns the register bits of the result of an operation. Every NaN becomes the canonical
// NaN.
func FromF32(x float32) uint32 {
	if x != x {
		return canonicalNaN
	}
	return math.Float32bits(x)
}

// flush applies .ftz to an input or result: a subnormal number becomes a zero of its sign.
func flush(x uint32) uint32 {
	if x&F32Inf == 0 {
		return x & F32Sign
	}
	return x
}

func FlushIf(ftz bool, x uint32) uint32 {
	if ftz {
		return flush(x)
	}
	return x
}

// AddF32 computes add{.ftz}.f32, rounded to nearest even. In all functions of this file, .ftz
// applies to the result after rounding.
func AddF32(a, b uint32, ftz bool) uint32 {
	if ftz {
		return flush(FromF32(ToF32(flush(a)) + ToF32(flush(b))))
	}
	return FromF32(ToF32(a) + ToF32(b))
}

// SubF32 computes sub{.ftz}.f32, rounded to nearest even.
func SubF32(a, b uint32, ftz bool) uint32 {
	return AddF32(a, b^F32Sign, ftz)
}

// MulF32 computes mul{.ftz}.f32, rounded to nearest even.
func MulF32(a, b uint32, ftz bool) uint32 {
	if ftz {
		return flush(FromF32(ToF32(flush(a)) * ToF32(flush(b))))
	}
	return FromF32(ToF32(a) * ToF32(b))
}

// FmaF32 computes fma.rn{.ftz}.f32: a*b+c, rounded once.
//
// The product of two FP32 numbers is exact in float64, but its sum with c is not. Rounding the sum
// first to float64 and then to FP32 would be wrong in rare cases. So the float64 sum is rounded to
// odd: if it is inexact, its last bit is set to 1. This keeps the second rounding on the right side
// of a tie.
func FmaF32(a, b, c uint32, ftz bool) uint32 {
	if ftz {
		a, b, c = flush(a), flush(b), flush(c)
	}
	p := float64(ToF32(a)) * float64(ToF32(b))
	z := float64(ToF32(c))
	s := FromF32(float32(addOdd(p, z)))
	return FlushIf(ftz, s)
}

// addOdd returns x+y in float64, rounded to odd. Infinities and NaN follow IEEE rules.
func addOdd(x, y float64) float64 {
	s := x + y
	if math.IsInf(s, 0) || s != s {
		return s
	}
	// Knuth's TwoSum: afterwards s + e equals x + y exactly.
	yy := s - x
	e := (x - (s - yy)) + (y - yy)
	bits := math.Float64bits(s)
	if e == 0 || bits&1 == 1 {
		return s
	}
	// The bits of s are even, and the exact sum lies strictly between s and a neighbour of s, whose
	// bits are odd. The neighbour is further from zero than s if e has the sign of s.
	if math.Signbit(e) == math.Signbit(s) {
		return math.Float64frombits(bits + 1)
	}
	return math.Float64frombits(bits - 1)
}

// MinF32 computes min{.ftz}{.NaN}.f32. keepNaN states that the instruction has .NaN; without it,
// the result of a NaN and a number is the number. -0 is below +0.
func MinF32(a, b uint32, ftz, keepNaN bool) uint32 {
	return negateNumber(MaxF32(negateNumber(a), negateNumber(b), ftz, keepNaN))
}

// negateNumber flips the sign of a number. It leaves NaN unchanged.
func negateNumber(x uint32) uint32 {
	if isNaN32(x) {
		return canonicalNaN
	}
	return x ^ F32Sign
}

// MaxF32 computes max{.ftz}{.NaN}.f32. keepNaN states that the instruction has .NaN; without it,
// the result of a NaN and a number is the number. +0 is above -0.
func MaxF32(a, b uint32, ftz, keepNaN bool) uint32 {
	if ftz {
		a, b = flush(a), flush(b)
	}
	switch an, bn := isNaN32(a), isNaN32(b); {
	case an && bn, keepNaN && (an || bn):
		return canonicalNaN
	case an:
		return b
	case bn:
		return a
	}
	if orderedKey(a) >= orderedKey(b) {
		return a
	}
	return b
}

// orderedKey maps FP32 bits to integers in the same order as the numbers. -0 comes just before +0.
func orderedKey(x uint32) int32 {
	if x&F32Sign != 0 {
		return -1 - int32(x&^F32Sign)
	}
	return int32(x)
}

// Compare is a comparison of setp and set on floats: the set of relations for which it is true.
type Compare uint8

// The relations that two numbers may have, one bit each.
const (
	relLess Compare = 1 << iota
	relEqual
	relGreater
	relUnordered
)

// Compares maps the names in the manual to comparisons. If an operand is NaN, comparisons whose
// name ends in u are true, and the others, including ne, are false.
var Compares = map[string]Compare{
	"eq": relEqual, "ne": relLess | relGreater,
	"lt": relLess, "le": relLess | relEqual,
	"gt": relGreater, "ge": relGreater | relEqual,
	"equ": relEqual | relUnordered, "neu": relLess | relGreater | relUnordered,
	"ltu": relLess | relUnordered, "leu": relLess | relEqual | relUnordered,
	"gtu": relGreater | relUnordered, "geu": relGreater | relEqual | relUnordered,
	"num": relLess | relEqual | relGreater, "nan": relUnordered,
}

// F32 compares two FP32 registers. -0 equals +0.
func (c Compare) F32(a, b uint32, ftz bool) bool {
	if ftz {
		a, b = flush(a), flush(b)
	}
	return c.F64(float64(ToF32(a)), float64(ToF32(b)))
}

// F64 compares two numbers of any floating-point type that float64 can represent.
func (c Compare) F64(x, y float64) bool {
	rel := relUnordered
	switch {
	case x < y:
		rel = relLess
	case x == y:
		rel = relEqual
	case x > y:
		rel = relGreater
	}
	return c&rel != 0
}
