package moe_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// TestRoutingKindsTime times routing alone on a GPU, kind beside kind, when
// SONICMOE_ROWS is "routing".
func TestRoutingKindsTime(t *testing.T) {
	if os.Getenv("SONICMOE_ROWS") != "routing" {
		t.Skip("set SONICMOE_ROWS=routing, on a GPU")
	}
	const tokens = 32768
	for _, g := range []struct {
		name   string
		config moe.Config
	}{
		{"softmax over 8 of 128", moe.Config{NumExperts: 128, TopK: 8}},
		{"softmax over all 128", moe.Config{NumExperts: 128, TopK: 8, Score: moe.SoftmaxAll}},
		{"softmax over 8 of 256", moe.Config{NumExperts: 256, TopK: 8}},
		{"DeepSeek-V3", moe.Config{NumExperts: 256, TopK: 8, Logits: moe.LogitsF32, Score: moe.Sigmoid, SelectionBias: true,
			Groups: 8, TopGroups: 4, GroupScore: moe.GroupSumOfTwo, Renormalize: moe.RenormSum, NormEpsilon: 1e-20, ScoreScale: 2.5}},
	} {
		t.Run(g.name, func(t *testing.T) {
			c := g.config
			c.Hidden, c.Intermediate = 2048, 256
			tr := newTrial(t, c, tokens, 1, moe.WithoutBackward())
			dev := testDevice(t)
			memory := moe.NewArena(dev)
			defer func() { require.NoError(t, memory.Free()) }()
			written := memory.Tensor(tr.Layer.Shapes(tokens).Logits)
			require.NoError(t, memory.Err())
			// The logits, which kinds differ in whether backward needs them, are an output that
			// costs any of them the same: with it and without.
			for _, logits := range []moe.Tensor{{}, written} {
				f := tr.Args
				f.Logits = logits
				route := func() error { return tr.Call().Route(tr.Stream(), f) }
				times, err := trial.Measure(context.Background(), dev, tr.Stream(), 300*time.Millisecond, 200, route)
				require.NoError(t, err)
				t.Logf("%s, logits written %v: %v, kernel by kernel %v", g.name, logits.Ptr != 0, times, kernelTimes(t, tr, route))
			}
			for _, small := range []int{64} {
				f, err := tr.Inference().Tokens(small)
				require.NoError(t, err)
				times, err := trial.Measure(context.Background(), dev, tr.Stream(), 100*time.Millisecond, 200, func() error { return tr.Call().Route(tr.Stream(), f) })
				require.NoError(t, err)
				t.Logf("%s, %d tokens: %v", g.name, small, times)
			}
		})
	}
}
