//go:build linux || darwin

package cuda

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// TestBinding checks that the functions of a Binding are called instead of the library's, that
// their results become errors, and that all other functions are still called in the library.
func TestBinding(t *testing.T) {
	f := newFake(t)
	answer, allocated, loaded := 0, 0, 0
	b := &Binding{
		Functions: map[string]func([]uintptr) int{"cuMemAlloc_v2": func(a []uintptr) int {
			allocated++
			**(**uint64)(unsafe.Pointer(&a[0])) = 0x1000 + uint64(a[1])
			return answer
		}},
		LoadModule: func(image []byte) (uintptr, int) {
			loaded++
			return 0xABCD, answer
		},
	}
	opened, err := Open(t.Context(), 0, Options{Library: f.path, Binding: b})
	require.NoError(t, err)
	dev := opened.(*device)
	f.log()

	p, err := dev.Alloc(512)
	require.NoError(t, err)
	assert.Equal(t, driver.DevicePtr(0x1200), p)
	k := f.kernel(dev)
	assert.Equal(t, 1, loaded)
	assert.Equal(t, "kernel", k.Name())
	assert.EqualValues(t, 1, Calls(dev)["cuModuleLoadDataEx"])
	assert.EqualValues(t, 1, Calls(dev)["cuMemAlloc_v2"])
	s := f.stream(dev)
	require.NoError(t, gpu.Enqueue(s, k, &gpu.Launch{}, nil))
	assert.Contains(t, f.log(), "launch ", "other functions go to the library")

	answer = 2
	_, err = dev.Alloc(512)
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	image, err := dev.Compile(t.Context(), []byte("kernel"), gpu.CompileOptions{})
	require.NoError(t, err)
	answer = 209
	_, err = dev.Load(image.Code)
	require.ErrorIs(t, err, gpu.ErrWrongImage)
	_, err = dev.Load([]byte("short"))
	require.ErrorIs(t, err, gpu.ErrWrongImage)
	assert.Equal(t, 2, loaded, "an invalid image is not passed on")
	answer = 700
	_, err = dev.Alloc(512)
	require.ErrorIs(t, err, driver.ErrBroken)
	_, err = dev.Load(image.Code)
	require.ErrorIs(t, err, driver.ErrBroken)
	assert.Equal(t, 2, allocated-1, "a broken device is not called")

	// A device opened without a Binding does not call its functions, even on the same library.
	answer = 0
	_, err = f.open().Alloc(512)
	require.NoError(t, err)
	assert.Equal(t, 3, allocated)

	b.Functions["cuMemAlloc"] = func([]uintptr) int { return 0 }
	_, err = Open(t.Context(), 0, Options{Library: f.path, Binding: b})
	require.ErrorIs(t, err, driver.ErrNoDevice)
	assert.ErrorContains(t, err, "cuMemAlloc, which this package never calls")
}
