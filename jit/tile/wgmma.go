package tile

import "sonicmoe/ptx"

// RowBytes is the width of a row of a K-major tile: 64 bf16, the span of the
// 128-byte swizzle.
const RowBytes = 128

// K is the depth of a tile in elements, KStep that of one wgmma.
const (
	K     = 64
	KStep = 16
)

// swizzle128 is what the upper word of a descriptor of a K-major tile with
// 128-byte swizzle holds: 1024 bytes between groups of 8 rows, mode 1.
const swizzle128 = 64 | 1<<30

// Descriptor is a K-major bf16 tile in shared memory with 128-byte swizzle:
// rows of 64 elements, the tile aligned to 1024 bytes.
type Descriptor struct {
	k  *ptx.Kernel
	lo ptx.U32
}

// NewDescriptor describes the tile at address at.
func NewDescriptor(k *ptx.Kernel, at ptx.Shared) Descriptor {
	return Descriptor{k, at.Addr().AndI(0x3ffff).ShrI(4).OrI(1 << 16)}
}

// Step is the descriptor of 16-column step i, for rows from the given one
// (a multiple of 8) on.
func (d Descriptor) Step(i, row int) ptx.U64 {
	return d.k.Pack64(d.lo.AddI(i*2+row*RowBytes/16), ptx.Uint(swizzle128))
}

// Swizzled is the offset in a 128-byte-swizzled tile of the 16-byte chunk
// (0 to 7) of a row.
func Swizzled(row, chunk ptx.U32) ptx.U32 {
	return row.MulI(RowBytes).Add(chunk.Xor(row.AndI(7)).ShlI(4))
}
