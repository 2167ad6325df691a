package weights

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"

	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/safetensors"
)

// This file has formats in which a 32-bit word holds eight whole numbers of 4 bits.

const (
	wordNumbers = 8 // numbers of a word
	wordBytes   = 4
)

// awqOrder has, for each code of an AWQ word, the number of its output among the word's eight
// outputs.
var awqOrder = [wordNumbers]int64{0, 2, 4, 6, 1, 3, 5, 7}

// gptqOrder has, for each zero point of a GPTQ word, the number of its output among the word's
// eight outputs.
var gptqOrder = [wordNumbers]int64{0, 1, 2, 3, 4, 5, 6, 7}

// whole4 returns the format of whole numbers of 4 bits with scales of the type of t. groups is the
// number of groups in a row.
func (l *Layer) whole4(code spec.Code, t safetensors.Tensor, m matrices, groups int64) (*spec.Packing, error) {
	scale, ok := map[string]spec.Scale{"BF16": spec.ScaleBF16, "F16": spec.ScaleF16, "F32": spec.ScaleF32}[t.DType]
	if !ok {
		return nil, fmt.Errorf("tensor %q is %s, must be BF16, F16 or F32", t.Name, t.DType)
	}
	if groups < 1 || m.columns%groups != 0 || groups > 1 && bits.OnesCount64(uint64(m.columns/groups)) != 1 {
		return nil, fmt.Errorf("tensor %q has %d scales for a row of %d numbers: the groups must be whole, of 32 or 128 numbers", t.Name, groups, m.columns)
	}
	if want := l.format.Group; want > 0 && m.columns != groups*want {
		return nil, fmt.Errorf("tensor %q has %d scales for a row of %d numbers, must have one for each of the groups of %d in config.json", t.Name, groups, m.columns, want)
	}
	of := spec.Packing{Code: code, Scale: scale, Rows: 1, Columns: int(m.columns / groups), HasZeros: code == spec.UInt4}
	for i := range spec.Packings {
		named := of
		if named.Name = spec.Packings[i].Name; named == spec.Packings[i] {
			return &spec.Packings[i], nil
		}
	}
	return &of, nil
}

// rowWords returns how compressed-tensors stores whole numbers: a word has numbers of one row.
func (l *Layer) rowWords(ctx context.Context, p part, t safetensors.Tensor, m matrices) (*encoding, error) {
	if name, ok := l.companion(p, endOrder); ok {
		return nil, fmt.Errorf("tensor %q is there: act-order is not supported", name)
	}
	scales, err := l.need(p, endScale)
	if err != nil {
		return nil, err
	}
	s, err := l.header(ctx, scales)
	if err != nil {
		return nil, err
	}
	zeros, isAsymmetric := l.companion(p, endZeros)
	code, groups := spec.Int4, int64(0)
	if len(s.Shape) > 0 {
		groups = s.Shape[len(s.Shape)-1]
	}
	if isAsymmetric || s.DType == "F16" { // there is no format with F16 scales and without zero points
		code = spec.UInt4
	}
	of, err := l.whole4(code, s, m, groups)
	if err != nil {
		return nil, err
	}
	e := &encoding{packing: of, codes: source{p.name, l.readRowWords}, scales: source{scales, l.readScales(of)}}
	switch {
	case isAsymmetric:
		e.zeros = source{zeros, l.readZerosBelow(of)}
	case of.HasZeros:
		e.zeros = source{p.name, func(_ context.Context, _ string, m matrices) ([]byte, error) {
			const zero = 8 // the zero point of codes for which the files have none
			return bytes.Repeat([]byte{zero}, int(m.count*m.rows*groups)), nil
		}}
	}
	return e, nil
}

// groupWords returns how AWQ and GPTQ store whole numbers, in matrices with a row for each input or
// for eight inputs.
func (l *Layer) groupWords(ctx context.Context, p part, t safetensors.Tensor, m matrices) (*encoding, error) {
	method, codes := "gptq", l.readDownWords
	switch {
	case m.count == 1 && sameExtents(t.Shape, []int64{m.columns, m.rows / wordNumbers}) && m.rows%wordNumbers == 0:
		method, codes = "awq", l.readAWQ
	case m.count == 1 && sameExtents(t.Shape, []int64{m.columns / wordNumbers, m.rows}) && m.columns%wordNumbers == 0:
	default:
		return nil, fmt.Errorf("tensor %q has the extents %v, must be [%d %d] in AWQ or [%d %d] in GPTQ", p.name, t.Shape, m.columns, m.rows/wordNumbers, m.columns/wordNumbers, m.rows)
	}
	if l.format.Method != method {
		return nil, fmt.Errorf("tensor %q has the extents of %s, but config.json has not: its quantization_config must have \"quant_method\": %q", p.name, method, method)
	}
	scales, err := l.need(p, ".scales")
	if err != nil {
		return nil, err
	}
	zeros, err := l.need(p, ".qzeros")
	if err != nil {
		return nil, err
	}
	s, err := l.header(ctx, scales)
	if err != nil {
		return nil, err
	}
	groups := int64(0)
	if len(s.Shape) == 2 {
		groups = s.Shape[0]
	}
	of, err := l.whole4(spec.UInt4, s, m, groups)
	if err != nil {
		return nil, err
	}
	if name, ok := l.companion(p, ".g_idx"); ok {
		if err := l.checkOrder(ctx, name, m.columns, int64(of.Columns)); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
	}
	order, more := &gptqOrder, byte(0)
	if method == "awq" {
		order = &awqOrder
	} else if l.format.LessOne {
		more = 1
	}
	return &encoding{packing: of, codes: source{p.name, codes}, scales: source{scales, l.readScalesAcross(of)}, zeros: source{zeros, l.readZerosAcross(of, order, more)}}, nil
}

