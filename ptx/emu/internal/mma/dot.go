package mma

import (
	"math"
	"math/bits"
)

// This file computes one accumulator element by the definition. Tests compare the vector code with
// it, and it runs where the vector code cannot.

// MaxDepth is the largest k extent of a step in elements: that of 8-bit elements.
const MaxDepth = 32

// vector is a decoded row of A or column of B.
type vector struct {
	value [MaxDepth]float64
	// exponents has 16 bits for each element: laneBias plus the element's exponent, or 0 for a zero
	// element. Words of two vectors can be added without a carry between the 16-bit lanes. If a
	// factor is zero, the sum is below laneFloor; otherwise it is above.
	exponents [MaxDepth / 4]uint64
	special   bool // some element is an infinity or a NaN
}

const (
	laneBias  = 512
	laneFloor = 2*laneBias - 300
)

// take sets the vector to the elements of o whose indices are at, at+stride, at+2*stride and so on.
func (v *vector) take(o *operand, at, stride int) {
	*v = vector{}
	for k := range o.format.Depth() {
		v.set(k, o.value[at], o.exponent[at])
		at += stride
	}
}

// set sets element k, which must still be zero.
func (v *vector) set(k int, value uint32, e int16) {
	v.value[k] = float64(math.Float32frombits(value))
	switch e {
	case exponentOfSpecial:
		v.special = true
	case exponentOfZero:
	default:
		v.exponents[k/4] |= uint64(e+laneBias) << (k % 4 * 16)
	}
}

// Dot computes one k step of one accumulator element: acc plus the products of a row of A and a
// column of B.
func Dot(acc uint32, a, b []uint32, f *Format) uint32 { return DotOf(acc, a, b, f, f) }

// DotOf computes the same as [Dot] for elements of two formats. Products are added by the rule of
// format ofA.
func DotOf(acc uint32, a, b []uint32, ofA, ofB *Format) uint32 {
	x, y := vectorOf(a, ofA), vectorOf(b, ofB)
	return dot(acc, &x, &y, ofA)
}

func vectorOf(elements []uint32, f *Format) (v vector) {
	for k, x := range elements {
		value := f.widen(x)
		v.set(k, value, f.exponent(value))
	}
	return v
}

// dot computes the same as Dot for decoded elements, by the rule in the package comment. It is
// hidden from the race detector to make products faster under it. The detector still sees the code
// that decodes operands and stores sums.
func dot(acc uint32, a, b *vector, f *Format) uint32 {
	depth := f.Depth()
	if a.special || b.special || acc&f32Inf == f32Inf {
		return dotSpecial(acc, a, b, depth)
	}
	top := a.top(b, depth)
	c := 0.0
	if acc&^f32Sign != 0 {
		c = float64(math.Float32frombits(acc))
		top = max(top, f.sumExponent(acc)+2*laneBias)
	}
	if top < laneFloor {
		return 0 // the accumulator and every product are zero
	}
	// quantum is the weight of the last bit kept. Dividing a term by it and converting the quotient
	// to an integer cuts the term toward zero. The division is exact because quantum is a power of
	// two, and a term has at most 24 bits.
	exponent := top - 2*laneBias - f.Fraction
	inverse := math.Float64frombits(uint64(1023-exponent) << 52)
	s0, s1 := int64(c*inverse), int64(0)
	for k := 0; k < depth; k += 4 {
		x, y := (*[4]float64)(a.value[k:]), (*[4]float64)(b.value[k:])
		s0 += int64(x[0] * y[0] * inverse)
		s1 += int64(x[1] * y[1] * inverse)
		s0 += int64(x[2] * y[2] * inverse)
		s1 += int64(x[3] * y[3] * inverse)
	}
	if f.Halves {
		return roundToF16(s0+s1, exponent)
	}
	return f.cut(cutToF32(s0+s1, exponent))
}

// top returns 2*laneBias plus the largest exponent of a product without a zero factor. It returns
// less than laneFloor if there is no such product.
func (v *vector) top(b *vector, depth int) int {
	m := uint64(0)
	for k := range depth / 4 {
		m = maxLanes(m, v.exponents[k]+b.exponents[k])
	}
	m = maxLanes(m, m>>32)
	return int(max(m&0xffff, m>>16&0xffff))
}

// maxLanes returns the larger value in each of the four 16-bit lanes of x and y. Values are below
// 0x8000.
func maxLanes(x, y uint64) uint64 {
	const tops = 0x8000800080008000
	ge := ((x | tops) - y) & tops // the top bit of each lane is set where x >= y
	mask := ge - ge>>15           // 0x7fff in these lanes
	return y ^ (x^y)&mask
}

// cutToF32 returns sum*2^exponent as FP32, cut toward zero. |sum| is below 2^53.
func cutToF32(sum int64, exponent int) uint32 {
	if sum == 0 {
		return 0
	}
	sign := uint32(0)
	magnitude := uint64(sum)
	if sum < 0 {
		sign, magnitude = f32Sign, -magnitude
	}
	length := bits.Len64(magnitude)
	e := exponent + length - 1 // exponent of the leading bit
	switch {
	case e > 127:
		return sign | f32Inf
	case e >= -126:
		// Move the leading bit to bit 63 and keep 24 bits. Adding the leading (hidden) bit
		// completes the exponent field.
		kept := uint32(magnitude << (64 - length) >> 40)
		return sign | uint32(e+126)<<23 + kept
	}
	// The result is subnormal: its last bit weighs 2^-149. A sum that is cut to zero is +0,
	// whatever its sign.
	if shift := exponent + 149; shift >= 0 {
		magnitude <<= shift
	} else {
		magnitude >>= min(-shift, 63)
	}
	if magnitude == 0 {
		return 0
	}
	return sign | uint32(magnitude)
}

// sumExponent returns the exponent of an accumulator that is not zero.
func (f *Format) sumExponent(acc uint32) int {
	least := -126
	if f.Halves {
		least = -14
	}
	return max(int(acc>>23&f32MaxBiased)-f32Bias, least)
}

// roundToF16 returns the FP16 number nearest to sum*2^exponent, ties to even, as FP32 bits. |sum|
// is below 2^53. A result that rounds to zero is +0.
func roundToF16(sum int64, exponent int) uint32 {
	magnitude := uint64(max(sum, -sum))
	last := max(exponent+bits.Len64(magnitude)-11, -24) // the last bit of the result weighs 2^last
	value := math.Ldexp(math.RoundToEven(math.Ldexp(float64(magnitude), exponent-last)), last)
	switch {
	case value == 0:
		return 0
	case value > 65504:
		value = math.Inf(1)
	}
	rounded := math.Float32bits(float32(value))
	if sum < 0 {
		rounded |= f32Sign
	}
	return rounded
}

// dotSpecial computes a step that has an infinity or a NaN among its terms. The result is infinite
// or NaN, whatever the finite terms are.
func dotSpecial(acc uint32, a, b *vector, depth int) uint32 {
	sum := 0.0
	if acc&f32Inf == f32Inf {
		sum = float64(math.Float32frombits(acc))
	}
	for k := range depth {
		// A finite product counts as 0 here. It cannot overflow in float64.
		if p := a.value[k] * b.value[k]; math.IsInf(p, 0) || p != p {
			sum += p
		}
	}
	if sum != sum {
		return canonicalNaN
	}
	return math.Float32bits(float32(sum))
}
