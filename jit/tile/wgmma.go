package tile

import "sonicmoe/ptx"

// RowBytes is the width of a row of a K-major tile: 64 elements, the span of
// the 128-byte swizzle.
const RowBytes = 128

// K is the depth of a tile in elements, KStep that of one wgmma.
const (
	K     = 64
	KStep = 16
)

// swizzle128 is the mode in the upper word of a descriptor of a tile with
// 128-byte swizzle. Below it is the distance between groups of 8 rows of 128
// bytes, in 16 bytes: 1024 bytes where a tile is one piece.
const (
	swizzle128 = 1 << 30
	rows8Bytes = 8 * RowBytes
)

// Descriptor is a tile in shared memory with 128-byte swizzle, aligned to
// 1024 bytes.
type Descriptor struct {
	k  *ptx.Kernel
	lo ptx.U32
	// step and rows8 are how far, in 16 bytes, the next 16-deep step lies and
	// the next 8 rows.
	step, rows8 int
	upper       int
}

// NewDescriptor describes the K-major tile at address at: rows of 64 elements
// along K.
func NewDescriptor(k *ptx.Kernel, at ptx.Shared) Descriptor {
	return NewDescriptorApart(k, at, rows8Bytes)
}

// NewDescriptorApart describes a K-major tile whose groups of 8 rows lie so many
// bytes apart, a multiple of 1024.
func NewDescriptorApart(k *ptx.Kernel, at ptx.Shared, bytes int) Descriptor {
	const ignored = 1 << 16 // the leading offset means nothing here
	return Descriptor{k, descriptorStart(at).OrI(ignored), KStep * 2 / 16, bytes / 16, swizzle128 | bytes/16}
}

// Block is the rows of an MN-major tile that lie side by side in 128 bytes,
// BlockBytes the distance between blocks of a tile that is K deep.
const (
	Block      = 64
	BlockBytes = K * RowBytes
)

// NewDescriptorMN describes the MN-major tile at address at: for each 64 rows
// of the operand, one after the other, 64 lines along K of these rows'
// elements. A box of {64, 64, blocks} of a [K, rows] matrix lands so; wgmma
// must be told that the operand is transposed.
func NewDescriptorMN(k *ptx.Kernel, at ptx.Shared) Descriptor {
	return Descriptor{k, descriptorStart(at).OrI(BlockBytes / 16 << 16), KStep * RowBytes / 16, 8 * BlockBytes / Block / 16, swizzle128 | rows8Bytes/16}
}

// RowTailBytes are behind a row that [NewDescriptorRow] describes, and must be
// finite elements.
const RowTailBytes = 128

// NewDescriptorRow describes a row of elements, without swizzle, as an MN-major tile
// that is one step deep: line 0 is the row. Line l of the others is the row from
// element 8(l mod 8) on and what lies behind it, so that the row takes no more room
// than it has: an A that is 0 but for its first column drops them.
func NewDescriptorRow(k *ptx.Kernel, at ptx.Shared) ptx.U64 {
	// From 8 columns to the next 16 bytes, from 8 lines to the next none.
	return k.Pack64(descriptorStart(at), ptx.Uint(1))
}

// descriptorStart is the start field of a descriptor.
func descriptorStart(at ptx.Shared) ptx.U32 { return at.Addr().AndI(0x3ffff).ShrI(4) }

// Step is the descriptor of 16-deep step i, for rows from the given one on: a
// multiple of 8, or of 64 in an MN-major tile.
func (d Descriptor) Step(i, row int) ptx.U64 {
	return d.k.Pack64(d.lo.AddI(i*d.step+row/8*d.rows8), ptx.Uint(d.upper))
}

// Swizzled is the offset in a 128-byte-swizzled tile of the 16-byte chunk
// (0 to 7) of a row.
func Swizzled(row, chunk ptx.U32) ptx.U32 {
	return row.MulI(RowBytes).Add(chunk.Xor(row.AndI(7)).ShlI(4))
}

// SwizzledNarrow is the offset in a 64-byte-swizzled tile of the 16-byte chunk
// (0 to 3) of a row: two rows share 128 bytes.
func SwizzledNarrow(row, chunk ptx.U32) ptx.U32 {
	return row.MulI(RowBytes / 2).Add(chunk.Xor(row.ShrI(1).AndI(3)).ShlI(4))
}
