package tile

import "sonicmoe/ptx"

// Fragment is how the accumulators of a 64-row wgmma lie in a warpgroup's
// threads: lane l of warp w holds rows 16w + l/4 and that plus 8, and of each
// 8 columns the pair 2(l%4), 2(l%4)+1. Register 4j+i is column 8j + 2(l%4) +
// i%2 of row l/4 + 8(i/2).
type Fragment struct {
	// Row is the thread's first row, 0 to 63; the second is 8 below it.
	Row ptx.U32
	// Column is the thread's first column of each 8.
	Column ptx.U32
}

// NewFragment is the layout for the thread of the given index in its
// warpgroup (0 to 127).
func NewFragment(thread ptx.U32) Fragment {
	lane := thread.AndI(31)
	return Fragment{
		Row:    thread.ShrI(5).MulI(16).Add(lane.ShrI(2)),
		Column: lane.AndI(3).MulI(2),
	}
}

// Staging is where a thread's stmatrix instructions write a 64 x 64
// sub-tile with 128-byte swizzle, so that TMA stores it.
type Staging struct {
	k       *ptx.Kernel
	element Element
	// offset is for the first 16 columns. The next ones' differ in two bits
	// only, and registers are dear where this is used.
	offset     ptx.U32
	transposed bool
}

// StagingBytes is the size of one 64 x 64 sub-tile.
const StagingBytes = 64 * RowBytes

// NewStaging computes where the thread writes.
func NewStaging(k *ptx.Kernel, of Element, thread ptx.U32) Staging {
	lane := thread.AndI(31)
	// stmatrix x4: lane l gives the row address of matrix l/8; matrices 0 and
	// 1 are the upper and lower 8 rows of columns 0-7, 2 and 3 of columns 8-15.
	row := thread.ShrI(5).MulI(16).Add(lane.AndI(15))
	return Staging{k: k, element: of, offset: Swizzled(row, lane.ShrI(4))}
}

// NewTransposedStaging is for sub-tiles stored transposed: the fragment's 64
// columns become rows.
func NewTransposedStaging(k *ptx.Kernel, of Element, thread ptx.U32) Staging {
	lane := thread.AndI(31)
	// Of the four matrices, 1 and 3 are the fragment's lower 8 rows, which lie
	// 8 elements further; 2 and 3 its columns 8-15, 8 lines further.
	line := lane.ShrI(4).MulI(8).Add(lane.AndI(7))
	chunk := thread.ShrI(5).MulI(2).Add(lane.ShrI(3).AndI(1))
	return Staging{k: k, element: of, offset: Swizzled(line, chunk), transposed: true}
}

// Store writes 64 columns, 32 registers of a fragment, rounded.
func (s Staging) Store(slot ptx.Shared, acc []ptx.F32) {
	s.StoreEach(slot, func(j int) ptx.F32 { return acc[j] })
}

// StoreEach is Store of values that are made one by one, register j's when it
// is needed: few of them are alive at a time.
func (s Staging) StoreEach(slot ptx.Shared, value func(j int) ptx.F32) {
	for q := range 4 {
		var a [8]ptx.F32
		for j := range a {
			a[j] = value(8*q + j)
		}
		to, store := s.quarter(slot, q)
		store(to,
			s.element.Pack(s.k, a[0], a[1]), s.element.Pack(s.k, a[2], a[3]),
			s.element.Pack(s.k, a[4], a[5]), s.element.Pack(s.k, a[6], a[7]))
	}
}

// StorePairs is StoreEach of values that are packed: pair i is registers 2i and
// 2i + 1.
func (s Staging) StorePairs(slot ptx.Shared, pair func(i int) ptx.U32) {
	for q := range 4 {
		var words []ptx.U32
		for i := range 4 {
			words = append(words, pair(4*q+i))
		}
		to, store := s.quarter(slot, q)
		store(to, words...)
	}
}

// quarter is where 16 columns go, and how.
func (s Staging) quarter(slot ptx.Shared, q int) (ptx.Shared, func(ptx.Shared, ...ptx.U32)) {
	to, store := slot.Plus(s.offset.XorI(2*q*16)), s.k.Stmatrix
	if s.transposed {
		to, store = slot.Plus(s.offset).At(q*16*RowBytes), s.k.StmatrixTrans
	}
	return to, store
}

// WarpStaging is where a warp loads and stores fragments of 16 rows of 32
// columns, in rows of 64 bytes with 64-byte swizzle: for TMA, or for copies by
// rows. Word 2i+h of a fragment is columns 8i + 2(l%4) and the next of the
// thread's row h.
type WarpStaging struct {
	k *ptx.Kernel
	// offset is for the first 16 columns; the others' differ in one bit.
	offset ptx.U32
}

// NewWarpStaging computes where a lane reads and writes.
func NewWarpStaging(k *ptx.Kernel, lane ptx.U32) WarpStaging {
	return WarpStaging{k, SwizzledNarrow(lane.AndI(15), lane.ShrI(4))}
}

// WarpStagingBytes is the size of 16 rows of 32 columns.
const WarpStagingBytes = 16 * RowBytes / 2

func (w WarpStaging) eachHalf(slot ptx.Shared, do func(i int, at ptx.Shared)) {
	for i := range 2 {
		do(i, slot.Plus(w.offset.XorI(32*i)))
	}
}

// Load reads a fragment's 8 words.
func (w WarpStaging) Load(slot ptx.Shared) (words []ptx.U32) {
	w.eachHalf(slot, func(_ int, at ptx.Shared) { words = append(words, w.k.Ldmatrix(at, 4)...) })
	return words
}

// Store writes what Load reads.
func (w WarpStaging) Store(slot ptx.Shared, words []ptx.U32) {
	w.eachHalf(slot, func(i int, at ptx.Shared) { w.k.Stmatrix(at, words[4*i:][:4]...) })
}

// ClearFrom makes the rows that Store wrote 0, from the given one of the 16 on.
func (w WarpStaging) ClearFrom(slot ptx.Shared, lane, row ptx.U32) {
	const each = WarpStagingBytes / 32
	zero := ptx.Uint(0)
	w.k.If(lane.ShrI(1).Ge(row), func() {
		for at := 0; at < each; at += 16 {
			ptx.StShared(slot.Plus(lane.MulI(each)).At(at), zero, zero, zero, zero)
		}
	})
}

// ColumnSums sums the columns of what Store wrote over the 16 rows: lane l gets the
// sum of column 8(l%4) + l/4. Columns are lines of A of a product with ones.
func (w WarpStaging) ColumnSums(of Element, slot ptx.Shared, lane ptx.U32) ptx.F32 {
	// The second eight lanes have the next eight columns' first rows, where Load's
	// have the next rows: words are then A's without a move.
	offset := SwizzledNarrow(lane.AndI(7).Add(lane.ShrI(4).ShlI(3)), lane.ShrI(3).AndI(1))
	ones := ptx.Materialize(w.k, of.Ones())
	var sums []ptx.F32
	for i := range 2 {
		acc := w.k.Accumulators(WarpSums)
		for _, v := range acc {
			ptx.VarOf(v).Set(ptx.Float(0))
		}
		of.Mma(w.k, acc, w.k.LdmatrixTrans(slot.Plus(offset.XorI(32*i)), 4), []ptx.U32{ones, ones})
		sums = append(sums, acc[0], acc[2])
	}
	odd := lane.AndI(1).NeI(0)
	return ptx.Select(lane.AndI(2).NeI(0), ptx.Select(odd, sums[3], sums[2]), ptx.Select(odd, sums[1], sums[0]))
}
