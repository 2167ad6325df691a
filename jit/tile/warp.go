package tile

import "sonicmoe/ptx"

// WarpProduct is a warp's product of k-tiles in shared memory, with 128-byte
// swizzle: 16 rows of A by 8 of B, through registers. The bits are those of wgmma: both
// add alike. A step waits 25 clocks for the one before, of wgmma 45, so that it is
// the way of sums that nothing runs beside.
type WarpProduct struct {
	k       *ptx.Kernel
	element Element
	// a are the lane's places in its 8 rows of A, by step, b those in B of each two
	// steps.
	a [K / KStep]ptx.U32
	b [K / KStep / 2]ptx.U32
	// isUpper: the lane's places are in A's rows 8 to 15.
	isUpper ptx.Pred
}

const (
	// WarpRows and WarpColumns are the rows of A and of B.
	WarpRows    = 16
	WarpColumns = 8
	// WarpSums is how many of the sums a lane has.
	WarpSums = WarpRows * WarpColumns / 32

	wordsOfA = 4 // of a step
	wordsOfB = 2
)

// NewWarpProduct is for a lane.
func NewWarpProduct(k *ptx.Kernel, of Element, lane ptx.U32) WarpProduct {
	// ldmatrix x4: lane l gives the address of row l%8 of matrix l/8. Of A these are
	// both groups of rows, of 8 columns, then of the next 8; of B four times 8 columns.
	p := WarpProduct{k: k, element: of}
	row, matrix := lane.AndI(7), lane.ShrI(3)
	for step := range p.a {
		p.a[step] = Swizzled(row, matrix.ShrI(1).AddI(2*step))
	}
	for i := range p.b {
		p.b[i] = Swizzled(row, matrix.AddI(4*i))
	}
	p.isUpper = matrix.AndI(1).NeI(0)
	return p
}

// A loads a k-tile of A: its first 8 rows and its last 8, each the start of a
// pattern.
func (p WarpProduct) A(lower, upper ptx.Shared) (words []ptx.U32) {
	rows := ptx.SharedAt(ptx.Select(p.isUpper, upper.Addr(), lower.Addr()))
	for _, at := range p.a {
		words = append(words, p.k.Ldmatrix(rows.Plus(at), 4)...)
	}
	return words
}

// B loads a k-tile of B.
func (p WarpProduct) B(rows ptx.Shared) (words []ptx.U32) {
	for _, at := range p.b {
		words = append(words, p.k.Ldmatrix(rows.Plus(at), 4)...)
	}
	return words
}

// Multiply adds the products of the k-tile's steps from one to before another. Lane
// l has of A's rows l/4 and that plus 8 two sums each, with B's rows 2(l%4) and the
// next.
func (p WarpProduct) Multiply(acc []ptx.F32, a, b []ptx.U32, from, to int) {
	for step := from; step < to; step++ {
		p.element.Mma(p.k, acc, a[wordsOfA*step:][:wordsOfA], b[wordsOfB*step:][:wordsOfB])
	}
}
