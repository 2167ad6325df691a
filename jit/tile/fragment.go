package tile

import "sonicmoe/ptx"

// Fragment is the layout of the accumulators of a 64-row wgmma in the threads of a warpgroup. Lane l
// of warp w holds two rows: 16w + l/4, and the row 8 below it. In each group of 8 columns it holds the
// pair 2(l%4) and 2(l%4) + 1. Register 4j+i holds column 8j + 2(l%4) + i%2 of row 16w + l/4 + 8(i/2).
type Fragment struct {
	// Row is the thread's first row, 0 to 63. Its second row is Row + 8.
	Row ptx.U32
	// Column is the thread's first column in each group of 8.
	Column ptx.U32
}

// NewFragment returns the layout for the thread with the given index (0 to 127) in its warpgroup.
func NewFragment(thread ptx.U32) Fragment {
	lane := ptx.LaneOf(thread)
	return Fragment{
		Row:    ptx.WarpOf(thread).MulI(16).Add(lane.ShrI(2)),
		Column: lane.AndI(3).MulI(2),
	}
}

// Staging is a 64 x 64 sub-tile in shared memory with 128-byte swizzle. A warpgroup writes it by
// stmatrix, and TMA then stores it to global memory.
type Staging struct {
	k       *ptx.Kernel
	element Element
	// offset is where the thread writes the first 16 columns. Offsets for the other columns differ
	// in two bits. They are computed when needed, because registers are scarce in an epilogue.
	offset     ptx.U32
	transposed bool
}

// StagingBytes is the size of one 64 x 64 sub-tile in bytes.
const StagingBytes = 64 * RowBytes

// NewStaging computes the offsets at which a thread writes.
func NewStaging(k *ptx.Kernel, of Element, thread ptx.U32) Staging {
	lane := ptx.LaneOf(thread)
	// stmatrix.x4: lane l gives the address of row l%8 of matrix l/8. Matrices 0 and 1 are the
	// upper and lower 8 rows of columns 0 to 7, matrices 2 and 3 of columns 8 to 15.
	row := ptx.WarpOf(thread).MulI(16).Add(lane.AndI(15))
	return Staging{k: k, element: of, offset: Swizzled(row, lane.ShrI(4))}
}

// NewTransposedStaging does the same as NewStaging for sub-tiles that are stored transposed: the
// fragment's 64 columns become rows.
func NewTransposedStaging(k *ptx.Kernel, of Element, thread ptx.U32) Staging {
	lane := ptx.LaneOf(thread)
	// In the transposed sub-tile, matrices 1 and 3 (the fragment's lower 8 rows) are 8 elements
	// further in a row. Matrices 2 and 3 (the fragment's columns 8 to 15) are 8 rows further.
	line := lane.ShrI(4).MulI(8).Add(lane.AndI(7))
	chunk := ptx.WarpOf(thread).MulI(2).Add(lane.ShrI(3).AndI(1))
	return Staging{k: k, element: of, offset: Swizzled(line, chunk), transposed: true}
}

// Store rounds 64 columns of a fragment, which are 32 registers, and writes them.
func (s Staging) Store(slot ptx.Shared, acc []ptx.F32) {
	s.StoreEach(slot, func(j int) ptx.F32 { return acc[j] })
}

// StoreEach does the same as Store for values that are computed when they are needed. value returns
// the value for register j. Only a few values are in registers at a time.
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

// StorePairs does the same as StoreEach for values that are already rounded and packed. pair
// returns the values for registers 2i and 2i + 1.
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

// quarter returns the address at which the warpgroup stores columns 16q to 16q + 15, and the
// instruction for it.
func (s Staging) quarter(slot ptx.Shared, q int) (ptx.Shared, func(ptx.Shared, ...ptx.U32)) {
	to, store := slot.Plus(s.offset.XorI(2*q*16)), s.k.Stmatrix
	if s.transposed {
		to, store = slot.Plus(s.offset).At(q*16*RowBytes), s.k.StmatrixTrans
	}
	return to, store
}

// WarpStaging describes shared memory from which a warp loads fragments of 16 rows by 32 columns,
// and to which it stores them. A row has 64 bytes, with the 64-byte swizzle; TMA, or copies by
// rows, can move such rows. Lane l holds two rows, h = 0 and 1, of a fragment. Word 2i+h of the
// fragment has columns 8i + 2(l%4) and 8i + 2(l%4) + 1 of row h.
type WarpStaging struct {
	k *ptx.Kernel
	// offset is the lane's offset for the first 16 columns. The offset for the other columns
	// differs in one bit.
	offset ptx.U32
}

// NewWarpStaging computes the offset at which a lane reads and writes.
func NewWarpStaging(k *ptx.Kernel, lane ptx.U32) WarpStaging {
	return WarpStaging{k, SwizzledNarrow(lane.AndI(15), lane.ShrI(4))}
}

// WarpStagingBytes is the size of 16 rows of 32 columns in bytes.
const WarpStagingBytes = 16 * RowBytes / 2

func (w WarpStaging) eachHalf(slot ptx.Shared, do func(i int, at ptx.Shared)) {
	for i := range 2 {
		do(i, slot.Plus(w.offset.XorI(32*i)))
	}
}

// Load reads the 8 words of a fragment.
func (w WarpStaging) Load(slot ptx.Shared) (words []ptx.U32) {
	w.eachHalf(slot, func(_ int, at ptx.Shared) { words = append(words, w.k.Ldmatrix(at, 4)...) })
	return words
}

// Store writes the 8 words of a fragment, in the order in which Load returns them.
func (w WarpStaging) Store(slot ptx.Shared, words []ptx.U32) {
	w.eachHalf(slot, func(i int, at ptx.Shared) { w.k.Stmatrix(at, words[4*i:][:4]...) })
}

// ClearFrom sets rows row to 15 of a stored fragment to 0.
func (w WarpStaging) ClearFrom(slot ptx.Shared, lane, row ptx.U32) {
	const each = WarpStagingBytes / 32
	zero := ptx.Uint(0)
	w.k.If(lane.ShrI(1).Ge(row), func() {
		for at := 0; at < each; at += 16 {
			ptx.StShared(slot.Plus(lane.MulI(each)).At(at), zero, zero, zero, zero)
		}
	})
}

// ColumnSums sums each column of a stored fragment over its 16 rows. Lane l gets the sum of column
// 8(l%4) + l/4. ColumnSums multiplies a matrix A, whose rows are the columns of the fragment, with
// a B of ones.
func (w WarpStaging) ColumnSums(of Element, slot ptx.Shared, lane ptx.U32) ptx.F32 {
	// In [WarpStaging.Load], lanes 8 to 15 give the addresses of rows 8 to 15. Here they give the
	// addresses of the first 8 rows of the next eight columns. The loaded words then are A's
	// fragment in the right order.
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
