package moe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

var withShared = moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 5, TopK: 2, SharedExperts: 3, SharedGate: true}

// sharedGradients returns the gradients of the shared experts' weights.
func sharedGradients(b *moe.BackwardArgs) []*moe.Gradient {
	return []*moe.Gradient{&b.DSharedW1, &b.DSharedW3, &b.DSharedW2, &b.DSharedGate}
}

// TestFrozenSharedExperts checks that shared experts with frozen weights have only the launches
// that dX needs, and that each gradient has the same bits whether a pass computes it alone or with
// all others.
func TestFrozenSharedExperts(t *testing.T) {
	tr := newTrial(t, withShared, 150, 6)
	withBackward(t, tr, moe.BF16)
	s := tr.Stream()
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	bits := func(g moe.Tensor) trial.Values {
		v, err := tr.Rows(g, 1, nil)
		require.NoError(t, err)
		return v
	}
	dx, dw2, gate := bits(tr.Back.DX), bits(tr.Back.DSharedW2.Tensor), bits(tr.Back.DSharedGate.Tensor)
	count := func(b moe.BackwardArgs) int {
		n, err := launches(t, s, func() error { return tr.Call().Backward(s, b) })
		require.NoError(t, err)
		return n
	}
	all := count(tr.Back)

	frozen := tr.Back
	for _, g := range sharedGradients(&frozen) {
		*g = moe.Gradient{}
	}
	require.NoError(t, tr.RunBackward(testContext(t), frozen))
	require.Equal(t, dx, bits(tr.Back.DX), "dX alone")
	frozenCount := count(frozen)
	require.Equal(t, all-5, frozenCount, "without dW1, dW2, their plan, and the gate's two")
	frozen.DX = moe.Tensor{}
	require.Less(t, count(frozen), frozenCount-4, "nothing of the shared experts is left")

	alone := tr.Back
	alone.DX, alone.DScores, alone.WeightGradients = moe.Tensor{}, moe.Tensor{}, moe.WeightGradients{DSharedW2: tr.Back.DSharedW2, DSharedGate: tr.Back.DSharedGate}
	require.NoError(t, tr.RunBackward(testContext(t), alone))
	require.Equal(t, dw2, bits(tr.Back.DSharedW2.Tensor), "dW2 without the others")
	require.Equal(t, gate, bits(tr.Back.DSharedGate.Tensor), "the gate's without the others")
}

// TestSharedKernels checks that kernels of shared experts have separate names, and that Sources
// lists them.
func TestSharedKernels(t *testing.T) {
	tr := newTrial(t, withShared, 200, 6, append(accumulating(withShared), moe.WithoutDecode())...)
	names := tr.Layer.Kernels()
	require.Contains(t, names, "shared-up")
	require.Contains(t, names, "shared-drouter")
	require.NotContains(t, names, "shared-dx-given", "the gate has a gradient")
	sources, err := tools.Sources(driver.H200(), withShared, moe.WithoutDecode())
	require.NoError(t, err)
	require.Len(t, sources, len(names))
	seen := map[string]bool{}
	for i, s := range sources {
		require.False(t, seen[s.Name], s.Name)
		seen[s.Name] = true
		_, err := tr.Layer.Listing(names[i])
		require.NoError(t, err)
	}
	var observed []string
	tr.Call().Observe(func(kernel string, _ driver.Stream) error {
		observed = append(observed, kernel)
		return nil
	})
	require.NoError(t, tr.Call().Forward(tr.Stream(), tr.Args))
	require.Subset(t, observed, []string{"shared-every-token", "shared-up", "shared-down", "aggregate"})
	require.Subset(t, names, observed)
}

// TestWrongSharedExperts checks that the errors of missing tensors of shared experts name the
// tensor, and that layers without shared experts refuse such tensors.
func TestWrongSharedExperts(t *testing.T) {
	tr, plain := newTrial(t, withShared, 20, 6), newTrial(t, tiny, 20, 6)
	withBackward(t, tr, moe.BF16)
	withBackward(t, plain, moe.BF16)
	for _, tt := range []struct {
		of       *trial.Trial
		field    string
		forward  func(f *moe.ForwardArgs)
		backward func(b *moe.BackwardArgs)
	}{
		{tr, "SharedW1", func(f *moe.ForwardArgs) { f.SharedW1 = moe.Tensor{} }, func(b *moe.BackwardArgs) { b.SharedW1 = moe.Tensor{} }},
		{tr, "SharedW3", func(f *moe.ForwardArgs) { f.SharedW3 = moe.Tensor{} }, func(b *moe.BackwardArgs) { b.SharedW3 = moe.Tensor{} }},
		{tr, "SharedW2", func(f *moe.ForwardArgs) { f.SharedW2.Shape.Dims[0]-- }, func(b *moe.BackwardArgs) { b.SharedW2.Shape.Dims[0]-- }},
		{tr, "SharedGate", func(f *moe.ForwardArgs) { f.SharedGate = moe.Tensor{} }, func(b *moe.BackwardArgs) { b.SharedGate = moe.Tensor{} }},
		{tr, "SharedH", func(f *moe.ForwardArgs) { f.SharedH = moe.Tensor{} }, func(b *moe.BackwardArgs) { b.SharedH = moe.Tensor{} }},
		{tr, "SharedH", func(f *moe.ForwardArgs) { f.H = moe.Tensor{} }, func(b *moe.BackwardArgs) { b.SharedH.Shape.Dims[1]++ }},
		{tr, "DSharedW3", nil, func(b *moe.BackwardArgs) { b.DSharedW3 = moe.Gradient{} }},
		{tr, "DSharedW2", nil, func(b *moe.BackwardArgs) { b.DSharedW2.Shape = b.DW2.Shape }},
		{tr, "DSharedGate.Ptr", nil, func(b *moe.BackwardArgs) { b.DSharedGate.Ptr += 4 }},
		{plain, "SharedW2", func(f *moe.ForwardArgs) { f.SharedW2 = f.W2 }, func(b *moe.BackwardArgs) { b.SharedW2 = b.W2 }},
		{plain, "SharedH", func(f *moe.ForwardArgs) { f.SharedH = f.H }, func(b *moe.BackwardArgs) { b.SharedH = b.H }},
		{plain, "DSharedW2", nil, func(b *moe.BackwardArgs) { b.DSharedW2 = b.DW2 }},
	} {
		if tt.forward != nil {
			f := tt.of.Args
			tt.forward(&f)
			wantArgError(t, tt.of.Call().Forward(tt.of.Stream(), f), tt.field)
		}
		b := tt.of.Back
		tt.backward(&b)
		wantArgError(t, tt.of.Call().Backward(tt.of.Stream(), b), tt.field)
	}
}

// TestSharedExpertsWithoutTokens checks that gradients are zero without tokens.
func TestSharedExpertsWithoutTokens(t *testing.T) {
	tr := newTrial(t, withShared, 0, 6)
	withBackward(t, tr, moe.F32)
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	for _, g := range sharedGradients(&tr.Back) {
		got := make([]float32, g.Shape.Elements())
		require.NoError(t, moe.Read(tr.Stream(), g.Tensor, got))
		require.Equal(t, make([]float32, len(got)), got)
	}
}
