package weights

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/checkpoint/safetensors"
)

// This file has the packed weights of files: as they are, or dequantised.

// FP8 numbers have a tensor of scales with their name and the suffix blockScales, as in
// the files of DeepSeek-V3: one for each block of fp8.Rows by fp8.Columns numbers.
const blockScales = "_scale_inv"

// INT4 weights of compressed-tensors have words of 32 bits with wordNumbers numbers, in a
// tensor with the suffix wordCodes. Their scales and their shape have the other suffixes.
const (
	wordCodes   = "_packed"
	wordScales  = "_scale"
	wordShape   = "_shape"
	wordNumbers = 8
)

// isWords reports whether a part is INT4 numbers in words.
func (p part) isWords() bool { return strings.HasSuffix(p.name, wordCodes) }

// scales returns the name of the tensor of the part's scales.
func (p part) scales() string {
	if of, ok := strings.CutSuffix(p.name, wordCodes); ok {
		return of + wordScales
	}
	return p.name + blockScales
}

// words returns the format of INT4 numbers in words, by the extents of their scales.
func (l *Layer) words(ctx context.Context, p part) (*spec.Packing, safetensors.Tensor, error) {
	t, err := l.header(ctx, p.name)
	if err != nil {
		return nil, t, err
	}
	s, err := l.header(ctx, p.scales())
	if err != nil {
		return nil, s, err
	}
	if len(t.Shape) > 0 && len(s.Shape) == len(t.Shape) {
		for i := range spec.Packings {
			of := &spec.Packings[i]
			if last := len(t.Shape) - 1; of.Code == spec.Int4 && s.Shape[last]*int64(of.Columns) == t.Shape[last]*wordNumbers {
				return of, s, nil
			}
		}
	}
	return nil, s, fmt.Errorf("tensor %q has extents %v and its scales, tensor %q, %v: must be words of %d numbers, in groups of 32 or 128", p.name, t.Shape, s.Name, s.Shape, wordNumbers)
}

var (
	mxfp4 = spec.PackingNamed("mxfp4")
	fp8   = spec.PackingNamed("fp8")
)

// groupBytes is the last extent of MXFP4's blocks in files: the bytes of a group.
var groupBytes = mxfp4.CodeBytes(int64(mxfp4.Columns))

// isBlocks reports whether a part is MXFP4 numbers or their scales.
func isBlocks(p part) bool { return p.piece == blocks || p.piece == scales }

// pack sets Config.Weights to the format of the experts' tensors, if a layer can take them as
// they are. Otherwise they are dequantised when they are loaded, and Assumed says why.
func (l *Layer) pack(ctx context.Context) error {
	word, err := l.format(ctx)
	if err != nil || word == "" {
		return err
	}
	c := l.Config
	c.Weights = word
	wrong := c.Check()
	apart := slices.ContainsFunc(l.parts[spec.TensorW1], func(p part) bool { return p.piece == up })
	if rows := spec.PackingNamed(word).Rows; wrong == nil && c.GateUp == spec.Concatenated && apart && c.Activation.Gated() && c.Intermediate%rows != 0 {
		wrong = fmt.Errorf("gate and up are %d rows each, must be a multiple of %d to lie in one tensor", c.Intermediate, rows)
	}
	if wrong != nil {
		l.Model.Assumed = append(l.Model.Assumed, fmt.Sprintf("the %s weights are dequantised when they are loaded: %v", word, wrong))
		return nil
	}
	l.Config.Weights = word
	return nil
}

// format returns the format of the experts' tensors, "" if a layer cannot take them as they
// are.
func (l *Layer) format(ctx context.Context) (string, error) {
	word := ""
	for _, p := range slices.Concat(l.parts[spec.TensorW1], l.parts[spec.TensorW3], l.parts[spec.TensorW2]) {
		if isBlocks(p) {
			return mxfp4.Name, nil // lay has checked the others
		}
		if p.isWords() {
			packing, t, err := l.words(ctx, p)
			if err != nil {
				return "", err
			}
			if word = cmp.Or(word, packing.Name); word != packing.Name || t.DType != "BF16" || p.piece > up {
				return "", nil // the layer has bf16 scales
			}
			continue
		}
		t, err := l.header(ctx, p.name)
		if err != nil {
			return "", err
		}
		if _, scaled := l.where[p.name+blockScales]; t.DType != "F8_E4M3" || !scaled || p.piece > up {
			return "", nil
		}
		if t, err = l.header(ctx, p.name+blockScales); err != nil {
			return "", err
		}
		of := fp8.Name
		if isE8M0(t.DType) {
			of = "fp8-ue8m0"
		}
		if word = cmp.Or(word, of); word != of {
			return "", nil
		}
	}
	return word, nil
}

