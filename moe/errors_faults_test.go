package moe_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/child"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/tiles"
)

var faultConfig = moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}

// TestEveryCallOfForwardFails makes each driver call of a pass fail in turn. It checks that Forward
// names the call and leaves nothing behind, and that the same Call later gives the right bits.
func TestEveryCallOfForwardFails(t *testing.T) {
	t.Run("large batches", func(t *testing.T) {
		everyCallFails(t, 0, 8) // router x, w; up w1, a, h; down a, w2, y
	})
	t.Run("small batches", func(t *testing.T) {
		everyCallFails(t, 10, 4) // router x, w; up w1; down w2
	})
}

// everyCallFails runs the test for a layer whose largest small batch has decode tokens. wantMaps is
// the number of tensor maps of a pass.
func everyCallFails(t *testing.T, decode int, wantMaps int64) {
	dev, tr := faultyTrial(t, testDevice(t), faultConfig, 10, moe.WithDecode(decode), moe.WithoutBackward())
	ctx := limited(t, time.Minute)
	want, err := digest(ctx, tr, tr.Stream(), tr.Args)
	require.NoError(t, err)
	live := dev.Live()

	dev.ResetCounts()
	require.NoError(t, tr.Layer.NewCall().Forward(tr.Stream(), tr.Args))
	maps, launches := dev.Count(faulty.EncodeTensorMap), dev.Count(faulty.Launch)
	require.Equal(t, wantMaps, maps)
	require.EqualValues(t, 5, launches)
	steps := dev.Count(faulty.Any)
	require.Equal(t, maps+launches, steps, "a pass only encodes and launches")

	for n := int64(1); n <= steps; n++ {
		call := tr.Layer.NewCall()
		dev.ResetCounts()
		dev.Arm(faulty.Fault{N: n})
		err := call.Forward(tr.Stream(), tr.Args)
		require.True(t, dev.Disarm(), "step %d of %d", n, steps)
		var e *driver.Error
		require.ErrorAs(t, err, &e, "step %d", n)
		assert.Contains(t, []string{"EncodeTensorMap", "Launch"}, e.Op)
		assert.ErrorContains(t, err, "kernel moe_", "the error must name the kernel")
		assert.ErrorContains(t, err, e.Op)
		assert.Equal(t, n, dev.Count(faulty.Any), "nothing is queued after step %d failed", n)
		assert.Equal(t, live, dev.Live())

		tr.UseCall(call) // the failed Call is used again
		got, err := digest(ctx, tr, tr.Stream(), tr.Args)
		require.NoError(t, err)
		require.Equal(t, want, got, "bits after step %d failed", n)
	}
	require.NoError(t, tr.Close())
	after := dev.Live()
	assert.Zero(t, after.Allocations+after.Streams+after.Events+after.Graphs)
	jit.Forget(dev)
}

// TestEveryCallOfForwardBreaks checks that after a call breaks the device, all later calls of the
// layer and the device fail at once with the first cause.
func TestEveryCallOfForwardBreaks(t *testing.T) {
	inner := testDevice(t)
	for n := int64(1); n <= 13; n++ {
		dev, tr := faultyTrial(t, inner, faultConfig, 10, moe.WithoutDecode(), moe.WithoutBackward())
		cause := errors.New("cosmic ray")
		dev.Arm(faulty.Fault{N: n, Break: true, Err: cause})
		err := tr.Call().Forward(tr.Stream(), tr.Args)
		require.ErrorIs(t, err, driver.ErrBroken, "step %d", n)
		require.ErrorIs(t, err, cause)
		launches := dev.Count(faulty.Launch)
		checkBroken(t, dev, tr.Stream(), tr.Layer, tr.Call(), tr.Args)
		assert.LessOrEqual(t, dev.Count(faulty.Launch), launches+3, "a broken device is asked once a call")
		jit.Forget(dev)
	}
}

