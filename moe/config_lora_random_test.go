package moe_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestLoRARandom draws layers with an adapter over plain weights and over every packed format, and
// compares O, H and all gradients with the reference. With zeros in the second factors, O and DX must
// have the bits of the layer without the adapter. Long runs draw 200 cases of each format: 10 layers,
// each 20 times with other weights and tokens.
func TestLoRARandom(t *testing.T) {
	layers, draws := 1, 1
	if kt.Long() {
		layers, draws = 10, 20
	}
	for i, format := range spec.WeightFormats {
		if i != 4 && testing.Short() {
			continue // short runs test one format; TestLoRA has plain weights
		}
		t.Run(format, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(i), 40))
			for range layers {
				c := randomAdapted(r, format)
				layer := newLayerInModes(t, testDevice(t), c, moe.WithoutDecode(), moe.WithGradients(c.Type, false))
				plain := c
				plain.LoRARank, plain.LoRAAlpha, plain.RSLoRA = 0, 0, false
				base := newLayerInModes(t, testDevice(t), plain, moe.WithoutDecode(), moe.WithGradients(c.Type, false))
				for range draws {
					checkRandomAdapted(t, layer, base, 1+r.IntN(200), r.Uint64())
				}
			}
		})
	}
}

// randomAdapted draws a small layer with an adapter over weights in a format.
func randomAdapted(r *rand.Rand, format string) moe.Config {
	c := moe.Config{Hidden: 16 * (1 + r.IntN(16)), Intermediate: 16 * (1 + r.IntN(12)), NumExperts: 1 + r.IntN(8), Bias: r.IntN(2) == 0, InOut: r.IntN(2) == 0,
		GateUp: []moe.GateUp{spec.Concatenated, spec.Interleaved, spec.Apart}[r.IntN(3)], Activation: []moe.Activation{spec.SwiGLU, spec.SwiGLU, spec.ReLU2, spec.GeGLUErf}[r.IntN(4)]}
	if !c.Activation.Gated() {
		c.GateUp = spec.Concatenated
	}
	if r.IntN(4) == 0 {
		c.Type, c.Logits = moe.F16, moe.F16
	}
	c.TopK = 1 + r.IntN(min(c.NumExperts, 4))
	for _, p := range spec.Packings {
		if p.Name == format {
			c = randomPacked(r, &p)
		}
	}
	c.LoRARank, c.RSLoRA = 4*(1+r.IntN(32)), r.IntN(2) == 0
	rank := float64(c.LoRARank)
	if c.RSLoRA {
		rank = math.Sqrt(rank)
	}
	c.LoRAAlpha = (0.25 + 1.75*r.Float64()) * rank
	return c
}

// checkRandomAdapted runs the passes of a layer with an adapter on random weights and tokens, and
// compares them with the reference. base is the same layer without the adapter: if B is zero, the
// outputs and dX of both must have the same bits.
func checkRandomAdapted(t *testing.T, layer, base *moe.Layer, tokens int, seed uint64) {
	c := layer.Config()
	what := fmt.Sprintf("%d tokens, seed %d, %v", tokens, seed, c)
	tr, err := trial.New(testDevice(t), layer, tokens, seed, 6)
	require.NoError(t, err, what)
	defer tr.Close()
	first := withBackward(t, tr, c.Type)
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back), what)
	rep, err := tr.Check(first, 256)
	require.NoError(t, err, what)
	rep.Bounds.Row, rep.Bounds.Element = 0, 0 // the sums of a narrow layer's row may nearly cancel
	require.NoError(t, rep.Check(), what)
	back, err := tr.CheckBackward(tr.Back, first, trial.BackwardCheck{Routed: true, Rounding: reference.Rounded, Tokens: 256, Rows: 256})
	require.NoError(t, err, what)
	back.Bounds.Row, back.Bounds.Element = 0, 0
	require.NoError(t, back.Check(), what)

	twin, err := trial.New(testDevice(t), base, tokens, seed, 6) // draws the same tokens and weights
	require.NoError(t, err, what)
	defer twin.Close()
	want := withBackward(t, twin, c.Type)
	twin.Back.WeightGradients, tr.Back.WeightGradients = moe.WeightGradients{}, moe.WeightGradients{}
	require.NoError(t, twin.RunBackward(testContext(t), twin.Back), what)
	for _, factor := range []moe.Tensor{tr.Args.LoraB1, tr.Args.LoraB3, tr.Args.LoraB2} {
		if !factor.IsZero() {
			require.NoError(t, tr.Stream().Fill32(factor.Ptr, 0, factor.Shape.Bytes()/4))
		}
	}
	require.Equal(t, want, forward(t, tr, tr.Args), what)
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back), what)
	require.Equal(t, elementsOf(t, twin, twin.Back.DX), elementsOf(t, tr, tr.Back.DX), what)
}

// TestAdaptersRandom draws layers with a table of adapters, and checks that each token alone has the
// bits that it has in a large batch. Long runs draw 100 layers.
func TestAdaptersRandom(t *testing.T) {
	layers := 3
	switch {
	case kt.Long():
		layers = 100
	case testing.Short():
		layers = 1 // TestAdapters has other layers
	}
	r := rand.New(rand.NewPCG(7, 43)) // the first layer, which short tests run, is small
	for range layers {
		c := randomTable(r)
		t.Run(c.String(), func(t *testing.T) {
			const tokens = 30
			tr := newAdapterTrial(t, c, tokens, moe.WithoutDecode())
			first := forward(t, tr, tr.Args)
			small := newAdapterTrial(t, c, tokens, moe.WithDecode(64))
			require.Equal(t, first.O, forward(t, small, small.Args).O)
			checkSingle(t, small, first)
		})
	}
}

// randomTable draws a small layer with a table of four adapters, whose weights are not InOut.
func randomTable(r *rand.Rand) moe.Config {
	c := moe.Config{Hidden: 16 * (1 + r.IntN(40)), Intermediate: 16 * (1 + r.IntN(20)), NumExperts: 2 + r.IntN(40), Bias: r.IntN(2) == 0, LoRARank: 4 * (1 + r.IntN(32)), LoRAAdapters: 4,
		GateUp: []moe.GateUp{spec.Concatenated, spec.Interleaved, spec.Apart}[r.IntN(3)], Activation: []moe.Activation{spec.SwiGLU, spec.SwiGLU, spec.ReLU2}[r.IntN(3)]}
	if !c.Activation.Gated() {
		c.GateUp = spec.Concatenated
	}
	if r.IntN(4) == 0 {
		c.Type, c.Logits = moe.F16, moe.F16
	}
	c.TopK = 1 + r.IntN(min(c.NumExperts, 20))
	if r.IntN(3) == 0 {
		c.SharedExperts, c.SharedGate = 1, r.IntN(2) == 0
	}
	return c
}
