package spec

import (
	"strconv"
	"strings"
)

// Type is a number format of tensor elements.
type Type uint8

const (
	// BF16 is the upper half of an FP32: 8 exponent bits, 7 fraction bits.
	BF16 Type = iota
	// F32 is IEEE binary32.
	F32
	// I32 is a signed 32-bit integer.
	I32
	// F16 is IEEE binary16: 5 exponent bits, 10 fraction bits.
	F16
	// U8 is a byte: a code or a scale of packed weights, or two codes of 4 bits.
	U8
)

var typeNames = []string{"bf16", "f32", "i32", "f16", "u8"}

// Bytes returns the size of one element.
func (t Type) Bytes() int64 {
	switch t {
	case BF16, F16:
		return 2
	case U8:
		return 1
	}
	return 4
}

// String returns the format's name: "bf16", "f32", "i32", "f16", "u8".
func (t Type) String() string { return name("Type", typeNames, t) }

// Shape is the element type and the extents of a dense row-major tensor. It is
// comparable. A tensor that a layer does not have has the zero Shape.
type Shape struct {
	Type Type
	// Rank is 1 to 3. Dims[:Rank] are the extents, outermost first. The other elements of Dims
	// are 0.
	Rank int
	Dims [3]int64
}

// IsZero reports whether s is the zero Shape.
func (s Shape) IsZero() bool { return s == Shape{} }

// extents returns Dims[:Rank]. A rank outside 0 to 3 is clamped, so that wrong Shapes can be
// printed.
func (s *Shape) extents() []int64 { return s.Dims[:min(max(s.Rank, 0), len(s.Dims))] }

// Elements returns the product of the extents, or 0 for the zero Shape.
func (s Shape) Elements() int64 {
	if s.IsZero() {
		return 0
	}
	n := int64(1)
	for _, d := range s.extents() {
		n *= d
	}
	return n
}

// Bytes returns the size of the tensor.
func (s Shape) Bytes() int64 { return s.Elements() * s.Type.Bytes() }

// String returns "bf16 [128 512 1536]", and the rank if it is outside 0 to 3.
func (s Shape) String() string {
	var b strings.Builder
	b.WriteString(s.Type.String() + " [")
	for i, d := range s.extents() {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.FormatInt(d, 10))
	}
	b.WriteByte(']')
	if s.Rank != len(s.extents()) {
		b.WriteString(" of rank " + strconv.Itoa(s.Rank))
	}
	return b.String()
}
