package tile

import "sonicmoe/ptx"

// RowBytes is the width of a row of a K-major tile: 64 elements, the span of the
// 128-byte swizzle.
const RowBytes = 128

// K is the depth of a tile in elements, KStep the depth of one wgmma.
const (
	K     = 64
	KStep = 16
)

// swizzle128 is the swizzle mode in the upper word of a descriptor. The field
// below it is the distance between groups of 8 rows, in units of 16 bytes: 1024
// bytes if the tile is contiguous.
const (
	swizzle128 = 1 << 30
	rows8Bytes = 8 * RowBytes
)

// Descriptor describes a tile in shared memory with 128-byte swizzle, aligned to
// 1024 bytes.
type Descriptor struct {
	k  *ptx.Kernel
	lo ptx.U32
	// step is the distance to the next 16-deep step, rows8 the distance to the next 8
	// rows, both in units of 16 bytes.
	step, rows8 int
	upper       int
}

// NewDescriptor describes the K-major tile at address at. Its rows are 64 elements
// along K.
func NewDescriptor(k *ptx.Kernel, at ptx.Shared) Descriptor {
	return NewDescriptorApart(k, at, rows8Bytes)
}

// NewDescriptorApart describes a K-major tile whose groups of 8 rows are the given
// number of bytes apart, a multiple of 1024.
func NewDescriptorApart(k *ptx.Kernel, at ptx.Shared, bytes int) Descriptor {
	const ignored = 1 << 16 // the leading offset is not used
	return Descriptor{k, descriptorStart(at).OrI(ignored), KStep * 2 / 16, bytes / 16, swizzle128 | bytes/16}
}

// Block is the number of rows of an MN-major tile that share 128 bytes. BlockBytes
// is the distance between blocks of a tile that is K deep.
const (
	Block      = 64
	BlockBytes = K * RowBytes
)

// NewDescriptorMN describes the MN-major tile at address at. It is a sequence of
// blocks. A block holds 64 rows of the operand as 64 lines along K, each with one
// element of every row. A box of {64, 64, blocks} of a [K, rows] matrix has this
// layout. The wgmma must have its transposed flag set.
func NewDescriptorMN(k *ptx.Kernel, at ptx.Shared) Descriptor {
	return Descriptor{k, descriptorStart(at).OrI(BlockBytes / 16 << 16), KStep * RowBytes / 16, 8 * BlockBytes / Block / 16, swizzle128 | rows8Bytes/16}
}

// RowTailBytes is the number of bytes that must follow a row of
// [NewDescriptorRow]. They must hold finite elements.
const RowTailBytes = 128

// NewDescriptorRow describes a row of elements, without swizzle, as an MN-major
// tile that is one step deep. Line 0 is the row. Line l is the row from element
// 8(l mod 8) on and the bytes after it, so the tile takes no more memory than the
// row and its tail. The product is right if A is 0 except in its first column,
// because that drops lines 1 and up.
func NewDescriptorRow(k *ptx.Kernel, at ptx.Shared) ptx.U64 {
	// The next 8 columns are 16 bytes further, the next 8 lines at the same address.
	return k.Pack64(descriptorStart(at), ptx.Uint(1))
}

// descriptorStart is the start field of a descriptor.
func descriptorStart(at ptx.Shared) ptx.U32 { return at.Addr().AndI(0x3ffff).ShrI(4) }

// Step returns the descriptor of 16-deep step i for the rows from row on. row is a
// multiple of 8, or of 64 in an MN-major tile.
func (d Descriptor) Step(i, row int) ptx.U64 {
	return d.k.Pack64(d.lo.AddI(i*d.step+row/8*d.rows8), ptx.Uint(d.upper))
}

// Swizzled returns the offset of a row's 16-byte chunk (0 to 7) in a tile with
// 128-byte swizzle.
func Swizzled(row, chunk ptx.U32) ptx.U32 {
	return row.MulI(RowBytes).Add(chunk.Xor(row.AndI(7)).ShlI(4))
}

// SwizzledNarrow returns the offset of a row's 16-byte chunk (0 to 3) in a tile
// with 64-byte swizzle. Two rows share 128 bytes.
func SwizzledNarrow(row, chunk ptx.U32) ptx.U32 {
	return row.MulI(RowBytes / 2).Add(chunk.Xor(row.ShrI(1).AndI(3)).ShlI(4))
}
