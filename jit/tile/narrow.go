package tile

import "sonicmoe/ptx"

// NarrowRowBytes is the width of a row of a narrow tile: 32 bf16, the span of
// the 64-byte swizzle.
const NarrowRowBytes = 64

// NarrowSwizzled is the offset in a 64-byte-swizzled tile of the 16-byte chunk
// (0 to 3) of a row.
func NarrowSwizzled(row, chunk ptx.U32) ptx.U32 {
	return row.MulI(NarrowRowBytes).Add(chunk.Xor(row.ShrI(1).AndI(3)).ShlI(4))
}

// NarrowStaging is where a thread's matrix instructions find a 64 x 32 bf16
// sub-tile with 64-byte swizzle, which TMA loads or stores.
type NarrowStaging struct {
	k       *ptx.Kernel
	offsets [2]ptx.U32
}

// NarrowBytes is the size of one 64 x 32 bf16 sub-tile.
const NarrowBytes = 64 * NarrowRowBytes

// NewNarrowStaging computes the offsets for the thread of the given index in
// its warpgroup: one for each 16 columns.
func NewNarrowStaging(k *ptx.Kernel, thread ptx.U32) NarrowStaging {
	s := NarrowStaging{k: k}
	lane := thread.AndI(31)
	// The matrices are in the order of Staging's.
	row := thread.ShrI(5).MulI(16).Add(lane.AndI(15))
	for q := range s.offsets {
		s.offsets[q] = NarrowSwizzled(row, lane.ShrI(4).AddI(2*q))
	}
	return s
}

// Load reads 16 columns, those from 16q on, of a fragment: word 2j+h is columns
// 8j + 2(l%4) and the next of the thread's row h.
func (s NarrowStaging) Load(slot ptx.Shared, q int) []ptx.BF16x2 {
	return s.k.Ldmatrix(slot.Plus(s.offsets[q]), 4)
}

// Store writes what Load reads. The whole warp stores where it alone loads.
func (s NarrowStaging) Store(slot ptx.Shared, q int, words []ptx.BF16x2) {
	s.k.Stmatrix(slot.Plus(s.offsets[q]), words...)
}
