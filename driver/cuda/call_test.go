//go:build linux || darwin

package cuda

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// sum returns the digest that the fake library computes of parameter bytes.
func sum(params []byte) (s uint64) {
	for _, b := range params {
		s = s*31 + uint64(b)
	}
	return s
}

func TestLaunchArguments(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	k, s := f.kernel(dev), f.stream(dev)
	long := make([]byte, 9000)
	for i := range long {
		long[i] = byte(i)
	}
	for _, test := range []struct {
		launch gpu.Launch
		params []byte
		shape  string
		attrs  string
	}{
		{gpu.Launch{}, nil, "1,1,1 x 1,1,1 shared 0", ""},
		{gpu.Launch{Grid: gpu.Dim3{X: 2, Y: 3, Z: 4}, Block: gpu.Dim3{X: 5, Y: 6, Z: 7}, SharedBytes: 1234},
			long[:3], "2,3,4 x 5,6,7 shared 1234", ""},
		{gpu.Launch{Grid: gpu.Dim3{X: 8}, Cluster: gpu.Dim3{X: 2}}, long[:1], "8,1,1 x 1,1,1 shared 0", " [4: 2 1 1]"},
		{gpu.Launch{Programmatic: true}, long[:128], "1,1,1 x 1,1,1 shared 0", " [6: 1 0 0]"},
		{gpu.Launch{Grid: gpu.Dim3{X: 4, Y: 3, Z: 2}, Cluster: gpu.Dim3{X: 2, Y: 1, Z: 2}, Programmatic: true},
			long, "4,3,2 x 1,1,1 shared 0", " [4: 2 1 2] [6: 1 0 0]"},
		{gpu.Launch{}, long[:16], "1,1,1 x 1,1,1 shared 0", ""}, // nothing is left from the previous launch
	} {
		require.NoError(t, gpu.Enqueue(s, k, &test.launch, test.params))
		want := fmt.Sprintf("launch %s stream %#x%s function 0xf00 arguments (nil) params", test.shape, s.Handle(), test.attrs)
		if len(test.params) > 0 {
			want += fmt.Sprintf(" %d bytes, sum %d", len(test.params), sum(test.params))
		}
		assert.Equal(t, want+"\n", f.log())
	}
	// A launch with a cluster above the portable size first sets an attribute of the function,
	// but only once.
	big := gpu.Launch{Grid: gpu.Dim3{X: 16}, Cluster: gpu.Dim3{X: 16}}
	require.NoError(t, gpu.Enqueue(s, k, &big, nil))
	assert.Contains(t, f.log(), "function 0xf00 attribute 14 = 1\n")
	require.NoError(t, gpu.Enqueue(s, k, &big, nil))
	assert.NotContains(t, f.log(), "attribute 14")
}

func TestOccupancy(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	k := f.kernel(dev)
	n, err := dev.MaxActiveClusters(k, gpu.Launch{Block: gpu.Dim3{X: 32, Y: 2}, SharedBytes: 77})
	require.NoError(t, err)
	assert.Equal(t, 3*dev.target.SMs, n)
	assert.Equal(t, "blocks 64 77\n", f.log())
	n, err = dev.MaxActiveClusters(k, gpu.Launch{Grid: gpu.Dim3{X: 4}, Cluster: gpu.Dim3{X: 2}, SharedBytes: 77})
	require.NoError(t, err)
	assert.Equal(t, 66, n)
	assert.Equal(t, "clusters 4,1,1 x 1,1,1 shared 77 stream (nil) [4: 2 1 1]\n", f.log())
}

func TestTensorMapArguments(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	types := map[gpu.ElemType]int{gpu.U8: 0, gpu.U16: 1, gpu.U32: 2, gpu.S32: 3, gpu.F16: 6, gpu.F32: 7, gpu.BF16: 9}
	for elem, code := range types {
		m := gpu.TensorMap{Elem: elem, Rank: 3, Address: 0x7f0012345670, Dims: [5]uint64{1 << 32, 2, 3}, Strides: [4]uint64{1 << 36, 48},
			Box: [5]uint32{16, 200, 1}, Swizzle: gpu.Swizzle64, Promote: gpu.Promote256}
		encoded, err := dev.EncodeTensorMap(m)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("map aligned 1 type %d rank 3 at 0x7f0012345670 4294967296/16/1 2/200/1 3/1/1 +68719476736 +48 interleave 0 swizzle 2 promote 3 fill 0\n", code), f.log())
		for i, b := range encoded {
			require.Equal(t, byte(i), b)
		}
	}
	f.fail(symTensorMapEncodeTiled, 1)
	_, err := dev.EncodeTensorMap(gpu.TensorMap{Elem: gpu.BF16, Rank: 1, Dims: [5]uint64{64}, Box: [5]uint32{64}})
	require.ErrorIs(t, err, driver.ErrInvalid)
	assert.ErrorContains(t, err, "Elem:bf16 Rank:1")
}

