package emu

import "fmt"

// MatrixDescriptor is the decoded 64-bit operand with which wgmma finds A or B
// in shared memory. Addresses and distances are in bytes.
type MatrixDescriptor struct {
	Start      uint32 // of the k16 slab, in the CTA's shared window
	LBO, SBO   uint32 // leading and stride byte offsets, see ElementOffset
	BaseOffset uint8
	Swizzle    Swizzle
}

// descriptorReserved are the bits that must be zero: 14-15, 30-31, 46-48, 52-61.
const descriptorReserved = 0x3ff1c000c000c000

// DecodeMatrixDescriptor takes a descriptor apart. It fails on reserved bits,
// which mean that an address went in unmasked.
func DecodeMatrixDescriptor(d uint64) (MatrixDescriptor, error) {
	if bad := d & descriptorReserved; bad != 0 {
		return MatrixDescriptor{}, fmt.Errorf("matrix descriptor %#016x: reserved bits %#x are set; mask each address with 0x3ffff before >>4", d, bad)
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

// Major says which index of an operand runs along its rows in shared memory.
type Major uint8

const (
	// KMajor operands are contiguous in k: A as M x K, B as N x K.
	KMajor Major = iota
	// MNMajor operands are contiguous in m or n: wgmma's trans = 1.
	MNMajor
)

// String is the PTX manual's spelling.
func (m Major) String() string {
	if m == KMajor {
		return "K-major"
	}
	return "MN-major"
}

// unswizzled is the address, before swizzle, of element (mn, k) of the k16
// slab of 16-bit elements. A core matrix is 8 rows of 16 bytes without
// swizzle, 8 rows of the swizzle's width with it.
//
//	K-major,  none: LBO between the two k halves, SBO between 8-row groups
//	K-major,  swizzled: SBO between 8-row groups, LBO ignored
//	MN-major, none: LBO between 8-k groups, SBO between groups of 8 mn
//	MN-major, swizzled: LBO between blocks of width/2 mn, SBO between 8-k groups
func (d MatrixDescriptor) unswizzled(major Major, mn, k uint32) uint32 {
	w := d.Swizzle.Width()
	switch {
	case major == KMajor && d.Swizzle == SwizzleNone:
		return d.Start + mn/8*d.SBO + mn%8*16 + k/8*d.LBO + k%8*2
	case major == KMajor:
		return d.Start + mn/8*d.SBO + mn%8*w + k*2
	case d.Swizzle == SwizzleNone:
		return d.Start + mn/8*d.SBO + mn%8*2 + k/8*d.LBO + k%8*16
	}
	block := w / 2
	return d.Start + mn/block*d.LBO + mn%block*2 + k/8*d.SBO + k%8*w
}

// Address is the shared address of element (mn, k), k below 16, of 16-bit elements.
func (d MatrixDescriptor) Address(major Major, mn, k uint32) uint32 {
	return d.Swizzle.Apply(d.unswizzled(major, mn, k))
}

// Check reports what makes the descriptor illegal for a slab of mn rows of
// 16-bit elements (64 for A, N for B), or what this emulator does not know:
// a base offset, whose effect nobody has measured.
func (d MatrixDescriptor) Check(major Major, mn uint32) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("matrix descriptor %#016x (%v, %v): %s", d.Encode(), major, d.Swizzle, fmt.Sprintf(format, args...))
	}
	if d.BaseOffset != 0 {
		return fail("base offset %d is not emulated: align the tile to %d bytes", d.BaseOffset, d.Swizzle.Period())
	}
	if d.Swizzle == SwizzleNone {
		return nil
	}
	// Inside its pattern a slab may start along the first row only, and must
	// end in that row: the k of K-major, one block of MN-major.
	w, at := d.Swizzle.Width(), d.Start%d.Swizzle.Period()
	if at >= w {
		return fail("start %#x lies in row %d of the swizzle pattern: the tile must be aligned to %d bytes", d.Start, at/w, d.Swizzle.Period())
	}
	if major == KMajor && at+2*slabDepth > w {
		return fail("16 k from start %#x, %d bytes into a row, run past its %d bytes", d.Start, at, w)
	}
	if major == MNMajor && at != 0 && at+2*mn > w {
		return fail("%d elements from start %#x, %d bytes into a row, run past its %d bytes", mn, d.Start, at, w)
	}
	return nil
}

// chunks visits the slab's 16-byte pieces: address, and the (mn, k) of the
// first of its 8 elements, which run along k (K-major) or mn (MN-major).
func (d MatrixDescriptor) chunks(major Major, mn uint32, visit func(address, mn, k uint32)) {
	rowStep, kStep := uint32(1), uint32(8)
	if major == MNMajor {
		rowStep, kStep = 8, 1
	}
	for r := uint32(0); r < mn; r += rowStep {
		for k := uint32(0); k < slabDepth; k += kStep {
			visit(d.Address(major, r, k), r, k)
		}
	}
}

// load copies a slab of mn rows (a multiple of 8) into dst, row-major with 16
// k each. shared is the CTA's shared window, indexed by address.
func (d MatrixDescriptor) load(dst []uint16, shared []byte, major Major, mn uint32) error {
	outside := false
	d.chunks(major, mn, func(address, r, k uint32) {
		if uint64(address)+16 > uint64(len(shared)) {
			outside = true
			return
		}
		step := uint32(1) // in dst, from one element of the chunk to the next
		if major == MNMajor {
			step = slabDepth
		}
		for i := range uint32(8) {
			at := address + 2*i
			dst[r*slabDepth+k+i*step] = uint16(shared[at]) | uint16(shared[at+1])<<8
		}
	})
	if outside {
		return fmt.Errorf("matrix descriptor %#016x (%v, %v): %d rows from start %#x, LBO %d, SBO %d, reach past the %d bytes of shared memory",
			d.Encode(), major, d.Swizzle, mn, d.Start, d.LBO, d.SBO, len(shared))
	}
	return nil
}
