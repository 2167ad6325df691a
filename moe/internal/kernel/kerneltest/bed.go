// Package kerneltest runs single kernels for their tests, with inputs that the tests make.
// The device is the one that SONICMOE_DEVICE names, or the emulated device with every
// timing of asynchronous work.
package kerneltest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/num"
	"sonicmoe/jit"
	"sonicmoe/ptx/emu"
)

// Poison is the word that fills memory until a kernel writes it.
const Poison = 0xffffffff

// Timing determines when asynchronous work completes on the emulated device.
type Timing struct {
	Name string
	of   emu.Timing
	seed uint64
}

// Early completes asynchronous work as early as possible.
var Early = Timing{"early", emu.Early, 0}

// Timings lists the timings for tests of kernels with asynchronous work.
func Timings() []Timing {
	list, seeds := []Timing{Early, {"late", emu.Late, 0}}, uint64(2)
	switch {
	case Long():
		seeds = 30
	case testing.Short():
		seeds = 1
	}
	for seed := range seeds {
		list = append(list, Timing{fmt.Sprintf("random %d", seed), emu.Random, seed})
	}
	return list
}

// Long reports whether the long tests are wanted.
func Long() bool { return os.Getenv("SONICMOE_LONG") != "" }

var (
	devicesMu sync.Mutex
	devices   = map[Timing]driver.Device{}
)

// deviceOf returns the device that SONICMOE_DEVICE names, or an emulated device with the
// given timing. With the late timing it also looks for races. A GPU ignores the timing.
func deviceOf(t testing.TB, when Timing) driver.Device {
	devicesMu.Lock()
	defer devicesMu.Unlock()
	name := drivertest.Name()
	if name != "emulated" {
		when = Timing{}
	}
	if devices[when] == nil {
		var err error
		if when == (Timing{}) {
			devices[when], err = open.Device(context.Background(), name)
		} else {
			devices[when], err = emulate(when)
		}
		require.NoError(t, err)
	}
	return devices[when]
}

// emulate opens an emulated device.
func emulate(when Timing) (driver.Device, error) {
	return emulated.New(emulated.Options{Timing: when.of, Seed: when.seed, Races: when.of == emu.Late})
}

// Bed runs single kernels on a stream.
type Bed struct {
	T      testing.TB
	Device driver.Device
	Stream driver.Stream
	// toBreak reports whether the device may be broken at the end of the test.
	toBreak bool
}

// New returns a bed with its own stream.
func New(t testing.TB, when Timing) *Bed { return on(&Bed{T: t, Device: deviceOf(t, when)}) }

// NewToBreak returns a bed on its own emulated device, for tests of faults: a device stays
// broken after a fault.
func NewToBreak(t testing.TB, when Timing) *Bed {
	dev, err := emulate(when)
	require.NoError(t, err)
	t.Cleanup(func() { jit.Forget(dev) })
	return on(&Bed{T: t, Device: dev, toBreak: true})
}

// NewToCheck is NewToBreak on a device that runs each launch several times: with asynchronous
// operations as early as possible, as late as possible, and in the given number of random orders. It
// looks for races and for missing proxy fences.
func NewToCheck(t testing.TB, seeds int) *Bed {
	dev, err := emulated.New(emulated.Options{Check: seeds, StrictProxy: true})
	require.NoError(t, err)
	t.Cleanup(func() { jit.Forget(dev) })
	return on(&Bed{T: t, Device: dev, toBreak: true})
}

func on(b *Bed) *Bed {
	var err error
	b.Stream, err = b.Device.NewStream()
	require.NoError(b.T, err)
	b.cleanup(b.Stream.Close)
	return b
}

// cleanup closes a resource at the end of the test.
func (b *Bed) cleanup(end func() error) {
	b.T.Cleanup(func() {
		if err := end(); !b.toBreak {
			require.NoError(b.T, err)
		}
	})
}

// Upload copies values to the device.
func Upload[E num.Number](b *Bed, values []E) driver.DevicePtr {
	p := b.Room(len(num.Bytes(values)))
	require.NoError(b.T, b.Stream.CopyToDevice(p, num.Bytes(values)))
	return p
}

// Room allocates the given number of bytes, filled with poison. The emulator reports
// accesses outside these bytes.
func (b *Bed) Room(bytes int) driver.DevicePtr {
	bytes = max(4, (bytes+3)/4*4)
	p, err := b.Device.Alloc(int64(bytes))
	require.NoError(b.T, err)
	b.cleanup(func() error { return b.Device.Free(p) })
	require.NoError(b.T, b.Stream.Fill32(p, Poison, int64(bytes/4)))
	return p
}

// Download reads n values from the device.
func Download[E num.Number](b *Bed, p driver.DevicePtr, n int) []E {
	values := make([]E, n)
	require.NoError(b.T, b.Stream.CopyToHost(num.Bytes(values), p))
	return values
}

// Poisoned returns n poison values.
func Poisoned[E uint16 | uint32](n int) []E {
	return slices.Repeat([]E{^E(0)}, n)
}

// Run builds a kernel, runs it and waits for it. ctas is the number of CTAs, rounded to
// whole clusters, or 0 for the grid of the kernel's own launches.
func Run[A any](b *Bed, from interface {
	Build() (*jit.Kernel[A], error)
}, ctas int, args A) {
	b.T.Helper()
	Queue(b, from, ctas, args)
	require.NoError(b.T, b.Stream.Synchronize(context.Background()))
}

// Queue is Run without the wait: the next kernel of the stream may start before this one has ended.
func Queue[A any](b *Bed, from interface {
	Build() (*jit.Kernel[A], error)
}, ctas int, args A) {
	b.T.Helper()
	k, err := from.Build()
	require.NoError(b.T, err)
	fn, err := jit.Of(b.Device).Load(context.Background(), nil, k.Source(fmt.Sprintf("%T", from)), gpu.CompileOptions{})
	require.NoError(b.T, err)
	l := k.Launcher(fn)
	if ctas == 0 {
		require.NoError(b.T, l.Launch(b.Stream, args))
	} else {
		cluster := max(1, k.Cluster)
		require.NoError(b.T, l.LaunchGrid(b.Stream, args, gpu.Dim3{X: (ctas + cluster - 1) / cluster * cluster}))
	}
}

// SameBits compares the bits of long results: NaN equals the same NaN, and 0 differs from -0. A failure
// shows only the first difference.
func SameBits[E num.Number](t testing.TB, want, got []E, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	of, in := num.Bytes(want), num.Bytes(got)
	if bytes.Equal(of, in) {
		return
	}
	size := len(of) / len(want)
	for i := range want {
		if a, b := of[i*size:(i+1)*size], in[i*size:(i+1)*size]; !bytes.Equal(a, b) {
			t.Fatalf("%s: element %d is %v (bytes %x), must be %v (%x)", what, i, got[i], b, want[i], a)
		}
	}
}
