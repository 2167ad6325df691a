package moe_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/attack"
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// spoiler makes random mistakes in the tensors of a pass.
type spoiler struct{ *rand.Rand }

// spoil makes some of a pass's tensors and its workspace wrong.
func (r spoiler) spoil(workspace *moe.Buffer, tensors ...*moe.Tensor) {
	wild := []driver.DevicePtr{0, 1, 15, 16, 1 << 40, 1<<63 + 16, ^driver.DevicePtr(0), ^driver.DevicePtr(0) - 15}
	for range 1 + r.IntN(3) {
		t, other := tensors[r.IntN(len(tensors))], tensors[r.IntN(len(tensors))]
		switch r.IntN(9) {
		case 0:
			t.Ptr = wild[r.IntN(len(wild))]
		case 1:
			t.Ptr += driver.DevicePtr(r.IntN(64))
		case 2:
			t.Ptr = other.Ptr
		case 3:
			t.Shape.Dims[r.IntN(len(t.Shape.Dims))] = r.Int64() - r.Int64()
		case 4:
			t.Shape.Dims[r.IntN(3)] += int64(r.IntN(5) - 2)
		case 5:
			t.Shape.Rank = r.IntN(9) - 2
		case 6:
			t.Shape.Type = moe.Type(r.IntN(256))
		case 7:
			*t = moe.Tensor{}
		default:
			*t = *other
		}
	}
	switch r.IntN(8) {
	case 0:
		workspace.Bytes = r.Int64() - r.Int64()
	case 1:
		workspace.Ptr += driver.DevicePtr(r.IntN(512))
	}
}

// TestSpoiltArguments makes random mistakes in the arguments of both passes. A pass must name the
// field and launch nothing, or accept arguments that are valid after all. Later passes must give
// the same bits.
func TestSpoiltArguments(t *testing.T) {
	dev, tr := faultyTrial(t, testDevice(t), tiny, 12)
	ctx := testContext(t)
	require.NoError(t, tr.PrepareBackward(3, moe.BF16))
	want, err := digest(ctx, tr, tr.Stream(), tr.Args)
	require.NoError(t, err)
	dev.Discard(true) // accepted addresses may be unmapped
	r, refused := spoiler{rand.New(rand.NewPCG(1, 77))}, 0
	for i := range attack.Rounds(300, 10_000) {
		f, b := tr.Args, tr.Back
		pass := func() error { return tr.Call().Forward(tr.Stream(), f) }
		if r.IntN(2) == 0 {
			pass = func() error { return tr.Call().Backward(tr.Stream(), b) }
			r.spoil(&b.Workspace, &b.X, &b.Router, &b.W1, &b.W2, &b.H, &b.Scores, &b.ExpertIDs, &b.DO, &b.DX, &b.DScores, &b.DW1.Tensor, &b.DW2.Tensor, &b.DRouter.Tensor, &b.DLogits)
		} else {
			r.spoil(&f.Workspace, &f.X, &f.Router, &f.W1, &f.W2, &f.O, &f.H, &f.Scores, &f.ExpertIDs)
		}
		dev.ResetCounts()
		var arg *moe.ArgError
		if err := pass(); errors.As(err, &arg) {
			refused++
			require.Zero(t, dev.Count(faulty.Launch), "round %d: launched before %v", i, err)
		} else {
			require.NoError(t, err, "round %d", i)
		}
	}
	assert.Positive(t, refused)
	dev.Discard(false)
	again, err := digest(ctx, tr, tr.Stream(), tr.Args)
	require.NoError(t, err)
	assert.Equal(t, want, again)
}

// TestManyLayersLeaveNothing makes and closes many devices, each with a layer. It checks that
// goroutines and memory do not grow with the number of devices.
func TestManyLayersLeaveNothing(t *testing.T) {
	if onGPU() {
		t.Skip("counts the emulated device's memory")
	}
	cached := cache.Open(cache.Options{Dir: t.TempDir()})
	heap := func() (bytes uint64) {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	cycle := func() {
		dev, err := emulated.New(emulated.Options{})
		require.NoError(t, err)
		_, err = moe.New(testContext(t), dev, tiny, moe.WithCache(cached), moe.WithoutBackward())
		require.NoError(t, err)
		require.NoError(t, dev.Close())
		jit.Forget(dev)
	}
	cycle()
	cycle()
	goroutines, before := runtime.NumGoroutine(), heap()
	n := attack.Rounds(10, 400)
	for range n {
		cycle()
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines; time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d goroutines were %d", runtime.NumGoroutine(), goroutines)
	}
	grown := int64(heap()) - int64(before)
	t.Logf("%d layers: %d bytes of heap more", n, grown)
	assert.Less(t, grown, int64(n)<<18)
}
