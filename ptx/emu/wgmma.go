package emu

import (
	"math"
	"math/bits"
)

// How wgmma adds. Measured on an H200 for bf16 and f16 inputs with an FP32
// accumulator: each k16 step takes the accumulator and the 16 exact products,
// aligns all of them to the largest exponent, cuts each toward zero at
// alignedFraction bits below it, adds exactly, and cuts the sum toward zero to
// FP32. A product's exponent is the sum of its factors' exponents: 1.5*1.5 has
// exponent 0, not 1. The result does not depend on N, on the layout of A or B,
// nor on whether A comes from registers.
//
// Not measured, and assumed: subnormal inputs count with their value at the
// exponent of the smallest normal number; a zero, or a product with a zero,
// takes no part in the alignment; a sum of zero is +0; a sum below FP32's
// normal range is cut to a subnormal, one beyond the range becomes infinite;
// infinities and NaN follow IEEE rules, every NaN result being 0x7fffffff.

// alignedFraction is the fraction bits kept below the largest exponent.
const alignedFraction = 25

// slabDepth is the k extent of one wgmma with 16-bit inputs.
const slabDepth = 16

// slabRow is one row of A, or one column of B, of a k16 step, decoded for mma.
// A wgmma decodes 64+N of them and then adds 64*N dot products.
type slabRow struct {
	value [slabDepth]float64 // exact
	// exponents has 16 lanes of 16 bits: exponentBias plus the exponent of
	// the element, or 0 for a zero element. Lanes of two rows add without
	// carry, and any product with a zero stays below productFloor.
	exponents [slabDepth / 4]uint64
	special   bool // holds an infinity or a NaN
}

const (
	exponentBias = 512
	productBias  = 2 * exponentBias
	// productFloor is below the bias plus exponent of every product of two
	// nonzero elements, and above that of a nonzero element alone.
	productFloor = productBias - 300
)

// slabFormat decodes 16-bit inputs of wgmma.
type slabFormat struct {
	toF32 func(uint16) uint32
	// leastExponent is that of the smallest normal number.
	leastExponent int
}

var (
	bf16Slab = slabFormat{f32FromBF16, -126}
	f16Slab  = slabFormat{f32FromF16, -14}
)

// decode fills dst from rows of 16 elements each; negate is imm-scale -1.
func (f slabFormat) decode(dst []slabRow, elements []uint16, negate bool) {
	for i := range dst {
		f.decodeRow(&dst[i], (*[slabDepth]uint16)(elements[i*slabDepth:]), negate)
	}
}

func (f slabFormat) decodeRow(r *slabRow, elements *[slabDepth]uint16, negate bool) {
	*r = slabRow{}
	for k, h := range elements {
		x := f.toF32(h)
		if negate {
			x ^= f32Sign
		}
		r.value[k] = float64(toF32(x))
		magnitude := x &^ f32Sign
		if magnitude >= f32Inf {
			r.special = true
			continue
		}
		if magnitude == 0 {
			continue
		}
		exponent := max(int(magnitude>>23)-127, f.leastExponent)
		r.exponents[k/4] |= uint64(exponent+exponentBias) << (k % 4 * 16)
	}
}

// mma adds A*B to the accumulators, acc[i*len(b)+j] += row i of A times column
// j of B, FP32 bits; acc has len(a)*len(b) elements.
func mma(acc []uint32, a, b []slabRow) {
	n := len(b)
	for i := range a {
		row := acc[i*n : i*n+n]
		x := &a[i]
		for j := range row {
			row[j] = dot16(row[j], x, &b[j])
		}
	}
}

// dot16 is one k16 step for one accumulator, by the rule above. The race
// detector sees who decodes rows and who stores sums; that it skips what lies
// between makes emulated products half again as fast under it.
//
//go:norace
func dot16(acc uint32, a, b *slabRow) uint32 {
	if a.special || b.special || acc&f32Inf == f32Inf {
		return dotSpecial(acc, a, b)
	}
	top := maxProductExponent(a, b)
	c := 0.0
	if acc&^f32Sign != 0 {
		c = float64(toF32(acc))
		top = max(top, max(int(acc>>23&0xff), 1)-127+productBias)
	}
	if top < productFloor {
		return 0 // the accumulator and every product are zero
	}
	// quantum is the weight of the last bit kept: dividing by it and
	// converting to an integer is the cut toward zero. Both are exact: the
	// quantum is a power of two and every term has at most 24 bits.
	exponent := top - productBias - alignedFraction
	inverse := math.Float64frombits(uint64(1023-exponent) << 52)
	var s0, s1 int64
	for k := 0; k < slabDepth; k += 4 {
		s0 += int64(a.value[k] * b.value[k] * inverse)
		s1 += int64(a.value[k+1] * b.value[k+1] * inverse)
		s0 += int64(a.value[k+2] * b.value[k+2] * inverse)
		s1 += int64(a.value[k+3] * b.value[k+3] * inverse)
	}
	return cutToF32(s0+s1+int64(c*inverse), exponent)
}

// maxProductExponent is productBias plus the largest exponent of a product of
// nonzero elements, or less than productFloor if there is none.
//
//go:norace
func maxProductExponent(a, b *slabRow) int {
	m := maxLanes(
		maxLanes(a.exponents[0]+b.exponents[0], a.exponents[1]+b.exponents[1]),
		maxLanes(a.exponents[2]+b.exponents[2], a.exponents[3]+b.exponents[3]))
	m = maxLanes(m, m>>32)
	return int(max(m&0xffff, m>>16&0xffff))
}

// maxLanes is the larger of each of four 16-bit lanes below 0x8000.
func maxLanes(x, y uint64) uint64 {
	const tops = 0x8000800080008000
	ge := ((x | tops) - y) & tops // set where x >= y
	mask := ge - ge>>15           // 0x7fff there
	return y ^ (x^y)&mask
}

// cutToF32 is sum*2^exponent cut toward zero to FP32; |sum| is below 2^53.
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
	e := exponent + length - 1 // of the leading bit
	switch {
	case e > 127:
		return sign | f32Inf
	case e >= -126:
		// Left-align the leading bit at 63, keep 24 bits; adding the hidden
		// bit to the exponent field completes it.
		kept := uint32(magnitude << (64 - length) >> 40)
		return sign | uint32(e+126)<<23 + kept
	}
	// Subnormal: the last bit weighs 2^-149.
	if shift := exponent + 149; shift >= 0 {
		return sign | uint32(magnitude<<shift)
	} else {
		return sign | uint32(magnitude>>min(-shift, 63))
	}
}

// dotSpecial is a k16 step in which an infinity or a NaN takes part: the
// result is infinite or NaN whatever the finite terms are.
func dotSpecial(acc uint32, a, b *slabRow) uint32 {
	c := toF32(acc)
	sum := 0.0
	if isNaN32(acc) || acc&^f32Sign == f32Inf {
		sum = float64(c)
	}
	for k := range slabDepth {
		// A finite product counts as 0 here; float64 cannot overflow.
		if p := a.value[k] * b.value[k]; math.IsInf(p, 0) || p != p {
			sum += p
		}
	}
	return fromF32(float32(sum))
}