// isE8M0 reports whether a type is E8M0, or plain bytes.
func isE8M0(dtype string) bool { return dtype == "U8" || dtype == "F8_E8M0" }

// packing returns the format of the layer's packed weights, nil for plain weights.
func (l *Layer) packing() *spec.Packing { return spec.PackingOf(l.Config) }

// packedTensor returns the bytes of a packed weight, or of its scales.
func (l *Layer) packedTensor(ctx context.Context, id spec.TensorID) ([]byte, error) {
	s := l.shape(id)
	to := make([]byte, s.Bytes())
	of, isScales := weightOf(id)
	list := l.parts[of]
	if l.packing() == mxfp4 && !slices.ContainsFunc(list, func(p part) bool { return p.piece == scales }) {
		return nil, fmt.Errorf("tensor %q has no scales", list[0].name)
	}
	for _, p := range list {
		name := p.name
		if p.piece == scales != (isScales && l.packing() == mxfp4) {
			continue
		}
		if isScales && l.packing() != mxfp4 {
			name = p.scales()
		}
		at, count, err := l.place(p, s)
		if err != nil {
			return nil, err
		}
		if err := l.readPacked(ctx, to[at*s.Type.Bytes():][:count*s.Type.Bytes()], name, p, id); err != nil {
			return nil, fmt.Errorf("%s: tensor %q: %w", l.where[name], name, err)
		}
	}
	return to, nil
}

// weightOf returns the weight of a tensor of scales, or the weight itself.
func weightOf(id spec.TensorID) (of spec.TensorID, isScales bool) {
	switch id {
	case spec.TensorW1Scale:
		return spec.TensorW1, true
	case spec.TensorW3Scale:
		return spec.TensorW3, true
	case spec.TensorW2Scale:
		return spec.TensorW2, true
	}
	return id, false
}

// readPacked fills to with the part's codes or scales.
func (l *Layer) readPacked(ctx context.Context, to []byte, name string, p part, id spec.TensorID) error {
	s := l.shape(id)
	dims := slices.Clone(s.Dims[:])
	if p.expert >= 0 {
		dims = []int64{int64(len(to)) / s.Type.Bytes() / dims[2], dims[2]}
	}
	if p.piece == blocks {
		dims = append(dims[:2], dims[2]/groupBytes, groupBytes)
	}
	_, isScales := weightOf(id)
	if p.isWords() && !isScales {
		dims[len(dims)-1] /= 4
	}
	raw, t, err := l.raw(ctx, name, dims)
	if err != nil {
		return err
	}
	if !isScales {
		if want := codeType(l.packing()); t.DType != want {
			return fmt.Errorf("is %s, must be %s", t.DType, want)
		}
		copy(to, raw)
		return nil
	}
	if raw, err = scaleBytes(raw, t, l.packing().Scale); err != nil {
		return err
	}
	for i, v := range packed.Scales(l.packing().Scale, raw) {
		if v-v != 0 {
			return fmt.Errorf("element %d of the scales is %v, must be finite", i, v)
		}
	}
	copy(to, raw)
	return nil
}

// codeType returns the type of codes in files.
func codeType(p *spec.Packing) string {
	return [...]string{spec.E2M1: "U8", spec.E4M3: "F8_E4M3", spec.Int4: "I32"}[p.Code]
}

// scaleBytes returns scales of a file as scales of a format.
func scaleBytes(raw []byte, t safetensors.Tensor, of spec.Scale) ([]byte, error) {
	switch of {
	case spec.ScaleBF16:
		if t.DType != "BF16" {
			return nil, fmt.Errorf("is %s, must be BF16", t.DType)
		}
		return raw, nil
	case spec.ScaleE8M0:
		if !isE8M0(t.DType) {
			return nil, fmt.Errorf("is %s, must be U8 or F8_E8M0", t.DType)
		}
		return raw, nil
	}
	if isE8M0(t.DType) {
		return num.Bytes(packed.Scales(spec.ScaleE8M0, raw)), nil
	}
	from, ok := types[t.DType]
	if !ok {
		return nil, fmt.Errorf("is %s, must be BF16, F16, F32 or F8_E8M0", t.DType)
	}
	return num.Bytes(decode(raw, from)), nil
}

