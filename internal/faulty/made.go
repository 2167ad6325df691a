package faulty

import (
	"context"
	"sync/atomic"
	"time"

	"sonicmoe/driver"
)

// module implements driver.Module.
type module struct {
	driver.Module
	dev    *Device
	closed atomic.Bool
}

func (m *module) Function(name string) (driver.Function, error) {
	if err := m.dev.enter(FindFunction); err != nil {
		return nil, err
	}
	f, err := m.Module.Function(name)
	if err != nil {
		return nil, err
	}
	return &function{Function: f, dev: m.dev}, nil
}

func (m *module) Unload() error {
	if err := m.dev.enter(Unload); err != nil {
		return err
	}
	err := m.Module.Unload()
	if err == nil && !m.closed.Swap(true) {
		m.dev.modules.Add(-1)
	}
	return err
}

// function implements driver.Function.
type function struct {
	driver.Function
	dev *Device
}

func (f *function) Attributes() (driver.FunctionAttributes, error) {
	if err := f.dev.enter(Attributes); err != nil {
		return driver.FunctionAttributes{}, err
	}
	return f.Function.Attributes()
}

func (f *function) AllowSharedBytes(bytes int) error {
	if err := f.dev.enter(AllowSharedBytes); err != nil {
		return err
	}
	return f.Function.AllowSharedBytes(bytes)
}

func innerFunction(f driver.Function) driver.Function {
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
	if err := e.dev.enter(Record); err != nil {
		return err
	}
	return e.Event.Record(innerStream(s))
}

func (e *event) Done() (bool, error) {
	if err := e.dev.enter(Done); err != nil {
		return false, err
	}
	return e.Event.Done()
}

func (e *event) Synchronize(ctx context.Context) error {
	if err := e.dev.enter(EventSynchronize); err != nil {
		return err
	}
	return e.Event.Synchronize(ctx)
}

func (e *event) Since(start driver.Event) (time.Duration, error) {
	if err := e.dev.enter(Since); err != nil {
		return 0, err
	}
	return e.Event.Since(innerEvent(start))
}

func (e *event) Close() error {
	if err := e.dev.enter(EventClose); err != nil {
		return err
	}
	err := e.Event.Close()
	if err == nil && !e.closed.Swap(true) {
		e.dev.events.Add(-1)
	}
	return err
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
	if err := g.dev.enter(GraphClose); err != nil {
		return err
	}
	err := g.Graph.Close()
	if err == nil && !g.closed.Swap(true) {
		g.dev.graphs.Add(-1)
	}
	return err
}
