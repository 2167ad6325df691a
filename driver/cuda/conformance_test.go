package cuda

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/drivertest"
)

// gpu is a real device. Tests that need one run where SONICMOE_DEVICE says
// so.
func gpu(t testing.TB) driver.Device {
	name := os.Getenv("SONICMOE_DEVICE")
	if name != "cuda" {
		t.Skip("SONICMOE_DEVICE is not cuda: not run on a GPU")
	}
	dev, err := Open(context.Background(), 0, Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

func TestConformance(t *testing.T) {
	dev := gpu(t)
	t.Logf("%s, %s\n%s", dev.Target().Name, dev.Producer(), Diagnose(Options{}))
	drivertest.Run(t, dev)
	t.Logf("calls: %v", Calls(dev))
}

// TestBroken runs in a process of its own: the GPU is lost to that process.
func TestBroken(t *testing.T) {
	const child = "SONICMOE_TEST_BROKEN"
	if os.Getenv(child) != "" {
		drivertest.RunBroken(t, func() driver.Device {
			dev, err := Open(t.Context(), 0, Options{})
			require.NoError(t, err)
			return dev
		})
		return
	}
	if os.Getenv("SONICMOE_DEVICE") != "cuda" {
		t.Skip("SONICMOE_DEVICE is not cuda: not run on a GPU")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestBroken$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestBroken")
}

// Loading machine code that was made before calls no linker.
func TestWarmStartCompilesNothing(t *testing.T) {
	image, err := gpu(t).Compile(t.Context(), []byte(empty), driver.CompileOptions{})
	require.NoError(t, err)
	dev := gpu(t)
	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	_, err = m.Function("empty")
	require.NoError(t, err)
	require.NoError(t, m.Unload())
	for name := range Calls(dev) {
		assert.False(t, strings.HasPrefix(name, "cuLink"), name)
	}
}

const empty = `.version 8.0
.target sm_90a
.address_size 64
.visible .entry empty() { ret; }
`

// Queueing a kernel allocates nothing on the host.
func TestLaunchAllocatesNothingOnGPU(t *testing.T) {
	dev := gpu(t)
	image, err := dev.Compile(t.Context(), []byte(empty), driver.CompileOptions{})
	require.NoError(t, err)
	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	f, err := m.Function("empty")
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	l := &driver.Launch{Grid: driver.Dim3{X: 2}, Cluster: driver.Dim3{X: 2}, Programmatic: true}
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		if err := s.Launch(f, l, nil); err != nil {
			t.Fatal(err)
		}
	}))
	require.NoError(t, s.Synchronize(t.Context()))
	require.NoError(t, s.Close())
	require.NoError(t, m.Unload())
}

func BenchmarkLaunch(b *testing.B) {
	dev := gpu(b)
	image, err := dev.Compile(b.Context(), []byte(empty), driver.CompileOptions{})
	require.NoError(b, err)
	m, err := dev.Load(image.Code)
	require.NoError(b, err)
	f, err := m.Function("empty")
	require.NoError(b, err)
	s, err := dev.NewStream()
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Launch(f, &driver.Launch{}, nil); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, s.Synchronize(context.Background()))
}
