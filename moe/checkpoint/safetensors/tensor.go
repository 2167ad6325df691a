package safetensors

import (
	"fmt"
	"math"
	mathbits "math/bits"
)

// bits maps each dtype to the number of bits of an element.
var bits = map[string]int64{
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"F64": 64, "I64": 64, "U64": 64, "C64": 64,
}

// formatError tells how a file, or a tensor to be written, violates the format.
type formatError struct {
	// where is the part that is wrong, such as "header" or "tensor \"w1\"".
	where string
	// text says what is wrong and what would be right.
	text string
}

// Error returns a text such as "safetensors: tensor "w1": …".
func (e *formatError) Error() string { return "safetensors: " + e.where + ": " + e.text }

func headerErrorf(format string, args ...any) *formatError {
	return &formatError{where: "header", text: fmt.Sprintf(format, args...)}
}

func tensorErrorf(name, format string, args ...any) *formatError {
	return &formatError{where: fmt.Sprintf("tensor %.80q", name), text: fmt.Sprintf(format, args...)}
}

// Tensor describes one tensor of a file, without its data.
type Tensor struct {
	Name string
	// DType is the name of the element type in the format, such as "BF16", "F32", "I32" or "U8".
	DType string
	// Shape has the extents, the outermost first. It is empty for a scalar.
	Shape []int64
	// Begin and End are the offset of the tensor's first byte, and of the byte after its last one.
	// They count from the end of the header.
	Begin, End int64
}

// Bytes returns the size of the tensor's data, computed from its dtype and shape. The error names
// an unknown dtype, a negative extent, or a size that is too large.
func (t Tensor) Bytes() (int64, error) {
	size := bits[t.DType]
	if size == 0 {
		return 0, tensorErrorf(t.Name, "dtype %.40q is unknown", t.DType)
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

// String returns text such as "experts.w1 BF16 [128 512 1536]".
func (t Tensor) String() string { return fmt.Sprintf("%s %s %v", t.Name, t.DType, t.Shape) }
