//go:build linux || darwin

package cuda

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

func TestRefusedLaunches(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	k, s := f.kernel(dev), f.stream(dev)
	f.fail(symLaunchKernelEx, 1)
	for text, l := range map[string]gpu.Launch{
		"SharedBytes is 50000, function \"kernel\" allows 49152: call AllowSharedBytes": {SharedBytes: 50000},
		"Block is 257 threads, function \"kernel\" was compiled for at most 256":        {Block: gpu.Dim3{X: 257}},
		"5 parameter bytes": {},
	} {
		err := gpu.Enqueue(s, k, &l, make([]byte, 5))
		require.ErrorIs(t, err, driver.ErrInvalid)
		assert.ErrorContains(t, err, text)
		assert.ErrorContains(t, err, "cuLaunchKernelEx: CUDA_ERROR_FAKE_1 (1): as the test asked")
	}
	f.fail(symLaunchKernelEx, 0)
	other := f.kernel(f.open())
	require.ErrorIs(t, gpu.Enqueue(s, other, &gpu.Launch{}, nil), driver.ErrInvalid, "another device's kernel")
	require.ErrorContains(t, k.AllowSharedBytes(232449), "0 to 232448")
	require.NoError(t, k.AllowSharedBytes(232448))
	assert.Contains(t, f.log(), "function 0xf00 attribute 8 = 232448\n")
}

func TestCompileErrors(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	_, err := dev.Compile(t.Context(), []byte("// text\n.version 8.8\nmistake"), gpu.CompileOptions{})
	require.ErrorIs(t, err, gpu.ErrCompile)
	var e *driver.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "ptx, line 3; error: mistake\nsome information", e.Log)
	assert.ErrorContains(t, err, "the text is PTX 8.8, this driver (CUDA 12.8) takes up to 8.7")
	assert.Contains(t, f.log(), "link destroyed")

	f.fail(symLinkComplete, 2)
	_, err = dev.Compile(t.Context(), []byte("kernel"), gpu.CompileOptions{})
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	assert.Contains(t, f.log(), "link destroyed")

	calls := Calls(dev)
	assert.Equal(t, int64(2), calls["cuLinkCreate_v2"])
	assert.Equal(t, int64(1), calls["cuLinkComplete"])
	assert.NotContains(t, calls, "cuModuleLoadDataEx")
}

func TestErrorKinds(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	for code, kind := range map[int]error{
		1: driver.ErrInvalid, 2: driver.ErrOutOfMemory, 100: driver.ErrNoDevice, 200: gpu.ErrWrongImage, 209: gpu.ErrWrongImage,
		218: gpu.ErrCompile, 222: gpu.ErrCompile, 400: driver.ErrInvalid, 500: gpu.ErrNotFound, 801: driver.ErrUnsupported, 901: driver.ErrInvalid,
	} {
		f.fail(symMemAlloc, code)
		_, err := dev.Alloc(77)
		require.ErrorIs(t, err, kind)
		var e *driver.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, code, e.Code)
		assert.Equal(t, fmt.Sprintf("cuMemAlloc_v2: CUDA_ERROR_FAKE_%d (%d): as the test asked: 77 bytes", code, code), err.Error())
		require.NoError(t, dev.Err(), "this error is not sticky")
	}
	f.fail(symMemAlloc, 998) // an error code without a kind
	_, err := dev.Alloc(1)
	require.ErrorContains(t, err, "(998)")
	f.fail(symCtxSetCurrent, 201)
	_, _, err = dev.Memory()
	require.ErrorContains(t, err, "cuCtxSetCurrent: CUDA_ERROR_FAKE_201")
}

func TestStickyErrors(t *testing.T) {
	f := newFake(t)
	var sticky []result
	for code := range results {
		if code.sticky() {
			sticky = append(sticky, code)
		}
	}
	codes := []result{4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 806, 810, 911}
	require.ElementsMatch(t, codes, sticky)
	for _, code := range codes {
		dev := f.open()
		s := f.stream(dev)
		f.fail(symStreamSynchronize, int(code))
		f.set(1<<30, 0, 1) // never ready, so that the wait blocks and then fails
		err := s.Synchronize(context.Background())
		require.ErrorIs(t, err, driver.ErrBroken, "%d", code)
		assert.Same(t, dev.Err(), err)
		f.fail(symStreamSynchronize, 0)

		before := Calls(dev)
		_, later := dev.Alloc(1)
		require.ErrorIs(t, later, driver.ErrBroken)
		require.ErrorIs(t, later, err, "later calls return the first error")
		assert.Regexp(t, fmt.Sprintf(`^cuMemAlloc_v2: not tried, the device broke at [\d:.]+: cuStreamSynchronize: CUDA_ERROR_FAKE_%d`, code), later)
		assert.Equal(t, before, Calls(dev), "no call must reach the driver")
		require.NoError(t, dev.Close())
	}
}

// TestNothingToCall checks arguments for which the driver is never called: memory at address 0,
// and function names that are empty or contain a zero byte. It also checks that Calls returns
// nil for a device of another package.
func TestNothingToCall(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	image, err := dev.Compile(t.Context(), []byte("kernel"), gpu.CompileOptions{})
	require.NoError(t, err)
	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	f.log()
	before := Calls(dev)
	require.NoError(t, dev.Free(0))
	for _, name := range []string{"", "ker\x00nel"} {
		_, err := m.Function(name)
		require.ErrorIs(t, err, gpu.ErrNotFound)
	}
	assert.Equal(t, before, Calls(dev))
	assert.Empty(t, f.log())
	assert.Nil(t, Calls(nil))
}

// TestCloseAfterAFailedCall checks that Close does not wait for a call that failed to make the
// context current.
func TestCloseAfterAFailedCall(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	f.fail(symCtxSetCurrent, 201)
	_, err := dev.Alloc(1)
	require.Error(t, err)
	f.fail(symCtxSetCurrent, 0)
	f.log()
	require.NoError(t, dev.Close())
	assert.Contains(t, f.log(), "release")
}

// TestRefusedUnasked checks calls that are refused without calling the driver: launches beyond
// the limits of all GPUs, closed streams, events of another device, and fills of size 0.
func TestRefusedUnasked(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	k, s, closed := f.kernel(dev), f.stream(dev), f.stream(dev)
	p, err := dev.Alloc(64)
	require.NoError(t, err)
	foreign, err := f.open().NewEvent()
	require.NoError(t, err)
	own, err := dev.NewEvent()
	require.NoError(t, err)
	_, apart := own.Since(foreign)
	require.NoError(t, closed.Close())
	f.log()
	before := Calls(dev)
	for name, err := range map[string]error{
		"grid":     gpu.Enqueue(s, k, &gpu.Launch{Grid: gpu.Dim3{X: -1}}, nil),
		"closed":   closed.Fill32(p, 1, 1),
		"negative": s.Fill32(p, 1, -1),
		"event":    apart,
		"no event": s.Wait(nil),
	} {
		require.ErrorIs(t, err, driver.ErrInvalid, name)
	}
	require.NoError(t, s.Fill32(p, 1, 0))
	assert.Equal(t, before, Calls(dev))
	assert.Empty(t, f.log())

	for _, e := range []driver.Event{own, foreign} { // an event of another device is allowed
		require.NoError(t, s.Wait(e))
	}
	assert.Equal(t, before["cuStreamWaitEvent"]+2, Calls(dev)["cuStreamWaitEvent"])
}
