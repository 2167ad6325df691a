//go:build mumax && cgo

package mumax_test

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/gpu"
	"sonicmoe/driver/mumax"
	"sonicmoe/driver/open"
)

var fake = flag.Bool("fake", false, "this program was linked with the driver library for tests")

// TestFake calls a fake driver library through package cu. The test program is linked with this
// library: see .ci/mumax. For functions that the library lacks, the result is 34.
func TestFake(t *testing.T) {
	if !*fake {
		t.Skip("-fake is not given: this program was not linked with the library for tests")
	}
	dev, err := mumax.Open(t.Context(), 1, mumax.Options{})
	require.NoError(t, err)
	assert.Contains(t, open.Names(), "mumax:N")
	byName, err := open.Device(t.Context(), "mumax:1")
	require.NoError(t, err)
	assert.Equal(t, dev.Target(), byName.Target())
	require.NoError(t, byName.Close())
	target := dev.Target()
	assert.Equal(t, "Fake GPU 41", target.Name)
	assert.Equal(t, 16041, target.SMs)
	_, err = mumax.Open(t.Context(), 2, mumax.Options{})
	require.ErrorIs(t, err, driver.ErrNoDevice)
	assert.ErrorContains(t, err, "shows 2 GPUs")

	p, err := dev.Alloc(64)
	require.NoError(t, err)
	q, err := dev.Alloc(64)
	require.NoError(t, err)
	_, err = dev.Alloc(1 << 40)
	require.ErrorIs(t, err, driver.ErrOutOfMemory, "a panic of package cu")
	assert.ErrorContains(t, err, "1099511627776 bytes")
	free, total, err := dev.Memory()
	require.NoError(t, err)
	assert.EqualValues(t, 1<<36, free)
	assert.EqualValues(t, 1<<37, total)

	s, err := dev.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Fill32(p, 0x01020304, 16))
	require.NoError(t, s.CopyToDevice(p+4, []byte{9, 8, 7, 6}))
	require.NoError(t, s.Copy(q, p, 64))
	got := make([]byte, 12)
	require.NoError(t, s.CopyToHost(got, q))
	assert.Equal(t, []byte{4, 3, 2, 1, 9, 8, 7, 6, 4, 3, 2, 1}, got)
	require.NoError(t, s.Synchronize(t.Context()))
	require.NoError(t, dev.Synchronize(t.Context()))

	image, err := dev.Compile(t.Context(), []byte("kernel"), gpu.CompileOptions{})
	require.NoError(t, err)
	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	_, err = m.Function("absent")
	require.ErrorIs(t, err, gpu.ErrNotFound, "a panic of package cu")
	k, err := m.Function("kernel")
	require.NoError(t, err)
	a, err := k.Attributes()
	require.NoError(t, err)
	assert.Equal(t, gpu.FunctionAttributes{Registers: 104, LocalBytes: 103, StaticSharedBytes: 101, ConstBytes: 102,
		MaxThreadsPerCTA: 256, PTXVersion: 105, BinaryVersion: 106}, a)
	require.NoError(t, k.AllowSharedBytes(100<<10))
	l := &gpu.Launch{Cluster: gpu.Dim3{X: 2}, Grid: gpu.Dim3{X: 2}}
	require.NoError(t, gpu.Enqueue(s, k, l, make([]byte, 16)))
	assert.Zero(t, testing.AllocsPerRun(200, func() { _ = gpu.Enqueue(s, k, l, nil) }))
	require.NoError(t, m.Unload())
	require.NoError(t, s.Close())
	require.NoError(t, dev.Free(p))
	require.NoError(t, dev.Free(q))

	calls := cuda.Calls(dev)
	for _, name := range []string{"cuCtxSetCurrent", "cuMemAlloc_v2", "cuModuleLoadDataEx", "cuLaunchKernelEx"} {
		assert.Positive(t, calls[name], name)
	}
	require.NoError(t, dev.Close())
	_, err = dev.Alloc(1)
	require.ErrorIs(t, err, driver.ErrInvalid)
}
