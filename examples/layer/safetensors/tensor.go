package safetensors

import (
	"fmt"
	"math"
	mathbits "math/bits"
)

// Error is a file, or a tensor to be written, that is not as the format demands.
type Error struct {
	// Where is the part concerned: "header", "tensor \"w1\"".
	Where string
	// Text says what is wrong and what would be right.
	Text string
}

// Error reads "safetensors: tensor "w1": ...".
func (e *Error) Error() string { return "safetensors: " + e.Where + ": " + e.Text }

func headerErrorf(format string, args ...any) *Error {
	return &Error{Where: "header", Text: fmt.Sprintf(format, args...)}
}

func tensorErrorf(name, format string, args ...any) *Error {
	return &Error{Where: fmt.Sprintf("tensor %.80q", name), Text: fmt.Sprintf(format, args...)}
}

// Tensor is one entry of a header.
type Tensor struct {
	Name  string
	DType DType
	// Shape are the extents, outermost first; none for a scalar.
	Shape []int64
	// Begin and End are the tensor's bytes, counted from the end of the header.
	// A writer sets them itself.
	Begin, End int64
}

// Bytes is the size of the tensor's data, as its dtype and shape say. The
// error names an unknown dtype, a negative extent, or a size that doesn't fit.
func (t Tensor) Bytes() (int64, error) {
	size := t.DType.Bits()
	if size == 0 {
		return 0, tensorErrorf(t.Name, "dtype %.40q is unknown", string(t.DType))
	}
	product := uint64(size)
	zero, overflow := false, false
	for _, d := range t.Shape {
		if d < 0 {
			return 0, tensorErrorf(t.Name, "shape %v has a negative extent", t.Shape)
		}
		if d == 0 {
			zero = true
			continue
		}
		high, low := mathbits.Mul64(product, uint64(d))
		overflow = overflow || high != 0 || low > math.MaxInt64
		product = low
	}
	switch {
	case zero:
		return 0, nil
	case overflow:
		return 0, tensorErrorf(t.Name, "shape %v of %s has more bits than 2^63", t.Shape, t.DType)
	case product%8 != 0:
		return 0, tensorErrorf(t.Name, "shape %v of %s is %d bits, not whole bytes", t.Shape, t.DType, product)
	}
	return int64(product / 8), nil
}

// String reads "experts.w1 BF16 [128 512 1536]".
func (t Tensor) String() string { return fmt.Sprintf("%s %s %v", t.Name, t.DType, t.Shape) }
