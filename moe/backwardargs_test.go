package moe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/peers"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

var wrongBackwards = []struct {
	name  string
	field string
	make  func(b *moe.BackwardArgs)
}{
	{"X of rank 1", "X", func(b *moe.BackwardArgs) { b.X = moe.TensorAt(b.X.Ptr, moe.BF16, 70*192) }},
	{"X absent", "X", func(b *moe.BackwardArgs) { b.X = moe.Tensor{} }},
	{"Router absent", "Router", func(b *moe.BackwardArgs) { b.Router = moe.Tensor{} }},
	{"W1 of n rows", "W1", func(b *moe.BackwardArgs) { b.W1.Shape.Dims[1] /= 2 }},
	{"W2 misaligned", "W2.Ptr", func(b *moe.BackwardArgs) { b.W2.Ptr += 8 }},
	{"H absent", "H", func(b *moe.BackwardArgs) { b.H = moe.Tensor{} }},
	{"H of T rows", "H", func(b *moe.BackwardArgs) { b.H.Shape.Dims[0] /= 2 }},
	{"Scores nil", "Scores.Ptr", func(b *moe.BackwardArgs) { b.Scores.Ptr = 0 }},
	{"Experts in FP32", "ExpertIDs", func(b *moe.BackwardArgs) { b.ExpertIDs.Shape.Type = moe.F32 }},
	{"DO absent", "DO", func(b *moe.BackwardArgs) { b.DO = moe.Tensor{} }},
	{"DO in FP32", "DO", func(b *moe.BackwardArgs) { b.DO.Shape.Type = moe.F32 }},
	{"DLogits in bf16", "DLogits", func(b *moe.BackwardArgs) { b.DLogits = b.DRouter.Tensor; b.DLogits.Shape.Dims[0] = 70 }},
	{"DX of other tokens", "DX", func(b *moe.BackwardArgs) { b.DX.Shape.Dims[0]++ }},
	{"DScores in bf16", "DScores", func(b *moe.BackwardArgs) { b.DScores.Shape.Type = moe.BF16 }},
	{"DW1 of integers", "DW1", func(b *moe.BackwardArgs) { b.DW1.Shape.Type = moe.I32 }},
	{"DW1 like W2", "DW1", func(b *moe.BackwardArgs) { b.DW1.Shape = b.DW2.Shape }},
	{"DW2 nil", "DW2.Ptr", func(b *moe.BackwardArgs) { b.DW2.Ptr = 0 }},
	{"DRouter misaligned", "DRouter.Ptr", func(b *moe.BackwardArgs) { b.DRouter.Ptr += 4 }},
	{"DW1 is W1", "DW1", func(b *moe.BackwardArgs) { b.DW1.Ptr = b.W1.Ptr }},
	{"DX is X", "DX", func(b *moe.BackwardArgs) { b.DX.Ptr = b.X.Ptr }},
	{"DX is DO", "DX", func(b *moe.BackwardArgs) { b.DX.Ptr = b.DO.Ptr }},
	{"DScores are Scores", "DScores", func(b *moe.BackwardArgs) { b.DScores.Ptr = b.Scores.Ptr }},
	{"DW2 in DW1", "DW2", func(b *moe.BackwardArgs) { b.DW2.Ptr = b.DW1.Ptr + 256 }},
	{"Workspace of forward", "Workspace", func(b *moe.BackwardArgs) { b.Workspace.Bytes-- }},
	{"Workspace nil", "Workspace.Ptr", func(b *moe.BackwardArgs) { b.Workspace.Ptr = 0 }},
	{"Workspace misaligned", "Workspace.Ptr", func(b *moe.BackwardArgs) { b.Workspace.Ptr += 16 }},
	{"Workspace over H", "Workspace", func(b *moe.BackwardArgs) { b.Workspace.Ptr = b.H.Ptr }},
}

// TestBackwardArgErrors checks that a wrong buffer gives an *ArgError with its
// name, that nothing is launched, and that the call works afterwards.
func TestBackwardArgErrors(t *testing.T) {
	tr := trialOn(t, testDevice(t), tiny, 70)
	saved := withBackward(t, tr, moe.BF16)
	s := tr.Stream()
	for _, w := range wrongBackwards {
		t.Run(w.name, func(t *testing.T) {
			b := tr.Back
			w.make(&b)
			n, err := launches(t, s, func() error { return tr.Call().Backward(s, b) })
			wantArgError(t, err, w.field)
			require.Zero(t, n, "something was launched")
			if w.field == "Router" || w.field == "DLogits" || w.field == "DRouter.Ptr" {
				return
			}
			n, err = launches(t, s, func() error { return tr.Call().BackwardExperts(s, expertsBackward(b)) })
			wantArgError(t, err, w.field)
			require.Zero(t, n, "something was launched")
		})
	}
	wantArgError(t, tr.Call().Backward(nil, tr.Back), "stream")
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	checkBackward(t, tr, tr.Back, saved, true)
}

// TestWithoutBackward checks that a layer without backward has fewer kernels and
// the same O, and that the error of Backward names the option.
func TestWithoutBackward(t *testing.T) {
	with, without := trialOn(t, testDevice(t), tiny, 70), trialOn(t, testDevice(t), tiny, 70, moe.WithoutBackward())
	require.Equal(t, forward(t, with, with.Args), forward(t, without, without.Args))
	require.Less(t, len(without.Layer.Kernels()), len(with.Layer.Kernels()))
	require.Len(t, without.Layer.LoadedFrom(), len(without.Layer.Kernels()))
	require.NoError(t, without.PrepareBackward(17, moe.BF16))
	err := without.Call().Backward(without.Stream(), without.Back)
	wantArgError(t, err, "Layer")
	require.ErrorContains(t, err, "WithoutBackward")
	for _, name := range with.Layer.Kernels() {
		_, err := with.Layer.Listing(name)
		require.NoError(t, err)
	}
	plan, err := with.Layer.Listing("plan-splits")
	require.NoError(t, err)
	byEntry, err := with.Layer.Listing("moe_dwplan")
	require.NoError(t, err)
	require.Equal(t, plan, byEntry)
}

// TestBackwardWorkspaceBound checks that the workspace of known layers is at most
// dH and the larger of dX~ and A', plus 5 %, and that forward can use it too.
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

// TestLayersShareAWorkspace runs four layers in one workspace. They keep only X, H,
// scores and experts between the passes.
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
