package weights

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/safetensors"
)

// This file has the packed weights of a layer, packed as in the files or dequantised.

var (
	mxfp4 = spec.PackingNamed("mxfp4")
	fp8   = spec.PackingNamed("fp8")
)

// isBlocks reports whether a part is gpt-oss's MXFP4 codes or their scales.
func (p part) isBlocks() bool { return p.piece == blocks || p.piece == scales }

// pack sets Config.Weights to the format of the experts' tensors if a layer can take them as they
// are. Otherwise Load dequantises them, and Model.Quantised says why.
func (l *Layer) pack(ctx context.Context) error {
	word, text, err := l.word(ctx)
	if err != nil {
		return err
	}
	if word == "" {
		l.Model.Quantised = cmp.Or(text, l.Model.Quantised)
		return nil
	}
	l.format.Text = cmp.Or(l.format.Text, word) // config.json may have no quantization_config
	c := l.Config
	c.Weights = word
	isHalf := func(p part) bool { return p.piece == gate || p.piece == up }
	halves := c.Activation.Gated() && slices.ContainsFunc(l.parts[spec.TensorW1], isHalf)
	if halves && spec.PackingNamed(word).LiesApart(c.Intermediate) {
		c.GateUp = spec.Apart
	}
	if wrong := c.Check(); wrong != nil {
		l.Model.Quantised = l.format.LoadedAs16(wrong.Error())
		l.Model.Assumed = append(l.Model.Assumed, fmt.Sprintf("the %s weights are dequantised when they are loaded: %v", word, wrong))
		return nil
	}
	if halves && c.GateUp == spec.Apart {
		list := l.parts[spec.TensorW1]
		l.parts[spec.TensorW1] = nil
		for _, p := range list {
			if p.piece == up {
				p.tensor = spec.TensorW3
			}
			p.piece = whole
			l.parts[p.tensor] = append(l.parts[p.tensor], p)
		}
	}
	l.Config = c
	l.Model.Quantised = l.format.Loaded(c, l.Model.Config)
	return nil
}

// word returns the format of the experts' tensors. It returns "" and a text for Model.Quantised if a
// layer cannot take them as they are. The text is empty if neither the files nor config.json say
// that the weights are quantised.
func (l *Layer) word(ctx context.Context) (word, text string, err error) {
	var first, why string // first is the first tensor
	isQuantised := false
	for _, p := range slices.Concat(l.parts[spec.TensorW1], l.parts[spec.TensorW3], l.parts[spec.TensorW2]) {
		if p.piece == scales {
			continue
		}
		e, err := l.encoding(ctx, p)
		if err != nil {
			return "", "", err
		}
		name := "16 bits a weight"
		if e != nil {
			isQuantised = true
			name = e.packing.Name
		}
		if first == "" {
			first, word = p.name, name
		}
		switch {
		case why != "":
		case e != nil && (name == "" || p.piece > up && p.piece != blocks):
			why = cmp.Or(l.format.Dequantised, fmt.Sprintf("layers do not take the format of tensor %q", p.name))
		case name != word:
			why = fmt.Sprintf("tensor %q has %s, tensor %q has %s: a layer takes experts of one format", first, word, p.name, name)
		}
	}
	switch {
	case isQuantised && why == "":
		return word, "", nil
	case isQuantised:
		return "", l.format.LoadedAs16(why), nil
	case l.format.Word != "":
		return "", fmt.Sprintf("%s: the experts of this layer have 16 bits a weight in the files", l.format.Text), nil
	}
	return "", "", nil
}

// isE8M0 reports whether a dtype can hold E8M0 numbers: E8M0 itself, or bytes.
func isE8M0(dtype string) bool { return dtype == "U8" || dtype == "F8_E8M0" }

