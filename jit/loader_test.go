package jit_test

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/devkit"
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
)

// TestOneCompilationAKernel checks that concurrent callers together cause one compilation of a
// kernel. It needs many rounds to hit a narrow race: a caller looks the kernel up and misses just
// before the compilation ends.
func TestOneCompilationAKernel(t *testing.T) {
	dev := newDevice(t)
	const rounds, callers = 300, 16
	for round := range rounds {
		var g errgroup.Group
		for range callers {
			s, _ := adder(t, round) // printing changes a module, so each round needs its own
			g.Go(func() error {
				_, err := load(context.Background(), dev, s)
				return err
			})
		}
		require.NoError(t, g.Wait())
		require.EqualValues(t, round+1, dev.Count(faulty.Compile), "compilations after %d kernels", round+1)
	}
	assert.EqualValues(t, rounds, dev.Count(faulty.Load))
	assert.Equal(t, jit.Stats{Compiled: rounds}, jit.Of(dev).Stats())
}

func TestKeys(t *testing.T) {
	dev := newDevice(t)
	s, _ := adder(t, 1)
	other, _ := adder(t, 2)
	first, err := load(context.Background(), dev, s)
	require.NoError(t, err)
	assert.Equal(t, jit.Compiled, first.Origin)

	again, err := load(context.Background(), dev, s)
	require.NoError(t, err)
	assert.Equal(t, jit.Loaded, again.Origin)
	assert.Equal(t, jit.Compiled, first.Origin, "the first caller's function is unchanged")
	assert.Same(t, first.Function, again.Function)
	assert.EqualValues(t, 1, dev.Count(faulty.Compile))

	_, err = load(context.Background(), dev, other)
	require.NoError(t, err)
	_, err = jit.Of(dev).Load(context.Background(), nil, s, gpu.CompileOptions{OptLevel: 2})
	require.NoError(t, err)
	assert.EqualValues(t, 3, dev.Count(faulty.Compile), "another text or other options make another kernel")
}

func TestLoadersAreByDevice(t *testing.T) {
	a, b := newDevice(t), newDevice(t)
	assert.Same(t, jit.Of(a), jit.Of(a))
	assert.NotSame(t, jit.Of(a), jit.Of(b))
	s, _ := adder(t, 1)
	for _, dev := range []*faulty.Device{a, b} {
		f, err := load(context.Background(), dev, s)
		require.NoError(t, err)
		assert.Equal(t, jit.Compiled, f.Origin)
		assert.EqualValues(t, 1, dev.Count(faulty.Compile))
	}
}

// TestDeviceThatCannotBeCompared checks that a device whose type cannot be a map key works, without
// a shared loader.
func TestDeviceThatCannotBeCompared(t *testing.T) {
	type strange struct {
		gpu.Device
		_ []int
	}
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	s, _ := adder(t, 1)
	_, err = load(context.Background(), strange{Device: dev}, s)
	require.NoError(t, err)
	jit.Forget(strange{Device: dev})
}

// TestForget checks that Forget drops the loader, and that functions that callers hold keep
// working.
func TestForget(t *testing.T) {
	dev := newDevice(t)
	s, _ := adder(t, 5)
	held, err := load(context.Background(), dev, s)
	require.NoError(t, err)
	old := jit.Of(dev)
	jit.Forget(dev)
	jit.Forget(dev) // forgetting twice is not an error

	assert.NotSame(t, old, jit.Of(dev))
	f, err := load(context.Background(), dev, s)
	require.NoError(t, err)
	assert.Equal(t, jit.Compiled, f.Origin)
	assert.EqualValues(t, 2, dev.Count(faulty.Compile))
	assert.Zero(t, dev.Count(faulty.Unload))
	for _, f := range []*jit.Function{held, f} {
		assert.Equal(t, uint32(12), runAdder(t, dev, f, 7))
	}
}

// runAdder launches an adder kernel with n, and returns the value that the kernel stored.
func runAdder(t *testing.T, dev driver.Device, f *jit.Function, n uint32) uint32 {
	t.Helper()
	p, err := dev.Alloc(4)
	require.NoError(t, err)
	defer dev.Free(p)
	s, err := dev.NewStream()
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, launchAdder(s, f, p, n))
	var out [4]byte
	require.NoError(t, s.CopyToHost(out[:], p))
	return binary.LittleEndian.Uint32(out[:])
}

// launchAdder queues an adder kernel of one thread, which stores n plus its step at p.
func launchAdder(s driver.Stream, f *jit.Function, p driver.DevicePtr, n uint32) error {
	packed, err := devkit.PackParams(p, n)
	if err != nil {
		return err
	}
	return f.Explain(gpu.Enqueue(s, f.Function, &gpu.Launch{Block: gpu.Dim3{X: 1}}, packed))
}

