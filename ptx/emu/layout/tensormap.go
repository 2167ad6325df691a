package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// ElemType is the element type of a tensor map.
type ElemType uint8

// The element types. No type is zero, so zeroed memory is not a valid map.
const (
	ElemBF16 ElemType = iota + 1
	ElemF16
	ElemF32
	ElemU8
	ElemU16
	ElemU32
	ElemS32
)

// Bytes returns the size of an element, or 0 for an unknown type.
func (e ElemType) Bytes() int {
	if int(e) < len(elemBytes) {
		return elemBytes[e]
	}
	return 0
}

var elemBytes = [...]int{ElemBF16: 2, ElemF16: 2, ElemF32: 4, ElemU8: 1, ElemU16: 2, ElemU32: 4, ElemS32: 4}

// TensorMap describes a tensor in emulated global memory, and the size of the box that one TMA
// instruction moves. Dimension 0 is contiguous. Entries of the arrays from index Rank on are
// ignored.
//
// The addresses of the tensor and of its elements are computed modulo 2^64. The tensor may
// therefore begin before mapped memory: only elements within the bounds are accessed.
type TensorMap struct {
	Elem    ElemType
	Rank    int // 1 to 5
	Address uint64
	Dims    [5]uint64 // extents of the tensor in elements, 1 to 2^32 each
	Strides [4]uint64 // Strides[i] is the distance in bytes between neighbours in dimension i+1
	Box     [5]uint32 // extents of the box in elements, 1 to 256 each
	Swizzle Swizzle
}

// TensorMapBytes is the size of an encoded tensor map.
const TensorMapBytes = 128

// tensorMapMagic is the beginning of an encoded map. The encoding is the emulator's own, because
// the encoding of GPUs is not published.
const tensorMapMagic = "emu-tmap"

// Byte offsets of the fields in an encoded map, little endian. The magic text is at 0, the element
// type at 8, the rank at 9, the swizzle at 10, the address at 16, the extents at 24, the strides at
// 44, the box at 76, and the CRC-32 of all earlier bytes at 124.
const (
	tmElem, tmRank, tmSwizzle, tmAddress = 8, 9, 10, 16
	tmDims, tmStrides, tmBox, tmChecksum = 24, 44, 76, 124
)

// Encode returns the 128 bytes that a kernel takes as a parameter. Call Check before, because
// Encode truncates fields that are out of range.
func (m TensorMap) Encode() (b [TensorMapBytes]byte) {
	le := binary.LittleEndian
	copy(b[:], tensorMapMagic)
	b[tmElem], b[tmRank], b[tmSwizzle] = byte(m.Elem), byte(m.Rank), byte(m.Swizzle)
	le.PutUint64(b[tmAddress:], m.Address)
	for i := range max(0, min(m.Rank, 5)) {
		le.PutUint32(b[tmDims+4*i:], uint32(m.Dims[i]-1))
		le.PutUint16(b[tmBox+2*i:], uint16(m.Box[i]))
		if i > 0 {
			le.PutUint64(b[tmStrides+8*(i-1):], m.Strides[i-1])
		}
	}
	le.PutUint32(b[tmChecksum:], crc32.ChecksumIEEE(b[:tmChecksum]))
	return b
}

// DecodeTensorMap is the inverse of Encode. It fails for all other bytes, and so finds an
// instruction that has a wrong address of its map.
func DecodeTensorMap(b []byte) (TensorMap, error) {
	if len(b) < TensorMapBytes {
		return TensorMap{}, fmt.Errorf("tensor map: %d bytes, want %d", len(b), TensorMapBytes)
	}
	if string(b[:len(tensorMapMagic)]) != tensorMapMagic {
		return TensorMap{}, fmt.Errorf("tensor map: the bytes % x... are not a tensor map of the emulated device; want the parameter's address from cvta.param", b[:8])
	}
	le := binary.LittleEndian
	if le.Uint32(b[tmChecksum:]) != crc32.ChecksumIEEE(b[:tmChecksum]) {
		return TensorMap{}, errors.New("tensor map: wrong checksum: the map was changed after it was encoded")
	}
	m := TensorMap{Elem: ElemType(b[tmElem]), Rank: int(b[tmRank]), Swizzle: Swizzle(b[tmSwizzle]), Address: le.Uint64(b[tmAddress:])}
	for i := range min(m.Rank, 5) {
		m.Dims[i] = uint64(le.Uint32(b[tmDims+4*i:])) + 1
		m.Box[i] = uint32(le.Uint16(b[tmBox+2*i:]))
		if i > 0 {
			m.Strides[i-1] = le.Uint64(b[tmStrides+8*(i-1):])
		}
	}
	return m, m.Check()
}

// Check returns the first rule of tensor maps that m breaks, or the first property that the
// emulator does not support. It returns nil if there is none.
func (m TensorMap) Check() error {
	bad := func(field string, got any, want string) error {
		return fmt.Errorf("tensor map: %s is %v, want %s", field, got, want)
	}
	switch {
	case m.Elem.Bytes() == 0:
		return bad("element type", m.Elem, "a known one")
	case m.Rank < 1 || m.Rank > 5:
		return bad("rank", m.Rank, "1 to 5")
	case m.Address%16 != 0:
		return bad("address", fmt.Sprintf("%#x", m.Address), "a multiple of 16")
	case m.Swizzle > Swizzle128:
		return bad("swizzle", m.Swizzle, "a known mode")
	}
	for i := range m.Rank {
		if m.Dims[i] < 1 || m.Dims[i] > 1<<32 {
			return bad(fmt.Sprintf("dimension %d", i), m.Dims[i], "1 to 2^32")
		}
		if m.Box[i] < 1 || m.Box[i] > 256 {
			return bad(fmt.Sprintf("box extent %d", i), m.Box[i], "1 to 256")
		}
		if i > 0 && (m.Strides[i-1]%16 != 0 || m.Strides[i-1] >= 1<<40) {
			return bad(fmt.Sprintf("stride %d", i), m.Strides[i-1], "a multiple of 16 below 2^40")
		}
	}
	inner := m.Box[0] * uint32(m.Elem.Bytes())
	if inner%16 != 0 {
		return bad("box row", fmt.Sprintf("%d bytes", inner), "a multiple of 16 bytes")
	}
	if m.Swizzle == SwizzleNone || inner == m.Swizzle.Width() {
		return nil
	}
	if inner > m.Swizzle.Width() {
		return bad("box row", fmt.Sprintf("%d bytes", inner), fmt.Sprintf("at most %d under %v", m.Swizzle.Width(), m.Swizzle))
	}
	if m.BoxBytes() == inner {
		return nil // a box of one row needs no distance between rows
	}
	return bad("box row", fmt.Sprintf("%d bytes", inner),
		fmt.Sprintf("exactly %d under %v: the layout of narrower rows in shared memory is not emulated", m.Swizzle.Width(), m.Swizzle))
}

// BoxBytes returns the size of the box, including elements outside the tensor. A load adds this
// number to the transaction count of its mbarrier.
func (m TensorMap) BoxBytes() uint32 {
	n := uint32(m.Elem.Bytes())
	for i := range m.Rank {
		n *= m.Box[i]
	}
	return n
}
