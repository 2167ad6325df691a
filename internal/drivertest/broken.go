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
	image, err := dev.Compile(t.Context(), source(t, "count.ptx"), gpu.CompileOptions{})
	require.NoError(t, err)
	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	poke, err := m.Function("poke")
	require.NoError(t, err)
	event, err := dev.NewEvent()
	require.NoError(t, err)
	good, err := dev.Alloc(256)
	require.NoError(t, err)
	require.NoError(t, dev.Err())
	stream, err := dev.NewStream()
	require.NoError(t, err)

	// No memory is allocated at this address.
	err = gpu.Enqueue(stream, poke, &gpu.Launch{}, pack(driver.DevicePtr(0x40), uint32(1)))
	if err == nil {
		err = stream.Synchronize(t.Context())
	}
	require.ErrorIs(t, err, driver.ErrBroken)
	first := dev.Err()
	require.ErrorIs(t, first, driver.ErrBroken)
	var cause *driver.Error
	require.ErrorAs(t, first, &cause)

	tensor := gpu.TensorMap{Elem: gpu.BF16, Rank: 1, Address: good, Dims: [5]uint64{128}, Box: [5]uint32{64}}
	for name, call := range map[string]func() error{
		"Compile": func() error {
			_, err := dev.Compile(t.Context(), source(t, "add.ptx"), gpu.CompileOptions{})
			return err
		},
		"Load":               func() error { _, err := dev.Load(image.Code); return err },
		"Function":           func() error { _, err := m.Function("poke"); return err },
		"Attributes":         func() error { _, err := poke.Attributes(); return err },
		"AllowSharedBytes":   func() error { return poke.AllowSharedBytes(1024) },
		"Alloc":              func() error { _, err := dev.Alloc(256); return err },
		"Free":               func() error { return dev.Free(good) },
		"Memory":             func() error { _, _, err := dev.Memory(); return err },
		"NewStream":          func() error { _, err := dev.NewStream(); return err },
		"NewEvent":           func() error { _, err := dev.NewEvent(); return err },
		"EncodeTensorMap":    func() error { _, err := dev.EncodeTensorMap(tensor); return err },
		"MaxActiveClusters":  func() error { _, err := dev.MaxActiveClusters(poke, gpu.Launch{}); return err },
		"Device.Synchronize": func() error { return dev.Synchronize(t.Context()) },
		"Launch":             func() error { return gpu.Enqueue(stream, poke, &gpu.Launch{}, pack(good, uint32(1))) },
		"CopyToDevice":       func() error { return stream.CopyToDevice(good, make([]byte, 4)) },
		"CopyToHost":         func() error { return stream.CopyToHost(make([]byte, 4), good) },
		"Copy":               func() error { return stream.Copy(good, good+128, 4) },
		"Fill32":             func() error { return stream.Fill32(good, 0, 4) },
		"AllocAsync":         func() error { _, err := stream.AllocAsync(256); return err },
		"FreeAsync":          func() error { return stream.FreeAsync(good) },
		"Wait":               func() error { return stream.Wait(event) },
		"Stream.Synchronize": func() error { return stream.Synchronize(t.Context()) },
		"BeginCapture":       func() error { return stream.BeginCapture() },
		"Record":             func() error { return event.Record(stream) },
		"Done":               func() error { _, err := event.Done(); return err },
		"Event.Synchronize":  func() error { return event.Synchronize(t.Context()) },
	} {
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
