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
func (l *Layer) read(ctx context.Context, to []byte, t spec.Type, p part, all []part) error {
	if p.piece == blocks {
		return l.readBlocks(ctx, to, t, p, all)
	}
	dims := l.dims(p, int64(len(to))/t.Bytes())
	if p.isWords() {
		dims = slices.Clone(dims)
		dims[len(dims)-1] /= wordNumbers
	}
	raw, from, err := l.raw(ctx, p.name, dims)
	switch {
	case err != nil:
	case p.isWords():
		raw, from, err = l.numbers(ctx, raw, from, p)
	default:
		raw, from, err = l.plain(ctx, raw, from)
	}
	if err != nil {
		return err
	}
	switch half := len(raw) / 2; p.piece {
	case upperHalf:
		raw = raw[:half]
	case lowerHalf:
		raw = raw[half:]
	}
	if p.piece != transposed {
		return convert(to, t, raw, from.DType)
	}
	columns := make([]byte, len(to))
	if err := convert(columns, t, raw, from.DType); err != nil {
		return err
	}
	transpose(to, columns, l.shape(p.tensor))
	return nil
}

// transpose transposes E matrices [columns, rows]. The result has the shape s: [E, rows,
// columns].
func transpose(to, from []byte, s spec.Shape) {
	rows, columns, size := s.Dims[1], s.Dims[2], s.Type.Bytes()
	for each := rows * columns * size; len(to) > 0; to, from = to[each:], from[each:] {
		for r := range rows {
			for c := range columns {
				copy(to[(r*columns+c)*size:][:size], from[(c*rows+r)*size:])
			}
		}
	}
}

// dims returns the extents that a tensor of the files must have to give count elements of
// a part.
func (l *Layer) dims(p part, count int64) []int64 {
	s := l.shape(p.tensor)
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

// raw returns the bytes of a tensor with the given extents. Leading extents of 1 may be
// missing or extra.
func (l *Layer) raw(ctx context.Context, name string, dims []int64) ([]byte, safetensors.Tensor, error) {
	f, err := l.file(ctx, name)
	if err != nil {
		return nil, safetensors.Tensor{}, err
	}
	t, err := f.Tensor(name)
	if err != nil {
		return nil, t, err
	}
	got := t.Shape
	for len(got) > len(dims) && got[0] == 1 {
		got = got[1:]
	}
	if !slices.Equal(got, dims) {
		return nil, t, fmt.Errorf("has the extents %v, must be %v", t.Shape, dims)
	}
	section, err := f.Section(name)
	if err != nil {
		return nil, t, err
	}
	raw := make([]byte, section.Size())
	_, err = io.ReadFull(section, raw)
	return raw, t, err
}

// types maps the dtypes of unquantised tensors to their formats.
var types = map[string]spec.Type{"BF16": spec.BF16, "F16": spec.F16, "F32": spec.F32}

// convert converts elements from one type to another, with one rounding.
func convert(to []byte, t spec.Type, raw []byte, from string) error {
	of, ok := types[from]
	if !ok {
		return fmt.Errorf("is %s, must be BF16, F16, F32, or F8_E4M3 with scales of blocks", from)
	}
	if of == t {
		copy(to, raw)
		return nil
	}
	return encode(to, t, decode(raw, of))
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

// encode stores values as little-endian numbers.
func encode(to []byte, t spec.Type, values []float32) error {
	if t == spec.F32 {
		copy(to, num.Bytes(values))
		return nil
	}
	bits := make([]uint16, len(values))
	if t == spec.F16 {
		num.EncodeF16(bits, values)
	} else {
		num.EncodeBF16(bits, values)
	}
	copy(to, num.Bytes(bits))
	return nil
}
