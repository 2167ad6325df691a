package trial

import (
	"context"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/reference"
)

// ScaleOutput is the standard deviation of the gradient of O.
const ScaleOutput = 0.2

// PrepareBackward makes a random gradient of O from a seed and the buffers of
// a backward pass, which Back then holds: all gradients are wanted, those of
// weights in the given type.
func (t *Trial) PrepareBackward(seed uint64, weights moe.Type) error {
	a, c := t.Args, t.Layer.Config()
	s := c.Gradients(t.Tokens, weights)
	t.DO = reference.NewNormal(seed, ScaleOutput).Values(s.DO.Elements())
	b := moe.Backward{X: a.X, Router: a.Router, W1: a.W1, W2: a.W2, H: a.H, Scores: a.Scores, Experts: a.Experts}
	for _, g := range []struct {
		to    *moe.Tensor
		shape moe.Shape
	}{{&b.DO, s.DO}, {&b.DX, s.DX}, {&b.DScores, s.DScores}, {&b.DW1, s.DW1}, {&b.DW2, s.DW2}, {&b.DRouter, s.DRouter}} {
		p, err := t.alloc(g.shape.Bytes())
		if err != nil {
			return err
		}
		*g.to = moe.Tensor{Ptr: p, Shape: g.shape}
	}
	bytes := t.Layer.Sizes(t.Tokens).BackwardWorkspace
	p, err := t.alloc(bytes)
	if err != nil {
		return err
	}
	b.Workspace = moe.Buffer{Ptr: p, Bytes: bytes}
	t.Back = b
	return t.stream.CopyToDevice(b.DO.Ptr, Bytes(t.DO))
}

// AddLogitGradients gives the backward pass extra gradients of the logits, of
// the size of those it has.
func (t *Trial) AddLogitGradients(seed uint64) error {
	s := t.Layer.Config().Gradients(t.Tokens, moe.BF16).DLogits
	t.Extra = make([]float32, s.Elements())
	for i, v := range reference.NewNormal(seed, ScaleOutput).Values(s.Elements()) {
		t.Extra[i] = float32(reference.FromBF16(v)) * (1 + 1.0/4096) // not a bf16
	}
	p, err := t.alloc(s.Bytes())
	if err != nil {
		return err
	}
	t.Back.DLogits = moe.Tensor{Ptr: p, Shape: s}
	return t.stream.CopyToDevice(p, Bytes(t.Extra))
}

// PoisonGradients overwrites what b writes with NaN, but for what it adds to.
func (t *Trial) PoisonGradients(b moe.Backward) error {
	for _, g := range []struct {
		tensor moe.Tensor
		added  bool
	}{{b.DX, false}, {b.DScores, false}, {b.DW1, b.AccumulateDW1}, {b.DW2, b.AccumulateDW2}, {b.DRouter, b.AccumulateDRouter}} {
		if g.tensor.IsZero() || g.added {
			continue
		}
		if err := t.stream.Fill32(g.tensor.Ptr, 0xffffffff, g.tensor.Shape.Bytes()/4); err != nil {
			return err
		}
	}
	return t.stream.Fill32(b.Workspace.Ptr, 0xffffffff, b.Workspace.Bytes/4)
}

// RunBackward poisons gradients and workspace, runs the pass with the given
// buffers and waits.
func (t *Trial) RunBackward(ctx context.Context, b moe.Backward) error {
	if err := t.PoisonGradients(b); err != nil {
		return err
	}
	if err := t.call.Backward(t.stream, b); err != nil {
		return err
	}
	return t.stream.Synchronize(ctx)
}

// Values are a tensor's elements on the host, in one of its two types.
type Values struct {
	BF16 []uint16
	F32  []float32
}

// Rows copies rows of so many elements each of a bf16 or f32 tensor, by their
// numbers; nil: all of them.
func (t *Trial) Rows(of moe.Tensor, cols int, rows []int64) (Values, error) {
	total := of.Shape.Elements() / int64(cols)
	if rows == nil {
		return t.read(of, 0, of.Shape.Elements())
	}
	var v Values
	for _, r := range rows {
		if r < 0 || r >= total {
			return v, &moe.ArgError{Field: "rows", Got: "a row past the end", Want: "rows of the tensor"}
		}
		row, err := t.read(of, r*int64(cols), int64(cols))
		if err != nil {
			return v, err
		}
		v.BF16, v.F32 = append(v.BF16, row.BF16...), append(v.F32, row.F32...)
	}
	return v, nil
}

// read copies elements of a tensor.
func (t *Trial) read(of moe.Tensor, first, count int64) (v Values, err error) {
	at := of.Ptr + driver.DevicePtr(first*of.Shape.Type.Bytes())
	if of.Shape.Type == moe.F32 {
		v.F32 = make([]float32, count)
		return v, t.stream.CopyToHost(Bytes(v.F32), at)
	}
	v.BF16 = make([]uint16, count)
	return v, t.stream.CopyToHost(Bytes(v.BF16), at)
}

// compare holds values against what they should be.
func (v Values) compare(want []float64, rows, cols int) reference.Report {
	if v.F32 != nil {
		return reference.Compare(v.F32, want, rows, cols)
	}
	return reference.Compare(v.BF16, want, rows, cols)
}
