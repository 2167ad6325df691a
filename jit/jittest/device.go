// Package jittest wraps a device so that tests see what making kernels costs
// and can make any step of it fail or wait.
package jittest

import (
	"context"
	"sync"

	"sonicmoe/driver"
)

// Op is a step of making a kernel callable.
type Op string

// The steps that a Device counts.
const (
	Compile          Op = "Compile"
	Load             Op = "Load"
	Function         Op = "Function"
	AllowSharedBytes Op = "AllowSharedBytes"
	Unload           Op = "Unload"
)

// Device is a device that counts steps. Kernels run as on the wrapped one;
// events and graphs are the wrapped one's own and don't know this one's streams.
type Device struct {
	driver.Device

	mu     sync.Mutex
	counts map[Op]int
	all    int
	hook   func(op Op, n int) error
}

// Wrap makes a device that counts dev's steps.
func Wrap(dev driver.Device) *Device {
	return &Device{Device: dev, counts: map[Op]int{}}
}

// Before has hook called before each step, with the steps of all kinds counted
// from 1, this one included. Its error is the step's; it may block. Nil ends it.
func (d *Device) Before(hook func(op Op, n int) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = hook
}

// Count is how often op was called, failed calls included; without arguments
// it counts all steps.
func (d *Device) Count(ops ...Op) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(ops) == 0 {
		return d.all
	}
	n := 0
	for _, op := range ops {
		n += d.counts[op]
	}
	return n
}

// Reset counts from zero again.
func (d *Device) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts, d.all = map[Op]int{}, 0
}

func (d *Device) step(op Op) error {
	d.mu.Lock()
	d.counts[op]++
	d.all++
	hook, n := d.hook, d.all
	d.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(op, n)
}

// Compile counts and passes on.
func (d *Device) Compile(ctx context.Context, ptx []byte, o driver.CompileOptions) (driver.Image, error) {
	if err := d.step(Compile); err != nil {
		return driver.Image{}, err
	}
	return d.Device.Compile(ctx, ptx, o)
}

// Load counts and passes on.
func (d *Device) Load(code []byte) (driver.Module, error) {
	if err := d.step(Load); err != nil {
		return nil, err
	}
	m, err := d.Device.Load(code)
	if err != nil {
		return nil, err
	}
	return &module{Module: m, dev: d}, nil
}

// NewStream gives a stream that takes this device's functions.
func (d *Device) NewStream() (driver.Stream, error) {
	s, err := d.Device.NewStream()
	if err != nil {
		return nil, err
	}
	return &stream{s}, nil
}

// WrapStream gives a stream that takes this device's functions.
func (d *Device) WrapStream(handle uintptr) driver.Stream {
	return &stream{d.Device.WrapStream(handle)}
}

// MaxActiveClusters passes on.
func (d *Device) MaxActiveClusters(f driver.Function, l driver.Launch) (int, error) {
	return d.Device.MaxActiveClusters(inner(f), l)
}

type module struct {
	driver.Module
	dev *Device
}

func (m *module) Function(name string) (driver.Function, error) {
	if err := m.dev.step(Function); err != nil {
		return nil, err
	}
	f, err := m.Module.Function(name)
	if err != nil {
		return nil, err
	}
	return &function{Function: f, dev: m.dev}, nil
}

func (m *module) Unload() error {
	if err := m.dev.step(Unload); err != nil {
		return err
	}
	return m.Module.Unload()
}

type function struct {
	driver.Function
	dev *Device
}

func (f *function) AllowSharedBytes(bytes int) error {
	if err := f.dev.step(AllowSharedBytes); err != nil {
		return err
	}
	return f.Function.AllowSharedBytes(bytes)
}

type stream struct{ driver.Stream }

func (s *stream) Launch(f driver.Function, l *driver.Launch, params []byte) error {
	return s.Stream.Launch(inner(f), l, params)
}

// inner is the wrapped device's own function.
func inner(f driver.Function) driver.Function {
	if w, ok := f.(*function); ok {
		return w.Function
	}
	return f
}
