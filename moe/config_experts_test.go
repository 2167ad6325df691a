package moe_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestKindsOfExperts compares every kind of expert with the reference, forward and
// backward.
func TestKindsOfExperts(t *testing.T) {
	base, tokens := moe.Config{Hidden: 192, Intermediate: 128, NumExperts: 5, TopK: 2}, 150
	if testing.Short() {
		base.NumExperts, tokens = 3, 70
	}
	for i, change := range []func(c *moe.Config){
		func(c *moe.Config) {
			c.SharedExperts, c.SharedGate, c.Activation, c.InOut = 2, true, spec.ReLU2, true
		},
		func(c *moe.Config) {
			c.SharedExperts, c.Bias, c.Activation, c.Alpha, c.Limit = 2, true, spec.SwiGLUOAI, 1.702, 0.7
		},
		func(c *moe.Config) { // the kind of Llama 4
			c.ScoreOnInput, c.Score, c.InOut, c.SharedExperts = true, spec.Sigmoid, true, 1
		},
		// The other layers have the same kinds, or kinds of TestCombinations. -short leaves them
		// out.
		func(c *moe.Config) { c.Limit = 0.5 },
		func(c *moe.Config) { c.Bias, c.GateUp, c.Intermediate = true, spec.Apart, 192 },
		func(c *moe.Config) { c.Activation, c.GateUp = spec.GeGLUTanh, spec.Interleaved },
		func(c *moe.Config) { c.Activation, c.GateUp = spec.GeGLUErf, spec.Apart },
		func(c *moe.Config) { c.Activation = spec.SiLU },
		func(c *moe.Config) {
			c.GateUp, c.InOut, c.Bias, c.Intermediate = spec.Interleaved, true, true, 192
			c.Activation, c.Alpha, c.Limit = spec.SwiGLUOAI, 1.702, 0.7
		},
		func(c *moe.Config) { c.Activation, c.Alpha, c.Limit = spec.SwiGLUOAI, 1.702, 0.7 },
		func(c *moe.Config) { c.Activation, c.InOut = spec.ReGLU, true },
		func(c *moe.Config) { c.Activation = spec.ReLU },
		func(c *moe.Config) { c.Activation, c.InOut = spec.ReLU2, true },
		func(c *moe.Config) { c.Activation = spec.GELUTanh },
		func(c *moe.Config) { c.Activation, c.Intermediate = spec.GELUErf, 64 },
		func(c *moe.Config) { c.GateUp, c.InOut = spec.Apart, true },
		func(c *moe.Config) { c.Bias = true },
		func(c *moe.Config) { c.Bias, c.GateUp, c.Hidden = true, spec.Interleaved, 320 },
		func(c *moe.Config) { c.Bias, c.Activation = true, spec.ReLU2 },
		func(c *moe.Config) { c.GateUp, c.InOut = spec.Interleaved, true },
		func(c *moe.Config) { c.SharedExperts = 1 },
		func(c *moe.Config) { c.ScoreOnInput, c.Activation = true, spec.ReLU2 },
		func(c *moe.Config) {
			c.ScoreOnInput, c.GateUp, c.InOut, c.SharedExperts, c.SharedGate = true, spec.Interleaved, true, 1, true
		},
		func(c *moe.Config) { c.SharedExperts, c.SharedGate, c.GateUp = 3, true, spec.Interleaved },
	} {
		if i > 2 && testing.Short() {
			break
		}
		c := base
		change(&c)
		for g, grad := range []moe.Type{moe.BF16, moe.F32} {
			if testing.Short() && g > 0 || !onGPU() && !kt.Long() && !testing.Short() && g != i%2 {
				continue // this run tests each layer with only one type of gradients, 16-bit and FP32 in turns
			}
			t.Run(fmt.Sprintf("%v %v", c, grad), func(t *testing.T) {
				tr := newTrial(t, c, tokens, 6, moe.WithDecode(40))
				saved := withBackward(t, tr, grad)
				rep, err := tr.Check(saved, 256)
				require.NoError(t, err)
				require.NoError(t, rep.Check(), "O %v\nH %v", rep.O, rep.H)
				few, err := tr.Args.Tokens(40)
				require.NoError(t, err)
				decoded := forward(t, tr, few)
				require.Equal(t, saved.O[:40*c.Hidden], decoded.O[:40*c.Hidden], "few tokens give the bits of many")
				require.NoError(t, tr.Run(testContext(t), tr.Args)) // writes H again, which the backward pass reads
				require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
				checkBackward(t, tr, tr.Back, saved, true)
			})
		}
	}
}
