package kernel

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/open"
	"sonicmoe/jit"
	"sonicmoe/ptx/emu"
)

// poison fills what a kernel has not written yet.
const poison = 0xffffffff

// timing is when asynchronous work completes on the emulated device.
type timing struct {
	name string
	of   emu.Timing
	seed uint64
}

var early = timing{"early", emu.Early, 0}

// timings are all that a kernel with asynchronous work is run under.
func timings() []timing {
	list, seeds := []timing{early, {"late", emu.Late, 0}}, uint64(2)
	if long() {
		seeds = 30
	}
	for seed := range seeds {
		list = append(list, timing{fmt.Sprintf("random %d", seed), emu.Random, seed})
	}
	return list
}

// long reports whether the long sweeps are wanted.
func long() bool { return os.Getenv("SONICMOE_LONG") != "" }

var (
	devicesMu sync.Mutex
	devices   = map[timing]driver.Device{}
)

// deviceOf is the one that SONICMOE_DEVICE names, or the emulated one that
// completes its work at the given times. A GPU has its own.
func deviceOf(t testing.TB, when timing) driver.Device {
	devicesMu.Lock()
	defer devicesMu.Unlock()
	name := os.Getenv("SONICMOE_DEVICE")
	if name != "" && name != "emulated" {
		when = timing{}
	}
	if devices[when] == nil {
		var err error
		if when == (timing{}) {
			devices[when], err = open.Device(context.Background(), name)
		} else {
			devices[when], err = emulated.New(emulated.Options{Timing: when.of, Seed: when.seed})
		}
		require.NoError(t, err)
	}
	return devices[when]
}

// bed runs single kernels, fed by hand.
type bed struct {
	t   testing.TB
	dev driver.Device
	s   driver.Stream
}

func newBed(t testing.TB, when timing) *bed {
	b := &bed{t: t, dev: deviceOf(t, when)}
	var err error
	b.s, err = b.dev.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.s.Close()) })
	return b
}

// word is any 2- or 4-byte number.
type word interface {
	uint16 | int32 | uint32 | float32
}

func bytesOf[E word](s []E) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// upload puts values on the device.
func upload[E word](b *bed, values []E) driver.DevicePtr {
	p := b.room(len(bytesOf(values)))
	require.NoError(b.t, b.s.CopyToDevice(p, bytesOf(values)))
	return p
}

// room is so many bytes of poison, which the emulator lets nobody leave.
func (b *bed) room(bytes int) driver.DevicePtr {
	bytes = max(4, (bytes+3)/4*4)
	p, err := b.dev.Alloc(int64(bytes))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, b.dev.Free(p)) })
	require.NoError(b.t, b.s.Fill32(p, poison, int64(bytes/4)))
	return p
}

// download reads n values from the device.
func download[E word](b *bed, p driver.DevicePtr, n int) []E {
	values := make([]E, n)
	require.NoError(b.t, b.s.CopyToHost(bytesOf(values), p))
	return values
}

// poisoned is n poison values.
func poisoned[E uint16 | uint32](n int) []E {
	return slices.Repeat([]E{^E(0)}, n)
}

// args are a kernel's parameters by name: driver.DevicePtr, int or
// driver.TensorMap.
type args map[string]any

// run builds and runs a kernel, and waits for it.
func (b *bed) run(from builder, ctas int, a args) {
	b.t.Helper()
	k, err := from.Build()
	require.NoError(b.t, err)
	fn, err := jit.Of(b.dev).Load(context.Background(), nil, jit.Source{
		Module: k.Module, Name: k.Name, SharedBytes: k.SharedBytes, Label: fmt.Sprintf("%T", from),
	}, driver.CompileOptions{})
	require.NoError(b.t, err)
	require.Len(b.t, a, len(k.Module.Entry(k.Name).Params), "parameters of %s", k.Name)
	cluster := max(1, k.CTAs)
	launch := fn.Bind(b.dev, driver.Launch{Grid: driver.Dim3{X: (ctas + cluster - 1) / cluster * cluster}, Block: driver.Dim3{X: k.Threads},
		Cluster: driver.Dim3{X: k.CTAs}, SharedBytes: k.SharedBytes, Programmatic: true})
	for name, v := range a {
		require.NoError(b.t, launch.Set(name, v))
	}
	require.NoError(b.t, launch.Launch(b.s))
	require.NoError(b.t, b.s.Synchronize(context.Background()))
}
