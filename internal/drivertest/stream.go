package drivertest

import (
	"context"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
)

// counted returns the result that count.ptx must have after n steps.
func counted(n uint32) uint32 {
	var x uint32
	for range n {
		x = x*1664525 + 1013904223
	}
	return x
}

// stepsFor measures the kernel count once, and returns the number of steps that take about the
// time d on this device.
func (b *bench) stepsFor(count gpu.Function, d time.Duration) uint32 {
	const trial = 2000
	out, from, to := b.alloc(4), b.newEvent(), b.newEvent()
	for range 2 { // the first launch may be slow
		require.NoError(b, from.Record(b.stream))
		require.NoError(b, gpu.Enqueue(b.stream, count, &gpu.Launch{}, pack(out, uint32(trial))))
		require.NoError(b, to.Record(b.stream))
	}
	require.NoError(b, to.Synchronize(b.Context()))
	took, err := to.Since(from)
	require.NoError(b, err)
	return uint32(min(float64(trial)*float64(d)/float64(max(took, time.Microsecond)), 1e9))
}

func testEvents(b *bench) {
	count := b.function("count.ptx", "count")
	out, from, to := b.alloc(4), b.newEvent(), b.newEvent()
	require.NoError(b, from.Record(b.stream))
	require.NoError(b, gpu.Enqueue(b.stream, count, &gpu.Launch{}, pack(out, uint32(10000))))
	require.NoError(b, to.Record(b.stream))
	require.NoError(b, to.Synchronize(b.Context()))
	for _, e := range []driver.Event{from, to} {
		done, err := e.Done()
		require.NoError(b, err)
		assert.True(b, done)
	}
	forward, err := to.Since(from)
	require.NoError(b, err)
	assert.Positive(b, forward)
	none, err := from.Since(from)
	require.NoError(b, err)
	assert.Zero(b, none)
	_, err = to.Since(nil)
	require.ErrorIs(b, err, driver.ErrInvalid)
}

func testEventAcrossStreams(b *bench) {
	count := b.function("count.ptx", "count")
	steps := b.stepsFor(count, 5*time.Millisecond)
	x, y := b.alloc(4), b.alloc(4)
	first, second, ready := b.newStream(), b.newStream(), b.newEvent()
	require.NoError(b, gpu.Enqueue(first, count, &gpu.Launch{}, pack(x, steps)))
	require.NoError(b, ready.Record(first))
	require.NoError(b, second.Wait(ready))
	require.NoError(b, second.Copy(y, x, 4))
	require.NoError(b, second.Synchronize(b.Context()))
	done, err := ready.Done()
	require.NoError(b, err)
	assert.True(b, done)
	assert.Equal(b, counted(steps), b.get(y, 1)[0], "the second stream must have waited")
}

// testEndedContext checks that Synchronize returns when its context ends, and that the work on
// the stream continues.
func testEndedContext(b *bench) {
	count := b.function("count.ptx", "count")
	steps := b.stepsFor(count, 30*time.Millisecond)
	out, event := b.alloc(4), b.newEvent()
	require.NoError(b, gpu.Enqueue(b.stream, count, &gpu.Launch{}, pack(out, steps)))
	require.NoError(b, event.Record(b.stream))
	waits := map[string]func(context.Context) error{
		"stream": b.stream.Synchronize, "event": event.Synchronize, "device": b.dev.Synchronize,
	}
	ended, cancel := context.WithCancel(b.Context())
	cancel()
	for name, wait := range waits {
		require.ErrorIs(b, wait(ended), context.Canceled, name)
		short, cancel := context.WithTimeout(b.Context(), time.Millisecond)
		if err := wait(short); err != nil {
			require.ErrorIs(b, err, context.DeadlineExceeded, name)
		}
		cancel()
	}
	for name, wait := range waits {
		require.NoError(b, wait(b.Context()), name)
	}
	assert.Equal(b, counted(steps), b.get(out, 1)[0])
}

// testWrappedStream checks that a wrapped stream works, and that closing the wrapper does not
// close the real stream.
func testWrappedStream(b *bench) {
	f, out := b.function("count.ptx", "poke"), b.alloc(8)
	w := b.dev.WrapStream(b.stream.Handle())
	assert.Equal(b, b.stream.Handle(), w.Handle())
	require.NoError(b, gpu.Enqueue(w, f, &gpu.Launch{}, pack(out, uint32(5))))
	require.NoError(b, w.Synchronize(b.Context()))
	require.NoError(b, w.Close())
	require.NoError(b, gpu.Enqueue(b.stream, f, &gpu.Launch{}, pack(out+4, uint32(6))))
	assert.Equal(b, []uint32{5, 6}, b.get(out, 2))
}

// testGraph checks that a graph reads its inputs again at each replay.
func testGraph(b *bench) {
	const n = 300
	f := b.function("add.ptx", "scaled_add")
	x, y, _ := addends(n, 0)
	in1, in2, out, copied := b.put(x), b.put(y), b.alloc(4*n), b.alloc(4*n)
	require.NoError(b, b.stream.Synchronize(b.Context()))

	require.NoError(b, b.stream.BeginCapture())
	params := pack(out, in1, in2, uint32(n), float32(0.5))
	require.NoError(b, gpu.Enqueue(b.stream, f, line(n), params))
	require.NoError(b, b.stream.Copy(copied, out, 4*n))
	g, err := b.stream.EndCapture()
	require.NoError(b, err)
	clear(params)
	defer func() { require.NoError(b, g.Close()) }()
	assert.Equal(b, 2, g.Nodes())
	assert.Equal(b, uint32(poison), b.get(out, 1)[0], "capturing must not run")

	for seed := range 3 {
		x, y, sum := addends(n, 100*seed)
		require.NoError(b, b.stream.CopyToDevice(in1, encode(x)))
		require.NoError(b, b.stream.CopyToDevice(in2, encode(y)))
		require.NoError(b, b.stream.Fill32(copied, poison, n))
		require.NoError(b, g.Launch(b.stream))
		require.Equal(b, sum, b.get(copied, n), "replay %d", seed)
	}
	require.ErrorIs(b, g.Launch(nil), driver.ErrInvalid)
	_, err = b.stream.EndCapture()
	require.ErrorIs(b, err, driver.ErrInvalid, "there is no capture to end")
}

// testCaptureRefusesHostCopies checks that copies from or to the host cannot be captured,
// because the host memory may be freed before the graph is replayed. The capture continues
// after the refused copy.
func testCaptureRefusesHostCopies(b *bench) {
	p := b.alloc(4)
	require.NoError(b, b.stream.BeginCapture())
	require.NoError(b, b.stream.Fill32(p, 9, 1))
	require.ErrorIs(b, b.stream.CopyToDevice(p, make([]byte, 4)), driver.ErrInvalid)
	require.ErrorIs(b, b.stream.CopyToHost(make([]byte, 4), p), driver.ErrInvalid)
	g, err := b.stream.EndCapture()
	require.NoError(b, err)
	assert.Equal(b, 1, g.Nodes())
	require.NoError(b, g.Launch(b.stream))
	assert.Equal(b, []uint32{9}, b.get(p, 1))
	require.NoError(b, g.Close())
}
