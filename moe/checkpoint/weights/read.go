package weights

import (
	"context"
	"fmt"
	"io"
	"slices"

	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/safetensors"
)

// read fills to with the elements of a part, converted to type t.
func (l *Layer) read(ctx context.Context, to []byte, t spec.Type, p part) error {
	raw, from, err := l.numbers(ctx, p, int64(len(to))/t.Bytes())
	if err != nil {
		return err
	}
	if _, ok := types[from]; !ok {
		return fmt.Errorf("%s: tensor %q is %s, must be BF16, F16, F32, or quantised with scales", l.path(p.name), p.name, from)
	}
	switch half := len(raw) / 2; p.piece {
	case upperHalf:
		raw = raw[:half]
	case lowerHalf:
		raw = raw[half:]
	}
	if p.piece != transposed {
		convert(to, t, raw, types[from])
		return nil
	}
	columns := make([]byte, len(to))
	convert(columns, t, raw, types[from])
	s := l.shape(p.tensor)
	transpose(to, columns, s.Dims[1], s.Dims[2], s.Type.Bytes())
	return nil
}

// numbers returns the elements of a part and their type, either as the files have them or
// dequantised. count is the number of elements.
func (l *Layer) numbers(ctx context.Context, p part, count int64) (raw []byte, dtype string, err error) {
	e, err := l.encoding(ctx, p)
	switch {
	case err != nil:
		return nil, "", err
	case e != nil:
		values, err := l.values(ctx, p, e)
		return num.Bytes(values), "F32", err
	}
	raw, t, err := l.raw(ctx, p.name, l.dims(p, count))
	if err != nil {
		err = fmt.Errorf("%s: tensor %q: %w", l.path(p.name), p.name, err)
	}
	return raw, t.DType, err
}

// transpose transposes matrices [columns, rows] to matrices [rows, columns]. size is the size of an
// element in bytes.
func transpose(to, from []byte, rows, columns, size int64) {
	for each := rows * columns * size; len(to) > 0; to, from = to[each:], from[each:] {
		for r := range rows {
			for c := range columns {
				copy(to[(r*columns+c)*size:][:size], from[(c*rows+r)*size:])
			}
		}
	}
}

// dims returns the extents that a tensor of the files must have to hold a part of count elements.
func (l *Layer) dims(p part, count int64) []int64 {
	s := l.plainShape(p.tensor)
	switch {
	case p.expert >= 0:
		return []int64{count / s.Dims[2], s.Dims[2]}
	case p.piece == upperHalf || p.piece == lowerHalf:
		return []int64{2 * s.Dims[0], s.Dims[1]}
	case p.piece == stacked:
		return []int64{s.Dims[0] * s.Dims[1], s.Dims[2]}
	case p.piece == transposed:
		return []int64{s.Dims[0] * s.Dims[2], s.Dims[1]}
	case s.Rank < 2 || p.tensor == spec.TensorSharedGate:
		return []int64{count}
	}
	return s.Dims[:s.Rank]
}

// raw returns the bytes of a tensor that must have the given extents. Leading extents of 1 are
// ignored.
func (l *Layer) raw(ctx context.Context, name string, dims []int64) ([]byte, safetensors.Tensor, error) {
	f, err := l.file(ctx, name)
	if err != nil {
		return nil, safetensors.Tensor{}, err
	}
	t, err := f.Tensor(name)
	if err != nil {
		return nil, t, err
	}
	if !sameExtents(t.Shape, dims) {
		return nil, t, fmt.Errorf("has the extents %v, must be %v", t.Shape, likeShape(dims, t.Shape))
	}
	section, err := f.Section(name)
	if err != nil {
		return nil, t, err
	}
	raw := make([]byte, section.Size())
	_, err = io.ReadFull(section, raw)
	return raw, t, err
}

// sameExtents reports whether extents are equal, not counting leading extents of 1.
func sameExtents(a, b []int64) bool {
	for len(a) > 0 && a[0] == 1 {
		a = a[1:]
	}
	for len(b) > 0 && b[0] == 1 {
		b = b[1:]
	}
	return slices.Equal(a, b)
}

// likeShape returns extents for an error, with no more leading extents of 1 than the shape has
// extents.
func likeShape(dims, shape []int64) []int64 {
	for len(dims) > len(shape) && dims[0] == 1 {
		dims = dims[1:]
	}
	return dims
}

// types maps the dtypes of plain tensors to types of package spec.
var types = map[string]spec.Type{"BF16": spec.BF16, "F16": spec.F16, "F32": spec.F32}

// convert converts elements from one type to another, with one rounding.
func convert(to []byte, t spec.Type, raw []byte, from spec.Type) {
	if from == t {
		copy(to, raw)
		return
	}
	values := decode(raw, from)
	if t == spec.F32 {
		copy(to, num.Bytes(values))
		return
	}
	bits := make([]uint16, len(values))
	if t == spec.F16 {
		num.EncodeF16(bits, values)
	} else {
		num.EncodeBF16(bits, values)
	}
	copy(to, num.Bytes(bits))
}

// decode returns the values of little-endian numbers as FP32.
func decode(raw []byte, of spec.Type) []float32 {
	out := make([]float32, int64(len(raw))/of.Bytes())
	if of == spec.F32 {
		copy(num.Bytes(out), raw)
		return out
	}
	bits := make([]uint16, len(out))
	copy(num.Bytes(bits), raw)
	if of == spec.F16 {
		num.DecodeF16(out, bits)
	} else {
		num.DecodeBF16(out, bits)
	}
	return out
}
