package faulty

import (
	"context"
	"sync"
	"sync/atomic"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
)

// Device is a wrapper of another device. Create it with [Wrap]; the zero value is not usable.
type Device struct {
	inner   gpu.Device
	counts  [opCount]atomic.Int64
	fault   atomic.Pointer[armed]
	hook    atomic.Pointer[func(Op) error]
	broken  devkit.Breakage
	discard atomic.Bool

	streams, events, modules, graphs atomic.Int64

	mu    sync.Mutex
	alive map[driver.DevicePtr]int64 // sizes in bytes by address
}

// Wrap returns a device that does all its work on inner. It panics if inner cannot
// run kernels.
func Wrap(inner driver.Device) *Device {
	dev, err := gpu.Of(inner)
	if err != nil {
		panic(err)
	}
	return &Device{inner: dev, alive: map[driver.DevicePtr]int64{}}
}

// Discard turns the discarding of launches on or off. A discarded launch is counted and
// succeeds, but the kernel does not run.
func (d *Device) Discard(on bool) { d.discard.Store(on) }

// Live counts the objects that were created through a Device and not yet released.
type Live struct {
	Allocations, Bytes               int64
	Streams, Events, Modules, Graphs int64
}

// Live returns the present counts. Streams made by WrapStream are not counted.
func (d *Device) Live() Live {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := Live{Allocations: int64(len(d.alive)), Streams: d.streams.Load(), Events: d.events.Load(), Modules: d.modules.Load(), Graphs: d.graphs.Load()}
	for _, n := range d.alive {
		l.Bytes += n
	}
	return l
}

// Target implements driver.Device.
func (d *Device) Target() driver.Target { return d.inner.Target() }

// Producer implements driver.Device.
func (d *Device) Producer() string { return d.inner.Producer() }

// Accepts implements gpu.Device.
func (d *Device) Accepts(producer string) bool { return d.inner.Accepts(producer) }

// MaxPTXVersion implements gpu.Device.
func (d *Device) MaxPTXVersion() int { return d.inner.MaxPTXVersion() }

// Compile implements gpu.Device.
func (d *Device) Compile(ctx context.Context, ptx []byte, o gpu.CompileOptions) (gpu.Image, error) {
	return try(d, Compile, func() (gpu.Image, error) { return d.inner.Compile(ctx, ptx, o) })
}

// Load implements gpu.Device.
func (d *Device) Load(code []byte) (gpu.Module, error) {
	return made(d, Load, &d.modules, func() (gpu.Module, error) { return d.inner.Load(code) },
		func(m gpu.Module) gpu.Module { return &module{Module: m, dev: d} })
}

// Alloc implements driver.Device.
func (d *Device) Alloc(bytes int64) (driver.DevicePtr, error) {
	return d.alloc(Alloc, bytes, d.inner.Alloc)
}

func (d *Device) alloc(o Op, bytes int64, alloc func(int64) (driver.DevicePtr, error)) (driver.DevicePtr, error) {
	p, err := try(d, o, func() (driver.DevicePtr, error) { return alloc(bytes) })
	if err == nil {
		d.mu.Lock()
		d.alive[p] = bytes
		d.mu.Unlock()
	}
	return p, err
}

// Free implements driver.Device.
func (d *Device) Free(p driver.DevicePtr) error { return d.free(Free, p, d.inner.Free) }

func (d *Device) free(o Op, p driver.DevicePtr, free func(driver.DevicePtr) error) error {
	if err := d.enter(o); err != nil {
		return err
	}
	// The address is removed before the call, because another goroutine may get the same
	// address as soon as it is free.
	d.mu.Lock()
	bytes, known := d.alive[p]
	delete(d.alive, p)
	d.mu.Unlock()
	err := free(p)
	if err != nil && known {
		d.mu.Lock()
		d.alive[p] = bytes
		d.mu.Unlock()
	}
	return err
}

// Memory implements driver.Device.
func (d *Device) Memory() (free, total int64, err error) {
	if err := d.enter(Memory); err != nil {
		return 0, 0, err
	}
	return d.inner.Memory()
}

// NewStream implements driver.Device.
func (d *Device) NewStream() (driver.Stream, error) {
	return made(d, NewStream, &d.streams, d.inner.NewStream,
		func(s driver.Stream) driver.Stream { return &stream{Stream: s, dev: d, owned: true} })
}

// WrapStream implements driver.Device.
func (d *Device) WrapStream(handle uintptr) driver.Stream {
	return &stream{Stream: d.inner.WrapStream(handle), dev: d}
}

// NewEvent implements driver.Device.
func (d *Device) NewEvent() (driver.Event, error) {
	return made(d, NewEvent, &d.events, d.inner.NewEvent, func(e driver.Event) driver.Event { return &event{Event: e, dev: d} })
}

// EncodeTensorMap implements gpu.Device.
func (d *Device) EncodeTensorMap(m gpu.TensorMap) (gpu.EncodedTensorMap, error) {
	return try(d, EncodeTensorMap, func() (gpu.EncodedTensorMap, error) { return d.inner.EncodeTensorMap(m) })
}

// MaxActiveClusters implements gpu.Device.
func (d *Device) MaxActiveClusters(f gpu.Function, l gpu.Launch) (int, error) {
	return try(d, MaxActiveClusters, func() (int, error) { return d.inner.MaxActiveClusters(innerFunction(f), l) })
}

// Synchronize implements driver.Device.
func (d *Device) Synchronize(ctx context.Context) error {
	return d.try(DeviceSynchronize, func() error { return d.inner.Synchronize(ctx) })
}

// Err implements driver.Device.
func (d *Device) Err() error {
	if cause := d.broken.Cause(); cause != nil {
		return cause
	}
	return d.inner.Err()
}

// Close implements driver.Device: it closes the wrapped device.
func (d *Device) Close() error { return d.inner.Close() }
