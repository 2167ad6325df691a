package moe_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestPackedRandom draws layers of every packed format: widths, experts, orders of gate and up,
// activations, weights, and batches of 1 to 512 tokens. It checks that O has the bits of the layer
// of plain weights. It checks passes with units and without, routed tokens, and given experts that
// repeat, are out of range, or leave most experts empty. Long runs draw 200 layers of each format:
// 20 sizes, each 10 times with other weights and tokens.
func TestPackedRandom(t *testing.T) {
	sizes, draws := 1, 2
	switch {
	case kt.Long():
		sizes, draws = 20, 10
	case testing.Short():
		draws = 1
	}
	for i, p := range spec.Packings {
		if i%3 != 0 && testing.Short() {
			continue // TestPackedForward and TestPackedUnits have other formats
		}
		t.Run(p.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(i), 38))
			for range sizes {
				c := randomPacked(r, &p)
				small := moe.WithDecode([]int{64, 300}[r.IntN(2)])
				packed := newLayer(t, testDevice(t), c, moe.WithoutBackward(), small)
				moe.BesideAlways(packed)
				c.Weights = ""
				plain := newLayer(t, testDevice(t), c, moe.WithoutBackward(), small)
				for range draws {
					tokens := 1 + r.IntN(1<<r.IntN(10)) // small batches are as frequent as large ones
					checkRandom(t, r, packed, plain, tokens)
				}
			}
		})
	}
}

// randomPacked draws a small layer with weights in a format.
func randomPacked(r *rand.Rand, p *spec.Packing) moe.Config {
	each, most := 16, 384
	if testing.Short() {
		most = 256
	}
	if p.Rows == 1 {
		each = max(each, p.Columns)
	}
	width := func() int { return each * (1 + r.IntN(most/each)) }
	c := moe.Config{Hidden: width(), Intermediate: width(), NumExperts: 1 + r.IntN(20), Weights: p.Name, Bias: r.IntN(2) == 0,
		GateUp: []moe.GateUp{spec.Concatenated, spec.Interleaved, spec.Apart}[r.IntN(3)], Activation: []moe.Activation{spec.SwiGLU, spec.SwiGLU, spec.ReLU2, spec.GeGLUErf}[r.IntN(4)]}
	if !c.Activation.Gated() {
		c.GateUp = spec.Concatenated
	}
	if p.LiesApart(c.Intermediate) && c.Activation.Gated() {
		c.GateUp = spec.Apart
	}
	c.TopK = 1 + r.IntN(min(c.NumExperts, 4))
	return c
}

// checkRandom compares passes over random weights and tokens.
func checkRandom(t *testing.T, r *rand.Rand, packed, plain *moe.Layer, tokens int) {
	what := fmt.Sprintf("%d tokens %v", tokens, packed.Config())
	tr, err := trial.New(testDevice(t), packed, tokens, r.Uint64(), 6)
	require.NoError(t, err, what)
	defer tr.Close()
	twin, err := trial.FromHost(testDevice(t), plain, tokens, tr.X, tr.Weights)
	require.NoError(t, err, what)
	defer twin.Close()
	sizes, err := packed.Sizes(tokens)
	require.NoError(t, err)
	units := tr.Inference()
	units.Units = tr.Memory().Buffer(sizes.Units)
	require.NoError(t, tr.Memory().Err())
	require.NoError(t, tr.Call().Arrange(tr.Stream(), units.Weights, units.Units), what)
	passes := []moe.ForwardArgs{tr.Inference(), units}
	want := forward(t, twin, twin.Inference())
	for _, f := range passes {
		got := forward(t, tr, f)
		require.Equal(t, want.ExpertIDs, got.ExpertIDs, what)
		require.Equal(t, want.O, got.O, "%s, units %v", what, f.Units.Bytes > 0)
	}
	few := 1 + r.IntN(packed.Config().NumExperts)
	ids, scores := make([]int32, tokens*packed.Config().TopK), make([]float32, tokens*packed.Config().TopK)
	for i := range ids {
		ids[i], scores[i] = int32(r.IntN(few+2)-1), r.Float32()-0.25
	}
	given := func(tr *trial.Trial, f moe.ForwardArgs) []uint16 {
		require.NoError(t, tr.Poison())
		require.NoError(t, moe.Write(tr.Stream(), f.ExpertIDs, ids))
		require.NoError(t, moe.Write(tr.Stream(), f.Scores, scores))
		require.NoError(t, tr.Call().ForwardExperts(tr.Stream(), f), what)
		require.NoError(t, tr.Layer.Explain(tr.Stream().Synchronize(testContext(t))), what)
		o := make([]uint16, f.O.Shape.Elements())
		require.NoError(t, moe.Read(tr.Stream(), f.O, o))
		return o
	}
	wantGiven := given(twin, twin.Inference())
	for _, f := range passes {
		require.Equal(t, wantGiven, given(tr, f), "%s, given %d experts, units %v", what, few, f.Units.Bytes > 0)
	}
}
