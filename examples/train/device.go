package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/trial"
)

// device is a compiled layer with what its blocks share: stream, workspace, and
// the tensors that no block needs from forward to backward.
type device struct {
	dev    driver.Device
	stream driver.Stream
	layer  *moe.Layer
	adam   *jit.Function
	frozen bool
	tokens int
	owned  []driver.DevicePtr

	o, do, dx, dlogits, drouter moe.Tensor
	workspace                   moe.Buffer
}

// newDevice compiles the layer for passes of so many tokens. Frozen experts
// stay as they are. Close it before dev.
func newDevice(ctx context.Context, dev driver.Device, c moe.Config, tokens int, frozen bool, kept *cache.Cache) (d *device, err error) {
	d = &device{dev: dev, frozen: frozen, tokens: tokens}
	if d.layer, err = moe.New(ctx, dev, c, moe.WithCache(kept)); err != nil {
		return nil, err
	}
	kernel, err := adamKernel().Build()
	if err != nil {
		return nil, err
	}
	if d.adam, err = jit.Of(dev).Load(ctx, kept, jit.Source{Module: kernel, Name: "adam"}, driver.CompileOptions{}); err != nil {
		return nil, err
	}
	if d.stream, err = dev.NewStream(); err != nil {
		return nil, err
	}
	if err := d.reserve(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// reserve makes room for what the blocks share.
func (d *device) reserve() error {
	c := d.layer.Config()
	s, g := c.Shapes(d.tokens), c.Gradients(d.tokens, moe.F32)
	d.workspace.Bytes = d.layer.Sizes(d.tokens).BackwardWorkspace
	var err error
	if d.workspace.Ptr, err = d.alloc(d.workspace.Bytes); err != nil {
		return err
	}
	return d.tensors(
		place{&d.o, s.O}, place{&d.do, g.DO}, place{&d.dx, g.DX}, place{&d.dlogits, g.DLogits}, place{&d.drouter, g.DRouter})
}

// place is a tensor to be.
type place struct {
	to    *moe.Tensor
	shape moe.Shape
}

func (d *device) tensors(list ...place) error {
	for _, p := range list {
		ptr, err := d.alloc(p.shape.Bytes())
		if err != nil {
			return err
		}
		*p.to = moe.Tensor{Ptr: ptr, Shape: p.shape}
	}
	return nil
}

func (d *device) alloc(bytes int64) (driver.DevicePtr, error) {
	p, err := d.dev.Alloc(bytes)
	if err != nil {
		return 0, fmt.Errorf("%d bytes of device memory: %w", bytes, err)
	}
	d.owned = append(d.owned, p)
	return p, nil
}

// Close frees the device memory of all blocks.
func (d *device) Close() error {
	var errs []error
	for _, p := range d.owned {
		errs = append(errs, d.dev.Free(p))
	}
	d.owned = nil
	return errors.Join(append(errs, d.stream.Close())...)
}

// wait waits for the stream.
func (d *device) wait(ctx context.Context) error {
	return d.adam.Explain(d.layer.Explain(d.stream.Synchronize(ctx)))
}

// deviceExperts is the layer of one block on a device. From forward to backward
// it keeps x, H, scores and experts.
type deviceExperts struct {
	*device
	call                          *moe.Call
	x, router, h, scores, experts moe.Tensor
	w1, w2                        deviceWeight
	// added says that the gradients hold those of a pass since the last step.
	added bool
}

// newExperts is a makeExperts.
func (d *device) newExperts(w1, w2 []uint16) (experts, error) {
	e := &deviceExperts{device: d, call: d.layer.NewCall()}
	s := d.layer.Config().Shapes(d.tokens)
	err := d.tensors(place{&e.x, s.X}, place{&e.router, s.Router}, place{&e.h, s.H}, place{&e.scores, s.Scores}, place{&e.experts, s.Experts})
	if err == nil {
		e.w1, err = d.newWeight(s.W1, w1)
	}
	if err == nil {
		e.w2, err = d.newWeight(s.W2, w2)
	}
	return e, err
}

func (e *deviceExperts) Forward(ctx context.Context, x, router []uint16) (output, error) {
	if err := errors.Join(e.put(e.x, trial.Bytes(x)), e.put(e.router, trial.Bytes(router))); err != nil {
		return output{}, err
	}
	if err := e.call.Forward(e.stream, moe.Forward{
		X: e.x, Router: e.router, W1: e.w1.layer, W2: e.w2.layer,
		O: e.o, H: e.h, Scores: e.scores, Experts: e.experts, Workspace: e.workspace,
	}); err != nil {
		return output{}, err
	}
	if err := e.wait(ctx); err != nil {
		return output{}, fmt.Errorf("forward pass: %w", err)
	}
	o, ids := make([]uint16, e.o.Shape.Elements()), make([]int32, e.experts.Shape.Elements())
	err := errors.Join(e.get(trial.Bytes(o), e.o), e.get(trial.Bytes(ids), e.experts))
	return output{widen(o), ids}, err
}

func (e *deviceExperts) Backward(ctx context.Context, do, dlogits []float64) (gradients, error) {
	if err := e.put(e.do, trial.Bytes(narrow(do))); err != nil {
		return gradients{}, err
	}
	b := moe.Backward{
		X: e.x, Router: e.router, W1: e.w1.layer, W2: e.w2.layer, H: e.h, Scores: e.scores, Experts: e.experts,
		DO: e.do, DX: e.dx, DRouter: e.drouter, Workspace: e.workspace,
	}
	if dlogits != nil {
		b.DLogits = e.dlogits
		if err := e.put(e.dlogits, trial.Bytes(singles(dlogits))); err != nil {
			return gradients{}, err
		}
	}
	if !e.frozen {
		b.WeightGradients = moe.WeightGradients{DW1: e.w1.grad, DW2: e.w2.grad, AccumulateDW1: e.added, AccumulateDW2: e.added}
		e.added = true
	}
	if err := e.call.Backward(e.stream, b); err != nil {
		return gradients{}, err
	}
	if err := e.wait(ctx); err != nil {
		return gradients{}, fmt.Errorf("backward pass: %w", err)
	}
	dx, drouter := make([]uint16, e.dx.Shape.Elements()), make([]float32, e.drouter.Shape.Elements())
	if err := errors.Join(e.get(trial.Bytes(dx), e.dx), e.get(trial.Bytes(drouter), e.drouter)); err != nil {
		return gradients{}, err
	}
	g := gradients{x: widen(dx), router: make([]float64, len(drouter))}
	for i, v := range drouter {
		g.router[i] = float64(v)
	}
	return g, nil
}

// Step queues the kernels; the next pass comes after them.
func (e *deviceExperts) Step(_ context.Context, a adam) error {
	if e.frozen || !e.added {
		return nil
	}
	e.added = false
	return errors.Join(e.w1.step(e.stream, a), e.w2.step(e.stream, a))
}

// put and get copy whole tensors.
func (d *device) put(to moe.Tensor, bytes []byte) error { return d.stream.CopyToDevice(to.Ptr, bytes) }

func (d *device) get(bytes []byte, from moe.Tensor) error {
	return d.stream.CopyToHost(bytes, from.Ptr)
}

// singles rounds to FP32.
func singles(values []float64) []float32 {
	out := make([]float32, len(values))
	for i, v := range values {
		out[i] = float32(v)
	}
	return out
}

// deviceWeight is a weight on a device: bf16 for the layer, FP32 to add up
// gradients and steps in.
type deviceWeight struct {
	layer, grad        moe.Tensor
	main, mean, square driver.DevicePtr
	update             *jit.Binding
}

// newWeight puts a weight, given as bf16 bits, on the device. A frozen one has
// no more than these.
func (d *device) newWeight(shape moe.Shape, bits []uint16) (w deviceWeight, err error) {
	if err := d.tensors(place{&w.layer, shape}); err != nil {
		return w, err
	}
	if err := d.put(w.layer, trial.Bytes(bits)); err != nil || d.frozen {
		return w, err
	}
	shape.Type = moe.F32
	if err := d.tensors(place{&w.grad, shape}); err != nil {
		return w, err
	}
	for _, p := range []*driver.DevicePtr{&w.main, &w.mean, &w.square} {
		if *p, err = d.alloc(shape.Bytes()); err != nil {
			return w, err
		}
	}
	wide := make([]float32, len(bits))
	for i, b := range bits {
		wide[i] = math.Float32frombits(uint32(b) << 16)
	}
	err = errors.Join(d.stream.CopyToDevice(w.main, trial.Bytes(wide)),
		d.stream.Fill32(w.mean, 0, shape.Elements()), d.stream.Fill32(w.square, 0, shape.Elements()))
	n := int(shape.Elements())
	w.update = d.adam.Bind(d.dev, driver.Launch{
		Grid: driver.Dim3{X: (n + adamThreads - 1) / adamThreads}, Block: driver.Dim3{X: adamThreads}})
	for name, p := range map[string]driver.DevicePtr{"weight": w.layer.Ptr, "main": w.main, "mean": w.mean, "square": w.square, "grad": w.grad.Ptr} {
		w.update.Ptr(name, p)
	}
	w.update.U32("n", uint32(n))
	return w, err
}

// step queues the optimizer's kernel.
func (w *deviceWeight) step(s driver.Stream, a adam) error {
	rate, square := a.scales()
	w.update.F32("rate", float32(rate))
	w.update.F32("squareScale", float32(square))
	return w.update.Launch(s)
}
