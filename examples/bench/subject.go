package main

import (
	"context"
	"errors"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/num"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
	"sonicmoe/moe/trial"
)

// subject is a layer's tensors on the device, random by the measuring rule.
type subject struct {
	row   spec.Row
	pass  pass
	layer *moe.Layer
	call  *moe.Call
	args  moe.Forward
	back  moe.Backward // of a backward pass
	// outputs are what the pass writes.
	outputs []output
	dev     driver.Device
	s       driver.Stream
	owned   []driver.DevicePtr
	host    []uint16 // a copy of an output
}

// repeatAfter is how many random values expert weights have before they repeat:
// making and copying billions would take longer than measuring. Inputs and the
// router's weights never repeat, so that routing stays random. It is no multiple of a
// row, so that no two experts are alike.
const repeatAfter = 1<<24 + 8

// newSubject allocates and fills the tensors, and for a backward pass runs a
// forward pass.
func newSubject(ctx context.Context, dev driver.Device, s driver.Stream, l *moe.Layer, row spec.Row, p pass) (*subject, error) {
	u := &subject{row: row, pass: p, layer: l, call: l.NewCall(), dev: dev, s: s}
	err := u.forward()
	if err == nil && p.backward {
		err = u.backward(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, u.close())
	}
	return u, nil
}

// forward makes the tensors of a forward pass.
func (u *subject) forward() error {
	shapes := u.row.Config.Shapes(u.row.Tokens)
	for i, in := range []struct {
		to     *moe.Tensor
		shape  spec.Shape
		scale  float64
		period int64
	}{
		{&u.args.X, shapes.X, trial.ScaleX, shapes.X.Elements()},
		{&u.args.Router, shapes.Router, trial.ScaleWeight, shapes.Router.Elements()},
		{&u.args.W1, shapes.W1, trial.ScaleWeight, repeatAfter},
		{&u.args.W2, shapes.W2, trial.ScaleWeight, repeatAfter},
		{&u.args.O, shapes.O, 0, 0},
		{&u.args.H, shapes.H, 0, 0},
		{&u.args.Scores, shapes.Scores, 0, 0},
		{&u.args.ExpertIDs, shapes.ExpertIDs, 0, 0},
	} {
		if err := u.tensor(in.to, in.shape); err != nil {
			return err
		}
		if in.period == 0 {
			continue
		}
		if err := u.fill(in.to.Ptr, in.shape.Elements(), in.period, reference.NewNormal(uint64(1+i), in.scale)); err != nil {
			return err
		}
	}
	u.outputs = []output{{name: "O", Tensor: u.args.O}}
	return u.makeWorkspace()
}

// backward makes the tensors of a backward pass and, with a forward pass, what
// it starts from. Wanted are the gradients of X, of the experts' weights and of the
// router's, bf16, overwritten.
func (u *subject) backward(ctx context.Context) error {
	a, c := u.args, u.row.Config
	u.back.X, u.back.Weights = a.X, a.Weights
	u.back.H, u.back.Scores, u.back.ExpertIDs = a.H, a.Scores, a.ExpertIDs
	shapes := c.Gradients(u.row.Tokens, moe.BF16)
	for _, g := range []struct {
		to    *moe.Tensor
		shape spec.Shape
	}{{&u.back.DO, shapes.DO}, {&u.back.DX, shapes.DX}, {&u.back.DW1.Tensor, shapes.DW1}, {&u.back.DW2.Tensor, shapes.DW2}, {&u.back.DRouter.Tensor, shapes.DRouter}} {
		if err := u.tensor(g.to, g.shape); err != nil {
			return err
		}
	}
	u.outputs = []output{
		{name: "DX", Tensor: u.back.DX}, {name: "DRouter", Tensor: u.back.DRouter.Tensor},
		{name: "DW1", Tensor: u.back.DW1.Tensor, sample: sampledRows(c.NumExperts, 2*c.Intermediate)},
		{name: "DW2", Tensor: u.back.DW2.Tensor, sample: sampledRows(c.NumExperts, c.Hidden)},
	}
	elements := shapes.DO.Elements()
	if err := u.fill(u.back.DO.Ptr, elements, elements, reference.NewNormal(9, trial.ScaleOutput)); err != nil {
		return err
	}
	if err := u.call.Forward(u.s, a); err != nil {
		return err
	}
	return u.s.Synchronize(ctx)
}

// tensor makes room for a tensor.
func (u *subject) tensor(to *moe.Tensor, shape spec.Shape) error {
	p, err := u.alloc(shape.Bytes())
	*to = moe.Tensor{Ptr: p, Shape: shape}
	return err
}

func (u *subject) alloc(bytes int64) (driver.DevicePtr, error) {
	p, err := u.dev.Alloc(bytes)
	if err == nil {
		u.owned = append(u.owned, p)
	}
	return p, err
}

// makeWorkspace makes a workspace for the layer unless there is one that large.
func (u *subject) makeWorkspace() error {
	sizes, err := u.layer.Sizes(u.row.Tokens)
	if err != nil {
		return err
	}
	need := sizes.Workspace
	if u.pass.backward {
		need = sizes.BackwardWorkspace
	}
	if u.args.Workspace.Bytes >= need {
		return nil
	}
	p, err := u.alloc(need)
	if err != nil {
		return err
	}
	u.args.Workspace = moe.Buffer{Ptr: p, Bytes: need}
	u.back.Workspace = u.args.Workspace
	return nil
}

// fill writes n random bf16 values that repeat after a period.
func (u *subject) fill(p driver.DevicePtr, n, period int64, values *reference.Normal) error {
	have := min(n, period)
	if err := u.s.CopyToDevice(p, num.Bytes(values.Values(have))); err != nil {
		return err
	}
	for have < n {
		more := min(have, n-have)
		if err := u.s.Copy(p+driver.DevicePtr(2*have), p, 2*more); err != nil {
			return err
		}
		have += more
	}
	return nil
}

// use measures another layer of the same size from now on, on the same tensors.
func (u *subject) use(l *moe.Layer) error {
	u.layer, u.call = l, l.NewCall()
	return u.makeWorkspace()
}

// queue puts one pass on the stream.
func (u *subject) queue() error { return u.pass.queue(u) }

// queueExperts puts the part of the pass behind the router on the stream.
func (u *subject) queueExperts() error { return u.pass.experts(u) }

func (u *subject) forwardExperts() error {
	return u.call.ForwardExperts(u.s, u.args)
}

func (u *subject) backwardExperts() error {
	b := u.back
	b.DRouter = moe.Gradient{}
	return u.call.BackwardExperts(u.s, b)
}

// setRouting gives every token these experts, [T, K], with equal scores, and a
// backward pass what their forward pass saves.
func (u *subject) setRouting(experts []int32) error {
	scores := make([]float32, len(experts))
	for i := range scores {
		scores[i] = 1 / float32(u.row.Config.TopK)
	}
	if err := u.s.CopyToDevice(u.args.ExpertIDs.Ptr, num.Bytes(experts)); err != nil {
		return err
	}
	if err := u.s.CopyToDevice(u.args.Scores.Ptr, num.Bytes(scores)); err != nil || !u.pass.backward {
		return err
	}
	return u.forwardExperts()
}

func (u *subject) close() error {
	var errs []error
	for _, p := range u.owned {
		errs = append(errs, u.dev.Free(p))
	}
	u.owned = nil
	return errors.Join(errs...)
}
