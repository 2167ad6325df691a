package rung

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/moe/trial"
	"sonicmoe/ptx"
)

// Bench is a device with one stream and the buffers of a program. Its first
// error stays: later calls do nothing and [Bench.Err] returns it, so that a
// program reads as what it does.
type Bench struct {
	// GPU says that the device is one, not the emulation.
	GPU    bool
	dev    driver.Device
	stream driver.Stream
	owned  []driver.DevicePtr
	err    error
}

func newBench(dev driver.Device, gpu bool) *Bench {
	b := &Bench{GPU: gpu, dev: dev}
	b.stream, b.err = dev.NewStream()
	return b
}

// Device is the device's name.
func (b *Bench) Device() string { return b.dev.Target().Name }

// Err is the first error, nil when all went well.
func (b *Bench) Err() error { return b.err }

// Close frees the buffers and closes the device.
func (b *Bench) Close() error {
	var errs []error
	for _, p := range b.owned {
		errs = append(errs, b.dev.Free(p))
	}
	if b.stream != nil {
		errs = append(errs, b.stream.Close())
	}
	jit.Forget(b.dev)
	return errors.Join(append(errs, b.dev.Close())...)
}

func (b *Bench) do(f func() error) {
	if b.err == nil {
		b.err = f()
	}
}

// Number is an element of a buffer.
type Number interface {
	uint16 | uint32 | float32
}

// Buffer makes room for n elements and fills it with bytes of 0xff: NaN, so
// that what a kernel forgets to write is seen.
func Buffer[T Number](b *Bench, n int) (p driver.DevicePtr) {
	var t T
	bytes := (int64(n)*int64(unsafe.Sizeof(t)) + 3) / 4 * 4
	b.do(func() (err error) {
		if p, err = b.dev.Alloc(bytes); err != nil {
			return err
		}
		b.owned = append(b.owned, p)
		return b.stream.Fill32(p, 0xffffffff, bytes/4)
	})
	return p
}

// Upload makes a buffer with these elements.
func Upload[T Number](b *Bench, data []T) driver.DevicePtr {
	p := Buffer[T](b, len(data))
	b.do(func() error { return b.stream.CopyToDevice(p, trial.Bytes(data)) })
	return p
}

// Download waits for the stream's work and brings n elements back. After an
// error they are zero.
func Download[T Number](b *Bench, p driver.DevicePtr, n int) []T {
	data := make([]T, n)
	b.do(func() error { return b.stream.CopyToHost(trial.Bytes(data), p) })
	return data
}

// Kernel is a built kernel with the shape of its launches.
type Kernel struct {
	Kernel *ptx.Kernel
	Name   string
	// Grid is the CTAs along x and y, Threads those of each CTA.
	Grid        [2]int
	Threads     int
	SharedBytes int
}

// Program is a kernel that a bench has loaded.
type Program struct {
	b      *Bench
	fn     *jit.Function
	launch driver.Launch
}

// Load builds, compiles and loads a kernel. Errors carry the Go line at fault.
func (b *Bench) Load(k Kernel) *Program {
	p := &Program{b: b, launch: driver.Launch{
		Grid: driver.Dim3{X: k.Grid[0], Y: k.Grid[1]}, Block: driver.Dim3{X: k.Threads}, SharedBytes: k.SharedBytes}}
	b.do(func() error {
		m, err := k.Kernel.Build()
		if err != nil {
			return err
		}
		p.fn, err = jit.Of(b.dev).Load(context.Background(), nil, jit.Source{Module: m, Name: k.Name, SharedBytes: k.SharedBytes}, driver.CompileOptions{})
		return err
	})
	return p
}

// Listing is the PTX with the Go line behind each instruction.
func (p *Program) Listing() string {
	if p.b.err != nil {
		return ""
	}
	return string(p.fn.Listing())
}

// Run launches the kernel and waits. Arguments stand in the order of the
// kernel's parameters: driver.DevicePtr, driver.TensorMap, float32, or int for
// an unsigned word.
func (p *Program) Run(args ...any) {
	p.b.do(func() error {
		kernel, err := p.bind(args)
		if err != nil {
			return err
		}
		return p.runs(kernel, 1)
	})
}

// Time is the mean of so many launches, after as many to warm up, by the device's clock.
func (p *Program) Time(runs int, args ...any) (mean time.Duration) {
	p.b.do(func() error {
		kernel, err := p.bind(args)
		if err != nil {
			return err
		}
		var events [2]driver.Event
		for i := range events {
			if events[i], err = p.b.dev.NewEvent(); err != nil {
				return err
			}
			defer events[i].Close()
		}
		if err := p.runs(kernel, runs); err != nil { // warms up
			return err
		}
		if err := events[0].Record(p.b.stream); err != nil {
			return err
		}
		if err := p.queue(kernel, runs); err != nil {
			return err
		}
		if err := events[1].Record(p.b.stream); err != nil {
			return err
		}
		if err := events[1].Synchronize(context.Background()); err != nil {
			return err
		}
		total, err := events[1].Since(events[0])
		mean = total / time.Duration(runs)
		return err
	})
	return mean
}

func (p *Program) queue(kernel *jit.Binding, runs int) error {
	for range runs {
		if err := kernel.Launch(p.b.stream); err != nil {
			return err
		}
	}
	return nil
}

func (p *Program) runs(kernel *jit.Binding, runs int) error {
	if err := p.queue(kernel, runs); err != nil {
		return err
	}
	return p.fn.Explain(p.b.stream.Synchronize(context.Background()))
}

// bind sets the kernel's parameters to the arguments, in their order.
func (p *Program) bind(args []any) (*jit.Binding, error) {
	params := p.fn.Params()
	if len(args) != len(params) {
		return nil, fmt.Errorf("kernel %s: %d arguments, it takes %d", p.fn.Name(), len(args), len(params))
	}
	binding := p.fn.Bind(p.b.dev, p.launch)
	for i, param := range params {
		if err := binding.Set(param.Name, args[i]); err != nil {
			return nil, err
		}
	}
	return binding, nil
}
