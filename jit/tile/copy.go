package tile

import "sonicmoe/ptx"

const (
	// CopyBytes is the number of bytes that one thread copies with one cp.async.
	CopyBytes = 16
	// CopyElements is the number of elements in CopyBytes.
	CopyElements = CopyBytes / ElementBytes
	// LanesOfRow is the number of threads that together copy one 128-byte row of a tile.
	LanesOfRow = RowBytes / CopyBytes
)

// RowCopy is one thread's part of copying rows into swizzled tiles by cp.async. The thread copies a
// chunk of 16 bytes of each of its rows.
type RowCopy struct {
	k *ptx.Kernel
	// Chunk is the index of the thread's chunk in each row.
	Chunk  ptx.U32
	thread ptx.U32
	chunks int
}

// NewRowCopy assigns the chunks of rows to threads: adjacent threads copy the chunks of one row.
// chunks is the number of chunks of a row, a power of two of at least [LanesOfRow].
func NewRowCopy(k *ptx.Kernel, thread ptx.U32, chunks int) RowCopy {
	return RowCopy{k: k, Chunk: thread.AndI(chunks - 1), thread: thread, chunks: chunks}
}

// The copying threads together copy several rows at a time, one chunk for each thread. Row returns
// which of these rows the thread's chunk belongs to.
func (c RowCopy) Row() ptx.U32 { return c.thread.DivI(c.chunks) }

// Swizzled returns the offset at which the thread's chunk of a row belongs in a tile. A row of more
// than 128 bytes continues in the next [Block] of the tile.
func (c RowCopy) Swizzled(row ptx.U32) ptx.U32 {
	if c.chunks == LanesOfRow {
		return Swizzled(row, c.Chunk)
	}
	return c.Chunk.DivI(LanesOfRow).MulI(BlockBytes).Add(Swizzled(row, c.Chunk.AndI(LanesOfRow-1)))
}

// Copy starts the copy of one chunk. bytes is absent, or the result of [BytesIf].
func (c RowCopy) Copy(to ptx.Shared, from ptx.Global, bytes ...ptx.U32) {
	c.k.CpAsyncCG(to, from, CopyBytes, bytes...)
}

// BytesIf returns the number of bytes that a copy reads: a whole chunk if the predicate there is
// true, else none. Bytes that a copy does not read become 0 in shared memory.
func BytesIf(there ptx.Pred) ptx.U32 {
	return ptx.Select(there, ptx.Uint(CopyBytes), ptx.Uint(0))
}

// ChunkOf returns the row of chunk n of a CTA, and the index of the chunk in that row. The CTAs of the
// grid handle the chunks of all rows in order. A CTA has ofCTA chunks, which is a power of two, and a row
// has ofRow chunks. The number of a chunk among all may exceed 32 bits, but the assembler divides 64-bit numbers
// with about 80 instructions. ChunkOf therefore divides the number of the CTA first.
func ChunkOf(cta, n ptx.U32, ofCTA, ofRow int) (row, chunk ptx.U32) {
	ctas := ofRow / min(ofCTA, ofRow&-ofRow) // together they handle whole rows
	inThese := cta.RemI(ctas).MulI(ofCTA).Add(n)
	more := inThese.DivI(ofRow)
	return cta.DivI(ctas).MulI(ctas * ofCTA / ofRow).Add(more), inThese.Sub(more.MulI(ofRow))
}

// GatheredRows has the rows that one thread copies. Each CopyAndAdvance copies the thread's chunks
// of one k-tile.
type GatheredRows struct {
	RowCopy
	rowBytes, kTiles int
	next             []*ptx.Var[ptx.U64] // address of the thread's next chunk in each row
}

// Rows returns n rows of rowBytes bytes, at their first k-tile. Function at returns the address of
// the thread's chunk of row i.
func (c RowCopy) Rows(n, rowBytes, kTiles int, at func(i int) ptx.Global) GatheredRows {
	r := GatheredRows{RowCopy: c, rowBytes: rowBytes, kTiles: kTiles}
	for i := range n {
		r.next = append(r.next, ptx.NewVar(c.k, at(i).Addr()))
	}
	return r
}

// CopyAndAdvance starts the copies of k-tile kt and moves on to the next one. Function to returns the
// address in shared memory to which the chunk of row i goes. If there(i) is false, the chunk becomes
// 0, as does the part of the last k-tile after the end of the row.
func (r GatheredRows) CopyAndAdvance(kt ptx.U32, to func(i int) ptx.Shared, there func(i int) ptx.Pred) {
	inside := ptx.True()
	if r.rowBytes != r.kTiles*RowBytes {
		inside = kt.MulI(LanesOfRow).Add(r.Chunk).LtI(r.rowBytes / CopyBytes)
	}
	for i, next := range r.next {
		bytes := []ptx.U32{BytesIf(inside.And(there(i)))}
		if _, all := bytes[0].Const(); all {
			bytes = nil
		}
		r.Copy(to(i), ptx.GlobalAt(next.Get()), bytes...)
		next.Set(next.Get().AddI(RowBytes))
	}
}
