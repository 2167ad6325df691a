package moe_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/faulty"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// TestBackwardAllocatesNothing checks that Backward allocates no host memory, and encodes each
// tensor map only once.
func TestBackwardAllocatesNothing(t *testing.T) {
	dev, tr := faultyTrial(t, testDevice(t), faultConfig, 24, accumulating(faultConfig)...)
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
}

// TestBackwardExactSizes checks that the sizes of Sizes are large enough, and that the pass writes
// nothing outside of the buffers.
func TestBackwardExactSizes(t *testing.T) {
	for i, c := range []struct {
		tokens int
		config moe.Config
	}{
		{1, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 1, TopK: 1}},
		{37, moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 5, TopK: 3, GateUp: spec.Interleaved}},
		{129, moe.Config{Hidden: 320, Intermediate: 64, NumExperts: 40, TopK: 1}},
		{70, moe.Config{Hidden: 144, Intermediate: 80, NumExperts: 3, TopK: 2}},
		{70, moe.Config{Hidden: 80, Intermediate: 48, NumExperts: 3, TopK: 2, GateUp: spec.Interleaved, InOut: true}},
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

// guardedBackward moves a trial's gradients and workspace into an arena.
func guardedBackward(t *testing.T, tr *trial.Trial) *arena {
	b := &tr.Back
	size := b.Workspace.Bytes
	for _, of := range wanted(b) {
		size += of.Shape.Bytes()
	}
	a := newArena(t, tr.Stream(), size)
	for _, of := range []*moe.Tensor{&b.DX, &b.DScores, &b.DW1.Tensor, &b.DW2.Tensor} {
		of.Ptr = a.take(of.Shape.Bytes())
	}
	b.Workspace.Ptr = a.take(b.Workspace.Bytes)
	b.DRouter.Ptr = a.take(b.DRouter.Shape.Bytes())
	return a
}

// TestBackwardWorkspaceBound checks that the workspace of known layers is at most dH plus the
// larger of dX~ and A', plus 5 %, and that it is large enough for forward.
func TestBackwardWorkspaceBound(t *testing.T) {
	const sms = 132
	for _, row := range peers.All() {
		c := row.Config
		s, g := moe.SizesOn(c, sms, row.Tokens), c.Gradients(row.Tokens, moe.BF16)
		bound := g.DH.Bytes() + max(g.DXRows.Bytes(), g.ScaledA.Bytes())
		t.Logf("%-16s backward %8.1f MiB, %5.1f %% of dH and the larger of dX~ and A'; forward %8.1f MiB",
			row.Name, float64(s.BackwardWorkspace)/(1<<20), 100*float64(s.BackwardWorkspace)/float64(bound), float64(s.Workspace)/(1<<20))
		require.LessOrEqual(t, s.BackwardWorkspace, bound+bound/20+1<<25, row.Name)
		require.GreaterOrEqual(t, s.BackwardWorkspace, s.Workspace, row.Name)
	}
}

// TestLayersShareAWorkspace runs four layers in one workspace. Each keeps only X, H, scores and
// experts between its passes.
func TestLayersShareAWorkspace(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	const tokens = 60
	var all []*trial.Trial
	var alone []map[string]trial.Values
	for seed := range uint64(4) {
		l := newLayer(t, testDevice(t), tiny)
		tr, err := trial.New(testDevice(t), l, tokens, seed, 6)
		require.NoError(t, err)
		defer tr.Close()
		withBackward(t, tr, moe.BF16)
		require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
		alone, all = append(alone, gradients(t, tr, tr.Back)), append(all, tr)
	}
	shared := all[0].Back.Workspace
	for _, tr := range all {
		tr.Args.Workspace, tr.Back.Workspace = shared, shared
		forward(t, tr, tr.Args)
	}
	for i := len(all) - 1; i >= 0; i-- {
		require.NoError(t, all[i].RunBackward(testContext(t), all[i].Back))
		sameGradients(t, alone[i], gradients(t, all[i], all[i].Back), "layer %d", i)
	}
}

// TestBackwardPiecesDoNotOverlap checks that no two pieces of a backward workspace have
// the same offset.
func TestBackwardPiecesDoNotOverlap(t *testing.T) {
	scaled := tiny
	scaled.ExpertScale = true
	for _, c := range []moe.Config{tiny, scaled} {
		at := map[int64]string{}
		for name, offset := range trialOn(t, testDevice(t), c, 10).Layer.BackwardPieces(10) {
			assert.Empty(t, at[offset], "%s begins where another does, at %d", name, offset)
			at[offset] = name
		}
	}
}
