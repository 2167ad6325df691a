package tile

import "sonicmoe/ptx"

// Fragment is the layout of a 64-row wgmma's accumulators in the threads of a
// warpgroup. Lane l of warp w holds rows 16w + l/4 and 16w + l/4 + 8, and of each
// 8 columns the pair 2(l%4), 2(l%4)+1. Register 4j+i is column 8j + 2(l%4) + i%2
// of row 16w + l/4 + 8(i/2).
type Fragment struct {
	// Row is the thread's first row, 0 to 63. Its second row is Row + 8.
	Row ptx.U32
	// Column is the thread's first column in each 8.
	Column ptx.U32
}

// NewFragment returns the layout for the thread with the given index in its
// warpgroup, 0 to 127.
func NewFragment(thread ptx.U32) Fragment {
	lane := thread.AndI(31)
	return Fragment{
		Row:    thread.ShrI(5).MulI(16).Add(lane.ShrI(2)),
		Column: lane.AndI(3).MulI(2),
	}
}

// Staging is a 64 x 64 sub-tile in shared memory with 128-byte swizzle, which a
// warpgroup writes by stmatrix and TMA then stores.
type Staging struct {
	k       *ptx.Kernel
	element Element
	// offset is the thread's offset for the first 16 columns. Offsets for further
	// columns differ in two bits and are computed, because registers are scarce here.
	offset     ptx.U32
	transposed bool
}

// StagingBytes is the size of one 64 x 64 sub-tile.
const StagingBytes = 64 * RowBytes

// NewStaging computes the offsets at which the thread writes.
func NewStaging(k *ptx.Kernel, of Element, thread ptx.U32) Staging {
	lane := thread.AndI(31)
	// stmatrix x4: lane l gives the row address of matrix l/8. Matrices 0 and 1 are
	// the upper and lower 8 rows of columns 0-7, matrices 2 and 3 of columns 8-15.
	row := thread.ShrI(5).MulI(16).Add(lane.AndI(15))
	return Staging{k: k, element: of, offset: Swizzled(row, lane.ShrI(4))}
}

// NewTransposedStaging is NewStaging for sub-tiles stored transposed: the
// fragment's 64 columns become rows.
func NewTransposedStaging(k *ptx.Kernel, of Element, thread ptx.U32) Staging {
	lane := thread.AndI(31)
	// Matrices 1 and 3 are the fragment's lower 8 rows, 8 elements further in a line.
	// Matrices 2 and 3 are its columns 8-15, 8 lines further.
	line := lane.ShrI(4).MulI(8).Add(lane.AndI(7))
	chunk := thread.ShrI(5).MulI(2).Add(lane.ShrI(3).AndI(1))
	return Staging{k: k, element: of, offset: Swizzled(line, chunk), transposed: true}
}

// Store rounds and writes 64 columns, 32 registers of a fragment.
func (s Staging) Store(slot ptx.Shared, acc []ptx.F32) {
	s.StoreEach(slot, func(j int) ptx.F32 { return acc[j] })
}

// StoreEach is Store for computed values: value returns the value of register j
// when it is needed. Only a few values are thus in registers at a time.
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

// StorePairs is StoreEach for packed values. pair returns registers 2i and 2i + 1.
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

// quarter returns the address at which 16 columns are stored, and the instruction
// that stores them.
func (s Staging) quarter(slot ptx.Shared, q int) (ptx.Shared, func(ptx.Shared, ...ptx.U32)) {
	to, store := slot.Plus(s.offset.XorI(2*q*16)), s.k.Stmatrix
	if s.transposed {
		to, store = slot.Plus(s.offset).At(q*16*RowBytes), s.k.StmatrixTrans
	}
	return to, store
}

// WarpStaging is shared memory from which a warp loads, and to which it stores,
// fragments of 16 rows of 32 columns. A row has 64 bytes, with 64-byte swizzle,
// for TMA or for copies by rows. Word 2i+h of a fragment holds columns 8i + 2(l%4)
// and 8i + 2(l%4) + 1 of the thread's row h.
type WarpStaging struct {
	k *ptx.Kernel
	// offset is the lane's offset for the first 16 columns. For the other columns it
	// differs in one bit.
	offset ptx.U32
}

// NewWarpStaging computes the offset at which a lane reads and writes.
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

// Store writes a fragment as Load reads it.
func (w WarpStaging) Store(slot ptx.Shared, words []ptx.U32) {
	w.eachHalf(slot, func(i int, at ptx.Shared) { w.k.Stmatrix(at, words[4*i:][:4]...) })
}

// ClearFrom sets the rows from row to 15 of a stored fragment to 0.
func (w WarpStaging) ClearFrom(slot ptx.Shared, lane, row ptx.U32) {
	const each = WarpStagingBytes / 32
	zero := ptx.Uint(0)
	w.k.If(lane.ShrI(1).Ge(row), func() {
		for at := 0; at < each; at += 16 {
			ptx.StShared(slot.Plus(lane.MulI(each)).At(at), zero, zero, zero, zero)
		}
	})
}

// ColumnSums sums each column of a stored fragment over the 16 rows. Lane l gets
// the sum of column 8(l%4) + l/4. The sums are a product with ones, in which the
// columns are the lines of A.
func (w WarpStaging) ColumnSums(of Element, slot ptx.Shared, lane ptx.U32) ptx.F32 {
	// Lanes 8 to 15 address the first rows of the next eight columns, where Load
	// addresses the next rows. The loaded words are then A's fragment, without moves.
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
