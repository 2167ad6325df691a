package fragments

import (
	"math"

	"sonicmoe/internal/num"
	"sonicmoe/ptx"
)

// A scale that bf16 cannot represent has two terms, which are bf16 numbers: high, and a smaller low of the
// same sign. For each code, less its zero point if the format has one, two bf16 operations then round like
// the definition of the format:
//
//	fma(code, high, code·low) = bf16(fp32(code·scale))
//
// The sum of the terms is only nearly the scale. A code has at most 4 significant bits, so the equation has
// to hold for the numbers 8 to 15 only, times powers of two. Two terms for which it holds exist for every
// significand of an FP32 number, and [termSteps] finds them; TestTermsOfAllScales tries all of them.

// termSteps lists by how many units in the last place the low term may differ from the rounded rest
// of the scale. The first step for which the equation holds is taken.
var termSteps = [...]int{0, 1, -1, 2, -2}

// termsFrom is the binary exponent of the smallest scale whose products round as normal numbers do.
const termsFrom = -90

// termsBelow returns the binary exponent of the smallest scale that is too large.
func (f Format) termsBelow() int { return 128 - f.excess() }

// terms returns the bf16 bits of the two terms of a scale. The terms include 2^excess. terms reports false
// for scales that have none: those that are NaN, infinite, from 2^termsBelow on, or below 2^termsFrom but
// not 0.
func (f Format) terms(scale float32) (high, low uint16, ok bool) {
	bits := math.Float32bits(scale)
	if scale == 0 {
		return uint16(bits >> 16), uint16(bits >> 16), true
	}
	if s := math.Abs(float64(scale)); !(s < math.Ldexp(1, f.termsBelow()) && s >= math.Ldexp(1, termsFrom)) {
		return 0, 0, false
	}
	high = uint16(bits >> 16)
	rest := num.Float32ToBF16(scale - num.BF16ToFloat32(high))
	if rest == 0 {
		rest = high & 0x8000 // -0 keeps the sign of the product of code -0
	}
	for _, step := range termSteps {
		low = rest + uint16(step)
		if haveTerms(scale, high, low) {
			return f.withExcess(high), f.withExcess(low), true
		}
	}
	return 0, 0, false
}

// withExcess returns the bf16 bits of a term times 2^excess.
func (f Format) withExcess(bits uint16) uint16 {
	if bits&0x7fff == 0 {
		return bits
	}
	return bits + uint16(f.excess())<<7
}

// haveTerms reports whether the terms round like the scale, for the numbers 8 to 15. Sums and products
// are exact in float64.
func haveTerms(scale float32, high, low uint16) bool {
	h, l := num.BF16ToFloat64(high), num.BF16ToFloat64(low)
	for n := 8.; n < 16; n++ {
		if num.Float64ToBF16(n*h+num.BF16ToFloat64(num.Float64ToBF16(n*l))) != num.Float32ToBF16(float32(n)*scale) {
			return false
		}
	}
	return true
}

// arrangeTerms returns the bf16 bits of the two terms of a scale, see [Format.terms]. scale has the bits of
// the FP32 number. A scale without terms is refused if its row exists.
func (m *arranging) arrangeTerms(scale ptx.U32, is ptx.Pred) (high, low ptx.U32) {
	k := m.k
	const noSign, exponent = 1<<31 - 1, 1 << 23
	magnitude := scale.AndI(noSign)
	fits := magnitude.GeI((127 + termsFrom) * exponent).And(magnitude.LtI((127 + m.termsBelow()) * exponent))
	m.refuse(is.And(magnitude.NeI(0)).And(fits.Not()))
	// The search is for the scale's significand between 1 and 2, which has the same terms.
	significand := magnitude.AndI(exponent - 1).Or(ptx.Uint(127 * exponent))
	upper := significand.AndI(0xffff << 16)
	rest := k.PackBF16(significand.AsF32().Sub(upper.AsF32()), ptx.Float(0)).Bits().AndI(0xffff)
	h := upper.Or(upper.ShrI(16)).AsBF16x2()
	lowOf, isFound := ptx.NewVar(k, rest), ptx.NewVar(k, ptx.Uint(0))
	for _, step := range termSteps {
		k.If(isFound.Get().EqI(0), func() {
			low := rest.Add(ptx.Uint(step)).AndI(0xffff)
			l := low.Or(low.ShlI(16)).AsBF16x2()
			differ := ptx.Uint(0)
			for n := 8; n < 16; n += 2 {
				first, second := float32(n), float32(n+1)
				numbers := ptx.Uint(int(num.Float32ToBF16(first)) | int(num.Float32ToBF16(second))<<16).AsBF16x2()
				want := k.PackBF16(significand.AsF32().Mul(ptx.Float(float64(first))), significand.AsF32().Mul(ptx.Float(float64(second)))).Bits()
				differ = differ.Or(want.Xor(numbers.Fma(h, numbers.Mul(l)).Bits()))
			}
			k.If(differ.EqI(0), func() {
				lowOf.Set(low)
				isFound.Set(ptx.Uint(1))
			})
		})
	}
	sign, given := ptx.Select(is, scale.ShrI(16).AndI(0x8000), ptx.Uint(0)), is.And(fits)
	high = scale.ShrI(16).AddI(m.excess() << 7)
	low = lowOf.Get()
	low = ptx.Select(low.EqI(0), low, low.Add(magnitude.ShrI(23).ShlI(7)).SubI((127-m.excess())<<7)).Or(sign)
	return ptx.Select(given, high, sign), ptx.Select(given, low, sign)
}
