package layout

import "fmt"

// MatrixDescriptor is a decoded matrix descriptor: the 64-bit operand that tells wgmma where A or B
// is in shared memory. Addresses and distances are in bytes.
type MatrixDescriptor struct {
	Start      uint32 // address of the first slab (16 elements in k) in the CTA's shared window
	LBO, SBO   uint32 // leading and stride byte offsets, see unswizzled
	BaseOffset uint8
	Swizzle    Swizzle
}

// SlabDepth is the k extent of one wgmma with 16-bit inputs.
const SlabDepth = 16

// descriptorReserved is the mask of the bits that must be zero: 14-15, 30-31, 46-48 and 52-61.
const descriptorReserved = 0x3ff1c000c000c000

// DecodeMatrixDescriptor decodes a descriptor. It fails if reserved bits are set, which happens if
// the kernel did not mask the address.
func DecodeMatrixDescriptor(d uint64) (MatrixDescriptor, error) {
	if bad := d & descriptorReserved; bad != 0 {
		return MatrixDescriptor{}, fmt.Errorf("matrix descriptor %#016x: reserved bits %#x are set; want each address masked with 0x3ffff before >>4", d, bad)
	}
	field := func(at uint) uint32 { return uint32(d>>at&0x3fff) << 4 }
	return MatrixDescriptor{
		Start: field(0), LBO: field(16), SBO: field(32),
		BaseOffset: uint8(d >> 49 & 7),
		Swizzle:    [4]Swizzle{SwizzleNone, Swizzle128, Swizzle64, Swizzle32}[d>>62],
	}, nil
}

// Encode is the inverse of DecodeMatrixDescriptor.
func (d MatrixDescriptor) Encode() uint64 {
	field := func(bytes uint32) uint64 { return uint64(bytes & 0x3ffff >> 4) }
	return field(d.Start) | field(d.LBO)<<16 | field(d.SBO)<<32 | uint64(d.BaseOffset&7)<<49 |
		[4]uint64{0, 3, 2, 1}[d.Swizzle&3]<<62
}

// Major says which index of an operand is contiguous in shared memory.
type Major uint8

const (
	// KMajor operands are contiguous in k. A is then stored as [M, K], and B as [N, K].
	KMajor Major = iota
	// MNMajor operands are contiguous in m or n. wgmma's transpose flag is then 1.
	MNMajor
)

// String returns the name of the major order in the PTX manual.
func (m Major) String() string {
	if m == KMajor {
		return "K-major"
	}
	return "MN-major"
}

// unswizzled returns the address, before the swizzle, of element (mn, k) of a matrix of 16-bit
// elements. mn is the index in m for A and in n for B. A core matrix has 8 rows. A row has 16 bytes
// without swizzle, and the swizzle's width with one. The leading byte offset (LBO) and the stride
// byte offset (SBO) are distances between core matrices:
//
//	K-major,  none:     LBO between the two k halves, SBO between groups of 8 rows
//	K-major,  swizzled: SBO between groups of 8 rows; LBO from one row of the swizzle's width to
//	                    the next in k, which a dense product does not need
//	MN-major, none:     LBO between groups of 8 k, SBO between groups of 8 mn
//	MN-major, swizzled: LBO between blocks of width/2 mn, SBO between groups of 8 k
func (d MatrixDescriptor) unswizzled(major Major, mn, k uint32) uint32 {
	w := d.Swizzle.Width()
	switch {
	case major == KMajor && d.Swizzle == SwizzleNone:
		return d.Start + mn/8*d.SBO + mn%8*16 + k/8*d.LBO + k%8*2
	case major == KMajor:
		return d.Start + mn/8*d.SBO + mn%8*w + k*2/w*d.LBO + k*2%w
	case d.Swizzle == SwizzleNone:
		return d.Start + mn/8*d.SBO + mn%8*2 + k/8*d.LBO + k%8*16
	}
	block := w / 2
	return d.Start + mn/block*d.LBO + mn%block*2 + k/8*d.SBO + k%8*w
}

// Address returns the shared address of element (mn, k) of a matrix of 16-bit elements. k is below
// 16.
func (d MatrixDescriptor) Address(major Major, mn, k uint32) uint32 {
	return d.Swizzle.Apply(d.unswizzled(major, mn, k))
}

// Check returns the reason why the descriptor is illegal for a slab of mn rows of 16-bit elements
// (64 for A, N for B), or nil. It also refuses a base offset that is not 0. On an H200, tiles at
// any multiple of 128 bytes are read correctly with base offset 0. With the tile's row in the
// swizzle pattern as base offset, most tiles are read wrongly.
func (d MatrixDescriptor) Check(major Major, mn uint32) error { return d.CheckSlabs(major, mn, 1) }

// CheckSlabs does the same as Check for several slabs, one after the other in k.
func (d MatrixDescriptor) CheckSlabs(major Major, mn, slabs uint32) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("matrix descriptor %#016x (%v, %v): %s", d.Encode(), major, d.Swizzle, fmt.Sprintf(format, args...))
	}
	if d.BaseOffset != 0 {
		return fail("base offset %d is not emulated, want 0", d.BaseOffset)
	}
	if d.Swizzle == SwizzleNone {
		return nil
	}
	// A slab may begin in any row of the swizzle pattern, because the swizzle depends on the bits
	// of the address itself. But the k of a K-major row must not run past the end of the pattern's
	// row. Nor may an MN-major slab that begins inside a row of the pattern.
	w := d.Swizzle.Width()
	at := d.Start % w
	if depth := min(slabs*SlabDepth, w/2); major == KMajor && at+2*depth > w {
		return fail("%d k from start %#x, %d bytes into a row, run past its %d bytes", depth, d.Start, at, w)
	}
	if major == MNMajor && at != 0 && at+2*mn > w {
		return fail("%d elements from start %#x, %d bytes into a row, run past its %d bytes", mn, d.Start, at, w)
	}
	return nil
}

// Group returns the addresses of the sixteen 16-byte chunks that hold 8 rows of a slab, starting
// with row mn. A K-major row has two chunks, which follow each other in the result. An MN-major
// chunk holds the 8 rows of one k; the chunks are in the order of k.
func (d MatrixDescriptor) Group(major Major, mn, slab uint32) (at [16]uint32) {
	first := d.unswizzled(major, mn, slab*SlabDepth)
	// half is the distance between the chunks of one row, step the distance to the next row or k,
	// and jump what is added to step between k 7 and k 8.
	w := d.Swizzle.Width()
	half, step, jump := uint32(16), w, uint32(0)
	switch {
	case major == KMajor && d.Swizzle == SwizzleNone:
		half = d.LBO
	case major == MNMajor && d.Swizzle == SwizzleNone:
		jump = d.LBO - 8*w
	case major == MNMajor:
		jump = d.SBO - 8*w
	}
	for i := range uint32(16) {
		a := first + i*step
		if major == KMajor {
			a = first + i/2*step + i%2*half
		} else if i >= 8 {
			a += jump
		}
		at[i] = d.Swizzle.Apply(a)
	}
	return at
}
