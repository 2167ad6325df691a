package moe_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/drivertest"
	"sonicmoe/moe"
)

// widths end within tiles of 64, within blocks of 8 tokens or experts' rows, or
// are less than any.
var widths = [][2]int{{144, 80}, {208, 48}, {80, 32}, {16, 112}, {336, 176}, {272, 240}, {32, 32}}

// uneven are layers with code of their own for what lies past a width: biases,
// layouts, shared experts behind a gate, FP32 routers, scores on the input, lists.
var uneven = []moe.Config{
	{Hidden: 144, Intermediate: 80, NumExperts: 4, TopK: 2},
	{Hidden: 208, Intermediate: 48, NumExperts: 5, TopK: 2, GateUp: moe.Interleaved, Bias: true, SharedExperts: 3, SharedGate: true},
	{Hidden: 336, Intermediate: 176, NumExperts: 3, TopK: 1, WeightOrder: moe.InOut, GateUp: moe.Interleaved, Bias: true, SharedExperts: 1},
	{Hidden: 80, Intermediate: 16, NumExperts: 6, TopK: 3, Activation: moe.ReLU2, Score: moe.SoftmaxAll},
	{Hidden: 16, Intermediate: 112, NumExperts: 12, TopK: 2, RouterF32: true, Logits: moe.LogitsF32},
	{Hidden: 176, Intermediate: 144, NumExperts: 4, TopK: 1, Score: moe.Sigmoid, ScoreOnInput: true, WeightOrder: moe.InOut, GateUp: moe.Apart},
	{Hidden: 304, Intermediate: 208, NumExperts: 40, TopK: 5, Score: moe.Sigmoid, Renormalize: moe.RenormSum, Type: moe.F16, Logits: moe.LogitsF32, RouterF32: true},
	{Hidden: 272, Intermediate: 64, NumExperts: 4, TopK: 2, WeightOrder: moe.InOut},
	{Hidden: 128, Intermediate: 16, NumExperts: 4, TopK: 2, GateUp: moe.Apart},
}

// Layers of widths that are no multiples of 64, forward and backward, on the
// emulated device, with -short 2 of them; on a GPU 40 combinations more.
func TestWidths(t *testing.T) {
	list := uneven
	switch combined := combinations(); {
	case drivertest.Name() != "emulated":
		list = append(list, sampled(combined, 40)...)
	case testing.Short():
		list = list[1:3]
	default:
		list = append(list, sampled(combined, 10)...)
	}
	for i, c := range list {
		if i >= len(uneven) {
			c.Hidden, c.Intermediate = widths[i%len(widths)][0], widths[i%len(widths)][1]
		}
		weights := []moe.Type{c.Type, moe.F32}[i/2%2]
		t.Run(fmt.Sprintf("%v %v", c, weights), func(t *testing.T) { checkPasses(t, c, 70, weights) })
	}
}

// When asynchronous work completes and how warps interleave does not show in them,
// and nothing races.
func TestWidthsTimings(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	for _, c := range uneven[:3] {
		var first []any
		for _, d := range timedDevices(t) {
			t.Run(fmt.Sprintf("%v %s", c, d.name), func(t *testing.T) {
				tr := trialOn(t, d.dev, c, 70, moe.WithDecode(9))
				require.NoError(t, tr.PrepareBackward(3, moe.F32))
				require.NoError(t, tr.AddLogitGradients(5))
				var all []any
				for _, tokens := range []int{1, 9, 70} {
					args, err := tr.Args.Tokens(tokens)
					require.NoError(t, err)
					r := forward(t, tr, args)
					all = append(all, r.O[:tokens*c.Hidden])
				}
				require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
				all = append(all, gradients(t, tr, tr.Back))
				if first == nil {
					first = all
				}
				require.Equal(t, first, all)
			})
		}
	}
}
