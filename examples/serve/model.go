package main

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/internal/noise"
	"sonicmoe/internal/reference"
	"sonicmoe/moe"
)

// model is some layers of one configuration, each with its own weights, and a
// graph of all of them for each number of tokens.
type model struct {
	dev    driver.Device
	layer  *moe.Layer
	stream driver.Stream
	memory *moe.Arena
	passes []moe.Forward // of the layers, over the most tokens of a step
	graphs []driver.Graph
	done   driver.Event
}

// newModel makes the layers, with random weights, and captures their graphs.
func newModel(ctx context.Context, dev driver.Device, c moe.Config, layers, most int, kept *cache.Cache) (*model, error) {
	layer, err := moe.New(ctx, dev, c, moe.WithoutBackward(), moe.WithCache(kept))
	if err != nil {
		return nil, err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return nil, err
	}
	m := &model{dev: dev, layer: layer, stream: stream, memory: moe.NewArena(dev)}
	if m.done, err = dev.NewEvent(); err != nil {
		return nil, errors.Join(err, m.close())
	}
	if err := errors.Join(m.fill(layers, most), m.warm(ctx), m.capture(most)); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// fill allocates everything and draws weights and tokens.
func (m *model) fill(layers, most int) error {
	work, random := m.memory.Workspace(most, m.layer), noise.New(m.layer.Config().Type)
	for i := range layers {
		f := m.memory.Forward(m.layer, most)
		f.Weights, f.Workspace = m.memory.Weights(m.layer), work
		if err := m.memory.Err(); err != nil {
			return err
		}
		err := errors.Join(random.Fill(m.stream, f.W1, f.W3, f.W2, f.B1, f.B3, f.B2),
			moe.Write(m.stream, f.X, reference.NewNormal(1, 1).Values(f.X.Shape.Elements())),
			moe.Write(m.stream, f.Router, reference.NewNormal(uint64(2+i), 1).Values(f.Router.Shape.Elements())))
		if err != nil {
			return err
		}
		m.passes = append(m.passes, f)
	}
	return nil
}

// queue queues all layers over so many tokens.
func (m *model) queue(call *moe.Call, tokens int) error {
	for _, f := range m.passes {
		f, err := f.Tokens(tokens)
		if err != nil {
			return err
		}
		if err := call.Forward(m.stream, f); err != nil {
			return err
		}
	}
	return nil
}

// warm runs a step without a graph: an error of a kernel names its line.
func (m *model) warm(ctx context.Context) error {
	if err := m.queue(m.layer.NewCall(), 1); err != nil {
		return err
	}
	return m.layer.Explain(m.stream.Synchronize(ctx))
}

// capture makes the graphs of 1 to most tokens.
func (m *model) capture(most int) error {
	call := m.layer.NewCall()
	for tokens := 1; tokens <= most; tokens++ {
		if err := m.stream.BeginCapture(); err != nil {
			return err
		}
		err := m.queue(call, tokens)
		g, end := m.stream.EndCapture()
		if err = errors.Join(err, end); err != nil {
			return err
		}
		m.graphs = append(m.graphs, g)
	}
	return nil
}

// most is the most tokens of a step.
func (m *model) most() int { return len(m.graphs) }

// step runs all layers over so many tokens and waits for them. It asks the event
// again and again, which is quicker than blocking and allocates nothing.
func (m *model) step(ctx context.Context, tokens int) error {
	if err := m.graphs[tokens-1].Launch(m.stream); err != nil {
		return err
	}
	if err := m.done.Record(m.stream); err != nil {
		return err
	}
	for {
		if done, err := m.done.Done(); done || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// stepTime is the median of a few steps.
func (m *model) stepTime(ctx context.Context, tokens int) (time.Duration, error) {
	var times [5]time.Duration
	for i := range times {
		start := time.Now()
		if err := m.step(ctx, tokens); err != nil {
			return 0, err
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times[:])
	return times[len(times)/2], nil
}

// close gives back what the device has of it.
func (m *model) close() error {
	var errs []error
	for _, g := range m.graphs {
		errs = append(errs, g.Close())
	}
	if m.done != nil {
		errs = append(errs, m.done.Close())
	}
	return errors.Join(append(errs, m.memory.Free(), m.stream.Close())...)
}
