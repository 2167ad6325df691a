//go:build mumax && cgo

package mumax_test

import (
	"context"
	"os"
	"runtime"
	"testing"

	"github.com/mumax/3/cuda/cu"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/gpu"
	"sonicmoe/driver/mumax"
	"sonicmoe/internal/child"
	"sonicmoe/internal/drivertest"
)

// openGPU returns a real device. The test skips unless SONICMOE_DEVICE is mumax.
func openGPU(t testing.TB) gpu.Device {
	t.Helper()
	if os.Getenv("SONICMOE_DEVICE") != "mumax" {
		t.Skip("SONICMOE_DEVICE is not mumax: not run on a GPU")
	}
	dev, err := mumax.Open(context.Background(), 0, mumax.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

func TestConformance(t *testing.T) {
	dev := openGPU(t)
	drivertest.Run(t, dev)
	t.Logf("calls: %v", cuda.Calls(dev))
}

// TestBroken runs in a process of its own, because its process cannot use the GPU afterwards.
func TestBroken(t *testing.T) {
	if child.Role() != "" {
		drivertest.RunBroken(t, func() gpu.Device { return openGPU(t) })
		return
	}
	openGPU(t)
	out, err := child.Command(t, t.Name(), "again").CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestBroken")
}

// TestForeignContext checks a device in a context that was made with package cu. Buffers of
// package cu and of the device must be usable together.
func TestForeignContext(t *testing.T) {
	openGPU(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	context := cu.CtxCreate(cu.CTX_SCHED_AUTO, 0)
	defer context.Destroy()
	theirs := cu.MemAlloc(1024)
	cu.MemsetD32(theirs, 0x01020304, 256)
	cu.CtxSynchronize()

	dev, err := mumax.Open(t.Context(), 0, mumax.Options{Context: context})
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	got := make([]byte, 1024)
	require.NoError(t, s.CopyToHost(got, driver.DevicePtr(theirs)))
	assert.Equal(t, []byte{4, 3, 2, 1}, got[1020:])
	require.NoError(t, s.Close())
	require.NoError(t, dev.Close())
	context.SetCurrent()
	theirs.Free() // the context still belongs to package cu
}
