package drivertest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// RunClosed closes a device twice. It checks that every later call fails, and that Err reports
// the closed device.
func RunClosed(t *testing.T, dev gpu.Device) {
	image, err := dev.Compile(t.Context(), source(t, "add.ptx"), gpu.CompileOptions{})
	require.NoError(t, err)
	stream, err := dev.NewStream()
	require.NoError(t, err)
	require.NoError(t, dev.Err())
	require.NoError(t, dev.Close())
	require.NoError(t, dev.Close(), "closing twice is harmless")
	for name, call := range map[string]func() error{
		"Err": dev.Err,
		"Compile": func() error {
			_, err := dev.Compile(t.Context(), source(t, "add.ptx"), gpu.CompileOptions{})
			return err
		},
		"Load":        func() error { _, err := dev.Load(image.Code); return err },
		"Alloc":       func() error { _, err := dev.Alloc(256); return err },
		"Free":        func() error { return dev.Free(256) },
		"Memory":      func() error { _, _, err := dev.Memory(); return err },
		"NewStream":   func() error { _, err := dev.NewStream(); return err },
		"NewEvent":    func() error { _, err := dev.NewEvent(); return err },
		"Synchronize": func() error { return dev.Synchronize(t.Context()) },
		"Fill32":      func() error { return stream.Fill32(256, 0, 4) },
	} {
		err := call()
		require.ErrorIs(t, err, driver.ErrInvalid, name)
		assert.ErrorContains(t, err, "closed", name)
	}
}
