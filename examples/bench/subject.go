package main

import (
	"context"
	"errors"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/reference"
	"sonicmoe/moe"
)

// subject is a layer with random tensors on the device.
type subject struct {
	row   peers.Row
	pass  pass
	layer *moe.Layer
	call  *moe.Call
	args  moe.ForwardArgs
	back  moe.BackwardArgs // for a backward pass
	// outputs are the tensors that the pass writes.
	outputs []output
	s       driver.Stream
	memory  *moe.Arena
	host    []uint16 // the copy of an output
}

// repeatAfter is the number of random values of expert weights before they repeat,
// because billions of random values would take longer than the measurement. It is no
// multiple of a row, so that all experts differ. Inputs and the router's weights do not
// repeat.
const repeatAfter = 1<<24 + 8

// newSubject allocates and fills the tensors. For a backward pass it runs a forward
// pass.
func newSubject(ctx context.Context, dev driver.Device, s driver.Stream, l *moe.Layer, row peers.Row, p pass) (*subject, error) {
	u := &subject{row: row, pass: p, layer: l, call: l.NewCall(), s: s, memory: moe.NewArena(dev)}
	err := u.forward()
	if err == nil && p.backward {
		err = u.backward(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, u.close())
	}
	return u, nil
}

// forward allocates and fills the tensors of a forward pass.
func (u *subject) forward() error {
	u.args = u.memory.ForwardArgs(u.layer, u.row.Tokens)
	if u.args.H.IsZero() { // a layer without backward may write H too
		u.args.H = u.memory.Tensor(u.layer.Shapes(u.row.Tokens).H)
	}
	u.args.Weights = u.memory.Weights(u.layer)
	if err := u.memory.Err(); err != nil {
		return err
	}
	for i, in := range []struct {
		of     moe.Tensor
		scale  float64
		period int64
	}{
		{u.args.X, reference.ScaleX, u.args.X.Shape.Elements()},
		{u.args.Router, reference.ScaleWeight, u.args.Router.Shape.Elements()},
		{u.args.W1, reference.ScaleWeight, repeatAfter},
		{u.args.W2, reference.ScaleWeight, repeatAfter},
	} {
		if err := u.fill(in.of.Ptr, in.of.Shape.Elements(), in.period, reference.NewNormalOf(u.row.Config.Type, uint64(1+i), in.scale)); err != nil {
			return err
		}
	}
	u.outputs = []output{{name: "O", Tensor: u.args.O}}
	return u.makeWorkspace()
}

// backward allocates and fills the tensors of a backward pass and runs the forward pass.
// The backward pass writes the gradients of X, of the expert weights and of the router,
// in the layer's type.
func (u *subject) backward(ctx context.Context) error {
	c := u.row.Config
	shapes := c.Gradients(u.row.Tokens, c.Type)
	u.back = u.args.BackwardArgs()
	u.back.DO, u.back.DX = u.memory.Tensor(shapes.DO), u.memory.Tensor(shapes.DX)
	u.back.WeightGradients = u.memory.Gradients(u.layer, c.Type)
	if err := u.memory.Err(); err != nil {
		return err
	}
	u.outputs = []output{
		{name: "DX", Tensor: u.back.DX}, {name: "DRouter", Tensor: u.back.DRouter.Tensor},
		{name: "DW1", Tensor: u.back.DW1.Tensor, sample: sampledRows(c.NumExperts, 2*c.Intermediate)},
		{name: "DW2", Tensor: u.back.DW2.Tensor, sample: sampledRows(c.NumExperts, c.Hidden)},
	}
	elements := shapes.DO.Elements()
	if err := u.fill(u.back.DO.Ptr, elements, elements, reference.NewNormalOf(c.Type, 9, reference.ScaleOutput)); err != nil {
		return err
	}
	if err := u.call.Forward(u.s, u.args); err != nil {
		return err
	}
	return u.s.Synchronize(ctx)
}

// makeWorkspace allocates a workspace for the layer unless the present one is large
// enough.
func (u *subject) makeWorkspace() error {
	sizes, err := u.layer.Sizes(u.row.Tokens)
	if err != nil {
		return err
	}
	need := sizes.Workspace
	if u.pass.backward {
		need = sizes.BackwardWorkspace
	}
	if u.args.Workspace.Bytes < need {
		u.args.Workspace = u.memory.Buffer(need)
		u.back.Workspace = u.args.Workspace
	}
	return u.memory.Err()
}

// fill writes n random values of 16 bits, which repeat after a period.
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

// use replaces the layer by another layer of the same size, on the same tensors.
func (u *subject) use(l *moe.Layer) error {
	u.layer, u.call = l, l.NewCall()
	return u.makeWorkspace()
}

// queue queues one pass.
func (u *subject) queue() error { return u.pass.queue(u) }

// queueExperts queues the part of the pass after the router.
func (u *subject) queueExperts() error { return u.pass.experts(u) }

func (u *subject) forwardExperts() error {
	return u.call.ForwardExperts(u.s, u.args)
}

func (u *subject) backwardExperts() error {
	b := u.back
	b.DRouter = moe.Gradient{}
	return u.call.BackwardExperts(u.s, b)
}

// setRouting sets every token's experts, [T, K], with equal scores. For a backward pass
// it runs the forward pass over the experts.
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

func (u *subject) close() error { return u.memory.Free() }
