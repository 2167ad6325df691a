package tile

import "sonicmoe/ptx"

const (
	// CopyBytes is the number of bytes that one thread copies at a time.
	CopyBytes = 16
	// CopyElements is the number of elements in CopyBytes.
	CopyElements = CopyBytes / ElementBytes
	// LanesOfRow is the number of threads that copy one 128-byte row of a tile.
	LanesOfRow = RowBytes / CopyBytes
)

// RowCopy is one thread's part in copying rows into swizzled tiles by cp.async: a
// chunk of 16 bytes from each row.
type RowCopy struct {
	k *ptx.Kernel
	// Chunk is the thread's chunk of each row.
	Chunk  ptx.U32
	thread ptx.U32
	chunks int
}

// NewRowCopy divides the chunks of rows among threads: adjacent threads copy one
// row. chunks is the number of chunks of a row, a power of two of at least
// [LanesOfRow].
func NewRowCopy(k *ptx.Kernel, thread ptx.U32, chunks int) RowCopy {
	return RowCopy{k: k, Chunk: thread.AndI(chunks - 1), thread: thread, chunks: chunks}
}

// Row returns the row that the thread copies in each pass of all copying threads.
func (c RowCopy) Row() ptx.U32 { return c.thread.DivI(c.chunks) }

// Swizzled returns the offset of the thread's chunk in a row of a tile. A row of
// more than 128 bytes continues in the next [Block].
func (c RowCopy) Swizzled(row ptx.U32) ptx.U32 {
	if c.chunks == LanesOfRow {
		return Swizzled(row, c.Chunk)
	}
	return c.Chunk.DivI(LanesOfRow).MulI(BlockBytes).Add(Swizzled(row, c.Chunk.AndI(LanesOfRow-1)))
}

// Copy starts the copy of one chunk. bytes is empty, or the result of [BytesIf].
func (c RowCopy) Copy(to ptx.Shared, from ptx.Global, bytes ...ptx.U32) {
	c.k.CpAsyncCG(to, from, CopyBytes, bytes...)
}

// BytesIf returns the number of bytes that a copy reads: all if the predicate there holds, else
// none. Bytes that a copy does not read become 0 in shared memory.
func BytesIf(there ptx.Pred) ptx.U32 {
	return ptx.Select(there, ptx.Uint(CopyBytes), ptx.Uint(0))
}

// GatheredRows are rows that one thread copies chunk by chunk, one k-tile at a
// time.
type GatheredRows struct {
	RowCopy
	rowBytes, kTiles int
	next             []*ptx.Var[ptx.U64] // the thread's next chunk of each row
}

// Rows returns n rows of rowBytes at their first k-tile. at returns the address of
// the thread's chunk of row i.
func (c RowCopy) Rows(n, rowBytes, kTiles int, at func(i int) ptx.Global) GatheredRows {
	r := GatheredRows{RowCopy: c, rowBytes: rowBytes, kTiles: kTiles}
	for i := range n {
		r.next = append(r.next, ptx.NewVar(c.k, at(i).Addr()))
	}
	return r
}

// Bytes returns the bytes argument of CopyAndAdvance for k-tile kt. It is empty if rows fill
// all their k-tiles. Otherwise the rest of the last k-tile becomes 0.
func (r GatheredRows) Bytes(kt ptx.U32) []ptx.U32 {
	if r.rowBytes == r.kTiles*RowBytes {
		return nil
	}
	return []ptx.U32{BytesIf(kt.MulI(LanesOfRow).Add(r.Chunk).LtI(r.rowBytes / CopyBytes))}
}

// CopyAndAdvance starts the copies of one k-tile and moves to the next one. to returns
// the place of row i in shared memory.
func (r GatheredRows) CopyAndAdvance(to func(i int) ptx.Shared, bytes []ptx.U32) {
	for i, next := range r.next {
		r.Copy(to(i), ptx.GlobalAt(next.Get()), bytes...)
		next.Set(next.Get().AddI(RowBytes))
	}
}
