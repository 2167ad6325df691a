package faulty

import (
	"context"
	"sync/atomic"
	"time"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// module implements gpu.Module.
type module struct {
	gpu.Module
	dev    *Device
	closed atomic.Bool
}

func (m *module) Function(name string) (gpu.Function, error) {
	f, err := try(m.dev, FindFunction, func() (gpu.Function, error) { return m.Module.Function(name) })
	if err != nil {
		return nil, err
	}
	return &function{Function: f, dev: m.dev}, nil
}

func (m *module) Unload() error {
	return m.dev.release(Unload, &m.dev.modules, &m.closed, m.Module.Unload)
}

// function implements gpu.Function.
type function struct {
	gpu.Function
	dev *Device
}

func (f *function) Attributes() (gpu.FunctionAttributes, error) {
	return try(f.dev, Attributes, f.Function.Attributes)
}

func (f *function) AllowSharedBytes(bytes int) error {
	return f.dev.try(AllowSharedBytes, func() error { return f.Function.AllowSharedBytes(bytes) })
}

func innerFunction(f gpu.Function) gpu.Function {
	if w, ok := f.(*function); ok && w != nil {
		return w.Function
	}
	return f
}

// event implements driver.Event.
type event struct {
	driver.Event
	dev    *Device
	closed atomic.Bool
}

func (e *event) Record(s driver.Stream) error {
	return e.dev.try(Record, func() error { return e.Event.Record(innerStream(s)) })
}

func (e *event) Done() (bool, error) {
	return try(e.dev, Done, e.Event.Done)
}

func (e *event) Synchronize(ctx context.Context) error {
	return e.dev.try(EventSynchronize, func() error { return e.Event.Synchronize(ctx) })
}

func (e *event) Since(start driver.Event) (time.Duration, error) {
	return try(e.dev, Since, func() (time.Duration, error) { return e.Event.Since(innerEvent(start)) })
}

func (e *event) Close() error {
	return e.dev.release(EventClose, &e.dev.events, &e.closed, e.Event.Close)
}

func innerEvent(e driver.Event) driver.Event {
	if w, ok := e.(*event); ok && w != nil {
		return w.Event
	}
	return e
}

// graph implements driver.Graph.
type graph struct {
	driver.Graph
	dev    *Device
	closed atomic.Bool
}

func (g *graph) Launch(s driver.Stream) error {
	if err := g.dev.enter(GraphLaunch); err != nil {
		return err
	}
	if g.dev.discard.Load() {
		return nil
	}
	return g.Graph.Launch(innerStream(s))
}

func (g *graph) Close() error {
	return g.dev.release(GraphClose, &g.dev.graphs, &g.closed, g.Graph.Close)
}
