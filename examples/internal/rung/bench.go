package rung

import (
	"context"
	"errors"
	"time"
	"unsafe"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/num"
	"sonicmoe/jit"
)

// Bench is a device with one stream and the buffers of a program. After its first error, all
// calls do nothing, and [Bench.Err] returns the error. A program therefore checks for an error
// only once.
type Bench struct {
	// GPU reports whether the device is a GPU.
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

// Device returns the device's name.
func (b *Bench) Device() string { return b.dev.Target().Name }

// Err returns the first error, or nil.
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

// Buffer allocates n elements and fills them with bytes of 0xff, which read as NaN. An element
// that a kernel does not write is then visible.
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

// Upload returns a buffer with the given elements.
func Upload[T Number](b *Bench, data []T) driver.DevicePtr {
	p := Buffer[T](b, len(data))
	b.do(func() error { return b.stream.CopyToDevice(p, num.Bytes(data)) })
	return p
}

// Download waits for the work of the stream and returns n elements. After an error it returns
// zeros.
func Download[T Number](b *Bench, p driver.DevicePtr, n int) []T {
	data := make([]T, n)
	b.do(func() error { return b.stream.CopyToHost(num.Bytes(data), p) })
	return data
}

// Program is a loaded kernel whose arguments are of type A.
type Program[A any] struct {
	b        *Bench
	fn       *jit.Function
	launcher *jit.Launcher[A]
}

// Load builds, compiles and loads a kernel. An error names the Go line that caused it.
func Load[A any](b *Bench, k *jit.Builder[A]) *Program[A] {
	p := &Program[A]{b: b}
	b.do(func() error {
		built, err := k.Build()
		if err != nil {
			return err
		}
		if p.fn, err = jit.Of(b.dev).Load(context.Background(), nil, built.Source(built.Name), gpu.CompileOptions{}); err != nil {
			return err
		}
		p.launcher = built.Launcher(p.fn)
		return nil
	})
	return p
}

// Listing returns the PTX with the Go line of each instruction.
func (p *Program[A]) Listing() string {
	if p.b.err != nil {
		return ""
	}
	return string(p.fn.Listing())
}

// Run launches the kernel and waits.
func (p *Program[A]) Run(args A) {
	p.b.do(func() error { return p.runs(args, 1) })
}

// Time returns the mean time of a launch by the device's clock. It first runs the launches once
// to warm up.
func (p *Program[A]) Time(runs int, args A) (mean time.Duration) {
	p.b.do(func() (err error) {
		var events [2]driver.Event
		for i := range events {
			if events[i], err = p.b.dev.NewEvent(); err != nil {
				return err
			}
			defer events[i].Close()
		}
		if err := p.runs(args, runs); err != nil { // warms up
			return err
		}
		if err := events[0].Record(p.b.stream); err != nil {
			return err
		}
		if err := p.queue(args, runs); err != nil {
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

func (p *Program[A]) queue(args A, runs int) error {
	for range runs {
		if err := p.launcher.Launch(p.b.stream, args); err != nil {
			return err
		}
	}
	return nil
}

func (p *Program[A]) runs(args A, runs int) error {
	if err := p.queue(args, runs); err != nil {
		return err
	}
	return p.fn.Explain(p.b.stream.Synchronize(context.Background()))
}
