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
// weights, ranks of one wgmma step, of one k-tile and of two k-tiles, and packed base weights. With
// zeros in the second factors a layer must have the bits of the layer without the adapter.
func TestLoRA(t *testing.T) {
	base, tokens := moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 5, TopK: 2}, 150
	if testing.Short() {
		base.NumExperts, tokens = 3, 70
	}
	for i, change := range []func(c *moe.Config){
		func(c *moe.Config) {},
		func(c *moe.Config) { // both products have odd widths, and the factors are MN-major
			c.LoRARank, c.RSLoRA, c.InOut, c.GateUp, c.Hidden, c.Intermediate = 72, true, true, spec.Interleaved, 208, 112
		},
		func(c *moe.Config) {
			c.LoRARank, c.GateUp, c.Bias, c.Intermediate = 128, spec.Apart, true, 192
		},
		// -short leaves out the other layers.
		func(c *moe.Config) { c.LoRARank, c.GateUp = 8, spec.Interleaved },
		func(c *moe.Config) { c.LoRARank, c.Activation, c.SharedExperts, c.SharedGate = 64, spec.ReLU2, 1, true },
		func(c *moe.Config) {
			c.LoRARank, c.InOut, c.GateUp, c.Hidden, c.Intermediate = 40, true, spec.Apart, 80, 48
		},
		func(c *moe.Config) { c.LoRARank, c.InOut, c.Bias = 24, true, true },
		func(c *moe.Config) { c.Type, c.Logits = moe.F16, moe.F16 },
		func(c *moe.Config) { c.ScoreOnInput, c.Score = true, spec.Sigmoid },
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
			tr := newTrial(t, c, tokens, 6, moe.WithoutBackward())
			first := forward(t, tr, tr.Args)
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
			without := forwardAdapted(t, plain, tokens, tr.X, tr.Weights)
			require.NotEqual(t, without.O, first.O, "the adapter does something")
			zero := tr.Weights
			zero.LoraB1, zero.LoraB3, zero.LoraB2 = make([]uint16, len(zero.LoraB1)), make([]uint16, len(zero.LoraB3)), make([]uint16, len(zero.LoraB2))
			require.Equal(t, without, forwardAdapted(t, c, tokens, tr.X, zero), "zeros in the second factors")
		})
	}
}

// forwardAdapted returns the results of a new layer. It leaves out factors that the layer does not
// have.
func forwardAdapted(t *testing.T, c moe.Config, tokens int, x []uint16, w reference.Weights) trial.Results {
	if c.LoRARank == 0 {
		w.LoraA1, w.LoraB1, w.LoraB3, w.LoraA2, w.LoraB2 = nil, nil, nil, nil, nil
	}
	dev := testDevice(t)
	tr, err := trial.FromHost(dev, newLayer(t, dev, c, moe.WithoutBackward(), moe.WithoutDecode()), tokens, x, w)
	require.NoError(t, err)
	defer tr.Close()
	return forward(t, tr, tr.Args)
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
		{12, 8, false, "Config.LoRARank is 12, must be 0 (no adapter), or a multiple of 8 up to 128"},
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
	require.ErrorContains(t, tr.Call().Backward(tr.Stream(), moe.BackwardArgs{X: f.X}), "Config.LoRARank is 16, must be 0")
}
