package moe_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// TestLoRA compares layers with adapters with the reference. The layers have all layouts of
// weights, ranks of one wgmma step, of one k-tile and of two k-tiles, ranks that are padded, and packed
// base weights. With
// zeros in the second factors a layer must have the bits of the layer without the adapter.
func TestLoRA(t *testing.T) {
	base, tokens := moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 5, TopK: 2}, 150
	if testing.Short() {
		base.NumExperts, tokens = 3, 70
	}
	for i, change := range []func(c *moe.Config){
		func(c *moe.Config) {}, // reads dH and dO once
		func(c *moe.Config) { // both products have odd widths, and the factors are MN-major
			c.LoRARank, c.RSLoRA, c.InOut, c.GateUp, c.Hidden, c.Intermediate = 76, true, true, spec.Interleaved, 208, 112
		},
		func(c *moe.Config) {
			c.LoRARank, c.GateUp, c.Bias, c.Intermediate = 128, spec.Apart, true, 192
		},
		// -short leaves out the other layers.
		func(c *moe.Config) { c.LoRARank, c.LoRAAlpha, c.GateUp = 4, 8, spec.Interleaved },
		func(c *moe.Config) {
			c.LoRARank, c.GateUp, c.Bias, c.Hidden, c.Intermediate = 12, spec.Apart, true, 272, 144
		},
		func(c *moe.Config) { c.LoRARank, c.InOut = 72, true },
		func(c *moe.Config) { c.LoRARank, c.Activation, c.SharedExperts, c.SharedGate = 64, spec.ReLU2, 1, true },
		func(c *moe.Config) {
			c.LoRARank, c.InOut, c.GateUp, c.Hidden, c.Intermediate = 40, true, spec.Apart, 80, 48
		},
		func(c *moe.Config) { c.LoRARank, c.InOut, c.Bias = 24, true, true },
		func(c *moe.Config) { c.Type, c.Logits = moe.F16, moe.F16 },
		func(c *moe.Config) { c.ScoreOnInput, c.Score, c.InOut = true, spec.Sigmoid, true },
		func(c *moe.Config) { c.Weights, c.GateUp = "mxfp4", spec.Interleaved },
		func(c *moe.Config) { c.Weights, c.LoRARank = "fp8", 32 },
		func(c *moe.Config) { c.Weights, c.GateUp = "uint4-g32", spec.Apart },
	} {
		if i > 2 && testing.Short() {
			break
		}
		c := base
		c.LoRARank, c.LoRAAlpha = 16, 24
		change(&c)
		t.Run(c.String(), func(t *testing.T) {
			tr := newTrial(t, c, tokens, 6, accumulating(c)...)
			first := withBackward(t, tr, []moe.Type{c.Type, moe.F32}[i%2])
			require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
			checkAdapted(t, tr, first)
			checkAccumulated(t, tr)
			checkWithoutU(t, tr)
			rep, err := tr.Check(first, 256)
			require.NoError(t, err)
			require.NoError(t, rep.Check(), "O %v\nH %v", rep.O, rep.H)
			require.NoError(t, tr.Run(testContext(t), tr.Inference()))
			same(t, tr, first, "the inference pass")
			few, err := tr.Args.Tokens(3)
			require.NoError(t, err)
			require.Equal(t, first.O[:3*c.Hidden], forward(t, tr, few).O[:3*c.Hidden], "few tokens give the bits of many")

			plain := c
			plain.LoRARank, plain.LoRAAlpha, plain.RSLoRA = 0, 0, false
			without, dxWithout := runAdapted(t, plain, tokens, tr.X, tr.Weights)
			require.NotEqual(t, without.O, first.O, "the adapter changes O")
			require.NotEqual(t, dxWithout, elementsOf(t, tr, tr.Back.DX), "the adapter changes DX")
			zero := tr.Weights
			zero.LoraB1, zero.LoraB3, zero.LoraB2 = make([]uint16, len(zero.LoraB1)), make([]uint16, len(zero.LoraB3)), make([]uint16, len(zero.LoraB2))
			with, dxWith := runAdapted(t, c, tokens, tr.X, zero)
			require.Equal(t, without, with, "zeros in the second factors")
			require.Equal(t, dxWithout, dxWith, "DX, zeros in the second factors")
		})
	}
}