func TestCompileAndLoad(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	image, err := dev.Compile(context.Background(), []byte("kernel"), gpu.CompileOptions{OptLevel: 3, LineInfo: true})
	require.NoError(t, err)
	assert.Equal(t, "link 4=65536 6=65536 12=0 7=3 13=1\ndata type 1, 7 bytes, last 0, name ptx, 0 options\nlink destroyed\n", f.log())
	assert.Equal(t, "some information", image.Log)
	_, err = dev.Compile(t.Context(), []byte("kernel"), gpu.CompileOptions{OptLevel: 1})
	require.NoError(t, err)
	assert.Contains(t, f.log(), "link 4=65536 6=65536 12=0 7=1\n")
	assert.Len(t, image.Code, 64)
	assert.Equal(t, "\x7fELF", string(image.Code[:4]), "the image must be copied before the linker is destroyed")

	m, err := dev.Load(image.Code)
	require.NoError(t, err)
	assert.Equal(t, "load 4=65536 6=65536 12=0\n", f.log())
	_, err = m.Function("other")
	require.ErrorIs(t, err, gpu.ErrNotFound)
	assert.ErrorContains(t, err, `"other"`)
	k, err := m.Function("kernel")
	require.NoError(t, err)
	a, err := k.Attributes()
	require.NoError(t, err)
	assert.Equal(t, gpu.FunctionAttributes{Registers: 104, LocalBytes: 103, StaticSharedBytes: 101, ConstBytes: 102,
		MaxThreadsPerCTA: 256, PTXVersion: 105, BinaryVersion: 106}, a)

	f.fail(symModuleLoadDataEx, 209)
	_, err = dev.Load(image.Code)
	require.ErrorIs(t, err, gpu.ErrWrongImage)
	assert.ErrorContains(t, err, "what the loader said")
}

func TestPCIBusID(t *testing.T) {
	dev := newFake(t).open()
	bus, err := PCIBusID(dev)
	require.NoError(t, err)
	require.Equal(t, "0000:43:00.0", bus)
	_, err = PCIBusID(nil)
	require.ErrorIs(t, err, driver.ErrUnsupported)
}

func TestWaiting(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	s := f.stream(dev)
	e, err := dev.NewEvent()
	require.NoError(t, err)
	waits := []func(context.Context) error{s.Synchronize, e.Synchronize, dev.Synchronize}

	f.set(3, 0, 1) // ready at the fourth query, so that the wait need not block
	require.NoError(t, s.Synchronize(t.Context()))
	assert.Zero(t, Calls(dev)["cuStreamSynchronize"])
	assert.Equal(t, int64(4), Calls(dev)["cuStreamQuery"])

	f.set(1, 0, 1)
	done, err := e.Done()
	require.NoError(t, err)
	assert.False(t, done)
	done, err = e.Done()
	require.NoError(t, err)
	assert.True(t, done)

	f.set(1<<30, 150, 1) // never ready when queried; the blocking wait takes 150 ms
	for i, wait := range waits {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		start := time.Now()
		require.ErrorIs(t, wait(ctx), context.DeadlineExceeded, "wait %d", i)
		assert.Less(t, time.Since(start), 140*time.Millisecond, "wait %d", i)
		cancel()
	}
	f.log()
	require.NoError(t, s.Close(), "at once, although a wait still blocks")
	assert.NotContains(t, f.log(), "stream destroyed", "the wait still uses it")
	require.ErrorContains(t, s.Synchronize(t.Context()), "closed")
	require.Eventually(t, func() bool { return Calls(dev)["cuStreamDestroy_v2"] == 1 }, 5*time.Second, 5*time.Millisecond)
	for i, wait := range waits[1:] {
		require.NoError(t, wait(t.Context()), "wait %d", i)
		require.NoError(t, wait(context.Background()), "wait %d", i)
	}
}

