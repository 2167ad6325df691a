package weights

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sonicmoe/internal/spec"
)

// encoding is how the files have a quantised weight: the tensors of its codes, their scales,
// zero points and global scales.
type encoding struct {
	// packing is the format. Its Name is empty if no layer takes it: the weight is then
	// dequantised.
	packing                      *spec.Packing
	codes, scales, zeros, global source
}

// source is a tensor of the files. read reads it in the order and the type that packing
// says.
type source struct {
	name string
	read func(ctx context.Context, name string, m matrices) ([]byte, error)
}

// matrices are the extents of the matrices [rows, columns] of a part.
type matrices struct{ count, rows, columns int64 }

// Endings of the names of tensors. A weight X.weight, or X, is plain, or has its codes in the
// tensor itself, or with one of the first two endings.
const (
	endPacked  = "_packed"  // compressed-tensors
	endQuant   = ".qweight" // AWQ and GPTQ: in place of .weight
	endInverse = "_scale_inv"
	endScale   = "_scale"
	endScale2  = "_scale_2"      // ModelOpt
	endGlobal  = "_global_scale" // compressed-tensors
	endZeros   = "_zero_point"
	endOrder   = "_g_idx"
	endShape   = "_shape"
	endTokens  = "_activation_scale" // of layers that quantise tokens too
)

var (
	// afterWeight are the endings of tensors that belong to the weight before them.
	afterWeight = []string{endInverse, endScale, endScale2, endGlobal, endZeros, endOrder, endShape, endTokens}
	// besideWeight are the endings, in place of .weight, of tensors that belong to a weight.
	// Scales of inputs are for layers that quantise tokens too.
	besideWeight = []string{".scales", ".qzeros", ".g_idx", ".input_scale", ".input_global_scale", ".activation_scale"}
)

// weightName returns the name of the weight that a tensor has, or has the codes of.
func weightName(name string) string {
	if stem, ok := strings.CutSuffix(name, endQuant); ok {
		return stem + ".weight"
	}
	return strings.TrimSuffix(name, endPacked)
}

// belongs reports whether a tensor belongs to another one of the names, which must be in
// order: its scales, or the like.
func belongs(names []string, name string) bool {
	has := func(name string) bool {
		_, ok := slices.BinarySearch(names, name)
		return ok
	}
	for _, end := range afterWeight {
		if of, ok := strings.CutSuffix(name, end); ok && (has(of) || has(of+endPacked)) {
			return true
		}
	}
	for _, end := range besideWeight {
		if stem, ok := strings.CutSuffix(name, end); ok && (has(stem+endQuant) || has(stem+".weight") || has(stem+".weight"+endPacked)) {
			return true
		}
	}
	return false
}

// companion returns the name of a tensor that belongs to a part, if the files have it.
func (l *Layer) companion(p part, end string) (name string, ok bool) {
	name = strings.TrimSuffix(p.name, endPacked) + end
	if stem, is := strings.CutSuffix(p.name, endQuant); is {
		name = stem + end
	}
	_, ok = l.where[name]
	return name, ok
}

// need returns the name of a tensor that must belong to a part.
func (l *Layer) need(p part, end string) (string, error) {
	name, ok := l.companion(p, end)
	if !ok {
		return "", fmt.Errorf("tensor %q is without tensor %q", p.name, name)
	}
	return name, nil
}

// extents returns the number, rows and columns of a part's matrices. It returns false if the model's
// files do not give them.
func (l *Layer) extents(p part) (matrices, bool) {
	_, count, err := l.place(p, l.plainShape(p.tensor))
	dims := l.dims(p, count)
	switch {
	case err != nil || len(dims) < 2:
		return matrices{}, false
	case len(dims) == 2:
		return matrices{1, dims[0], dims[1]}, true
	}
	return matrices{dims[0], dims[1], dims[2]}, true
}

// encoding returns how the files have a part. It is nil if the part is plain.
func (l *Layer) encoding(ctx context.Context, p part) (*encoding, error) {
	m, ok := l.extents(p)
	if !ok {
		return nil, nil
	}
	e, err := l.find4(ctx, p, m)
	if err == nil && e == nil {
		e, err = l.find8(ctx, p, m)
	}
	if err == nil && e != nil && l.format.Refused != "" {
		err = fmt.Errorf("tensor %q is quantised: %s", p.name, l.format.Refused)
	}
	return e, err
}