// TestLoRAPadded checks that a layer that pads its adapter's factors has the bits of a layer with the
// padded factors.
func TestLoRAPadded(t *testing.T) {
	const tokens = 70
	for _, rank := range []int{4, 12, 68} {
		c := moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 3, TopK: 2, LoRARank: rank, LoRAAlpha: 2 * float64(rank)}
		tr := newTrial(t, c, tokens, 6)
		w := tr.Weights
		got, dx := runAdapted(t, c, tokens, tr.X, w)
		w.LoraA1, w.LoraB1 = factorOf(w.LoraA1, rank, c.Hidden, c, false), factorOf(w.LoraB1, c.HWidth(), rank, c, false)
		w.LoraA2, w.LoraB2 = factorOf(w.LoraA2, rank, c.Intermediate, c, false), factorOf(w.LoraB2, c.Hidden, rank, c, false)
		c.LoRARank += 4
		c.LoRAAlpha = 2 * float64(c.LoRARank)
		want, dxWant := runAdapted(t, c, tokens, tr.X, w)
		require.Equal(t, want, got)
		require.Equal(t, dxWant, dx)
	}
}

// checkAdapted compares every gradient with the reference. Only whole gradients have bounds: a
// row of a factor's gradient is short, and its sums may nearly cancel.
func checkAdapted(t *testing.T, tr *trial.Trial, saved trial.Results) {
	for _, rounding := range []reference.Rounding{reference.Unrounded, reference.Rounded} {
		rep, err := tr.CheckBackward(tr.Back, saved, trial.BackwardCheck{Routed: true, Rounding: rounding, Tokens: 256, Rows: 256})
		require.NoError(t, err)
		rep.Bounds.Row, rep.Bounds.Element = 0, 0
		require.NoError(t, rep.Check())
		require.Contains(t, rep.Gradients, spec.TensorDLoraB1)
	}
}

// runAdapted returns the results of a new layer, and DX. It leaves out factors that the layer
// lacks.
func runAdapted(t *testing.T, c moe.Config, tokens int, x []uint16, w reference.Weights) (trial.Results, []uint16) {
	if c.LoRARank == 0 {
		w.LoraA1, w.LoraB1, w.LoraB3, w.LoraA2, w.LoraB2 = nil, nil, nil, nil, nil
	}
	dev := testDevice(t)
	tr, err := trial.FromHost(dev, newLayerInModes(t, dev, c, moe.WithoutDecode(), moe.WithGradients(moe.F32, false)), tokens, x, w)
	require.NoError(t, err)
	defer tr.Close()
	out := withBackward(t, tr, moe.F32)
	tr.Back.WeightGradients = moe.WeightGradients{}
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	return out, elementsOf(t, tr, tr.Back.DX)
}

// elementsOf returns the bits of a tensor of the layer's type.
func elementsOf(t *testing.T, tr *trial.Trial, of moe.Tensor) []uint16 {
	v, err := tr.Rows(of, 1, nil)
	require.NoError(t, err)
	return v.Bits
}

// checkAccumulated checks that a pass adds gradients of the factors to the results of a pass that
// overwrites, and leaves out what is not wanted.
func checkAccumulated(t *testing.T, tr *trial.Trial) {
	for _, which := range []func(g *moe.WeightGradients) []*moe.Gradient{
		func(g *moe.WeightGradients) []*moe.Gradient { return []*moe.Gradient{&g.DLoraA1, &g.DLoraB2} },
		func(g *moe.WeightGradients) []*moe.Gradient {
			return []*moe.Gradient{&g.DLoraA2, &g.DLoraB1, &g.DLoraB3}
		},
	} {
		b := tr.Back
		b.WeightGradients, b.DX = moe.WeightGradients{}, moe.Tensor{}
		wanted := which(&b.WeightGradients)
		var before []trial.Values
		for i, g := range which(&tr.Back.WeightGradients) {
			if g.IsZero() {
				continue
			}
			v, err := tr.Rows(g.Tensor, 1, nil)
			require.NoError(t, err)
			before = append(before, v)
			*wanted[i] = *g
			wanted[i].Accumulate = true
		}
		require.NoError(t, tr.RunBackward(testContext(t), b))
		for _, g := range wanted {
			if !g.IsZero() {
				v, err := tr.Rows(g.Tensor, 1, nil)
				require.NoError(t, err)
				require.Equal(t, doubled(before[0]), v)
				before = before[1:]
			}
		}
	}
}

