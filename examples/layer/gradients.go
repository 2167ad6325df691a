package main

import (
	"sonicmoe/examples/layer/safetensors"
	"sonicmoe/moe"
	"sonicmoe/moe/spec"
)

// reserveGradients makes room for H and the gradients, and sets what the
// backward pass takes from the forward pass.
func (p *pass) reserveGradients() (err error) {
	g := p.job.config.Gradients(p.job.tokens, p.job.config.Type)
	for _, out := range []room{
		{"H", &p.args.H, p.job.shapes().H},
		{nameDX, &p.back.DX, g.DX},
		{nameDScores, &p.back.DScores, g.DScores},
		{gradientOf + nameRouter, &p.back.DRouter.Tensor, g.DRouter},
		{gradientOf + nameGateUp, &p.back.DW1.Tensor, g.DW1},
		{gradientOf + nameDown, &p.back.DW2.Tensor, g.DW2},
	} {
		if *out.to, err = p.tensor(out.name, out.shape); err != nil {
			return err
		}
	}
	a, b := p.args, &p.back
	b.X, b.Weights = a.X, a.Weights
	b.H, b.Scores, b.ExpertIDs, b.Workspace = a.H, a.Scores, a.ExpertIDs, a.Workspace
	return nil
}

// gradients are what the backward pass has written, weights' under the names
// and in the layout that the weights have in their file.
func (p *pass) gradients() []safetensors.Source {
	if !p.job.backward {
		return nil
	}
	b := p.back
	list := []safetensors.Source{
		p.whole(nameDX, b.DX), p.whole(nameDScores, b.DScores),
		p.whole(gradientOf+nameRouter, b.DRouter.Tensor), p.whole(gradientOf+nameDown, b.DW2.Tensor),
	}
	names := p.job.w1Names()
	for i, name := range names {
		list = append(list, p.part(gradientOf+name, b.DW1.Tensor, i, len(names)))
	}
	return list
}

// whole is a tensor of the output file.
func (p *pass) whole(name string, t moe.Tensor) safetensors.Source { return p.part(name, t, 0, 1) }

// part is the i-th of so many tensors that lie in t by turns, expert by expert:
// of W1's two, gate and up.
func (p *pass) part(name string, t moe.Tensor, i, parts int) safetensors.Source {
	block, stride := blocks(t.Shape, parts)
	dims := make([]int, t.Shape.Rank)
	for j, d := range t.Shape.Dims[:t.Shape.Rank] {
		dims[j] = int(d)
	}
	if parts > 1 {
		dims[1] /= parts
	}
	from := p.memory.reader(at(t.Ptr, int64(i)*block), t.Shape.Bytes()/int64(parts), block, stride)
	return fileTensor(name, dtypes[t.Shape.Type], from, dims...)
}

// dtypes are the files' names of element types.
var dtypes = map[spec.Type]safetensors.DType{moe.BF16: safetensors.BF16, moe.F16: safetensors.F16, moe.F32: safetensors.F32, moe.I32: safetensors.I32}