// find4 returns how the files have codes of 4 bits.
func (l *Layer) find4(ctx context.Context, p part, m matrices) (*encoding, error) {
	if p.piece == blocks {
		return l.blocks(p)
	}
	t, err := l.header(ctx, p.name)
	if err != nil {
		return nil, err
	}
	_, modelOpt := l.companion(p, endScale2)
	switch {
	case strings.HasSuffix(p.name, endQuant):
		return l.groupWords(ctx, p, t, m)
	case modelOpt:
		scales, err := l.need(p, endScale)
		return l.nvfp4(p, scales, endScale2, false, err)
	case !strings.HasSuffix(p.name, endPacked):
		return nil, nil
	case t.DType == "I32":
		return l.rowWords(ctx, p, t, m)
	}
	scales, err := l.need(p, endScale)
	if _, ok := l.companion(p, endGlobal); ok {
		return l.nvfp4(p, scales, endGlobal, true, err)
	}
	return &encoding{packing: mxfp4, codes: source{p.name, l.readCodes("U8")}, scales: source{scales, l.readScales(mxfp4)}}, err
}

// nvfp4 returns how the files have NVFP4. Global scales of compressed-tensors are reciprocals.
func (l *Layer) nvfp4(p part, scales, end string, isReciprocal bool, err error) (*encoding, error) {
	of := spec.PackingNamed("nvfp4")
	name, _ := l.companion(p, end)
	return &encoding{packing: of, codes: source{p.name, l.readCodes("U8")}, scales: source{scales, l.readScales(of)}, global: source{name, l.readGlobal(isReciprocal)}}, err
}

// blocks returns how gpt-oss has MXFP4: the scales are a part of their own.
func (l *Layer) blocks(p part) (*encoding, error) {
	all := l.parts[p.tensor]
	at := slices.IndexFunc(all, func(q part) bool { return q.piece == scales })
	if at < 0 {
		return nil, fmt.Errorf("tensor %q has no scales", p.name)
	}
	return &encoding{packing: mxfp4, codes: source{p.name, l.readBlocks}, scales: source{all[at].name, l.readScales(mxfp4)}}, nil
}

// find8 returns how the files have FP8: with scales of blocks, of rows, or one for each matrix.
func (l *Layer) find8(ctx context.Context, p part, m matrices) (*encoding, error) {
	t, err := l.header(ctx, p.name)
	if err != nil {
		return nil, err
	}
	scales, scaled := l.companion(p, endInverse)
	if !scaled {
		scales, scaled = l.companion(p, endScale)
	}
	switch isFP8 := t.DType == "F8_E4M3"; {
	case !isFP8 && !scaled:
		return nil, nil
	case !isFP8:
		return nil, fmt.Errorf("tensor %q is %s and has scales, tensor %q: must be F8_E4M3", p.name, t.DType, scales)
	case !scaled:
		name, _ := l.companion(p, endInverse)
		return nil, fmt.Errorf("tensor %q is FP8 (F8_E4M3) without tensor %q, its scales", p.name, name)
	}
	s, err := l.header(ctx, scales)
	if err != nil {
		return nil, err
	}
	forms := []*spec.Packing{spec.PackingNamed("fp8-tensor"), fp8, {Code: spec.E4M3, Scale: spec.ScaleF32, Rows: 1, Columns: int(m.columns)}}
	at := slices.IndexFunc(forms, func(of *spec.Packing) bool { return sameExtents(s.Shape, m.blocks(of)) })
	if at < 0 {
		return nil, fmt.Errorf("tensor %q has the extents %v, must be %v, one for each block of 128 x 128 of tensor %q, or one for each row or matrix", scales, s.Shape, m.blocks(fp8), p.name)
	}
	of := forms[at]
	if of == fp8 && isE8M0(s.DType) {
		of = spec.PackingNamed("fp8-ue8m0")
	}
	return &encoding{packing: of, codes: source{p.name, l.readCodes("F8_E4M3")}, scales: source{scales, l.readScales(of)}}, nil
}

// blocks returns the extents of the scales of matrices in a format.
func (m matrices) blocks(of *spec.Packing) []int64 {
	down, across := of.Blocks(m.rows, m.columns)
	return []int64{m.count, down, across}
}
