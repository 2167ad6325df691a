package moe_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

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
			c.SharedExperts, c.SharedGate, c.Activation, c.WeightOrder = 2, true, moe.ReLU2, moe.InOut
		},
		func(c *moe.Config) {
			c.SharedExperts, c.Bias, c.Activation, c.Alpha, c.Limit = 2, true, moe.SwiGLUOAI, 1.702, 0.7
		},
		func(c *moe.Config) { // Llama-4's
			c.ScoreOnInput, c.Score, c.WeightOrder, c.SharedExperts = true, moe.Sigmoid, moe.InOut, 1
		},
		// From here on others of the same kinds, and those of TestCombinations, which
		// -short leaves out.
		func(c *moe.Config) { c.Limit = 0.5 },
		func(c *moe.Config) { c.Bias, c.GateUp, c.Intermediate = true, moe.Apart, 192 },
		func(c *moe.Config) { c.Activation, c.GateUp = moe.GeGLUTanh, moe.Interleaved },
		func(c *moe.Config) { c.Activation, c.GateUp = moe.GeGLUErf, moe.Apart },
		func(c *moe.Config) { c.Activation = moe.SiLU },
		func(c *moe.Config) {
			c.GateUp, c.WeightOrder, c.Bias, c.Intermediate = moe.Interleaved, moe.InOut, true, 192
			c.Activation, c.Alpha, c.Limit = moe.SwiGLUOAI, 1.702, 0.7
		},
		func(c *moe.Config) { c.Activation, c.Alpha, c.Limit = moe.SwiGLUOAI, 1.702, 0.7 },
		func(c *moe.Config) { c.Activation, c.WeightOrder = moe.ReGLU, moe.InOut },
		func(c *moe.Config) { c.Activation = moe.ReLU },
		func(c *moe.Config) { c.Activation, c.WeightOrder = moe.ReLU2, moe.InOut },
		func(c *moe.Config) { c.Activation = moe.GELUTanh },
		func(c *moe.Config) { c.Activation, c.Intermediate = moe.GELUErf, 64 },
		func(c *moe.Config) { c.GateUp, c.WeightOrder = moe.Apart, moe.InOut },
		func(c *moe.Config) { c.Bias = true },
		func(c *moe.Config) { c.Bias, c.GateUp, c.Hidden = true, moe.Interleaved, 320 },
		func(c *moe.Config) { c.Bias, c.Activation = true, moe.ReLU2 },
		func(c *moe.Config) { c.GateUp, c.WeightOrder = moe.Interleaved, moe.InOut },
		func(c *moe.Config) { c.SharedExperts = 1 },
		func(c *moe.Config) { c.ScoreOnInput, c.Activation = true, moe.ReLU2 },
		func(c *moe.Config) {
			c.ScoreOnInput, c.GateUp, c.WeightOrder, c.SharedExperts, c.SharedGate = true, moe.Interleaved, moe.InOut, 1, true
		},
		func(c *moe.Config) { c.SharedExperts, c.SharedGate, c.GateUp = 3, true, moe.Interleaved },
	} {
		if i > 2 && testing.Short() {
			break
		}
		c := base
		change(&c)
		for g, grad := range []moe.Type{moe.BF16, moe.F32} {
			if testing.Short() && g > 0 || !onGPU() && !kt.Long() && !testing.Short() && g != i%2 {
				continue // one type of gradients or the other, in turns
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
				require.NoError(t, tr.Run(testContext(t), tr.Args)) // backward's H
				require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
				checkBackward(t, tr, tr.Back, saved, true)
			})
		}
	}
}
