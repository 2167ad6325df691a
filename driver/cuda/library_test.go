//go:build linux || darwin

package cuda

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

func TestNoLibrary(t *testing.T) {
	t.Setenv(EnvLibrary, "")
	saved := defaultNames
	defaultNames = []string{"libno-such-cuda.so.1", "/no/such/libcuda.so.1"}
	defer func() { defaultNames = saved }()
	_, err := Open(t.Context(), 0, Options{})
	require.ErrorIs(t, err, driver.ErrNoDevice)
	for _, text := range []string{"open GPU 0", "libno-such-cuda.so.1", "/no/such/libcuda.so.1", "No such file", "install NVIDIA's driver", EnvLibrary} {
		assert.ErrorContains(t, err, text)
	}
	d := Diagnose(Options{})
	assert.Len(t, d.Tried, 2)
	require.Error(t, d.Failure)
	assert.Contains(t, d.String(), "driver library /no/such/libcuda.so.1: ")
	assert.Contains(t, d.String(), "failed: no CUDA driver library")

	// The option takes precedence over the environment variable, and the variable over the
	// usual names.
	t.Setenv(EnvLibrary, "/env/libcuda.so")
	_, err = Open(t.Context(), 0, Options{})
	require.ErrorContains(t, err, "/env/libcuda.so")
	require.NotContains(t, err.Error(), "libno-such-cuda")
	_, err = Open(t.Context(), 0, Options{Library: "/option/libcuda.so"})
	require.ErrorContains(t, err, "/option/libcuda.so")
	require.NotContains(t, err.Error(), "/env/")
}

// TestReasonOfNoLibrary checks the reason why a library cannot be opened. The system keeps this
// reason for the thread that failed. Goroutines that move between threads must not lose it.
func TestReasonOfNoLibrary(t *testing.T) {
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				_, err := dlopen("/no/such/libcuda.so.1")
				if !assert.ErrorContains(t, err, "No such file") {
					return
				}
				runtime.Gosched()
			}
		})
	}
	all.Wait()
}

func TestNotALibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
	_, err := Open(t.Context(), 0, Options{Library: path})
	require.ErrorIs(t, err, driver.ErrNoDevice)
	assert.ErrorContains(t, err, path)
}

func TestOldDriver(t *testing.T) {
	f := newFake(t, "-DOLD", "-DNO_LAUNCH")
	_, err := Open(t.Context(), 0, Options{Library: f.path})
	require.ErrorIs(t, err, driver.ErrNoDevice)
	assert.ErrorContains(t, err, "CUDA 11.8, 12.0 or newer is needed")
	assert.NotContains(t, err.Error(), "cuLaunchKernelEx", "the version says more than a missing function")
}

func TestMissingRequiredFunction(t *testing.T) {
	f := newFake(t, "-DNO_LAUNCH")
	_, err := Open(t.Context(), 0, Options{Library: f.path})
	require.ErrorIs(t, err, driver.ErrNoDevice)
	assert.ErrorContains(t, err, "lacks cuLaunchKernelEx")
}

func TestMissingOptionalFunction(t *testing.T) {
	f := newFake(t, "-DNO_TENSORMAP")
	dev := f.open()
	_, err := dev.EncodeTensorMap(gpu.TensorMap{Elem: gpu.BF16, Rank: 1, Address: 256, Dims: [5]uint64{64}, Box: [5]uint32{64}})
	require.ErrorIs(t, err, driver.ErrUnsupported)
	for _, text := range []string{"cuTensorMapEncodeTiled", f.path, "CUDA 12.8", "tensor maps"} {
		assert.ErrorContains(t, err, text)
	}
	require.NoError(t, dev.Err())
	require.NoError(t, dev.Close())
}

func TestOpenFailures(t *testing.T) {
	for _, test := range []struct {
		name     string
		spoil    func(f *fake)
		ordinal  int
		mentions []string
	}{
		{"no GPU", func(f *fake) { f.fail(symInit, 100) }, 0, []string{"CUDA 12.8", "found no usable GPU", "cuInit", "CUDA_ERROR_FAKE_100 (100)", "as the test asked"}},
		{"a GPU too few", func(*fake) {}, 2, []string{"open GPU 2", "shows 2 GPUs, counted from 0"}},
		{"a negative ordinal", func(*fake) {}, -1, []string{"open GPU -1", "counted from 0"}},
		{"counting fails", func(f *fake) { f.fail(symDeviceGetCount, 3) }, 0, []string{"cuDeviceGetCount", "(3)"}},
		{"no context", func(f *fake) { f.fail(symPrimaryCtxRetain, 46) }, 0, []string{"cuDevicePrimaryCtxRetain", "(46)"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			test.spoil(f)
			dev, err := Open(t.Context(), test.ordinal, Options{Library: f.path})
			require.ErrorIs(t, err, driver.ErrNoDevice)
			assert.Nil(t, dev)
			for _, text := range test.mentions {
				assert.ErrorContains(t, err, text)
			}
		})
	}
}

