package gpu

import (
	"fmt"

	"sonicmoe/driver"
)

// ElemType is the element type of a tensor map.
type ElemType uint8

// These are the element types that kernels of this module use.
const (
	BF16 ElemType = iota + 1
	F16
	F32
	U8
	U16
	U32
	S32
)

// Bytes returns the size of an element.
func (e ElemType) Bytes() int {
	switch e {
	case BF16, F16, U16:
		return 2
	case F32, U32, S32:
		return 4
	case U8:
		return 1
	}
	return 0
}

// String returns the name of the type, as in PTX.
func (e ElemType) String() string {
	names := [...]string{"?", "bf16", "f16", "f32", "u8", "u16", "u32", "s32"}
	if int(e) < len(names) {
		return names[e]
	}
	return fmt.Sprintf("ElemType(%d)", uint8(e))
}

// Swizzle is the permutation that TMA applies to 16-byte chunks of a box in shared
// memory.
type Swizzle uint8

// These are the swizzle modes, by the width in bytes of the permuted rows.
const (
	SwizzleNone Swizzle = iota
	Swizzle32
	Swizzle64
	Swizzle128
)

// L2Promotion is the granularity with which TMA loads fill the L2 cache.
type L2Promotion uint8

// These are the granularities.
const (
	PromoteNone L2Promotion = iota
	Promote64
	Promote128
	Promote256
)

// MaxTensorRank is the largest number of dimensions of a tensor map.
const MaxTensorRank = 5

// TensorMap describes a tensor in global memory and the box that one TMA instruction moves. It
// is comparable. Dimension 0 is contiguous.
//
// Loads fill elements outside the tensor with zero, and stores drop them. For stores, Address
// may lie before mapped memory if all elements that are stored are mapped.
type TensorMap struct {
	Elem    ElemType
	Rank    int // 1 to MaxTensorRank
	Address driver.DevicePtr
	// Dims are the extents in elements, 1 to 2^32 each.
	Dims [MaxTensorRank]uint64
	// Strides[i] is the distance in bytes between adjacent elements of dimension i+1. It is a
	// multiple of 16 and less than 2^40.
	Strides [MaxTensorRank - 1]uint64
	// Box holds the extents of one transfer in elements, 1 to 256 each.
	Box     [MaxTensorRank]uint32
	Swizzle Swizzle
	Promote L2Promotion
}

// EncodedTensorMap is a tensor map in the device's format: a kernel parameter of
// 128 bytes, aligned to 128. [Stream].Launch explains its offset.
type EncodedTensorMap [128]byte

// Check returns an error for the first rule that the tensor map breaks.
func (m TensorMap) Check() error {
	bad := func(field string, got any, want string) error {
		return &driver.Error{Op: "tensor map", Name: "invalid value",
			Text: fmt.Sprintf("%s is %v, must be %s", field, got, want), Kind: driver.ErrInvalid}
	}
	if m.Elem.Bytes() == 0 {
		return bad("Elem", m.Elem, "a known element type")
	}
	if m.Rank < 1 || m.Rank > MaxTensorRank {
		return bad("Rank", m.Rank, "1 to 5")
	}
	if m.Address%16 != 0 {
		return bad("Address", fmt.Sprintf("%#x", uint64(m.Address)), "a multiple of 16")
	}
	if m.Swizzle > Swizzle128 {
		return bad("Swizzle", m.Swizzle, "a known mode")
	}
	if m.Promote > Promote256 {
		return bad("Promote", m.Promote, "a known granularity")
	}
	inner := int(m.Box[0]) * m.Elem.Bytes()
	for i := range m.Rank {
		if m.Dims[i] < 1 || m.Dims[i] > 1<<32 {
			return bad(fmt.Sprintf("Dims[%d]", i), m.Dims[i], "1 to 2^32")
		}
		if m.Box[i] < 1 || m.Box[i] > 256 {
			return bad(fmt.Sprintf("Box[%d]", i), m.Box[i], "1 to 256")
		}
		if i > 0 && (m.Strides[i-1]%16 != 0 || m.Strides[i-1] >= 1<<40) {
			return bad(fmt.Sprintf("Strides[%d]", i-1), m.Strides[i-1], "a multiple of 16 below 2^40")
		}
	}
	if inner%16 != 0 {
		return bad("Box[0]", m.Box[0], "a multiple of 16 bytes")
	}
	if limit := 16 << m.Swizzle; m.Swizzle != SwizzleNone && inner > limit {
		return bad("Box[0]", m.Box[0], fmt.Sprintf("at most %d bytes under this swizzle", limit))
	}
	return nil
}
