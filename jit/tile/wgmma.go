package tile

import "sonicmoe/ptx"

// RowBytes is the size of a row of a K-major tile: 64 elements, which is the width of the 128-byte
// swizzle.
const RowBytes = 128

// K is the depth of a k-tile in elements, KStep the depth of one wgmma.
const (
	K     = 64
	KStep = 16
)

// swizzle128 is the mode of the 128-byte swizzle in the upper word of a descriptor. The field below
// it is the distance between groups of 8 rows in units of 16 bytes. In a contiguous tile this
// distance is 1024 bytes.
const (
	swizzle128 = 1 << 30
	rows8Bytes = 8 * RowBytes
)

// Descriptor is a wgmma matrix descriptor of a tile in shared memory, which has the 128-byte
// swizzle and is aligned to 1024 bytes.
type Descriptor struct {
	k  *ptx.Kernel
	lo ptx.U32
	// step is the distance to the next step of 16 in k, rows8 the distance to the next 8 rows. Both
	// are in units of 16 bytes.
	step, rows8 int
	upper       int
}

// NewDescriptor describes the K-major tile at an address. Its rows have 64 elements along k.
func NewDescriptor(k *ptx.Kernel, at ptx.Shared) Descriptor {
	return NewDescriptorApart(k, at, rows8Bytes)
}

// NewDescriptorApart describes a K-major tile whose groups of 8 rows are not contiguous. bytes is
// the distance between the groups, a multiple of 1024.
func NewDescriptorApart(k *ptx.Kernel, at ptx.Shared, bytes int) Descriptor {
	const ignored = 1 << 16 // a swizzled K-major operand does not use the leading byte offset
	return Descriptor{k, descriptorStart(at).OrI(ignored), KStep * 2 / 16, bytes / 16, swizzle128 | bytes/16}
}

// Block is the number of rows of an MN-major tile that share a line of 128 bytes. BlockBytes is the
// distance between the blocks of a tile that is K deep.
const (
	Block      = 64
	BlockBytes = K * RowBytes
)

// NewDescriptorMN describes the MN-major tile at an address. The tile is a sequence of blocks. A
// block holds 64 rows of the operand as 64 lines, one for each k; a line has one element of every
// row. A box of {64, 64, blocks} of a matrix [K, rows] has this layout. The wgmma must have its
// transpose flag set.
func NewDescriptorMN(k *ptx.Kernel, at ptx.Shared) Descriptor {
	return Descriptor{k, descriptorStart(at).OrI(BlockBytes / 16 << 16), KStep * RowBytes / 16, 8 * BlockBytes / Block / 16, swizzle128 | rows8Bytes/16}
}

// RowTailBytes is the number of bytes that must follow the row of [NewDescriptorRow]. They must
// hold finite elements.
const RowTailBytes = 128

// NewDescriptorRow describes a single row of elements, without swizzle, as an MN-major tile that is
// one step deep. Line 0 of the tile is the row. Line l is the same memory, shifted by 8(l mod 8)
// elements, so the tile takes no more memory than the row and its tail. A product with this tile
// uses only the row if A is 0 except in its first column.
func NewDescriptorRow(k *ptx.Kernel, at ptx.Shared) ptx.U64 {
	// The next 8 columns are 16 bytes further. The next 8 lines have the same addresses.
	return k.Pack64(descriptorStart(at), ptx.Uint(1))
}

// descriptorStart returns the start address field of a descriptor.
func descriptorStart(at ptx.Shared) ptx.U32 { return at.Addr().AndI(0x3ffff).ShrI(4) }

// Step returns the descriptor for step i of 16 in k, and for the rows from row on. row must be a
// multiple of 8; in an MN-major tile it must be a multiple of 64.
func (d Descriptor) Step(i, row int) ptx.U64 {
	return d.k.Pack64(d.lo.AddI(i*d.step+row/8*d.rows8), ptx.Uint(d.upper))
}

// Swizzled returns the offset of a row's 16-byte chunk (0 to 7) in a tile with the 128-byte
// swizzle.
func Swizzled(row, chunk ptx.U32) ptx.U32 {
	return row.MulI(RowBytes).Add(chunk.Xor(row.AndI(7)).ShlI(4))
}

// SwizzledNarrow returns the offset of a row's 16-byte chunk (0 to 3) in a tile with the 64-byte
// swizzle, in which two rows share 128 bytes.
func SwizzledNarrow(row, chunk ptx.U32) ptx.U32 {
	return row.MulI(RowBytes / 2).Add(chunk.Xor(row.ShrI(1).AndI(3)).ShlI(4))
}
