// Package trial runs a layer on random tensors and holds the results against
// the float64 reference: the common ground of tests, examples and benchmarks.
package trial

import (
	"context"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/reference"
)

// Standard deviations of the random tensors.
const (
	ScaleX      = 0.5
	ScaleWeight = 0.02
)

// Trial is a layer's tensors on host and device.
type Trial struct {
	Layer  *moe.Layer
	Tokens int
	// X, Router, W1 and W2 are the inputs as bf16 bits.
	X, Router, W1, W2 []uint16
	// Args are the same tensors on the device, with outputs and workspace.
	Args moe.Forward

	dev    driver.Device
	stream driver.Stream
	call   *moe.Call
	owned  []driver.DevicePtr
}

// New makes random inputs from a seed and puts them on the layer's device.
// The scales are those of the measuring rule, times boost for the weights:
// small layers need more to reach outputs of order 1.
func New(dev driver.Device, l *moe.Layer, tokens int, seed uint64, boost float64) (*Trial, error) {
	s := l.Config().Shapes(tokens)
	weight := ScaleWeight * boost
	return FromHost(dev, l, tokens,
		reference.NewNormal(seed, ScaleX).Values(s.X.Elements()),
		reference.NewNormal(seed+1, weight).Values(s.Router.Elements()),
		reference.NewNormal(seed+2, weight).Values(s.W1.Elements()),
		reference.NewNormal(seed+3, weight).Values(s.W2.Elements()))
}

// FromHost puts given inputs, bf16 bits, on the device.
func FromHost(dev driver.Device, l *moe.Layer, tokens int, x, router, w1, w2 []uint16) (*Trial, error) {
	t := &Trial{Layer: l, Tokens: tokens, X: x, Router: router, W1: w1, W2: w2, dev: dev, call: l.NewCall()}
	if err := t.upload(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (t *Trial) upload() (err error) {
	if t.stream, err = t.dev.NewStream(); err != nil {
		return err
	}
	s := t.Layer.Config().Shapes(t.Tokens)
	sizes := t.Layer.Sizes(t.Tokens)
	for _, in := range []struct {
		to   *moe.Tensor
		from []uint16
		dims []int64
	}{
		{&t.Args.X, t.X, s.X.Dims[:s.X.Rank]}, {&t.Args.Router, t.Router, s.Router.Dims[:s.Router.Rank]},
		{&t.Args.W1, t.W1, s.W1.Dims[:s.W1.Rank]}, {&t.Args.W2, t.W2, s.W2.Dims[:s.W2.Rank]},
	} {
		p, err := t.alloc(int64(len(in.from)) * 2)
		if err != nil {
			return err
		}
		if err := t.stream.CopyToDevice(p, Bytes(in.from)); err != nil {
			return err
		}
		*in.to = moe.Tensor{Ptr: p}
	}
	t.Args.X.Shape, t.Args.Router.Shape, t.Args.W1.Shape, t.Args.W2.Shape = s.X, s.Router, s.W1, s.W2
	for _, out := range []struct {
		to    *moe.Tensor
		bytes int64
	}{{&t.Args.O, sizes.O}, {&t.Args.H, sizes.H}, {&t.Args.Scores, sizes.Scores}, {&t.Args.Experts, sizes.Experts}} {
		if out.to.Ptr, err = t.alloc(out.bytes); err != nil {
			return err
		}
	}
	t.Args.O.Shape, t.Args.H.Shape, t.Args.Scores.Shape, t.Args.Experts.Shape = s.O, s.H, s.Scores, s.Experts
	t.Args.Workspace.Bytes = sizes.Workspace
	t.Args.Workspace.Ptr, err = t.alloc(sizes.Workspace)
	return err
}

func (t *Trial) alloc(bytes int64) (driver.DevicePtr, error) {
	p, err := t.dev.Alloc(max(bytes, 256))
	if err == nil {
		t.owned = append(t.owned, p)
	}
	return p, err
}

// Stream is the trial's own stream, Call its call.
func (t *Trial) Stream() driver.Stream { return t.stream }

// Call is the trial's call.
func (t *Trial) Call() *moe.Call { return t.call }

// Poison overwrites outputs and workspace with NaN.
func (t *Trial) Poison() error {
	for _, b := range []struct {
		p     driver.DevicePtr
		bytes int64
	}{
		{t.Args.O.Ptr, t.Args.O.Shape.Bytes()}, {t.Args.H.Ptr, t.Args.H.Shape.Bytes()},
		{t.Args.Scores.Ptr, t.Args.Scores.Shape.Bytes()}, {t.Args.Experts.Ptr, t.Args.Experts.Shape.Bytes()},
		{t.Args.Workspace.Ptr, t.Args.Workspace.Bytes},
	} {
		if err := t.stream.Fill32(b.p, 0xffffffff, b.bytes/4); err != nil {
			return err
		}
	}
	return nil
}

// Inference is Args without H.
func (t *Trial) Inference() moe.Forward {
	f := t.Args
	f.H = moe.Tensor{}
	return f
}

// Run poisons the outputs, runs the pass with the given buffers and waits.
func (t *Trial) Run(ctx context.Context, f moe.Forward) error {
	if err := t.Poison(); err != nil {
		return err
	}
	if err := t.call.Forward(t.stream, f); err != nil {
		return err
	}
	return t.Layer.Explain(t.stream.Synchronize(ctx))
}

// Results are a pass's outputs on the host.
type Results struct {
	O, H    []uint16
	Scores  []float32
	Experts []int32
}

// Results copies the outputs; H only if asked for.
func (t *Trial) Results(withH bool) (Results, error) {
	s := t.Layer.Config().Shapes(t.Tokens)
	r := Results{
		O: make([]uint16, s.O.Elements()), Scores: make([]float32, s.Scores.Elements()), Experts: make([]int32, s.Experts.Elements()),
	}
	copies := []struct {
		to   []byte
		from driver.DevicePtr
	}{{Bytes(r.O), t.Args.O.Ptr}, {Bytes(r.Scores), t.Args.Scores.Ptr}, {Bytes(r.Experts), t.Args.Experts.Ptr}}
	if withH {
		r.H = make([]uint16, s.H.Elements())
		copies = append(copies, struct {
			to   []byte
			from driver.DevicePtr
		}{Bytes(r.H), t.Args.H.Ptr})
	}
	for _, c := range copies {
		if err := t.stream.CopyToHost(c.to, c.from); err != nil {
			return r, err
		}
	}
	return r, nil
}

// Close frees the device memory.
func (t *Trial) Close() error {
	var first error
	for _, p := range t.owned {
		if err := t.dev.Free(p); err != nil && first == nil {
			first = err
		}
	}
	t.owned = nil
	if t.stream != nil {
		if err := t.stream.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Bytes views a slice of numbers as bytes, in the machine's order, which is
// the device's on every supported one.
func Bytes[E uint16 | int32 | uint32 | float32](s []E) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}