// TestCallerLeaves checks that a caller returns when its context ends, while the compilation
// continues for other callers.
func TestCallerLeaves(t *testing.T) {
	before := runtime.NumGoroutine()
	dev := newDevice(t)
	compiling, release := make(chan bool), make(chan bool)
	dev.Before(func(op faulty.Op) error {
		if op == faulty.Compile {
			close(compiling)
			<-release
		}
		return nil
	})
	s, _ := adder(t, 1)
	ctx, leave := context.WithCancel(context.Background())
	var leaver, stayer error
	var f *jit.Function
	var left, done sync.WaitGroup
	left.Go(func() { _, leaver = load(ctx, dev, s) })
	<-compiling
	done.Go(func() { f, stayer = load(context.Background(), dev, s) })
	leave()
	left.Wait()
	require.ErrorIs(t, leaver, context.Canceled)
	assert.ErrorContains(t, leaver, "kernel adder")
	close(release)
	done.Wait()
	require.NoError(t, stayer)
	assert.Equal(t, "adder", f.Name())
	assert.EqualValues(t, 1, dev.Count(faulty.Compile))
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "goroutines are left")
	}
}

// TestOnlyCallerLeaves checks that a compilation continues and serves later callers even if its
// only caller has left.
func TestOnlyCallerLeaves(t *testing.T) {
	dev := newDevice(t)
	release := make(chan bool)
	ctx, leave := context.WithCancel(context.Background())
	dev.Before(func(op faulty.Op) error {
		if op == faulty.Compile {
			leave()
			<-release
		}
		return nil
	})
	s, _ := adder(t, 1)
	_, err := load(ctx, dev, s)
	require.ErrorIs(t, err, context.Canceled)
	close(release)
	_, err = load(context.Background(), dev, s)
	require.NoError(t, err)
	assert.EqualValues(t, 1, dev.Count(faulty.Compile))
}

// TestContextEndedBefore checks that a call whose context has already ended starts nothing, and
// returns no function.
func TestContextEndedBefore(t *testing.T) {
	dev := newDevice(t)
	s, _ := adder(t, 1)
	ctx, leave := context.WithCancel(context.Background())
	leave()
	_, err := load(ctx, dev, s)
	require.ErrorIs(t, err, context.Canceled)
	time.Sleep(time.Millisecond)
	assert.Zero(t, dev.Count(faulty.Any))

	_, err = load(context.Background(), dev, s)
	require.NoError(t, err)
	_, err = load(ctx, dev, s)
	require.ErrorIs(t, err, context.Canceled, "whether loaded or not")
}

// TestFailedSteps checks that only the present call returns the error of a failed step, and that no
// unused module stays loaded.
func TestFailedSteps(t *testing.T) {
	for _, op := range []faulty.Op{faulty.Compile, faulty.Load, faulty.FindFunction, faulty.AllowSharedBytes} {
		t.Run(op.String(), func(t *testing.T) {
			dev := newDevice(t)
			dev.Arm(faulty.Fault{Op: op, N: 1, Err: errInjected})
			s, _ := adder(t, 1)
			_, err := load(context.Background(), dev, s)
			require.ErrorIs(t, err, errInjected)
			assert.ErrorContains(t, err, "kernel adder")
			assert.True(t, dev.Disarm())
			assert.Zero(t, dev.Live().Modules, "modules left loaded")

			f, err := load(context.Background(), dev, s)
			require.NoError(t, err)
			assert.Equal(t, uint32(8), runAdder(t, dev, f, 7))
		})
	}
}

// TestClosedDevice checks that the loader of a closed device returns no kernels, not even loaded
// ones.
func TestClosedDevice(t *testing.T) {
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	defer jit.Forget(dev)
	s, _ := adder(t, 1)
	_, err = load(context.Background(), dev, s)
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	_, err = load(context.Background(), dev, s)
	require.ErrorIs(t, err, driver.ErrInvalid)
	assert.ErrorContains(t, err, "closed")
}

// otherChip is a device with another architecture.
type otherChip struct{ *faulty.Device }

func (o otherChip) Target() driver.Target {
	t := o.Device.Target()
	t.Arch = "sm_100a"
	return t
}

// TestArchitectureIsInTheKey checks that devices of two architectures have separate entries for the
// same text in one cache.
func TestArchitectureIsInTheKey(t *testing.T) {
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	s, _ := adder(t, 1)
	one, other := newDevice(t), otherChip{newDevice(t)}
	for _, dev := range []driver.Device{one, other, one, other} {
		jit.Forget(dev)
		_, err := jit.Of(dev).Load(context.Background(), c, s, gpu.CompileOptions{})
		require.NoError(t, err)
		jit.Forget(dev)
	}
	assert.EqualValues(t, 1, one.Count(faulty.Compile))
	assert.EqualValues(t, 1, other.Count(faulty.Compile))
	infos, err := c.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, infos, 2)
	r := &jit.Recompile{By: one, Arch: "sm_90a"}
	_, err = c.Verify(t.Context(), r.Check)
	require.NoError(t, err)
	assert.Equal(t, 1, r.Same(), "the other entry is for another architecture")
}
