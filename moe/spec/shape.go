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
)

// Bytes is the size of one element.
func (t Type) Bytes() int64 {
	if t == BF16 {
		return 2
	}
	return 4
}

// String gives the format's name: "bf16", "f32", "i32".
func (t Type) String() string {
	switch t {
	case BF16:
		return "bf16"
	case F32:
		return "f32"
	case I32:
		return "i32"
	}
	return "Type(" + strconv.Itoa(int(t)) + ")"
}

// Shape is a dense row-major tensor's element type and extents. It is
// comparable and needs no memory of its own.
type Shape struct {
	Type Type
	// Rank is 1 to 3; Dims[:Rank] are the extents, outermost first. The rest is 0.
	Rank int
	Dims [3]int64
}

func shape(t Type, dims ...int) Shape {
	s := Shape{Type: t, Rank: len(dims)}
	for i, d := range dims {
		s.Dims[i] = int64(d)
	}
	return s
}

// extents are Dims[:Rank], however wrong the rank.
func (s *Shape) extents() []int64 { return s.Dims[:min(max(s.Rank, 0), len(s.Dims))] }

// Elements is the product of the extents.
func (s Shape) Elements() int64 {
	n := int64(1)
	for _, d := range s.extents() {
		n *= d
	}
	return n
}

// Bytes is the size of the tensor.
func (s Shape) Bytes() int64 { return s.Elements() * s.Type.Bytes() }

// String reads "bf16 [128 512 1536]". A rank outside 0 to 3 is added in words.
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

// Shapes are the tensors of one forward call, R = T·K.
type Shapes struct {
	// X is the input [T, d] and O the output [T, d], bf16.
	X, O Shape
	// Router [E, d], W1 [E, 2n, d] and W2 [E, d, n] are the weights, bf16.
	Router, W1, W2 Shape
	// Logits [T, E] are in the Config's format.
	Logits Shape
	// Scores [T, K] f32 and Experts [T, K] i32 are the routing, best first.
	Scores, Experts Shape
	// H [R, 2n] is the pre-activation, gate then up; A [R, n] the activation;
	// Y [R, d] the experts' output. All bf16, rows grouped by expert.
	H, A, Y Shape
}

// Shapes gives the tensors of a call with so many tokens.
func (c Config) Shapes(tokens int) Shapes {
	d, n, e, k := c.Hidden, c.Intermediate, c.Experts, c.TopK
	logits := BF16
	if c.Logits == LogitsF32 {
		logits = F32
	}
	return Shapes{
		X:       shape(BF16, tokens, d),
		O:       shape(BF16, tokens, d),
		Router:  shape(BF16, e, d),
		W1:      shape(BF16, e, 2*n, d),
		W2:      shape(BF16, e, d, n),
		Logits:  shape(logits, tokens, e),
		Scores:  shape(F32, tokens, k),
		Experts: shape(I32, tokens, k),
		H:       shape(BF16, tokens*k, 2*n),
		A:       shape(BF16, tokens*k, n),
		Y:       shape(BF16, tokens*k, d),
	}
}
