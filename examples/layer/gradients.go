package main

import (
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/safetensors"
)

// reserveGradients allocates the tensors that the forward pass saves for backward, and the
// gradients of all weights.
func (p *pass) reserveGradients() (err error) {
	s, g := p.job.shapes(), p.job.config.Gradients(p.job.tokens, p.job.config.Type)
	for _, out := range []room{{"H", &p.args.H, s.H}, {"SharedH", &p.args.SharedH, s.SharedH}, {"logits", &p.args.Logits, s.Logits}} {
		if out.shape.IsZero() {
			continue
		}
		if *out.to, err = p.tensor(out.name, out.shape); err != nil {
			return err
		}
	}
	back := p.args.BackwardArgs()
	back.DO = p.back.DO
	p.back = back
	for _, out := range []room{{nameDX, &p.back.DX, g.DX}, {nameDScores, &p.back.DScores, g.DScores}} {
		if *out.to, err = p.tensor(out.name, out.shape); err != nil {
			return err
		}
	}
	for _, id := range moe.WeightIDs() {
		gradient, weight := p.back.Gradient(id), p.args.Weight(id)
		if gradient == nil || weight.IsZero() {
			continue
		}
		shape := weight.Shape
		if shape.Type != moe.F32 || id == spec.TensorRouter {
			shape.Type = p.job.config.Type
		}
		if gradient.Tensor, err = p.tensor(gradientOf+p.job.fileName(id), shape); err != nil {
			return err
		}
	}
	return nil
}

// gradients returns the results of the backward pass. The gradient of a weight has the weight's
// name with a prefix, and the layout that the weight has in its file.
func (p *pass) gradients() []safetensors.Source {
	if !p.job.backward {
		return nil
	}
	list := []safetensors.Source{p.whole(nameDX, p.back.DX), p.whole(nameDScores, p.back.DScores)}
	for _, id := range moe.WeightIDs() {
		gradient := p.back.Gradient(id)
		switch {
		case gradient == nil || gradient.IsZero():
		case id == spec.TensorW1 && p.job.separate:
			list = append(list, p.part(gradientOf+nameGate, gradient.Tensor, 0, 2), p.part(gradientOf+nameUp, gradient.Tensor, 1, 2))
		default:
			list = append(list, p.whole(gradientOf+p.job.fileName(id), gradient.Tensor))
		}
	}
	return list
}

// whole returns a whole tensor for the output file.
func (p *pass) whole(name string, t moe.Tensor) safetensors.Source { return p.part(name, t, 0, 1) }

// part returns part i of a tensor that has several parts for each expert, such as gate and up
// of W1.
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

// dtypes maps element types to their names in files.
var dtypes = map[spec.Type]string{moe.BF16: "BF16", moe.F16: "F16", moe.F32: "F32", moe.I32: "I32"}