// checkOrder checks that each group has consecutive inputs, which means that the file has no
// act-order.
func (l *Layer) checkOrder(ctx context.Context, name string, columns, group int64) error {
	raw, err := l.typed(ctx, name, []int64{columns}, "I32")
	if err != nil {
		return err
	}
	for i := range columns {
		if got := int64(binary.LittleEndian.Uint32(raw[4*i:])); got != i/group {
			return fmt.Errorf("element %d is group %d, must be %d: act-order is not supported", i, got, i/group)
		}
	}
	return nil
}

// readRowWords reads words whose numbers belong to one row, the first one in the low bits.
func (l *Layer) readRowWords(ctx context.Context, name string, m matrices) ([]byte, error) {
	if m.columns%wordNumbers != 0 {
		return nil, fmt.Errorf("has rows of %d numbers, must have a multiple of %d", m.columns, wordNumbers)
	}
	return l.typed(ctx, name, []int64{m.count, m.rows, m.columns / wordNumbers}, "I32")
}

// readDownWords reads GPTQ's words [in/8, out]. A word has the numbers of 8 inputs.
func (l *Layer) readDownWords(ctx context.Context, name string, m matrices) ([]byte, error) {
	raw, err := l.typed(ctx, name, []int64{m.columns / wordNumbers, m.rows}, "I32")
	to := make([]byte, len(raw))
	if err == nil {
		transpose(to, raw, m.rows, m.columns/wordNumbers, wordBytes)
	}
	return to, err
}

// readAWQ reads AWQ's words [in, out/8]. A word has the numbers of 8 outputs.
func (l *Layer) readAWQ(ctx context.Context, name string, m matrices) ([]byte, error) {
	across := m.rows / wordNumbers
	raw, err := l.typed(ctx, name, []int64{m.columns, across}, "I32")
	if err != nil {
		return nil, err
	}
	to := make([]byte, len(raw))
	for word := range across {
		for column := range m.columns {
			codes := binary.LittleEndian.Uint32(raw[wordBytes*(column*across+word):])
			for i, output := range awqOrder {
				at := (wordNumbers*word+output)*m.columns + column
				to[at/2] |= byte(codes>>(4*i)&15) << (at % 2 * 4)
			}
		}
	}
	return to, nil
}

// readScalesAcross returns a function that reads scales stored as [groups, out].
func (l *Layer) readScalesAcross(of *spec.Packing) func(context.Context, string, matrices) ([]byte, error) {
	return func(ctx context.Context, name string, m matrices) ([]byte, error) {
		groups, size := m.columns/int64(of.Columns), of.Scale.Type().Bytes()
		raw, err := l.scalesOf(ctx, of, name, []int64{groups, m.rows})
		to := make([]byte, len(raw))
		if err == nil {
			transpose(to, raw, m.rows, groups, size)
		}
		return to, err
	}
}

// readZerosAcross returns a function that reads words [groups, out/8] of zero points. order is the
// order of the zero points in a word, and the files have each zero point less `less`.
func (l *Layer) readZerosAcross(of *spec.Packing, order *[wordNumbers]int64, less byte) func(context.Context, string, matrices) ([]byte, error) {
	return func(ctx context.Context, name string, m matrices) ([]byte, error) {
		groups, across := m.columns/int64(of.Columns), m.rows/wordNumbers
		if m.rows%wordNumbers != 0 {
			return nil, fmt.Errorf("is for %d outputs, must be for a multiple of %d", m.rows, wordNumbers)
		}
		raw, err := l.typed(ctx, name, []int64{groups, across}, "I32")
		if err != nil {
			return nil, err
		}
		to := make([]byte, m.rows*groups)
		for at := range groups * across {
			group, word := at/across, at%across
			codes := binary.LittleEndian.Uint32(raw[wordBytes*at:])
			for i, output := range order {
				zero := byte(codes >> (4 * i) & 15)
				if less > 0 && zero == 15 {
					return nil, fmt.Errorf("zero point %d of element %d is stored as 15, must be less: readers of the format disagree if it is 0 or 16", i, at)
				}
				to[(wordNumbers*word+output)*groups+group] = zero + less
			}
		}
		return to, nil
	}
}

// readZerosBelow returns a function that reads words [out/8, groups] of zero points.
func (l *Layer) readZerosBelow(of *spec.Packing) func(context.Context, string, matrices) ([]byte, error) {
	return func(ctx context.Context, name string, m matrices) ([]byte, error) {
		groups, down := m.columns/int64(of.Columns), (m.rows+wordNumbers-1)/wordNumbers
		raw, err := l.typed(ctx, name, []int64{m.count, down, groups}, "I32")
		if err != nil {
			return nil, err
		}
		to := make([]byte, m.count*m.rows*groups)
		for at := range to {
			at := int64(at)
			matrix, row, group := at/groups/m.rows, at/groups%m.rows, at%groups
			word := binary.LittleEndian.Uint32(raw[wordBytes*((matrix*down+row/wordNumbers)*groups+group):])
			to[at] = byte(word >> (4 * (row % wordNumbers)) & 15)
		}
		return to, nil
	}
}
