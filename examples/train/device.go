package main

import (
	"context"
	"errors"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// device is a compiled layer with a stream, a workspace, and tensors that all blocks of the
// model share. A tensor can be shared if no block needs it from forward to backward.
type device struct {
	dev        driver.Device
	stream     driver.Stream
	config     moe.Config
	layer      *moe.Layer // nil for a rank of a group
	adam       *jit.Function
	adamKernel *jit.Kernel[adamArgs]
	frozen     bool
	tokens     int    // largest number of tokens of a pass
	seed       uint64 // seed of the latest pass with rounding
	memory     *moe.Arena

	o, do, dx, dlogits, drouter moe.Tensor
	workspace                   moe.Buffer
}

// newDevice compiles the layer for passes of at most a number of tokens. If frozen is true, the
// experts' weights are not trained. Close the result before dev.
func newDevice(ctx context.Context, dev driver.Device, c moe.Config, tokens int, frozen bool, kept *cache.Cache) (d *device, err error) {
	if d, err = openDevice(ctx, dev, c, tokens, frozen, kept); err != nil {
		return nil, err
	}
	if d.layer, err = moe.New(ctx, dev, c, moe.WithCache(kept)); err == nil {
		err = d.reserve()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// openDevice makes the stream and compiles the optimizer.
func openDevice(ctx context.Context, dev driver.Device, c moe.Config, tokens int, frozen bool, kept *cache.Cache) (d *device, err error) {
	d = &device{dev: dev, config: c.Normal(), memory: moe.NewArena(dev), frozen: frozen, tokens: tokens}
	if d.adamKernel, err = adamKernel(); err != nil {
		return nil, err
	}
	if d.adam, err = jit.Of(dev).Load(ctx, kept, d.adamKernel.Source("adam"), gpu.CompileOptions{}); err != nil {
		return nil, err
	}
	d.stream, err = dev.NewStream()
	return d, err
}

// reserve allocates the tensors that the blocks share.
func (d *device) reserve() error {
	c := d.config
	sizes, err := d.layer.Sizes(d.tokens)
	if err != nil {
		return err
	}
	bytes := sizes.BackwardWorkspace
	if c.Rounds() {
		if sizes, err = d.layer.ListSizes(d.tokens, d.layer.RoundedRows(d.tokens)); err != nil {
			return err
		}
		bytes = max(bytes, sizes.BackwardWorkspace)
	}
	return d.reserveFor(bytes)
}

// reserveFor allocates these tensors with a workspace of a number of bytes.
func (d *device) reserveFor(bytes int64) error {
	c, g := d.config, d.config.Gradients(d.tokens, moe.F32)
	d.workspace, d.o = d.memory.Buffer(bytes), d.memory.Tensor(c.Shapes(d.tokens).O)
	d.do, d.dx, d.dlogits, d.drouter = d.memory.Tensor(g.DO), d.memory.Tensor(g.DX), d.memory.Tensor(g.DLogits), d.memory.Tensor(g.DRouter)
	return d.memory.Err()
}

// resize sets the shapes of the shared tensors for a pass with a number of tokens.
func (d *device) resize(tokens int) {
	c := d.config
	s, g := c.Shapes(tokens), c.Gradients(tokens, moe.F32)
	d.o.Shape, d.do.Shape, d.dx.Shape, d.dlogits.Shape = s.O, g.DO, g.DX, g.DLogits
}

// Close frees the device memory of all blocks.
func (d *device) Close() error { return errors.Join(d.memory.Free(), d.stream.Close()) }

// wait waits for the work of the stream.
func (d *device) wait(ctx context.Context) error {
	return d.adam.Explain(d.layer.Explain(d.stream.Synchronize(ctx)))
}

// put and get copy whole tensors to and from the device.
func (d *device) put(to moe.Tensor, bytes []byte) error { return d.stream.CopyToDevice(to.Ptr, bytes) }

func (d *device) get(bytes []byte, from moe.Tensor) error {
	return d.stream.CopyToHost(bytes, from.Ptr)
}
