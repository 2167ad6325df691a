package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/open"
	"sonicmoe/examples/layer/safetensors"
	"sonicmoe/moe"
	"sonicmoe/moe/spec"
)

// execute does the job and gives the line that says so. Files are checked
// before a device is opened.
func execute(ctx context.Context, o options, stderr io.Writer) (line string, err error) {
	closing := func(close func() error) { err = errors.Join(err, close()) }
	j, err := openJob(o)
	if err != nil {
		return "", err
	}
	defer closing(j.Close)
	out, err := createOutput(o.output, o.weights, o.input)
	if err != nil {
		return "", err
	}
	defer closing(out.discard)
	dev, err := openDevice(ctx, o.device, stderr)
	if err != nil {
		return "", err
	}
	defer closing(dev.Close)

	started := time.Now()
	layer, err := moe.New(ctx, dev, j.config, layerOptions(o, stderr)...)
	if err != nil {
		return "", err
	}
	made := time.Since(started)
	m, err := newMemory(dev, chunkBytes)
	if err != nil {
		return "", err
	}
	defer closing(m.Close)
	p := pass{job: j, layer: layer, memory: m}
	if err := p.run(ctx, out); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: %s on %s, T=%d %v: load %s (%.3g MB), moe.New %s, forward %s",
		j.input.path, o.output, dev.Target().Name, j.tokens, j.config,
		seconds(p.loaded), float64(p.bytes)/1e6, seconds(made), seconds(p.forwarded)), nil
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3g s", d.Seconds()) }

// openDevice opens the named device, or without a name the first GPU; where
// there is none it says so and takes the emulated device.
func openDevice(ctx context.Context, name string, stderr io.Writer) (driver.Device, error) {
	dev, err := open.Device(ctx, name)
	switch {
	case err == nil:
		return dev, nil
	case errors.Is(err, driver.ErrInvalid):
		return nil, usageErrorf("-device is %q, must be one of %s (N counts from 0)", name, strings.Join(open.Names(), ", "))
	case name != "":
		return nil, fmt.Errorf("-device %s: %w", name, err)
	case !errors.Is(err, driver.ErrNoDevice):
		return nil, err
	}
	fmt.Fprintf(stderr, "layer: no GPU (%v), so the emulated device is used: the same kernels, much slower\n", err)
	return open.Device(ctx, "emulated")
}

// layerOptions are where compiled kernels are kept, and who hears of trouble.
func layerOptions(o options, stderr io.Writer) []moe.Option {
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	kept := cache.Open(cache.Options{Dir: o.cache, Logger: logger}) // knows "" and "off"
	return []moe.Option{moe.WithLogger(logger), moe.WithCache(kept)}
}

// pass is a forward pass without saved activations.
type pass struct {
	job    *job
	layer  *moe.Layer
	memory *memory
	args   moe.Forward

	loaded, forwarded time.Duration
	bytes             int64 // read from the files
}

// run loads the inputs, computes, and writes the outputs.
func (p *pass) run(ctx context.Context, out *output) error {
	started := time.Now()
	if err := p.load(ctx); err != nil {
		return err
	}
	p.loaded = time.Since(started)
	if err := p.reserve(); err != nil {
		return err
	}
	started = time.Now()
	if err := p.layer.NewCall().Forward(p.memory.stream, p.args); err != nil {
		return err
	}
	if err := p.layer.Explain(p.memory.stream.Synchronize(ctx)); err != nil {
		return fmt.Errorf("forward pass: %w", err)
	}
	p.forwarded = time.Since(started)

	t, c := p.job.tokens, p.job.config
	return out.commit(
		fileTensor(nameO, safetensors.BF16, p.memory.reader(p.args.O.Ptr, p.args.O.Shape.Bytes()), t, c.Hidden),
		fileTensor(nameScores, safetensors.F32, p.memory.reader(p.args.Scores.Ptr, p.args.Scores.Shape.Bytes()), t, c.TopK),
		fileTensor(nameExperts, safetensors.I32, p.memory.reader(p.args.Experts.Ptr, p.args.Experts.Shape.Bytes()), t, c.TopK),
	)
}

// load brings weights and tokens to the device. Gate and up that are apart in
// the file are put together there, for each expert gate before up.
func (p *pass) load(ctx context.Context) error {
	s := p.job.shapes()
	for _, in := range []struct {
		to    *moe.Tensor
		shape spec.Shape
		from  source
		names []string
	}{
		{&p.args.Router, s.Router, p.job.weights, []string{nameRouter}},
		{&p.args.W1, s.W1, p.job.weights, p.job.w1Names()},
		{&p.args.W2, s.W2, p.job.weights, []string{nameDown}},
		{&p.args.X, s.X, p.job.input, []string{nameX}},
	} {
		var err error
		if *in.to, err = p.tensor(in.names[0], in.shape); err != nil {
			return err
		}
		// A block is what one expert has of one of the tensors that lie by turns.
		stride := max(in.shape.Bytes(), 1)
		if len(in.names) > 1 {
			stride /= in.shape.Dims[0]
		}
		block := stride / int64(len(in.names))
		for i, name := range in.names {
			at := in.to.Ptr + driver.DevicePtr(int64(i)*block)
			if err := p.memory.load(ctx, at, in.from, name, block, stride); err != nil {
				return err
			}
		}
		p.bytes += in.shape.Bytes()
	}
	return p.memory.stream.Synchronize(ctx)
}

// w1Names are the tensors that W1 is made of.
func (j *job) w1Names() []string {
	if j.separate {
		return []string{nameGate, nameUp}
	}
	return []string{nameGateUp}
}

// reserve makes room for what the pass writes.
func (p *pass) reserve() (err error) {
	s := p.job.shapes()
	if p.args.O, err = p.tensor(nameO, s.O); err != nil {
		return err
	}
	if p.args.Scores, err = p.tensor(nameScores, s.Scores); err != nil {
		return err
	}
	if p.args.Experts, err = p.tensor(nameExperts, s.Experts); err != nil {
		return err
	}
	w := &p.args.Workspace
	w.Bytes = p.layer.Sizes(p.job.tokens).Workspace
	w.Ptr, err = p.memory.alloc("the workspace", w.Bytes)
	return err
}

func (p *pass) tensor(name string, s spec.Shape) (moe.Tensor, error) {
	ptr, err := p.memory.alloc(name, s.Bytes())
	return moe.Tensor{Ptr: ptr, Shape: s}, err
}
