package drivertest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// RunBroken breaks the device that open returns, and checks that every later call fails with
// the first error. On a GPU the process cannot use that GPU afterwards, so run RunBroken in a
// process of its own.
func RunBroken(t *testing.T, open func() gpu.Device) {
	dev := open()
	o := makeObjects(t, dev)

	// No memory is allocated at this address.
	err := gpu.Enqueue(o.stream, o.poke, &gpu.Launch{}, pack(driver.DevicePtr(0x40), uint32(1)))
	if err == nil {
		err = o.stream.Synchronize(t.Context())
	}
	require.ErrorIs(t, err, driver.ErrBroken)
	first := dev.Err()
	require.ErrorIs(t, first, driver.ErrBroken)
	var cause *driver.Error
	require.ErrorAs(t, first, &cause)

	for name, call := range o.calls(t, dev) {
		err := call()
		require.ErrorIs(t, err, driver.ErrBroken, name)
		assert.ErrorIs(t, err, first, "%s must fail with the first error", name)
		var e *driver.Error
		require.ErrorAs(t, err, &e)
		assert.Contains(t, e.Error(), "not tried, the device broke at ", name)
		assert.Equal(t, []any{cause.Kernel, cause.Line}, []any{e.Kernel, e.Line}, name)
	}
	assert.Equal(t, first, dev.Err(), "Err keeps the first error")
	require.NoError(t, dev.Close(), "a broken device can be closed")
}

// objects are a device's objects, made before the device breaks.
type objects struct {
	image  gpu.Image
	module gpu.Module
	poke   gpu.Function
	event  driver.Event
	good   driver.DevicePtr
	stream driver.Stream
}

func makeObjects(t *testing.T, dev gpu.Device) (o objects) {
	var err error
	o.image, err = dev.Compile(t.Context(), source(t, "count.ptx"), gpu.CompileOptions{})
	require.NoError(t, err)
	o.module, err = dev.Load(o.image.Code)
	require.NoError(t, err)
	o.poke, err = o.module.Function("poke")
	require.NoError(t, err)
	o.event, err = dev.NewEvent()
	require.NoError(t, err)
	o.good, err = dev.Alloc(256)
	require.NoError(t, err)
	require.NoError(t, dev.Err())
	o.stream, err = dev.NewStream()
	require.NoError(t, err)
	return o
}

// calls returns the calls of a device and of its objects that fail if the device is broken.
func (o objects) calls(t *testing.T, dev gpu.Device) map[string]func() error {
	tensor := gpu.TensorMap{Elem: gpu.BF16, Rank: 1, Address: o.good, Dims: [5]uint64{128}, Box: [5]uint32{64}}
	return map[string]func() error{
		"Compile": func() error {
			_, err := dev.Compile(t.Context(), source(t, "add.ptx"), gpu.CompileOptions{})
			return err
		},
		"Load":               func() error { _, err := dev.Load(o.image.Code); return err },
		"Function":           func() error { _, err := o.module.Function("poke"); return err },
		"Attributes":         func() error { _, err := o.poke.Attributes(); return err },
		"AllowSharedBytes":   func() error { return o.poke.AllowSharedBytes(1024) },
		"Alloc":              func() error { _, err := dev.Alloc(256); return err },
		"Free":               func() error { return dev.Free(o.good) },
		"Memory":             func() error { _, _, err := dev.Memory(); return err },
		"NewStream":          func() error { _, err := dev.NewStream(); return err },
		"NewEvent":           func() error { _, err := dev.NewEvent(); return err },
		"EncodeTensorMap":    func() error { _, err := dev.EncodeTensorMap(tensor); return err },
		"MaxActiveClusters":  func() error { _, err := dev.MaxActiveClusters(o.poke, gpu.Launch{}); return err },
		"Device.Synchronize": func() error { return dev.Synchronize(t.Context()) },
		"Launch":             func() error { return gpu.Enqueue(o.stream, o.poke, &gpu.Launch{}, pack(o.good, uint32(1))) },
		"CopyToDevice":       func() error { return o.stream.CopyToDevice(o.good, make([]byte, 4)) },
		"CopyToHost":         func() error { return o.stream.CopyToHost(make([]byte, 4), o.good) },
		"Copy":               func() error { return o.stream.Copy(o.good, o.good+128, 4) },
		"Fill32":             func() error { return o.stream.Fill32(o.good, 0, 4) },
		"AllocAsync":         func() error { _, err := o.stream.AllocAsync(256); return err },
		"FreeAsync":          func() error { return o.stream.FreeAsync(o.good) },
		"Wait":               func() error { return o.stream.Wait(o.event) },
		"Stream.Synchronize": func() error { return o.stream.Synchronize(t.Context()) },
		"BeginCapture":       func() error { return o.stream.BeginCapture() },
		"Record":             func() error { return o.event.Record(o.stream) },
		"Done":               func() error { _, err := o.event.Done(); return err },
		"Event.Synchronize":  func() error { return o.event.Synchronize(t.Context()) },
	}
}
