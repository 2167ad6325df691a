// Package lanes emits sums, maxima and prefix sums over the lanes of a warp. All 32 lanes take part
// in each of them. The order of the additions is fixed, so sums always have the same bits.
package lanes

import "sonicmoe/ptx"

// Count is the number of lanes in a warp.
const Count = 32

// Sum returns the sum of the lanes' values, in every lane.
func Sum(x ptx.F32) ptx.F32 { return Combine(x, Add, 1, 2, 4, 8, 16) }

// Max returns the largest of the lanes' values, in every lane: NaN if any value is NaN.
func Max(x ptx.F32) ptx.F32 { return Combine(x, Larger, 1, 2, 4, 8, 16) }

// Combine combines the values of lanes whose numbers differ only in the given bits, one bit after
// the other. Each of these lanes gets the result.
func Combine(x ptx.F32, with func(a, b ptx.F32) ptx.F32, bits ...int) ptx.F32 {
	for _, bit := range bits {
		x = with(x, x.Bits().ShflXor(bit).AsF32())
	}
	return x
}

// Add returns a + b.
func Add(a, b ptx.F32) ptx.F32 { return a.Add(b) }

// Larger returns the larger of a and b, NaN if either is NaN.
func Larger(a, b ptx.F32) ptx.F32 { return a.Max(b, ".NaN") }

// PrefixSum returns the sum of x over the lanes up to and including the given lane, which
// is the caller's own.
func PrefixSum(x, lane ptx.U32) ptx.U32 {
	for d := 1; d < Count; d *= 2 {
		up := x.ShflUp(d)
		x = x.Add(ptx.Select(lane.GeI(d), up, ptx.Uint(0)))
	}
	return x
}
