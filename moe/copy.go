package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
)

// element is the type of a tensor's elements on the host. float32 and float64 are numbers of BF16,
// F16 and F32 tensors, uint16 has the bits of BF16 and F16 elements, int32 is for I32, uint8 for
// U8.
type element interface {
	float32 | float64 | uint16 | int32 | uint8
}

// Write copies values to a tensor, in the order of the work on s. Each element needs one value.
// float32 and float64 are numbers for BF16, F16 and F32 tensors, uint16 has the bits of BF16 and
// F16 elements, int32 is for I32, uint8 for U8. Numbers are rounded once, to nearest even; NaN
// stays NaN. The caller may reuse values when Write returns.
func Write[E float32 | float64 | uint16 | int32 | uint8](s driver.Stream, t Tensor, values []E) error {
	if err := checkCopy(s, t, values); err != nil {
		return err
	}
	switch v := any(values).(type) {
	case []float32:
		if t.Shape.Type != F32 {
			return writeNumbers(s, t, v)
		}
	case []float64:
		return writeNumbers(s, t, v)
	}
	return s.CopyToDevice(t.Ptr, num.Bytes(values))
}

// Read waits for the work on s and copies a tensor's elements to values, which must
// have the same number of elements.
func Read[E float32 | float64 | uint16 | int32 | uint8](s driver.Stream, t Tensor, values []E) error {
	if err := checkCopy(s, t, values); err != nil {
		return err
	}
	switch v := any(values).(type) {
	case []float32:
		if t.Shape.Type != F32 {
			return readNumbers(s, t, v)
		}
	case []float64:
		return readNumbers(s, t, v)
	}
	return s.CopyToHost(num.Bytes(values), t.Ptr)
}

// checkCopy refuses a tensor and values that do not fit each other.
func checkCopy[E element](s driver.Stream, t Tensor, values []E) error {
	var fits bool
	var want string
	switch any(values).(type) {
	case []float32, []float64:
		fits, want = t.Shape.Type != I32 && t.Shape.Type != U8, "bf16, f16 or f32, for numbers"
	case []uint16:
		fits, want = t.Shape.Type == BF16 || t.Shape.Type == F16, "bf16 or f16, for their bits"
	case []int32:
		fits, want = t.Shape.Type == I32, "i32, for integers"
	case []uint8:
		fits, want = t.Shape.Type == U8, "u8, for bytes"
	}
	switch elements := t.Shape.Elements(); {
	case s == nil:
		return &ArgError{Field: "stream", Got: "nil", Want: "a stream of the tensor's device"}
	case t.IsZero():
		return &ArgError{Field: "tensor", Got: missing, Want: fmt.Sprintf("of %d elements", len(values))}
	case !fits:
		return &ArgError{Field: "tensor", Got: t.Shape.String(), Want: want}
	case t.Ptr == 0 && elements > 0:
		return &ArgError{Field: "tensor.Ptr", Got: "0", Want: fmt.Sprintf("the address of %d bytes", t.Shape.Bytes())}
	case elements != int64(len(values)):
		return argErrorf("values", fmt.Sprintf("%d long", len(values)), "as long as %v has elements, %d", t.Shape, elements)
	}
	return nil
}

// pieceElements limits the host memory of a conversion.
const pieceElements = 1 << 20

func writeNumbers[E float32 | float64](s driver.Stream, t Tensor, values []E) error {
	switch t.Shape.Type {
	case BF16:
		return write(s, t, values, num.EncodeBF16[E])
	case F16:
		return write(s, t, values, num.EncodeF16[E])
	}
	return write(s, t, values, convert[float32, E])
}

func readNumbers[E float32 | float64](s driver.Stream, t Tensor, values []E) error {
	switch t.Shape.Type {
	case BF16:
		return read(s, t, values, num.DecodeBF16[E])
	case F16:
		return read(s, t, values, num.DecodeF16[E])
	}
	return read(s, t, values, convert[E, float32])
}

// write encodes and copies one piece after another.
func write[D num.Number, E element](s driver.Stream, t Tensor, values []E, encode func([]D, []E)) error {
	piece := make([]D, min(len(values), pieceElements))
	for from := 0; from < len(values); from += len(piece) {
		piece = piece[:min(len(piece), len(values)-from)]
		encode(piece, values[from:][:len(piece)])
		if err := s.CopyToDevice(t.Ptr+driver.DevicePtr(int64(from)*t.Shape.Type.Bytes()), num.Bytes(piece)); err != nil {
			return err
		}
	}
	return nil
}

// read copies and decodes one piece after another.
func read[D num.Number, E element](s driver.Stream, t Tensor, values []E, decode func([]E, []D)) error {
	piece := make([]D, min(len(values), pieceElements))
	for from := 0; from < len(values); from += len(piece) {
		piece = piece[:min(len(piece), len(values)-from)]
		if err := s.CopyToHost(num.Bytes(piece), t.Ptr+driver.DevicePtr(int64(from)*t.Shape.Type.Bytes())); err != nil {
			return err
		}
		decode(values[from:][:len(piece)], piece)
	}
	return nil
}

func convert[D, S float32 | float64](dst []D, src []S) {
	for i, x := range src {
		dst[i] = D(x)
	}
}
