package moe_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/faulty"
	"sonicmoe/moe"
)

// TestObserve checks that a pass calls its observer for each kernel, in order, before it queues the
// kernel, that the observer's error ends the pass, and that a removed observer has no effect on
// later passes.
func TestObserve(t *testing.T) {
	dev, tr := faultyTrial(t, testDevice(t), faultConfig, 10, moe.WithDecode(10))
	ctx := limited(t, time.Minute)
	want, err := digest(ctx, tr, tr.Stream(), tr.Args)
	require.NoError(t, err)

	var names []string
	tr.Call().Observe(func(kernel string, s driver.Stream) error {
		require.Equal(t, tr.Stream(), s)
		names = append(names, kernel)
		return nil
	})
	for pass, run := range map[string]struct {
		run  func() error
		want []string
	}{
		"training":  {func() error { return tr.Call().Forward(tr.Stream(), tr.Args) }, []string{"small-batch-logits", "choose", "decode-up", "decode-down", "aggregate-early"}},
		"inference": {func() error { return tr.Call().Forward(tr.Stream(), tr.Inference()) }, []string{"small-batch-logits", "choose", "decode-up", "decode-down", "aggregate-early"}},
		"route":     {func() error { return tr.Call().Route(tr.Stream(), tr.Args) }, []string{"small-batch-logits", "choose"}},
		"experts":   {func() error { return tr.Call().ForwardExperts(tr.Stream(), tr.Args) }, []string{"count", "plan", "decode-up", "decode-down", "aggregate-early"}},
	} {
		names = nil
		require.NoError(t, run.run(), pass)
		require.Equal(t, run.want, names, pass)
		require.Subset(t, tr.Layer.Kernels(), names)
	}

	stop := errors.New("enough")
	tr.Call().Observe(func(kernel string, _ driver.Stream) error {
		if kernel == "decode-up" {
			return stop
		}
		return nil
	})
	require.NoError(t, tr.Stream().Synchronize(ctx))
	launched := dev.Count(faulty.Launch)
	require.Equal(t, stop, tr.Call().Forward(tr.Stream(), tr.Args))
	require.Equal(t, launched+2, dev.Count(faulty.Launch), "the routing")

	tr.Call().Observe(nil)
	got, err := digest(ctx, tr, tr.Stream(), tr.Args)
	require.NoError(t, err)
	require.Equal(t, want, got)
}