func TestOpen(t *testing.T) {
	f := newFake(t)
	dev, err := Open(t.Context(), 1, Options{Library: f.path})
	require.NoError(t, err)
	assert.Equal(t, driver.Target{
		Name: "Fake GPU 41", Arch: "sm_90a", Major: 9, SMs: 16041, SharedBytesPerCTA: 232448,
		SharedBytesPerSM: 81041, RegistersPerSM: 82041, L2Bytes: 38041,
		ClockKHz: 13041, MemoryClockKHz: 36041, MemoryBusBits: 37041,
	}, dev.Target())
	assert.Equal(t, "driver 12080", dev.Producer())
	assert.Equal(t, 87, dev.MaxPTXVersion())
	require.NoError(t, dev.Close())
	require.NoError(t, dev.Close(), "closing twice is harmless")
	assert.Equal(t, "retain 41\nrelease 41\n", f.log())
	_, err = dev.Alloc(256)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.ErrorContains(t, err, "closed")

	// A context that another library made is neither retained nor released.
	dev, err = Open(t.Context(), 0, Options{Library: f.path, Context: 0xABC})
	require.NoError(t, err)
	_, _, err = dev.Memory()
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	assert.Empty(t, f.log())

	d := Diagnose(Options{Library: f.path})
	require.NoError(t, d.Failure)
	assert.Equal(t, "driver library "+f.path+": opened\ndriver version CUDA 12.8\nGPUs: 2\n"+
		"GPU 0: Fake GPU 40, compute capability 9.0, 16040 SMs\nGPU 1: Fake GPU 41, compute capability 9.0, 16041 SMs\n", d.String())
}

// TestCountOfLostGPUs checks GPUs that cannot be queried. If this is the first GPU, Count
// returns 0 and Open returns the error. If it is a later one, Count returns the error.
func TestCountOfLostGPUs(t *testing.T) {
	f := newFake(t)
	n, err := Count(Options{Library: f.path})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	f.control("fake_lose", 1)
	n, err = Count(Options{Library: f.path})
	require.ErrorIs(t, err, driver.ErrNoDevice)
	require.ErrorContains(t, err, "open GPU 1")
	require.Zero(t, n)
	f.control("fake_lose", 0)
	n, err = Count(Options{Library: f.path})
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestOpenEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Open(ctx, 0, Options{})
	require.ErrorIs(t, err, context.Canceled)
}

func TestAccepts(t *testing.T) {
	d := &device{lib: &library{version: 12080, build: "570.86.10"}}
	for producer, want := range map[string]bool{
		"driver 12080 570.86.10": true, "driver 12080 570.86.9": false, "driver 12080 570.86.1": false, "driver 12080 570.86.100": false,
		"driver 12080": false, "driver 12080 ": false, "driver 12000": false, "driver 12090": false, "driver 11080": false, "driver 13000": false,
		"ptxas 12.9.1": true, "ptxas 13.0.88": false, "ptxas 11.8": true,
		"": false, "driver": false, "driver x": false, "driver 0": false, "ptxas": false, "emulated 1": false,
	} {
		assert.Equal(t, want, d.Accepts(producer), producer)
	}
	unknown := &device{lib: &library{version: 12080}}
	assert.Equal(t, "driver 12080", unknown.Producer())
	assert.True(t, unknown.Accepts("driver 12080"))
	assert.False(t, unknown.Accepts("driver 12080 570.86.10"))
	for version, want := range map[int]int{12000: 80, 12060: 85, 12070: 86, 12090: 88, 13000: 90, 13010: 91, 14000: 91} {
		assert.Equal(t, want, (&device{lib: &library{version: version}}).MaxPTXVersion(), "%d", version)
	}
}

// TestSymbols checks that each function has a name, and that no two have the same.
func TestSymbols(t *testing.T) {
	seen := map[string]bool{}
	for s := range symbolCount {
		require.NotEmpty(t, s.String(), "symbol %d", s)
		require.False(t, seen[s.String()], s.String())
		seen[s.String()] = true
	}
}

// TestReasonsOfFailedOpens checks that each failed open returns its own reason, whatever other
// threads try at the same time.
func TestReasonsOfFailedOpens(t *testing.T) {
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 300 {
				name := fmt.Sprintf("/no/such/library-%d-%d.so", g, i)
				_, err := dlopen(name)
				if !assert.ErrorContains(t, err, name) {
					return
				}
				runtime.Gosched()
			}
		})
	}
	all.Wait()
}
