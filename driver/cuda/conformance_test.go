package cuda

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/child"
	"sonicmoe/internal/drivertest"
)

func TestMain(m *testing.M) {
	if drivertest.Name() != "cuda" { // tests with the fake library need no device
		os.Exit(m.Run())
	}
	os.Exit(drivertest.Main(m, func(ctx context.Context, _ string) (driver.Device, error) { return Open(ctx, 0, Options{}) }))
}

// openGPU returns a real device. The test skips unless SONICMOE_DEVICE is cuda.
func openGPU(t testing.TB) gpu.Device {
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
	dev := openGPU(t)
	t.Logf("%s, %s\n%s", dev.Target().Name, dev.Producer(), Diagnose(Options{}))
	drivertest.Run(t, dev)
	t.Logf("calls: %v", Calls(dev))
}

// TestClosed opens a device of its own, because other tests share the primary context.
func TestClosed(t *testing.T) {
	openGPU(t)
	dev, err := Open(t.Context(), 0, Options{})
	require.NoError(t, err)
	drivertest.RunClosed(t, dev)
}

// again returns a command that runs the test in a process of its own, on a GPU.
func again(t *testing.T) *exec.Cmd {
	if os.Getenv("SONICMOE_DEVICE") != "cuda" {
		t.Skip("SONICMOE_DEVICE is not cuda: not run on a GPU")
	}
	return child.Command(t, t.Name(), "again")
}

// TestBroken runs in a process of its own, because its process cannot use the GPU afterwards.
func TestBroken(t *testing.T) {
	if child.Role() != "" {
		drivertest.RunBroken(t, func() gpu.Device {
			dev, err := Open(t.Context(), 0, Options{})
			require.NoError(t, err)
			return dev
		})
		return
	}
	out, err := again(t).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestBroken")
}

// TestInterrupt checks that an interrupt signal reaches a program that uses the GPU, and that
// the program decides how to end.
func TestInterrupt(t *testing.T) {
	if child.Role() != "" {
		dev := openGPU(t)
		interrupted := make(chan os.Signal, 1)
		signal.Notify(interrupted, os.Interrupt)
		fmt.Println("ready")
		for len(interrupted) == 0 {
			_, err := dev.Compile(t.Context(), []byte(empty), gpu.CompileOptions{})
			require.NoError(t, err)
		}
		require.NoError(t, dev.Synchronize(t.Context()))
		return
	}
	cmd := again(t)
	var out, errs bytes.Buffer
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(io.TeeReader(pipe, &out))
	for lines.Scan() {
		if lines.Text() == "ready" {
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
		}
	}
	require.NoError(t, cmd.Wait(), "%s%s", &out, &errs)
	assert.Contains(t, out.String(), "--- PASS: TestInterrupt")
}

func TestOrdinalOnGPU(t *testing.T) {
	openGPU(t)
	_, err := Open(t.Context(), 99, Options{})
	require.ErrorIs(t, err, driver.ErrNoDevice)
	assert.ErrorContains(t, err, "counted from 0")
}

// TestForeignContextOnGPU checks that a context made by another library works like
// the primary one.
func TestForeignContextOnGPU(t *testing.T) {
	owner := openGPU(t).(*device)
	dev, err := Open(t.Context(), 0, Options{Context: owner.context[0]})
	require.NoError(t, err)
	p, err := dev.Alloc(256)
	require.NoError(t, err)
	require.NoError(t, owner.Free(p))
	require.NoError(t, dev.Close())
	_, _, err = owner.Memory()
	require.NoError(t, err, "the owner's context stays")
}

// TestWarmStartCompilesNothing checks that loading stored machine code does not
// call the linker.
func TestWarmStartCompilesNothing(t *testing.T) {
	image, err := openGPU(t).Compile(t.Context(), []byte(empty), gpu.CompileOptions{})
	require.NoError(t, err)
	dev := openGPU(t)
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

// TestLaunchAllocatesNothingOnGPU checks that queueing a kernel allocates nothing
// on the host.
func TestLaunchAllocatesNothingOnGPU(t *testing.T) {
	dev := openGPU(t)
	image, err := dev.Compile(t.Context(), []byte(empty), gpu.CompileOptions{})
	require.NoError(t, err)
	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	f, err := m.Function("empty")
	require.NoError(t, err)
	s, err := dev.NewStream()
	require.NoError(t, err)
	l := &gpu.Launch{Grid: gpu.Dim3{X: 2}, Cluster: gpu.Dim3{X: 2}, Programmatic: true}
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		if err := gpu.Enqueue(s, f, l, nil); err != nil {
			t.Fatal(err)
		}
	}))
	require.NoError(t, s.Synchronize(t.Context()))
	require.NoError(t, s.Close())
	require.NoError(t, m.Unload())
}

func BenchmarkLaunch(b *testing.B) {
	dev := openGPU(b)
	image, err := dev.Compile(b.Context(), []byte(empty), gpu.CompileOptions{})
	require.NoError(b, err)
	m, err := dev.Load(image.Code)
	require.NoError(b, err)
	f, err := m.Function("empty")
	require.NoError(b, err)
	s, err := dev.NewStream()
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if err := gpu.Enqueue(s, f, &gpu.Launch{}, nil); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, s.Synchronize(context.Background()))
}
