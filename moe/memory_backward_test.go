package moe_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"sonicmoe/driver"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/num"
	"sonicmoe/internal/trial"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// TestBackwardAllocatesNothing checks that Backward allocates no host memory, and
// encodes a tensor map once.
func TestBackwardAllocatesNothing(t *testing.T) {
	dev, tr := faultyTrial(t, testDevice(t), faultConfig, 24)
	defer tr.Close()
	require.NoError(t, tr.PrepareBackward(17, moe.BF16))
	require.NoError(t, tr.AddLogitGradients(23))
	dev.Discard(true)
	s, b := tr.Stream(), tr.Back
	adding := b
	adding.DW1.Accumulate, adding.DW2.Accumulate, adding.DRouter.Accumulate = true, true, true
	for name, run := range map[string]func() error{
		"backward": func() error { return tr.Call().Backward(s, b) },
		"adding":   func() error { return tr.Call().Backward(s, adding) },
		"experts":  func() error { return tr.Call().BackwardExperts(s, expertsBackward(b)) },
	} {
		assert.Zero(t, testing.AllocsPerRun(100, func() { require.NoError(t, run()) }), name)
	}
	before := dev.Count(faulty.EncodeTensorMap)
	require.NoError(t, tr.Call().Backward(s, b))
	assert.Equal(t, before, dev.Count(faulty.EncodeTensorMap), "maps of the same buffers are not encoded again")
	const runs = 2000
	start := time.Now()
	for range runs {
		if err := tr.Call().Backward(s, b); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("host time of a Backward whose launches are discarded: %v", time.Since(start)/runs)
}

// TestEveryCallOfBackwardFails lets each driver call of a pass fail in turn.
// Backward must name the call, and the same Call must give the right bits
// afterwards.
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
	require.EqualValues(t, 11, maps, "dh w2, h; dw2 and dw1 rows, dw; dx dh, w1, dx; extra rows w; router x")
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

// TestBackwardExactSizes checks that the sizes of Sizes are sufficient, and that
// nothing outside of the buffers is written.
func TestBackwardExactSizes(t *testing.T) {
	for i, c := range []struct {
		tokens int
		config moe.Config
	}{
		{1, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 1, TopK: 1}},
		{37, moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 5, TopK: 3, GateUp: moe.Interleaved}},
		{129, moe.Config{Hidden: 320, Intermediate: 64, NumExperts: 40, TopK: 1}},
		{70, moe.Config{Hidden: 144, Intermediate: 80, NumExperts: 3, TopK: 2}},
		{70, moe.Config{Hidden: 80, Intermediate: 48, NumExperts: 3, TopK: 2, GateUp: moe.Interleaved, WeightOrder: moe.InOut}},
	} {
		if testing.Short() {
			if i%3 == 0 {
				continue
			}
			c.config.NumExperts = min(c.config.NumExperts, 13)
		}
		t.Run(fmt.Sprintf("%d %v", c.tokens, c.config), func(t *testing.T) {
			tr := trialOn(t, testDevice(t), c.config, c.tokens)
			withBackward(t, tr, moe.BF16)
			require.NoError(t, tr.AddLogitGradients(23))
			require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
			want := gradients(t, tr, tr.Back)
			a := guardedBackward(t, tr)
			require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
			sameGradients(t, want, gradients(t, tr, tr.Back), "in exact buffers")
			a.check(t, tr.Stream())
			// The same workspace is large enough for forward.
			tr.Args.Workspace = tr.Back.Workspace
			require.NoError(t, tr.Run(testContext(t), tr.Args))
			a.check(t, tr.Stream())
		})
	}
}

// guardedBackward moves a trial's gradients and workspace into a guarded memory.
func guardedBackward(t *testing.T, tr *trial.Trial) *arena {
	b := &tr.Back
	size := b.Workspace.Bytes
	for _, of := range wanted(b) {
		size += of.Shape.Bytes()
	}
	a := &arena{bytes: size + 8*(guardBytes+256)}
	var err error
	a.base, err = testDevice(t).Alloc(a.bytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, testDevice(t).Free(a.base)) })
	require.NoError(t, tr.Stream().CopyToDevice(a.base, bytes.Repeat([]byte{guard}, int(a.bytes))))
	a.next = a.base
	for _, of := range []*moe.Tensor{&b.DX, &b.DScores, &b.DW1.Tensor, &b.DW2.Tensor} {
		of.Ptr = a.take(of.Shape.Bytes())
	}
	b.Workspace.Ptr = a.take(b.Workspace.Bytes)
	b.DRouter.Ptr = a.take(b.DRouter.Shape.Bytes())
	return a
}

// TestConcurrentBackwards checks that several calls of a layer at once, each on its
// own stream, do not affect each other.
func TestConcurrentBackwards(t *testing.T) {
	var g errgroup.Group
	l := trialOn(t, testDevice(t), tiny, 1).Layer
	for i := range 3 {
		tr, err := trial.New(testDevice(t), l, 40+30*i, uint64(i), 6)
		require.NoError(t, err)
		defer tr.Close()
		withBackward(t, tr, moe.F32)
		require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
		alone := gradients(t, tr, tr.Back)
		g.Go(func() error {
			for range rounds(2) {
				if err := tr.RunBackward(testContext(t), tr.Back); err != nil {
					return err
				}
				for name, of := range wanted(&tr.Back) {
					got, err := tr.Rows(*of, 1, nil)
					if err != nil {
						return err
					}
					if !slices.Equal(got.Bits, alone[name].Bits) || !bytes.Equal(num.Bytes(got.F32), num.Bytes(alone[name].F32)) {
						return fmt.Errorf("%d tokens: other bits of %s beside other calls", tr.Tokens, name)
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}
