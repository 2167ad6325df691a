package trial

import (
	"context"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// PrepareBackward draws a random gradient of O, and sets Back to the buffers of a backward pass
// that computes all gradients. weights is the element type of the gradients of weights.
func (t *Trial) PrepareBackward(seed uint64, weights moe.Type) error {
	s := t.Layer.Config().Gradients(t.Tokens, weights)
	t.DO = reference.NewNormalOf(s.DO.Type, seed, reference.ScaleOutput).Values(s.DO.Elements())
	b := t.Args.BackwardArgs()
	b.DO, b.DX, b.DScores = t.memory.Tensor(s.DO), t.memory.Tensor(s.DX), t.memory.Tensor(s.DScores)
	b.WeightGradients = t.memory.Gradients(t.Layer, weights)
	b.Workspace = t.memory.Workspace(t.Tokens, t.Layer)
	if err := t.memory.Err(); err != nil {
		return err
	}
	t.Back = b
	return moe.Write(t.stream, b.DO, t.DO)
}

// AddLogitGradients sets DLogits of the backward pass to random FP32 values.
func (t *Trial) AddLogitGradients(seed uint64) error {
	s := t.Layer.Config().Gradients(t.Tokens, moe.F32).DLogits
	t.Extra = make([]float32, s.Elements())
	for i, v := range reference.NewNormal(seed, reference.ScaleOutput).Values(s.Elements()) {
		t.Extra[i] = float32(num.BF16ToFloat64(v)) * (1 + 1.0/4096) // the factor adds fraction bits that bf16 does not have
	}
	t.Back.DLogits = t.memory.Tensor(s)
	if err := t.memory.Err(); err != nil {
		return err
	}
	return moe.Write(t.stream, t.Back.DLogits, t.Extra)
}

// PoisonGradients fills the outputs of b with NaN. It leaves out gradients to which b adds.
func (t *Trial) PoisonGradients(b moe.BackwardArgs) error {
	outputs := []moe.Tensor{b.DX, b.DScores, b.RouterLosses}
	for _, id := range spec.Weights {
		if g := b.Gradient(id); g != nil && !g.Accumulate {
			outputs = append(outputs, g.Tensor)
		}
	}
	for _, out := range outputs {
		if out.IsZero() {
			continue
		}
		if err := t.stream.Fill32(out.Ptr, 0xffffffff, out.Shape.Bytes()/4); err != nil {
			return err
		}
	}
	return t.stream.Fill32(b.Workspace.Ptr, 0xffffffff, b.Workspace.Bytes/4)
}

// RunBackward poisons the gradients and the workspace, runs a backward pass with the buffers of
// b, and waits for its end.
func (t *Trial) RunBackward(ctx context.Context, b moe.BackwardArgs) error {
	if err := t.PoisonGradients(b); err != nil {
		return err
	}
	if err := t.call.Backward(t.stream, b); err != nil {
		return err
	}
	return t.stream.Synchronize(ctx)
}

// Values holds elements of a tensor on the host: FP32 values, or bits of the layer's Type.
type Values struct {
	Type moe.Type
	Bits []uint16
	F32  []float32
}

// Rows copies rows of a tensor to the host, or all rows if rows is nil. A row has cols
// elements.
func (t *Trial) Rows(of moe.Tensor, cols int, rows []int64) (Values, error) {
	total := of.Shape.Elements() / int64(cols)
	if rows == nil {
		return t.read(of, 0, of.Shape.Elements())
	}
	v := Values{Type: of.Shape.Type}
	for _, r := range rows {
		if r < 0 || r >= total {
			return v, &moe.ArgError{Field: "rows", Got: "a row past the end", Want: "rows of the tensor"}
		}
		row, err := t.read(of, r*int64(cols), int64(cols))
		if err != nil {
			return v, err
		}
		v.Bits, v.F32 = append(v.Bits, row.Bits...), append(v.F32, row.F32...)
	}
	return v, nil
}

// read copies count elements of a tensor to the host, from element first on.
func (t *Trial) read(of moe.Tensor, first, count int64) (v Values, err error) {
	v.Type = of.Shape.Type
	at := of.Ptr + driver.DevicePtr(first*of.Shape.Type.Bytes())
	if of.Shape.Type == moe.F32 {
		v.F32 = make([]float32, count)
		return v, t.stream.CopyToHost(num.Bytes(v.F32), at)
	}
	v.Bits = make([]uint16, count)
	return v, t.stream.CopyToHost(num.Bytes(v.Bits), at)
}

// compare compares the values with want, both [rows, cols].
func (v Values) compare(want []float64, rows, cols int) reference.Report {
	if v.F32 != nil {
		return reference.Compare(v.F32, want, rows, cols)
	}
	return reference.CompareOf(v.Type, v.Bits, want, rows, cols)
}