// TestEveryCallOfNewBreaks checks that New returns the first cause if the device
// breaks during it.
func TestEveryCallOfNewBreaks(t *testing.T) {
	inner := testDevice(t)
	for _, op := range []faulty.Op{faulty.Compile, faulty.Load, faulty.FindFunction, faulty.AllowSharedBytes} {
		dev := faulty.Wrap(inner)
		dev.Arm(faulty.Fault{Op: op, N: 2, Break: true})
		_, err := moe.New(context.Background(), dev, faultConfig, moe.WithoutCache())
		require.ErrorIs(t, err, driver.ErrBroken, op)
		assert.ErrorContains(t, err, op.String())
		require.Equal(t, op.String(), dev.Err().(*driver.Error).Op)
		_, err = moe.New(context.Background(), dev, faultConfig, moe.WithoutCache())
		require.ErrorIs(t, err, dev.Err(), "a second New")
		live := dev.Live()
		assert.Zero(t, live.Allocations+live.Streams+live.Events)
		jit.Forget(dev)
	}
}

// TestImpossibleChoice checks that tilings that no kernel can have give errors and no panics.
func TestImpossibleChoice(t *testing.T) {
	good := kernel.Choose(faultConfig, testDevice(t).Target())
	for _, c := range []struct {
		point       gemm.Tiling
		field, want string
	}{
		{gemm.Tiling{Stages: 4, GroupM: 16, ClusterM: 1}, "TileN", "one of "},
		{gemm.Tiling{TileN: -128, Stages: 4, GroupM: 16, ClusterM: 1}, "TileN", "one of "},
		{gemm.Tiling{TileN: 100, Stages: 4, GroupM: 16, ClusterM: 1}, "TileN", "one of "},
		{gemm.Tiling{TileN: 512, Stages: 4, GroupM: 16, ClusterM: 1}, "TileN", "one of "},
		{gemm.Tiling{TileN: 128, Stages: 0, GroupM: 16, ClusterM: 1}, "Stages", "3 to "},
		{gemm.Tiling{TileN: 128, Stages: -1, GroupM: 16, ClusterM: 1}, "Stages", "3 to "},
		{gemm.Tiling{TileN: 128, Stages: 40, GroupM: 16, ClusterM: 1}, "Stages", "3 to "},
		{gemm.Tiling{TileN: 128, Stages: 4, GroupM: 0, ClusterM: 1}, "GroupM", "1 to 1024"},
		{gemm.Tiling{TileN: 128, Stages: 4, GroupM: 1 << 40, ClusterM: 1}, "GroupM", "1 to 1024"},
	} {
		for product := range good {
			choice := good.With(spec.ProductID(product), c.point)
			_, err := moe.New(context.Background(), testDevice(t), faultConfig, moe.WithoutCache(), moe.WithTilings(choice.Text()))
			var arg *moe.ArgError
			require.ErrorAs(t, err, &arg, "%+v", choice)
			assert.Equal(t, "Tiles of "+spec.ProductID(product).String()+"."+c.field, arg.Field)
			assert.Contains(t, arg.Want, c.want)
		}
	}
	// Fewer stages and any group size are valid and give the same bits.
	tr := newTrial(t, faultConfig, 10, 6, moe.WithoutBackward())
	want, err := digest(limited(t, time.Minute), tr, tr.Stream(), tr.Args)
	require.NoError(t, err)
	odd := gemm.Tiling{TileN: 128, Stages: 3, GroupM: 5, ClusterM: 1}
	l, err := moe.New(context.Background(), testDevice(t), faultConfig, moe.WithoutCache(), moe.WithTilings(tiles.Choice{spec.ProductUp: odd, spec.ProductDown: odd}.Text()))
	require.NoError(t, err)
	*tr.Call() = *l.NewCall()
	got, err := digest(limited(t, time.Minute), tr, tr.Stream(), tr.Args)
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// TestTooLittleSharedMemory checks that New refuses a chip on which no tiling fits.
func TestTooLittleSharedMemory(t *testing.T) {
	target := emulated.Target()
	target.SharedBytesPerCTA = 48 << 10
	dev, err := emulated.New(emulated.Options{Target: target})
	require.NoError(t, err)
	_, err = moe.New(context.Background(), dev, faultConfig, moe.WithoutCache())
	require.ErrorIs(t, err, driver.ErrUnsupported)
	assert.ErrorContains(t, err, "49152 bytes of shared memory")
}

// checkBroken checks that every operation of layer, stream and device returns the
// first cause without delay.
func checkBroken(t *testing.T, dev driver.Device, s driver.Stream, l *moe.Layer, call *moe.Call, f moe.ForwardArgs) {
	t.Helper()
	first := dev.Err()
	require.ErrorIs(t, first, driver.ErrBroken)
	var cause *driver.Error
	require.ErrorAs(t, first, &cause)
	start := time.Now()
	for name, ask := range map[string]func() error{
		"Forward":          func() error { return call.Forward(s, f) },
		"Forward, new":     func() error { return l.NewCall().Forward(s, f) },
		"Route":            func() error { return call.Route(s, f) },
		"Experts":          func() error { return call.ForwardExperts(s, f) },
		"New":              func() error { _, err := moe.New(context.Background(), dev, l.Config(), moe.WithoutCache()); return err },
		"Stream.Sync":      func() error { return s.Synchronize(context.Background()) },
		"CopyToHost":       func() error { return s.CopyToHost(make([]byte, 4), f.O.Ptr) },
		"Device.Sync":      func() error { return dev.Synchronize(context.Background()) },
		"Alloc":            func() error { _, err := dev.Alloc(256); return err },
		"NewStream":        func() error { _, err := dev.NewStream(); return err },
		"Fill32, a second": func() error { return s.Fill32(f.O.Ptr, 0, 1) },
	} {
		err := ask()
		require.ErrorIs(t, err, driver.ErrBroken, name)
		require.ErrorIs(t, err, first, "%s must give the first cause", name)
		assert.ErrorContains(t, err, cause.Error(), name)
	}
	assert.Equal(t, first, dev.Err(), "the first cause stays")
	assert.Less(t, time.Since(start), 5*time.Second, "a broken device answers at once")
}

// TestKernelFault checks that a kernel that accesses unmapped memory breaks the device permanently.
// A process cannot use its GPU after that, so on a GPU the test runs in a child process.
func TestKernelFault(t *testing.T) {
	if onGPU() && child.Role() == "" {
		out, err := child.Command(t, t.Name(), "may break its GPU").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	for name, spoil := range map[string]func(*testing.T, driver.Device, *moe.ForwardArgs){
		"freed workspace": func(t *testing.T, dev driver.Device, f *moe.ForwardArgs) {
			require.NoError(t, dev.Free(f.Workspace.Ptr))
		},
		"no such workspace": func(_ *testing.T, _ driver.Device, f *moe.ForwardArgs) {
			f.Workspace.Ptr = 1 << 44 // not mapped, but high enough that tensor maps, which start below it, have valid addresses
		},
		"freed X": func(t *testing.T, dev driver.Device, f *moe.ForwardArgs) { require.NoError(t, dev.Free(f.X.Ptr)) },
		"freed O": func(t *testing.T, dev driver.Device, f *moe.ForwardArgs) { require.NoError(t, dev.Free(f.O.Ptr)) },
	} {
		if onGPU() && name != "no such workspace" {
			continue // a GPU may keep freed memory mapped, and breaks only once
		}
		t.Run(name, func(t *testing.T) {
			dev := breakable(t)
			_, tr := faultyTrial(t, dev, faultConfig, 10, moe.WithoutBackward())
			f := tr.Args
			spoil(t, dev, &f)
			err := tr.Call().Forward(tr.Stream(), f)
			if err == nil {
				err = tr.Stream().Synchronize(limited(t, time.Minute))
			}
			require.ErrorIs(t, err, driver.ErrBroken)
			if of, ok := strings.CutPrefix(name, "freed "); ok {
				first := map[string]string{"workspace": "counts|logits", "X": "x", "O": "o"}[of] // either warp may be first
				require.Regexp(t, `bytes that was freed: (`+first+`) \+ 0`, err)
			}
			checkBroken(t, dev, tr.Stream(), tr.Layer, tr.Call(), f)
			require.NoError(t, dev.Close(), "a broken device can be closed")
		})
	}
}

// breakable returns a device that the test may break.
func breakable(t *testing.T) driver.Device {
	if onGPU() {
		return testDevice(t)
	}
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	return dev
}

// TestExplain checks that the error of a replayed graph, and the error of waiting after it, name
// the Go line, as the error of Forward does. Each kernel has a different name.
func TestExplain(t *testing.T) {
	if onGPU() {
		t.Skip("a GPU names no line of PTX")
	}
	dev := breakable(t)
	_, tr := faultyTrial(t, dev, faultConfig, 10, moe.WithoutBackward())
	names := map[string]bool{}
	for _, name := range tr.Layer.Kernels() {
		text, err := tr.Layer.Listing(name)
		require.NoError(t, err)
		entry := regexp.MustCompile(`\.entry (\w+)`).FindSubmatch(text)
		require.NotNil(t, entry, name)
		require.False(t, names[string(entry[1])], "%s is another's entry too", entry[1])
		names[string(entry[1])] = true
	}

	s := tr.Stream()
	require.NoError(t, s.BeginCapture())
	require.NoError(t, tr.Call().Forward(s, tr.Inference()))
	g, err := s.EndCapture()
	require.NoError(t, err)
	require.NoError(t, g.Launch(s))
	require.NoError(t, tr.Layer.Explain(s.Synchronize(limited(t, time.Minute))))
	require.NoError(t, dev.Free(tr.Args.O.Ptr))
	const line = "kernel/aggregate.go:"
	for name, fault := range map[string]error{"replay": g.Launch(s), "Synchronize": s.Synchronize(limited(t, time.Minute))} {
		require.ErrorIs(t, fault, driver.ErrBroken, name)
		assert.NotContains(t, fault.Error(), line, name)
		explained := tr.Layer.Explain(fault)
		assert.ErrorContains(t, explained, line, name)
		require.ErrorIs(t, explained, dev.Err(), name)
		assert.Equal(t, explained, tr.Layer.Explain(explained), "once is enough")
	}
	other := errors.New("no kernel's")
	assert.Equal(t, other, tr.Layer.Explain(other))
}

// TestEveryCallOfBackwardFails makes each driver call of a pass fail in turn. It checks that
// Backward names the call, and that the same Call later gives the right bits.
func TestEveryCallOfBackwardFails(t *testing.T) {
	dev, tr := faultyTrial(t, testDevice(t), faultConfig, 10)
	saved := withBackward(t, tr, moe.BF16)
	require.NoError(t, tr.AddLogitGradients(23))
	s := tr.Stream()
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	checkBackward(t, tr, tr.Back, saved, true)
	want := gradients(t, tr, tr.Back)
	dev.ResetCounts()
	require.NoError(t, tr.Layer.NewCall().Backward(s, tr.Back))
	maps, launched, steps := dev.Count(faulty.EncodeTensorMap), dev.Count(faulty.Launch), dev.Count(faulty.Any)
	require.EqualValues(t, 12, maps, "dh w2, h; dw2 and dw1 rows, dw; dx dh, w1, dx, router's weights; extra rows w; router x")
	require.EqualValues(t, 12, launched)
	require.Equal(t, maps+launched, steps, "a pass only encodes and launches")
	for n := int64(1); n <= steps; n++ {
		call := tr.Layer.NewCall()
		dev.ResetCounts()
		dev.Arm(faulty.Fault{N: n})
		err := call.Backward(s, tr.Back)
		require.True(t, dev.Disarm(), "step %d of %d", n, steps)
		var e *driver.Error
		require.ErrorAs(t, err, &e, "step %d", n)
		assert.ErrorContains(t, err, "kernel moe_", "the error must name the kernel")
		assert.Equal(t, n, dev.Count(faulty.Any), "nothing is queued after step %d failed", n)
		if n%5 != 0 {
			continue
		}
		require.NoError(t, tr.PoisonGradients(tr.Back))
		require.NoError(t, call.Backward(s, tr.Back)) // the failed Call is used again
		require.NoError(t, s.Synchronize(testContext(t)))
		sameGradients(t, want, gradients(t, tr, tr.Back), "after step %d failed", n)
	}
	require.NoError(t, tr.Close())
	jit.Forget(dev)
}
