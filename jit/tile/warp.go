package tile

import "sonicmoe/ptx"

// WarpProduct is a product that one warp computes by mma.sync: 16 rows of A by 8 rows of B, from
// k-tiles in shared memory with 128-byte swizzle. Its bits equal wgmma's, because both add in the
// same order. It has a shorter latency than wgmma, and suits sums during which the warps have
// nothing else to do.
type WarpProduct struct {
	k       *ptx.Kernel
	element Element
	// Field a has the lane's offset in A for each step of 16. Field b has the lane's offset in B
	// for each pair of steps.
	a [K / KStep]ptx.U32
	b [K / KStep / 2]ptx.U32
	// isUpper is true if the lane's addresses are in rows 8 to 15 of A.
	isUpper ptx.Pred
}

const (
	// WarpRows is the number of rows of A in a warp's product. WarpColumns is the number of rows
	// of B.
	WarpRows    = 16
	WarpColumns = 8
	// WarpSums is the number of sums that each lane holds.
	WarpSums = WarpRows * WarpColumns / 32

	wordsOfA = 4 // words of each lane for one step
	wordsOfB = 2
)

// NewWarpProduct returns the product with the addresses that the lane needs.
func NewWarpProduct(k *ptx.Kernel, of Element, lane ptx.U32) WarpProduct {
	// ldmatrix.x4: lane l gives the address of row l%8 of matrix l/8. For A, matrices 0 and 1 are
	// rows 0 to 7 and 8 to 15 at the first 8 columns, and matrices 2 and 3 the same rows at the
	// next 8 columns. For B, the matrices are four groups of 8 columns.
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

// A loads a k-tile of A. lower is the address of its first 8 rows, upper of its last 8 rows; each
// must be aligned to a swizzle pattern.
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

// Multiply adds the products of steps `from` to `to`-1 of the k-tile. Lane l holds the sums of A's
// rows l/4 and l/4 + 8 with B's rows 2(l%4) and 2(l%4) + 1.
func (p WarpProduct) Multiply(acc []ptx.F32, a, b []ptx.U32, from, to int) {
	for step := from; step < to; step++ {
		p.element.Mma(p.k, acc, a[wordsOfA*step:][:wordsOfA], b[wordsOfB*step:][:wordsOfB])
	}
}
