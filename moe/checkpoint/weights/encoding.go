package weights

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sonicmoe/internal/spec"
)

// encoding describes how the files store a quantised weight: the tensors of its codes, scales, zero
// points and global scales.
type encoding struct {
	// packing is the format. If its Name is empty, no layer takes the format, and Load dequantises
	// the weight.
	packing                      *spec.Packing
	codes, scales, zeros, global source
}

// source is a tensor of the files. read reads the tensor, in the order and type that packing
// defines.
type source struct {
	name string
	read func(ctx context.Context, name string, m matrices) ([]byte, error)
}

// matrices has the number and the extents of the matrices [rows, columns] of a part.
type matrices struct{ count, rows, columns int64 }

// Endings of the names of tensors. A weight has the name X.weight or X in the files. If it is
// quantised, this tensor may have its codes, or a tensor with one of the first two endings has
// them.
const (
	endPacked  = "_packed"  // compressed-tensors
	endQuant   = ".qweight" // AWQ and GPTQ, in place of .weight
	endInverse = "_scale_inv"
	endScale   = "_scale"
	endScale2  = "_scale_2"      // ModelOpt
	endGlobal  = "_global_scale" // compressed-tensors
	endZeros   = "_zero_point"
	endOrder   = "_g_idx"
	endShape   = "_shape"
	endTokens  = "_activation_scale" // in layers that quantise tokens, too
)

var (
	// afterWeight are endings that a tensor which belongs to a weight adds to the weight's name.
	afterWeight = []string{endInverse, endScale, endScale2, endGlobal, endZeros, endOrder, endShape, endTokens}
	// besideWeight are endings that replace .weight in the name of a tensor that belongs to a
	// weight. Scales of inputs are for layers that quantise tokens, too.
	besideWeight = []string{".scales", ".qzeros", ".g_idx", ".input_scale", ".input_global_scale", ".activation_scale"}
)

// weightName returns the name of the weight that a tensor holds, plain or as codes.
func weightName(name string) string {
	if stem, ok := strings.CutSuffix(name, endQuant); ok {
		return stem + ".weight"
	}
	return strings.TrimSuffix(name, endPacked)
}

// belongs reports whether a tensor belongs to another tensor of names, as its scales do, for
// example. names must be sorted.
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

// companion returns the name of the tensor that belongs to a part and has the given ending. ok
// reports whether the files have it.
func (l *Layer) companion(p part, end string) (name string, ok bool) {
	name = strings.TrimSuffix(p.name, endPacked) + end
	if stem, is := strings.CutSuffix(p.name, endQuant); is {
		name = stem + end
	}
	_, ok = l.where[name]
	return name, ok
}

// need returns the name of a tensor that belongs to a part, or an error if the files do not have
// it.
func (l *Layer) need(p part, end string) (string, error) {
	name, ok := l.companion(p, end)
	if !ok {
		return "", fmt.Errorf("tensor %q is without tensor %q", p.name, name)
	}
	return name, nil
}

// extents returns the number, rows and columns of a part's matrices. It returns false if they are
// not known, or if the part has no matrices.
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

// encoding returns how the files store a part, or nil if the part is not quantised.
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

// find4 returns the encoding of a part that the files store as 4-bit codes, or nil if they do not
// store it so.
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
	case t.DType != "U8":
		return nil, fmt.Errorf("tensor %q is %s, must be I32 (whole numbers) or U8 (NVFP4, MXFP4)", p.name, t.DType)
	}
	scales, err := l.need(p, endScale)
	if _, ok := l.companion(p, endGlobal); ok {
		return l.nvfp4(p, scales, endGlobal, true, err)
	}
	return &encoding{packing: mxfp4, codes: source{p.name, l.readCodes("U8")}, scales: source{scales, l.readScales(mxfp4)}}, err
}

// nvfp4 returns how the files store a part in NVFP4. isReciprocal means that the files have the
// reciprocals of the global scales, as compressed-tensors does.
func (l *Layer) nvfp4(p part, scales, end string, isReciprocal bool, err error) (*encoding, error) {
	of := spec.PackingNamed("nvfp4")
	name, _ := l.companion(p, end)
	return &encoding{packing: of, codes: source{p.name, l.readCodes("U8")}, scales: source{scales, l.readScales(of)}, global: source{name, l.readGlobal(isReciprocal)}}, err
}

// blocks returns how gpt-oss stores MXFP4. The scales are a part of their own.
func (l *Layer) blocks(p part) (*encoding, error) {
	all := l.parts[p.tensor]
	at := slices.IndexFunc(all, func(q part) bool { return q.piece == scales })
	if at < 0 {
		return nil, fmt.Errorf("tensor %q is without tensor %q, its scales", p.name, strings.TrimSuffix(p.name, "_blocks")+"_scales")
	}
	return &encoding{packing: mxfp4, codes: source{p.name, l.readBlocks}, scales: source{all[at].name, l.readScales(mxfp4)}}, nil
}

// find8 returns how the files store a part in FP8: with a scale for each block, for each row, or
// for each matrix. It returns nil for other parts.
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
	perTensor, perBlock := spec.PackingNamed("fp8-tensor"), fp8
	if l.format.Word == fp8.Name { // a matrix can be one block: then config.json decides
		perTensor, perBlock = perBlock, perTensor
	}
	forms := []*spec.Packing{perTensor, perBlock, {Code: spec.E4M3, Scale: spec.ScaleF32, Rows: 1, Columns: int(m.columns)}}
	at := slices.IndexFunc(forms, func(of *spec.Packing) bool { return sameExtents(s.Shape, m.blocks(of)) })
	if at < 0 {
		return nil, fmt.Errorf("tensor %q has the extents %v, must be %v, one for each block of 128 x 128 of tensor %q, or one for each row or matrix", scales, s.Shape, likeShape(m.blocks(fp8), s.Shape), p.name)
	}
	of := forms[at]
	if of == fp8 && isE8M0(s.DType) {
		of = spec.PackingNamed("fp8-ue8m0")
	}
	return &encoding{packing: of, codes: source{p.name, l.readCodes("F8_E4M3")}, scales: source{scales, l.readScales(of)}}, nil
}

// blocks returns the extents of the scales of the matrices, in the given format.
func (m matrices) blocks(of *spec.Packing) []int64 {
	down, across := of.Blocks(m.rows, m.columns)
	return []int64{m.count, down, across}
}
