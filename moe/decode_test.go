package moe_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/trial"
)

// decodeConfigs are layers with all orders of gate and up, both formats of
// logits, more experts than a wgmma of the router covers, and sums of more
// tiles than a ring has stages.
var decodeConfigs = []moe.Config{
	{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2},
	{Hidden: 192, Intermediate: 128, NumExperts: 16, TopK: 8, GateUp: moe.Interleaved},
	{Hidden: 576, Intermediate: 64, NumExperts: 5, TopK: 1, Logits: moe.LogitsF32},
	{Hidden: 128, Intermediate: 192, NumExperts: 300, TopK: 10},
	{Hidden: 192, Intermediate: 64, NumExperts: 4, TopK: 2, GateUp: moe.Apart, Bias: true},
	{Hidden: 128, Intermediate: 128, NumExperts: 4, TopK: 2, WeightOrder: moe.InOut, Activation: moe.GeGLUErf},
	{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2, Activation: moe.ReLU2, Bias: true},
}

// A pass of the kernels for few tokens gives the bits of the kernels for many.
func TestDecodeHasPrefillsBits(t *testing.T) {
	for i, c := range decodeConfigs {
		for _, tokens := range [][]int{{1, 3, 64, 200}, {33}, {2, 65}, {5}, {1, 20}, {3, 70}, {9}}[i] {
			t.Run(fmt.Sprintf("%d %v", tokens, c), func(t *testing.T) {
				few, many := newTrial(t, c, tokens, 6, moe.WithDecode(tokens), moe.WithoutBackward()), newTrial(t, c, tokens, 6, moe.WithDecode(0), moe.WithoutBackward())
				require.Contains(t, launched(t, few), "decode-up")
				require.Contains(t, launched(t, many), "up")
				samePass(t, many, few)
				require.NoError(t, few.Run(context.Background(), few.Inference()))
				infer, err := few.Results(false)
				require.NoError(t, err)
				want, err := many.Results(false)
				require.NoError(t, err)
				kt.SameBits(t, want.O, infer.O, "O of inference")
			})
		}
	}
}

// launched names the kernels of a training pass.
func launched(t *testing.T, tr *trial.Trial) (names []string) {
	tr.Call().Observe(func(kernel string, _ driver.Stream) error {
		names = append(names, kernel)
		return nil
	})
	defer tr.Call().Observe(nil)
	require.NoError(t, tr.Run(context.Background(), tr.Args))
	return names
}

// samePass compares all that two training passes have written.
func samePass(t *testing.T, want, got *trial.Trial) {
	a, err := want.Results(true)
	require.NoError(t, err)
	b, err := got.Results(true)
	require.NoError(t, err)
	kt.SameBits(t, a.ExpertIDs, b.ExpertIDs, "experts")
	kt.SameBits(t, a.Scores, b.Scores, "scores")
	kt.SameBits(t, a.H, b.H, "H")
	kt.SameBits(t, a.O, b.O, "O")
}

// A token's output depends on nothing else in the batch: alone, in another
// order and in a batch that the kernels for many tokens take it is the same.
func TestBatchInvariance(t *testing.T) {
	for _, c := range decodeConfigs[:2] {
		t.Run(c.String(), func(t *testing.T) {
			whole := newTrial(t, c, 150, 6, moe.WithoutBackward())
			require.Contains(t, launched(t, whole), "up")
			want, err := whole.Results(false)
			require.NoError(t, err)
			d := c.Hidden
			for _, tokens := range [][]int{{0}, {77}, {149, 3, 60, 5, 4, 2, 1, 148, 20}, rand.New(rand.NewPCG(1, 2)).Perm(150)[:64]} {
				var x, o []uint16
				for _, i := range tokens {
					x, o = append(x, whole.X[i*d:][:d]...), append(o, want.O[i*d:][:d]...)
				}
				part, err := trial.FromHost(testDevice(t), whole.Layer, len(tokens), x, whole.Weights)
				require.NoError(t, err)
				require.Contains(t, launched(t, part), "decode-up")
				got, err := part.Results(false)
				require.NoError(t, err)
				kt.SameBits(t, o, got.O, fmt.Sprint("O of tokens ", tokens))
				require.NoError(t, part.Close())
			}
		})
	}
}