// checkWithoutU checks that a pass without LoraU gives the gradients of LoraB1 the same bits.
func checkWithoutU(t *testing.T, tr *trial.Trial) {
	b := tr.Back
	require.False(t, b.LoraU.IsZero())
	require.NoError(t, tr.RunBackward(testContext(t), b))
	with, err := tr.Rows(b.DLoraB1.Tensor, 1, nil)
	require.NoError(t, err)
	b.LoraU = moe.Tensor{}
	require.NoError(t, tr.Stream().Fill32(b.DLoraB1.Ptr, 0xffffffff, b.DLoraB1.Shape.Bytes()/4))
	require.NoError(t, tr.RunBackward(testContext(t), b))
	without, err := tr.Rows(b.DLoraB1.Tensor, 1, nil)
	require.NoError(t, err)
	require.Equal(t, with, without)
}

// TestLoRAErrors checks that New refuses wrong adapters, and that passes refuse missing factors.
func TestLoRAErrors(t *testing.T) {
	c := moe.Config{Hidden: 64, Intermediate: 32, NumExperts: 4, TopK: 2}
	for _, wrong := range []struct {
		rank  int
		alpha float64
		rs    bool
		text  string
	}{
		{10, 8, false, "Config.LoRARank is 10, must be 0 (no adapter), or a multiple of 4 up to 128"},
		{136, 8, false, "Config.LoRARank is 136"},
		{-8, 8, false, "Config.LoRARank is -8"},
		{16, 0, false, "Config.LoRAAlpha is 0, must be a number above 0"},
		{16, math.NaN(), false, "Config.LoRAAlpha is NaN"},
		{16, 1e-60, false, "Config.LoRAAlpha is 1e-60"},
		{16, 1e300, true, "Config.LoRAAlpha is 1e+300"},
		{0, 8, false, "Config.LoRAAlpha is 8, must be 0 without LoRARank"},
		{0, 0, true, "Config.RSLoRA is true, must be false without LoRARank"},
	} {
		c.LoRARank, c.LoRAAlpha, c.RSLoRA = wrong.rank, wrong.alpha, wrong.rs
		require.ErrorContains(t, moe.Check(c), wrong.text)
	}
	c.LoRARank, c.LoRAAlpha, c.RSLoRA = 16, 8, false
	tr := newTrial(t, c, 3, 6)
	f := tr.Args
	f.LoraA2.Shape.Dims[1] = 8
	require.ErrorContains(t, tr.Call().Forward(tr.Stream(), f), "LoraA2 is bf16 [4 8 32], must be bf16 [4 16 32]")
	f.LoraA2 = moe.Tensor{}
	require.ErrorContains(t, tr.Call().Forward(tr.Stream(), f), "LoraA2 is missing")
	f = tr.Args
	f.LoraU.Shape.Dims[2] = 8
	require.ErrorContains(t, tr.Call().Forward(tr.Stream(), f), "LoraU is bf16 [2 6 8], must be bf16 [2 6 16]")
	f = tr.Args
	f.Units = f.Workspace
	require.ErrorContains(t, tr.Call().Forward(tr.Stream(), f), "must be none: only packed weights have units, and those of a layer with LoRARank only with LoRAAdapters")
	withBackward(t, tr, moe.BF16)
	tr.Back.DW1 = moe.Gradient{Tensor: tr.Args.W1}
	require.ErrorContains(t, tr.Call().Backward(tr.Stream(), tr.Back), "DW1 is bf16 [4 64 64], must be none: a layer with LoRARank has gradients of the adapter's factors")
}