// readBlocks dequantises MXFP4's blocks [E, rows, groups, 16] with scales [E, rows, groups].
func (l *Layer) readBlocks(ctx context.Context, to []byte, t spec.Type, p part, all []part) error {
	at := slices.IndexFunc(all, func(q part) bool { return q.piece == scales })
	if at < 0 {
		return errors.New("has no scales")
	}
	s := l.shape(p.tensor)
	group := int64(mxfp4.Columns)
	if s.Dims[2]%group != 0 {
		return fmt.Errorf("has rows of %d numbers, must have a multiple of %d", s.Dims[2], group)
	}
	dims := []int64{s.Dims[0], s.Dims[1], s.Dims[2] / group}
	codes, of, err := l.raw(ctx, p.name, append(slices.Clone(dims), groupBytes))
	if err != nil {
		return err
	}
	if of.DType != "U8" {
		return fmt.Errorf("is %s, must be U8, two numbers a byte", of.DType)
	}
	scale, of, err := l.raw(ctx, all[at].name, dims)
	if err == nil && !isE8M0(of.DType) {
		err = fmt.Errorf("is %s, must be U8 or F8_E8M0", of.DType)
	}
	if err != nil {
		return fmt.Errorf("its scales, tensor %q: %w", all[at].name, err)
	}
	return encode(to, t, packed.Values(mxfp4, packed.Matrices{Codes: codes, Scales: scale}, int(s.Dims[1]), int(s.Dims[2])))
}

// numbers dequantises INT4 numbers in words to F32.
func (l *Layer) numbers(ctx context.Context, raw []byte, t safetensors.Tensor, p part) ([]byte, safetensors.Tensor, error) {
	packing, s, err := l.words(ctx, p)
	if err == nil && t.DType != codeType(packing) {
		err = fmt.Errorf("is %s, must be %s", t.DType, codeType(packing))
	}
	if err != nil {
		return nil, t, err
	}
	rows, columns := int64(1), t.Shape[len(t.Shape)-1]*wordNumbers
	for _, dim := range t.Shape[:len(t.Shape)-1] {
		rows *= dim
	}
	down, across := packing.Blocks(rows, columns)
	scale, s, err := l.raw(ctx, s.Name, append(slices.Clone(t.Shape[:len(t.Shape)-1]), across))
	if from, ok := types[s.DType]; err == nil && ok && down*across > 0 {
		t.DType = "F32"
		of := *packing
		of.Scale = spec.ScaleF32
		return num.Bytes(packed.Values(&of, packed.Matrices{Codes: raw, Scales: num.Bytes(decode(scale, from))}, int(rows), int(columns))), t, nil
	}
	if err == nil {
		err = fmt.Errorf("is %s, must be BF16, F16 or F32", s.DType)
	}
	return nil, t, fmt.Errorf("its scales, tensor %q: %w", s.Name, err)
}

// plain dequantises FP8 numbers to F32. It returns the numbers of other tensors as they are.
func (l *Layer) plain(ctx context.Context, raw []byte, t safetensors.Tensor) ([]byte, safetensors.Tensor, error) {
	name := t.Name + blockScales
	_, scaled := l.where[name]
	switch isFP8 := t.DType == codeType(fp8); {
	case !isFP8 && !scaled:
		return raw, t, nil
	case !isFP8:
		return nil, t, fmt.Errorf("is %s and has scales, tensor %q: must be F8_E4M3", t.DType, name)
	case len(t.Shape) < 2:
		return nil, t, fmt.Errorf("is FP8 (F8_E4M3) of extents %v, must be matrices", t.Shape)
	case !scaled:
		return nil, t, fmt.Errorf("is FP8 (F8_E4M3) without tensor %q, the scales of its blocks of %d x %d: no other FP8 is read", name, fp8.Rows, fp8.Columns)
	}
	dims := slices.Clone(t.Shape)
	rows, columns := dims[len(dims)-2], dims[len(dims)-1]
	if min(rows, columns) < 1 || max(rows, columns) > math.MaxInt32 {
		return nil, t, fmt.Errorf("is FP8 (F8_E4M3) of extents %v, must be matrices of at most 2^31 rows and columns", t.Shape)
	}
	dims[len(dims)-2], dims[len(dims)-1] = fp8.Blocks(rows, columns)
	scale, of, err := l.raw(ctx, name, dims)
	if err == nil {
		scale, err = scaleBytes(scale, of, fp8.Scale)
	}
	if err != nil {
		return nil, t, fmt.Errorf("its scales, tensor %q, one for each block of %d x %d: %w", name, fp8.Rows, fp8.Columns, err)
	}
	t.DType = "F32"
	return num.Bytes(packed.Values(fp8, packed.Matrices{Codes: raw, Scales: scale}, int(rows), int(columns))), t, nil
}
