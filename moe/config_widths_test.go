package moe_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// widths are widths d and n that end inside tiles of 64, end inside blocks of 8 tokens or rows, or
// are smaller than a block.
var widths = [][2]int{{144, 80}, {208, 48}, {80, 32}, {16, 112}, {336, 176}, {272, 240}, {32, 32}}

// uneven are layers with separate code for the end of a width: biases, layouts, shared experts with
// a gate, FP32 routers, scores on the input, lists.
var uneven = []moe.Config{
	{Hidden: 144, Intermediate: 80, NumExperts: 4, TopK: 2},
	{Hidden: 208, Intermediate: 48, NumExperts: 5, TopK: 2, GateUp: spec.Interleaved, Bias: true, SharedExperts: 3, SharedGate: true},
	{Hidden: 336, Intermediate: 176, NumExperts: 3, TopK: 1, InOut: true, GateUp: spec.Interleaved, Bias: true, SharedExperts: 1},
	{Hidden: 80, Intermediate: 16, NumExperts: 6, TopK: 3, Activation: spec.ReLU2, Score: spec.SoftmaxAll},
	{Hidden: 16, Intermediate: 112, NumExperts: 12, TopK: 2, RouterF32: true, Logits: moe.F32},
	{Hidden: 176, Intermediate: 144, NumExperts: 4, TopK: 1, Score: spec.Sigmoid, ScoreOnInput: true, InOut: true, GateUp: spec.Apart},
	{Hidden: 304, Intermediate: 208, NumExperts: 40, TopK: 5, Score: spec.Sigmoid, Renormalize: spec.RenormSum, Type: moe.F16, Logits: moe.F32, RouterF32: true},
	{Hidden: 272, Intermediate: 64, NumExperts: 4, TopK: 2, InOut: true},
	{Hidden: 128, Intermediate: 16, NumExperts: 4, TopK: 2, GateUp: spec.Apart},
}

// TestWidths checks layers whose widths are not multiples of 64, forward and backward, on the
// emulated device. With -short it checks 2 of them. Long runs also check 10 combinations, a run on
// a GPU 40.
func TestWidths(t *testing.T) {
	list := uneven
	switch combined := combinations(); {
	case drivertest.Name() != "emulated":
		list = append(list, sampled(combined, 40)...)
	case testing.Short():
		list = []moe.Config{uneven[1], uneven[7]}
	case kt.Long():
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

// TestWidthsTimings checks that the bits of such layers depend neither on when asynchronous work
// completes nor on how warps interleave, and that there are no races.
func TestWidthsTimings(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	list := uneven[1:2]
	if kt.Long() {
		list = uneven[:3]
	}
	for _, c := range list {
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

// TestWidthsInfinities checks that the padding after a width is 0 and has no effect: infinities of
// a row keep their place and sign. A product of an infinity with a 0 of the padding would give NaN.
func TestWidthsInfinities(t *testing.T) {
	c := moe.Config{Hidden: 144, Intermediate: 80, NumExperts: 2, TopK: 1, Activation: spec.ReLU, Score: spec.Sigmoid}
	const tokens = 3
	s := c.Shapes(tokens)
	full := func(n int64, x float64) []uint16 { return slices.Repeat([]uint16{bitsOf(c.Type, x)}, int(n)) }
	x, w2 := full(s.X.Elements(), 1), full(s.W2.Elements(), 1)
	copy(x[c.Hidden:], full(int64(c.Hidden), math.Inf(1)))
	for i := range w2 {
		if i/c.Intermediate%2 == 1 {
			w2[i] |= 0x8000 // the signs of the outputs alternate
		}
	}
	for _, few := range []int{0, tokens} {
		l, err := moe.New(testContext(t), testDevice(t), c, moe.WithoutCache(), moe.WithDecode(few))
		require.NoError(t, err)
		tr, err := trial.FromHost(testDevice(t), l, tokens, x, reference.Weights{Router: full(s.Router.Elements(), 1), W1: full(s.W1.Elements(), 0.125), W2: w2})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		for i, bits := range forward(t, tr, tr.Args).O {
			want := 80 * 144 * 0.125
			if i/c.Hidden == 1 {
				want = math.Inf(1)
			}
			if i%2 == 1 {
				want = -want
			}
			require.Equal(t, numberOf(c.Type, bitsOf(c.Type, want)), numberOf(c.Type, bits), "few=%d, element %d of O", few, i)
		}
		require.NoError(t, tr.PrepareBackward(3, moe.BF16))
		do := full(s.O.Elements(), 0)
		for token := range tokens {
			do[token*c.Hidden] = bitsOf(c.Type, []float64{1, 0, math.Inf(1)}[token])
		}
		require.NoError(t, moe.Write(tr.Stream(), tr.Back.DO, do))
		w2 := full(s.W2.Elements(), 1)
		require.NoError(t, moe.Write(tr.Stream(), tr.Args.W2, w2))
		b := expertsBackward(tr.Back) // an infinity makes the router's gradient NaN
		require.NoError(t, tr.PoisonGradients(b))
		require.NoError(t, tr.Call().BackwardExperts(tr.Stream(), b))
		require.NoError(t, tr.Stream().Synchronize(testContext(t)))
		got := gradients(t, tr, b)
		for _, token := range []int{0, 2} {
			for i, bits := range got["DX"].Bits[token*c.Hidden:][:c.Hidden] {
				require.Equal(t, []float64{80 * 0.125, 0, math.Inf(1)}[token], numberOf(c.Type, bits), "token %d, element %d of DX", token, i)
			}
			require.Equal(t, []float32{80 * 144 * 0.125, 0, float32(math.Inf(1))}[token], got["DScores"].F32[token], "token %d of DScores", token)
		}
	}
}