func TestStreamsEventsGraphs(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	s, err := dev.NewStream()
	require.NoError(t, err)
	assert.Equal(t, "stream flags 1\n", f.log())
	e, err := dev.NewEvent()
	require.NoError(t, err)
	assert.Equal(t, "event flags 0\n", f.log())
	require.NoError(t, e.Record(s))
	require.NoError(t, s.Wait(e))
	d, err := e.Since(e)
	require.NoError(t, err)
	assert.Equal(t, 1500*time.Microsecond, d)

	f.log()
	require.NoError(t, s.BeginCapture())
	require.ErrorContains(t, s.CopyToDevice(256, []byte{1}), "being captured")
	g, err := s.EndCapture()
	require.NoError(t, err)
	assert.Equal(t, 5, g.Nodes())
	require.NoError(t, g.Launch(s))
	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	require.ErrorIs(t, g.Launch(s), driver.ErrInvalid)
	assert.Equal(t, "capture mode 2\ninstantiate flags 0\ngraph destroyed\ngraph launch\ngraph exec destroyed\n", f.log())
	_, err = s.EndCapture()
	require.ErrorIs(t, err, driver.ErrInvalid)

	w := dev.WrapStream(s.Handle())
	require.NoError(t, w.Close())
	assert.Empty(t, f.log(), "closing a wrapped stream leaves the real one")
	require.NoError(t, e.Close())
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	assert.Equal(t, "stream destroyed\n", f.log())
	require.ErrorIs(t, s.Wait(e), driver.ErrInvalid)
	require.ErrorIs(t, e.Record(s), driver.ErrInvalid)
}

func TestMemoryCalls(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	s := f.stream(dev)
	p, err := dev.Alloc(1024)
	require.NoError(t, err)
	require.NoError(t, s.Fill32(p, 0xAABBCCDD, 3))
	require.NoError(t, s.CopyToDevice(p+4, []byte{1, 2, 3, 4}))
	require.NoError(t, s.Copy(p+12, p+3, 6))
	got := make([]byte, 18)
	require.NoError(t, s.CopyToHost(got, p))
	assert.Equal(t, []byte{0xDD, 0xCC, 0xBB, 0xAA, 1, 2, 3, 4, 0xDD, 0xCC, 0xBB, 0xAA, 0xAA, 1, 2, 3, 4, 0xDD}, got)
	free, total, err := dev.Memory()
	require.NoError(t, err)
	assert.Equal(t, [2]int64{1 << 36, 1 << 37}, [2]int64{free, total})
	require.NoError(t, dev.Free(p))
	q, err := s.AllocAsync(1)
	require.NoError(t, err)
	require.NoError(t, s.FreeAsync(q))
	_, err = dev.Alloc(1 << 40)
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
}

func TestHotPathsAllocateNothing(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	k, s := f.kernel(dev), f.stream(dev)
	params := make([]byte, 300)
	l := &gpu.Launch{Grid: gpu.Dim3{X: 2}, Cluster: gpu.Dim3{X: 2}, Programmatic: true, SharedBytes: 1 << 15}
	m := gpu.TensorMap{Elem: gpu.BF16, Rank: 2, Dims: [5]uint64{64, 64}, Strides: [4]uint64{128}, Box: [5]uint32{64, 64}}
	e, err := dev.NewEvent()
	require.NoError(t, err)
	require.NoError(t, s.BeginCapture())
	g, err := s.EndCapture()
	require.NoError(t, err)
	for name, call := range map[string]func() error{
		"launch":       func() error { return gpu.Enqueue(s, k, l, params) },
		"tensor map":   func() error { _, err := dev.EncodeTensorMap(m); return err },
		"graph launch": func() error { return g.Launch(s) },
		"event record": func() error { return e.Record(s) },
		"event wait":   func() error { return s.Wait(e) },
		"event done":   func() error { _, err := e.Done(); return err },
	} {
		allocs := testing.AllocsPerRun(200, func() {
			if err := call(); err != nil {
				t.Fatal(err)
			}
		})
		if raceEnabled {
			continue // the race detector's pools drop objects at random, which causes allocations
		}
		assert.Zero(t, allocs, name)
	}
}

// TestGoroutines runs many goroutines at once, with growing stacks. Every call switches
// contexts. The fake library returns 201 for a call on a thread without a context.
func TestGoroutines(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	k := f.kernel(dev)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			s, err := dev.NewStream()
			assert.NoError(t, err)
			p, err := dev.Alloc(64)
			assert.NoError(t, err)
			for j := range 50 {
				deep(j, func() {
					var room [64]byte
					room[0] = byte(i + j)
					assert.NoError(t, s.CopyToDevice(p, room[:]))
					assert.NoError(t, gpu.Enqueue(s, k, &gpu.Launch{}, room[:]))
					var back [1]byte
					assert.NoError(t, s.CopyToHost(back[:], p))
					assert.Equal(t, byte(i+j), back[0])
				})
			}
			assert.NoError(t, dev.Free(p))
			assert.NoError(t, s.Close())
		})
	}
	all.Wait()
	require.NoError(t, dev.Err())
}

// deep calls f on a stack that has n more frames of 256 bytes.
func deep(n int, f func()) byte {
	var frame [256]byte
	if n == 0 {
		f()
		return frame[0]
	}
	frame[n%256] = 1
	return deep(n-1, f) + frame[0]
}
