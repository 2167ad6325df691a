package main

import (
	"context"
	"errors"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// subject is the layer that is measured, with its random tensors on the device.
type subject struct {
	*trial.Trial
	row  peers.Row
	pass pass
	// outputs are the tensors that the pass writes.
	outputs []output
	host    []uint16 // host copy of an output
}

// repeatAfter is the number of random values after which expert weights repeat. Without the
// repetition, billions of random values would take longer than the measurement. The number is
// not a multiple of a row, so that all experts differ. Inputs and the router's weights do not
// repeat.
const repeatAfter = 1<<24 + 8

// newSubject allocates and fills the tensors. For a backward pass it also runs a forward pass.
func newSubject(ctx context.Context, dev driver.Device, l *moe.Layer, row peers.Row, p pass) (*subject, error) {
	t, err := trial.Allocate(dev, l, row.Tokens)
	if err != nil {
		return nil, err
	}
	u := &subject{Trial: t, row: row, pass: p}
	if err = u.forward(); err == nil {
		if p.backward {
			err = u.backward(ctx)
		} else {
			err = u.makeWorkspace()
		}
	}
	if err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return u, nil
}

// forward fills the tensors of a forward pass.
func (u *subject) forward() error {
	for i, in := range []struct {
		of     moe.Tensor
		scale  float64
		period int64
	}{
		{u.Args.X, reference.ScaleX, u.Args.X.Shape.Elements()},
		{u.Args.Router, reference.ScaleWeight, u.Args.Router.Shape.Elements()},
		{u.Args.W1, reference.ScaleWeight, repeatAfter},
		{u.Args.W2, reference.ScaleWeight, repeatAfter},
	} {
		if in.of.Shape.Type == moe.U8 {
			continue // packed weights follow
		}
		if err := fill(u.Stream(), in.of.Ptr, in.of.Shape.Elements(), in.period, reference.NewNormalOf(u.row.Config.Type, uint64(1+i), in.scale)); err != nil {
			return err
		}
	}
	u.outputs = []output{{name: "O", Tensor: u.Args.O}}
	if spec.IsPlain(u.row.Config) {
		return nil
	}
	err := trial.FillExperts(u.Stream(), u.row.Config, &u.Args.Weights)
	if err == nil {
		u.Args.Units, err = trial.ArrangeUnits(u.Stream(), u.Layer, u.Memory(), u.Args.Weights)
	}
	return err
}

// backward prepares the tensors of a backward pass and runs a forward pass. The backward pass
// will write the gradients of X, of the experts' weights and of the router, in the layer's
// type.
func (u *subject) backward(ctx context.Context) error {
	c := u.row.Config
	if err := u.PrepareBackward(9, c.Type); err != nil {
		return err
	}
	u.Back.DScores, u.Args.Workspace = moe.Tensor{}, u.Back.Workspace
	u.outputs = []output{
		{name: "DX", Tensor: u.Back.DX}, {name: "DRouter", Tensor: u.Back.DRouter.Tensor},
		{name: "DW1", Tensor: u.Back.DW1.Tensor, sample: sampledRows(c.NumExperts, 2*c.Intermediate)},
		{name: "DW2", Tensor: u.Back.DW2.Tensor, sample: sampledRows(c.NumExperts, c.Hidden)},
	}
	if err := u.Call().Forward(u.Stream(), u.Args); err != nil {
		return err
	}
	return u.Stream().Synchronize(ctx)
}

// makeWorkspace allocates a workspace for the layer, unless the present workspace is large
// enough.
func (u *subject) makeWorkspace() error {
	sizes, err := u.Layer.Sizes(u.row.Tokens)
	if err != nil {
		return err
	}
	need := sizes.Workspace
	if u.pass.backward {
		need = sizes.BackwardWorkspace
	}
	if u.Args.Workspace.Bytes < need {
		u.Args.Workspace = u.Memory().Buffer(need)
		u.Back.Workspace = u.Args.Workspace
	}
	return u.Memory().Err()
}

// fill writes n random 16-bit values, which repeat after period values.
func fill(s driver.Stream, p driver.DevicePtr, n, period int64, values *reference.Normal) error {
	have := min(n, period)
	if err := s.CopyToDevice(p, num.Bytes(values.Values(have))); err != nil {
		return err
	}
	for have < n {
		more := min(have, n-have)
		if err := s.Copy(p+driver.DevicePtr(2*have), p, 2*more); err != nil {
			return err
		}
		have += more
	}
	return nil
}

// use replaces the layer by another layer of the same size, which uses the same tensors.
func (u *subject) use(l *moe.Layer) error {
	u.Layer = l
	u.UseCall(l.NewCall())
	return u.makeWorkspace()
}

// queue queues one pass.
func (u *subject) queue() error { return u.pass.queue(u) }

// queueExperts queues the part of the pass after the router.
func (u *subject) queueExperts() error { return u.pass.experts(u) }

func (u *subject) forwardExperts() error {
	return u.Call().ForwardExperts(u.Stream(), u.Args)
}

func (u *subject) backwardExperts() error {
	b := u.Back
	b.DRouter = moe.Gradient{}
	return u.Call().BackwardExperts(u.Stream(), b)
}

// setRouting sets every token's experts, [T, K], with equal scores. For a backward pass
// it runs the forward pass over the experts.
func (u *subject) setRouting(experts []int32) error {
	scores := make([]float32, len(experts))
	for i := range scores {
		scores[i] = 1 / float32(u.row.Config.TopK)
	}
	if err := u.Stream().CopyToDevice(u.Args.ExpertIDs.Ptr, num.Bytes(experts)); err != nil {
		return err
	}
	if err := u.Stream().CopyToDevice(u.Args.Scores.Ptr, num.Bytes(scores)); err != nil || !u.pass.backward {
		return err
	}
	return u.forwardExperts()
}
