package open

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/outside"
)

func TestUnknownNames(t *testing.T) {
	for _, name := range []string{"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cud", "CUDA", ":0"} {
		_, err := Device(t.Context(), name)
		require.ErrorIs(t, err, driver.ErrInvalid, name)
		assert.ErrorContains(t, err, name)
		for _, known := range Names() {
			assert.ErrorContains(t, err, known)
		}
	}
}

// TestNoLibrary checks that every name of a GPU makes Device try the driver library, and that
// the error says that the library is missing.
func TestNoLibrary(t *testing.T) {
	t.Setenv(cuda.EnvLibrary, "/no/such/libcuda.so")
	for _, name := range []string{"", "cuda", "cuda:0", "cuda:3"} {
		dev, err := Device(t.Context(), name)
		require.ErrorIs(t, err, driver.ErrNoDevice, name)
		assert.Nil(t, dev)
		assert.ErrorContains(t, err, "/no/such/libcuda.so")
	}
}

// fakeDriver compiles driver/cuda/testdata/fakecuda.c, a driver library with two GPUs, and sets
// the environment variable that names the library.
func fakeDriver(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the fake driver library is not built for this system")
	}
	cc := outside.CC(t)
	path := filepath.Join(t.TempDir(), "libfakecuda.so")
	out, err := exec.Command(cc, "-shared", "-fPIC", "-pthread", "-o", path, "../cuda/testdata/fakecuda.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv(cuda.EnvLibrary, path)
}

// TestNumbersOfGPUs checks that the numbers in names count GPUs as the driver does, and that
// All returns every GPU in that order.
func TestNumbersOfGPUs(t *testing.T) {
	fakeDriver(t)
	for name, want := range map[string]string{"": "Fake GPU 40", "cuda": "Fake GPU 40", "cuda:0": "Fake GPU 40", "cuda:1": "Fake GPU 41"} {
		dev, err := Device(t.Context(), name)
		require.NoError(t, err, name)
		assert.Equal(t, want, dev.Target().Name, name)
		require.NoError(t, dev.Close())
	}
	_, err := Device(t.Context(), "cuda:2")
	require.ErrorIs(t, err, driver.ErrNoDevice)
	assert.ErrorContains(t, err, "shows 2 GPUs, counted from 0")

	for _, kind := range []string{"", "cuda"} {
		list, err := All(t.Context(), kind)
		require.NoError(t, err)
		require.Len(t, list, 2)
		for i, dev := range list {
			assert.Equal(t, []string{"Fake GPU 40", "Fake GPU 41"}[i], dev.Target().Name)
			require.NoError(t, dev.Close())
		}
	}
}

func TestAll(t *testing.T) {
	list, err := All(t.Context(), "emulated")
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.NoError(t, list[0].Close())
	for _, kind := range []string{"gpu", "cuda:0", "emulated:1"} {
		_, err := All(t.Context(), kind)
		require.ErrorIs(t, err, driver.ErrInvalid, kind)
	}
	t.Setenv(cuda.EnvLibrary, "/no/such/libcuda.so")
	list, err = All(t.Context(), "cuda")
	require.ErrorIs(t, err, driver.ErrNoDevice)
	assert.ErrorContains(t, err, "/no/such/libcuda.so")
	assert.Nil(t, list)
}

// closing is a device that can only be closed.
type closing struct {
	driver.Device
	closed *int
}

func (c closing) Close() error { *c.closed++; return nil }

// TestAllOrNone checks that, if one device cannot be opened, the devices opened before are
// closed.
func TestAllOrNone(t *testing.T) {
	closed, broken := 0, errors.New("the third is broken")
	list, err := each(t.Context(), gpu.Kind{Open: func(_ context.Context, n int) (driver.Device, error) {
		if n == 2 {
			return nil, broken
		}
		return closing{closed: &closed}, nil
	}}, 4)
	require.ErrorIs(t, err, broken)
	assert.Nil(t, list)
	assert.Equal(t, 2, closed)
}

// TestMumaxIsNotThere checks that the error for a kind that the program does not have says how
// to add the kind.
func TestMumaxIsNotThere(t *testing.T) {
	_, err := Device(t.Context(), "mumax:1")
	require.ErrorIs(t, err, driver.ErrUnsupported)
	assert.ErrorContains(t, err, "tag mumax")
	assert.ErrorContains(t, err, "import sonicmoe/driver/mumax")
	assert.NotContains(t, Names(), "mumax")
}

// fake is a kind with two devices, which this test program registers.
var (
	fake = gpu.Kind{Name: "fake", Numbered: true, Count: func() (int, error) { return 2, nil },
		Open: func(_ context.Context, n int) (driver.Device, error) {
			if n > 1 {
				return nil, driver.ErrNoDevice
			}
			return closing{closed: new(int)}, nil
		}}
	registered = gpu.Register(fake)
)

// TestRegister checks that a registered kind of device is opened, counted and named like the
// built-in kinds.
func TestRegister(t *testing.T) {
	require.NoError(t, registered)
	assert.Equal(t, []string{"cuda", "cuda:N", "emulated", "fake", "fake:N"}, Names())
	for _, name := range []string{"fake", "fake:1"} {
		dev, err := Device(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, dev.Close())
	}
	_, err := Device(t.Context(), "fake:2")
	require.ErrorIs(t, err, driver.ErrNoDevice)
	list, err := All(t.Context(), "fake")
	require.NoError(t, err)
	assert.Len(t, list, 2)

	for _, k := range []gpu.Kind{
		fake, {Name: "cuda", Open: fake.Open, Count: fake.Count}, {Open: fake.Open, Count: fake.Count},
		{Name: "a:b", Open: fake.Open, Count: fake.Count}, {Name: "a", Count: fake.Count}, {Name: "a", Open: fake.Open},
	} {
		require.ErrorIs(t, gpu.Register(k), driver.ErrInvalid, k.Name)
	}
	assert.Len(t, kinds(), 3)
}

func TestEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Device(ctx, "cuda")
	require.ErrorIs(t, err, context.Canceled)
}