// packedTensor returns the bytes of a tensor of a packed weight: codes, scales, zero points or
// global scales.
func (l *Layer) packedTensor(ctx context.Context, id spec.TensorID) ([]byte, error) {
	s := l.shape(id)
	to := make([]byte, s.Bytes())
	at := slices.IndexFunc(spec.PackedMatrices, func(m spec.PackedTensors) bool { return slices.Contains(m.All(), id) })
	of := spec.PackedMatrices[at]
	for _, p := range l.parts[of.Codes] {
		if p.piece == scales {
			continue
		}
		e, err := l.encoding(ctx, p)
		if err != nil {
			return nil, err
		}
		m, _ := l.extents(p)
		data, err := e.source(of, id).bytes(ctx, l, m)
		if err != nil {
			return nil, err
		}
		at, _, err := l.place(p, s)
		if err != nil {
			return nil, err
		}
		copy(to[at*s.Type.Bytes():], data)
	}
	return to, nil
}

// source returns where the tensor with the given id comes from. The id is one of the ids in `of`.
func (e *encoding) source(of spec.PackedTensors, id spec.TensorID) source {
	switch id {
	case of.Scales:
		return e.scales
	case of.Zeros:
		return e.zeros
	case of.Global:
		return e.global
	}
	return e.codes
}

// bytes reads the tensor. An error names the tensor.
func (s source) bytes(ctx context.Context, l *Layer, m matrices) ([]byte, error) {
	data, err := s.read(ctx, s.name, m)
	if err != nil {
		return nil, fmt.Errorf("%s: tensor %q: %w", l.path(s.name), s.name, err)
	}
	return data, nil
}

// values returns the values of a quantised part in FP32.
func (l *Layer) values(ctx context.Context, p part, e *encoding) ([]float32, error) {
	m, _ := l.extents(p)
	if m.columns*int64(e.packing.Code.Bits())%8 != 0 || min(m.rows, m.columns) < 1 || max(m.rows, m.columns) > math.MaxInt32 {
		return nil, fmt.Errorf("tensor %q has %d rows of %d numbers, must have from 1 to 2^31 of each, and whole bytes", p.name, m.rows, m.columns)
	}
	var of packed.Matrices
	for from, to := range map[*source]*[]byte{&e.codes: &of.Codes, &e.scales: &of.Scales, &e.zeros: &of.Zeros, &e.global: &of.Global} {
		if from.read == nil {
			continue
		}
		data, err := from.bytes(ctx, l, m)
		if err != nil {
			return nil, err
		}
		*to = data
	}
	return packed.Values(e.packing, of, int(m.rows), int(m.columns)), nil
}

// typed returns the bytes of a tensor, which must have the given extents and dtype.
func (l *Layer) typed(ctx context.Context, name string, dims []int64, dtype string) ([]byte, error) {
	raw, t, err := l.raw(ctx, name, dims)
	if err == nil && t.DType != dtype {
		err = fmt.Errorf("is %s, must be %s", t.DType, dtype)
	}
	return raw, err
}

// readCodes returns a function that reads codes of a dtype, stored row by row.
func (l *Layer) readCodes(dtype string) func(context.Context, string, matrices) ([]byte, error) {
	return func(ctx context.Context, name string, m matrices) ([]byte, error) {
		if dtype == "U8" {
			return l.typed(ctx, name, []int64{m.count, m.rows, m.columns / 2}, dtype)
		}
		codes, err := l.typed(ctx, name, []int64{m.count, m.rows, m.columns}, dtype)
		if err != nil {
			return nil, err
		}
		if at := firstNaN(codes); at >= 0 {
			return nil, fmt.Errorf("element %d is NaN, must be a number", at)
		}
		return codes, nil
	}
}

// firstNaN returns the index of the first E4M3 code that is NaN, or -1. It examines eight codes at a
// time: adding 1 to a code without its sign sets the sign's bit only if the code is NaN.
func firstNaN(codes []byte) int {
	const noSign, one, sign = 0x7f7f7f7f7f7f7f7f, 0x0101010101010101, 0x8080808080808080
	at := 0
	for ; at+8 <= len(codes) && (binary.LittleEndian.Uint64(codes[at:])&noSign+one)&sign == 0; at += 8 {
	}
	for i, code := range codes[at:] {
		if code&0x7f == 0x7f {
			return at + i
		}
	}
	return -1
}

