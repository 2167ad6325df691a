package moe_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// size is the size of a valid layer, and the number of tokens T of a pass.
type size struct{ T, d, n, E, K int }

// smallSizes cover all edge cases, with at most 0.5 GFLOP each. largeSizes are for a GPU.
var (
	smallSizes = []size{
		{0, 128, 64, 60, 16}, {1, 2880, 2880, 7, 1}, {63, 192, 704, 60, 1}, {64, 128, 64, 1024, 1}, {127, 128, 1408, 1, 1},
		{128, 192, 64, 7, 1}, {129, 128, 64, 60, 16}, {1000, 128, 64, 7, 1}, {20, 320, 192, 384, 3},
	}
	largeSizes = []size{
		{1000, 2880, 2880, 60, 16}, {1000, 192, 704, 1024, 16}, {129, 2880, 1408, 1, 1}, {127, 128, 2880, 7, 1},
		{64, 2880, 64, 1024, 16}, {4096, 7168, 2048, 256, 8}, {262144, 256, 640, 64, 16},
	}
)

// TestSizes checks each size on poisoned outputs, and checks that a second pass has the same bits.
// On a GPU it repeats the pass 20 times, and also runs it in a graph and with other tilings.
func TestSizes(t *testing.T) {
	sizes := smallSizes
	if onGPU() {
		sizes = append(append([]size{}, smallSizes...), largeSizes...)
	}
	for i, s := range sizes {
		if testing.Short() && s.d*s.n*s.E > 1<<22 {
			continue // the weights alone take longer than all other sizes
		}
		layout := []moe.GateUp{spec.Concatenated, spec.Interleaved}[i%2]
		t.Run(fmt.Sprintf("%+v %v", s, layout), func(t *testing.T) {
			ctx := limited(t, 2*time.Minute)
			tr := newTrial(t, moe.Config{Hidden: s.d, Intermediate: s.n, NumExperts: s.E, TopK: s.K, GateUp: layout}, s.T, 3, moe.WithoutBackward())
			require.NoError(t, tr.Run(ctx, tr.Args))
			first, err := tr.Results(true)
			require.NoError(t, err)
			rep, err := tr.Check(first, 256)
			require.NoError(t, err)
			require.NoError(t, rep.Check())
			require.NoError(t, tr.Run(ctx, tr.Inference()))
			same(t, tr, first, "the inference pass")
			if !onGPU() || s.T == 0 {
				return
			}
			for range 20 {
				require.NoError(t, tr.Run(ctx, tr.Args))
				same(t, tr, first, "a repeat")
			}
			replay(t, ctx, tr, first)
			otherTiles(t, ctx, tr, first)
		})
	}
}
