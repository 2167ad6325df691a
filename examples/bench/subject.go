package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
	"sonicmoe/moe/trial"
)

// subject is a layer's tensors on the device, random by the measuring rule.
type subject struct {
	row   spec.Row
	layer *moe.Layer
	call  *moe.Call
	args  moe.Forward
	dev   driver.Device
	s     driver.Stream
	owned []driver.DevicePtr
	host  []uint16 // O
}

// repeatAfter is how many random values expert weights have before they repeat:
// making and copying billions would take longer than measuring. Inputs and the
// router's weights never repeat, so that routing stays random. It is no multiple of a
// row, so that no two experts are alike.
const repeatAfter = 1<<24 + 8

// newSubject allocates and fills the tensors.
func newSubject(dev driver.Device, s driver.Stream, l *moe.Layer, row spec.Row) (*subject, error) {
	u := &subject{row: row, layer: l, call: l.NewCall(), dev: dev, s: s}
	shapes, sizes := row.Config.Shapes(row.Tokens), l.Sizes(row.Tokens)
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
		{&u.args.Experts, shapes.Experts, 0, 0},
	} {
		p, err := u.alloc(in.shape.Bytes())
		if err == nil && in.period > 0 {
			err = u.fill(p, in.shape.Elements(), in.period, reference.NewNormal(uint64(1+i), in.scale))
		}
		if err != nil {
			return nil, errors.Join(err, u.close())
		}
		*in.to = moe.Tensor{Ptr: p, Shape: in.shape}
	}
	p, err := u.alloc(sizes.Workspace)
	if err != nil {
		return nil, errors.Join(err, u.close())
	}
	u.args.Workspace = moe.Buffer{Ptr: p, Bytes: sizes.Workspace}
	return u, nil
}

func (u *subject) alloc(bytes int64) (driver.DevicePtr, error) {
	p, err := u.dev.Alloc(bytes)
	if err == nil {
		u.owned = append(u.owned, p)
	}
	return p, err
}

// fill writes n random bf16 values that repeat after a period.
func (u *subject) fill(p driver.DevicePtr, n, period int64, values *reference.Normal) error {
	have := min(n, period)
	if err := u.s.CopyToDevice(p, trial.Bytes(values.Values(have))); err != nil {
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
func (u *subject) use(l *moe.Layer) {
	u.layer, u.call = l, l.NewCall()
}

// queue puts one pass on the stream.
func (u *subject) queue(p pass) func() error {
	return func() error { return p.queue(u.call, u.s, u.args) }
}

// setRouting gives every token these experts, [T, K], with equal scores.
func (u *subject) setRouting(experts []int32) error {
	scores := make([]float32, len(experts))
	for i := range scores {
		scores[i] = 1 / float32(u.row.Config.TopK)
	}
	if err := u.s.CopyToDevice(u.args.Experts.Ptr, trial.Bytes(experts)); err != nil {
		return err
	}
	return u.s.CopyToDevice(u.args.Scores.Ptr, trial.Bytes(scores))
}

// poisonO overwrites O with NaN.
func (u *subject) poisonO() error {
	return u.s.Fill32(u.args.O.Ptr, 0xffffffff, u.args.O.Shape.Bytes()/4)
}

// hashO waits for the pass and gives a hash of O's bits. An O that is not
// finite, as where nothing was written over the poison, is an error.
func (u *subject) hashO(ctx context.Context) (string, error) {
	if err := u.s.Synchronize(ctx); err != nil {
		return "", err
	}
	if u.host == nil {
		u.host = make([]uint16, u.args.O.Shape.Elements())
	}
	b := trial.Bytes(u.host)
	if err := u.s.CopyToHost(b, u.args.O.Ptr); err != nil {
		return "", err
	}
	for i, v := range u.host {
		if v&0x7f80 == 0x7f80 {
			d := u.row.Config.Hidden
			return "", fmt.Errorf("O of token %d, column %d has the bits %#04x, which is no number", i/d, i%d, v)
		}
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), nil
}

func (u *subject) close() error {
	var errs []error
	for _, p := range u.owned {
		errs = append(errs, u.dev.Free(p))
	}
	u.owned = nil
	return errors.Join(errs...)
}