// readBlocks reads gpt-oss's blocks [E, rows, groups, 16 bytes].
func (l *Layer) readBlocks(ctx context.Context, name string, m matrices) ([]byte, error) {
	group := int64(mxfp4.Columns)
	if m.columns%group != 0 {
		return nil, fmt.Errorf("has rows of %d numbers, must have a multiple of %d", m.columns, group)
	}
	return l.typed(ctx, name, []int64{m.count, m.rows, m.columns / group, mxfp4.CodeBytes(group)}, "U8")
}

// readScales returns a function that reads the scales of a format.
func (l *Layer) readScales(of *spec.Packing) func(context.Context, string, matrices) ([]byte, error) {
	return func(ctx context.Context, name string, m matrices) ([]byte, error) {
		if of.Rows == 1 && m.columns%int64(of.Columns) != 0 {
			return nil, fmt.Errorf("is for rows of %d numbers, must be a multiple of %d: a group does not cross the edge of a matrix", m.columns, of.Columns)
		}
		return l.scalesOf(ctx, of, name, m.blocks(of))
	}
}

// scalesOf reads scales with the given extents, and converts them to the type of the format. Each
// scale must be a number with which the largest code is finite in the layer's type.
func (l *Layer) scalesOf(ctx context.Context, of *spec.Packing, name string, dims []int64) ([]byte, error) {
	raw, t, err := l.raw(ctx, name, dims)
	if err == nil {
		raw, err = scaleBytes(raw, t, of.Scale)
	}
	if err != nil {
		return nil, err
	}
	most := [...]float64{spec.E2M1: 6, spec.E4M3: 448, spec.Int4: 8, spec.UInt4: 15}[of.Code]
	for i, v := range packed.Scales(of.Scale, raw) {
		if v-v != 0 {
			return nil, fmt.Errorf("element %d of the scales is %v, must be finite", i, v)
		}
		if product := math.Abs(float64(v)) * most; product > l.largest() {
			return nil, fmt.Errorf("element %d of the scales is %v, which makes the code %v infinite in %v", i, v, most, l.Config.Type)
		}
	}
	return raw, nil
}

// largest returns the largest finite number of the layer's type.
func (l *Layer) largest() float64 {
	if l.Config.Type == spec.F16 {
		return 65504
	}
	return 0x1.fep127
}

// readGlobal returns a function that reads global scales, or reciprocals of global scales.
func (l *Layer) readGlobal(isReciprocal bool) func(context.Context, string, matrices) ([]byte, error) {
	return func(ctx context.Context, name string, m matrices) ([]byte, error) {
		raw, err := l.typed(ctx, name, []int64{m.count}, "F32")
		if err != nil {
			return nil, err
		}
		values := decode(raw, spec.F32)
		for i, v := range values {
			if isReciprocal {
				v = 1 / v
			}
			if most := 6.0 * 448; !(math.Abs(float64(v))*most <= l.largest()) {
				return nil, fmt.Errorf("element %d of the global scales is %v, must be a number that keeps weights finite", i, values[i])
			}
			values[i] = v
		}
		return num.Bytes(values), nil
	}
}

// scaleBytes converts the scales of a file to the type that a format uses.
func scaleBytes(raw []byte, t safetensors.Tensor, of spec.Scale) ([]byte, error) {
	want := map[spec.Scale]string{spec.ScaleBF16: "BF16", spec.ScaleF16: "F16", spec.ScaleE4M3: "F8_E4M3"}[of]
	switch {
	case want != "" && t.DType != want:
		return nil, fmt.Errorf("is %s, must be %s", t.DType, want)
	case want != "":
		return raw, nil
	case of == spec.ScaleE8M0 && !isE8M0(t.DType):
		return nil, fmt.Errorf("is %s, must be U8 or F8_E8M0", t.DType)
	case of == spec.ScaleE8M0:
		return raw, nil
	case isE8M0(t.DType):
		return num.Bytes(packed.Scales(spec.ScaleE8M0, raw)), nil
	}
	from, ok := types[t.DType]
	if !ok {
		return nil, fmt.Errorf("is %s, must be BF16, F16, F32 or F8_E8M0", t.DType)
	}
	return num.Bytes(decode(raw, from)), nil
}
