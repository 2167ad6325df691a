package moe_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// fp16 returns c with tensors in fp16. typed returns c with tensors of type t.
func fp16(c moe.Config) moe.Config { return typed(moe.F16, c) }

func typed(t moe.Type, c moe.Config) moe.Config {
	if c.Type = t; t == moe.F16 && c.Logits == moe.BF16 {
		c.Logits = moe.F16
	}
	return c
}

// bitsOf rounds a number to a type; numberOf is its inverse.
func bitsOf(t moe.Type, x float64) uint16 {
	if t == moe.F16 {
		return num.Float64ToF16(x)
	}
	return num.Float64ToBF16(x)
}

func numberOf(t moe.Type, bits uint16) float64 {
	if t == moe.F16 {
		return num.F16ToFloat64(bits)
	}
	return num.BF16ToFloat64(bits)
}

// checkPasses runs a layer forward and backward and compares all outputs with
// float64, with the bounds of its type. Passes over the first tokens, and over one
// token, must have the same bits.
func checkPasses(t *testing.T, c moe.Config, tokens int, weights moe.Type) {
	t.Helper()
	const fewer = 9
	tr := newTrial(t, c, tokens, 12, moe.WithDecode(fewer))
	require.NoError(t, tr.PrepareBackward(3, weights))
	r := forward(t, tr, tr.Args)
	report, err := tr.Check(r, tokens)
	require.NoError(t, err)
	require.NoError(t, report.Check())
	for _, n := range []int{fewer, 1} {
		args, err := tr.Args.Tokens(n)
		require.NoError(t, err)
		require.Equal(t, r.O[:n*c.Hidden], forward(t, tr, args).O[:n*c.Hidden], "O of %d tokens has other bits", n)
	}
	require.NoError(t, tr.Run(testContext(t), tr.Args)) // writes H again, which the backward pass reads
	require.NoError(t, tr.RunBackward(testContext(t), tr.Back))
	for _, rounding := range []reference.Rounding{reference.Unrounded, reference.Rounded} {
		report, err := tr.CheckBackward(tr.Back, r, trial.BackwardCheck{Routed: true, Rounding: rounding, Tokens: tokens, Rows: 200})
		require.NoError(t, err)
		require.NoError(t, report.Check())
	}
}

// combinations lists layers of every activation, with and without biases, in every
// layout of weights, of both types.
func combinations() (list []moe.Config) {
	for _, activation := range spec.Activations {
		for _, order := range []bool{false, true} {
			for _, gateUp := range []moe.GateUp{spec.Concatenated, spec.Interleaved, spec.Apart} {
				for _, bias := range []bool{false, true} {
					c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 3, TopK: 2, Activation: activation, InOut: order, GateUp: gateUp, Bias: bias}
					switch {
					case !activation.Gated() && gateUp != spec.Concatenated:
						continue
					case activation == spec.SwiGLUOAI:
						c.Alpha, c.Limit = 1.702, 0.7
					}
					list = append(list, c, fp16(c))
				}
			}
		}
	}
	return list
}

// sampled returns some combinations of list, spread evenly over it. The parameter count is their
// number. Neighbours in the list differ in biases and type, so the samples alternate in both.
func sampled(list []moe.Config, count int) (part []moe.Config) {
	for i := range count {
		part = append(part, list[i*(len(list)-4)/(count-1)/4*4+i%4])
	}
	return part
}

// TestCombinations checks 20 of the combinations; with -short it checks 4, on a GPU 40. Long runs
// check all of them on the emulated device.
func TestCombinations(t *testing.T) {
	list := combinations()
	require.Len(t, list, 160)
	switch {
	case drivertest.Name() == "emulated" && testing.Short():
		list = sampled(list, 4)
	case drivertest.Name() != "emulated":
		list = sampled(list, 40)
	case !kt.Long():
		list = sampled(list, 20)
	}
	for i, c := range list {
		weights := []moe.Type{c.Type, moe.F32}[i/2%2]
		t.Run(fmt.Sprintf("%v %v", c, weights), func(t *testing.T) { checkPasses(t, c, 40, weights) })
	}
}

// fp16Layers cover all kernels with separate code for fp16: the router's epilogue and FromLogits,
// lists, rounding, shared experts, both orders of weights, FP32 router weights.
var fp16Layers = []moe.Config{
	{Hidden: 192, Intermediate: 128, NumExperts: 8, TopK: 3},
	{Hidden: 128, Intermediate: 64, NumExperts: 40, TopK: 5, Score: spec.Sigmoid, Renormalize: spec.RenormSum, SharedExperts: 2, SharedGate: true},
	{Hidden: 128, Intermediate: 64, NumExperts: 12, TopK: 2, Logits: moe.F32, RouterF32: true, GateUp: spec.Interleaved, Bias: true},
	{Hidden: 128, Intermediate: 128, NumExperts: 6, TopK: 2, InOut: true, GateUp: spec.Interleaved, Bias: true, Score: spec.SoftmaxAll},
	{Hidden: 192, Intermediate: 64, NumExperts: 5, TopK: 2, InOut: true, GateUp: spec.Apart, Bias: true, RouterBias: true},
	{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 1, Score: spec.Sigmoid, ScoreOnInput: true, InOut: true},
	{Hidden: 128, Intermediate: 64, NumExperts: 9, TopK: 8, Activation: spec.ReLU2, Score: spec.SoftmaxAll, ExpertScale: true, Logits: moe.F32},
}

// TestFP16 checks layers in fp16, forward and backward.
func TestFP16(t *testing.T) {
	for i, c := range fp16Layers {
		if testing.Short() && i != 4 {
			continue // TestCombinations covers fp16 too
		}
		weights := []moe.Type{moe.F16, moe.F32}[i%2]
		t.Run(fmt.Sprintf("%v %v", c, weights), func(t *testing.T) { checkPasses(t, fp16(c), 70, weights) })
	}
}

// TestOverflow checks that values beyond fp16 become infinite, with their sign, in exactly the rows
// where PyTorch's do. They stay finite in bf16.
func TestOverflow(t *testing.T) {
	for _, tt := range []struct {
		element moe.Type
		want    float64
	}{{moe.F16, math.Inf(1)}, {moe.BF16, 524288}} {
		c := typed(tt.element, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 2, TopK: 1, Activation: spec.ReLU})
		const tokens = 3
		s := c.Shapes(tokens)
		full := func(n int64, x float64) []uint16 { return slices.Repeat([]uint16{bitsOf(tt.element, x)}, int(n)) }
		// Tokens have the values 8, 8 and 2^-6. Rows of W2 alternate between 1 and -1.
		x, w2 := full(s.X.Elements(), 8), full(s.W2.Elements(), 1)
		copy(x[2*c.Hidden:], full(int64(c.Hidden), 0x1p-6))
		for i := range w2 {
			if i/c.Intermediate%2 == 1 {
				w2[i] |= 0x8000
			}
		}
		l := newLayer(t, testDevice(t), c, moe.WithoutBackward())
		tr, err := trial.FromHost(testDevice(t), l, tokens, x, reference.Weights{Router: full(s.Router.Elements(), 0), W1: full(s.W1.Elements(), 8), W2: w2})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, tr.Close()) })
		for i, bits := range forward(t, tr, tr.Args).O {
			want := tt.want
			if i/c.Hidden == 2 {
				want = 64 * 128 * 8 * 0x1p-6
			}
			if i%2 == 1 {
				want = -want
			}
			require.Equal(t, want, numberOf(tt.element, bits), "%v, element %d", tt.element, i)
		}
	}
}

// TestScoresOfDB2 checks that the product scores·dO of db2 takes scores rounded to the layer's type.
// In fp16 a score below 2^-25 counts as 0 and one above 65504 as infinite, whatever dO is.
func TestScoresOfDB2(t *testing.T) {
	scores := []float32{0x1p-26, 0.5, 0x1p17}
	for element, rounded := range map[moe.Type][]float64{moe.F16: {0, 0.5, math.Inf(1)}, moe.BF16: {0x1p-26, 0.5, 0x1p17}} {
		c := typed(element, moe.Config{Hidden: 64, Intermediate: 16, NumExperts: 3, TopK: 1, Bias: true})
		tr := newTrial(t, c, 3, 6)
		s := tr.Stream()
		require.NoError(t, moe.Write(s, tr.Args.ExpertIDs, []int32{0, 1, 2})) // each expert has one token
		require.NoError(t, moe.Write(s, tr.Args.Scores, scores))
		require.NoError(t, tr.Call().ForwardExperts(s, tr.Args))
		require.NoError(t, tr.PrepareBackward(17, moe.F32))
		require.NoError(t, tr.Call().BackwardExperts(s, expertsBackward(tr.Back)))
		require.NoError(t, s.Synchronize(testContext(t)))
		for i, got := range gradients(t, tr, tr.Back)["DB2"].F32 {
			want := rounded[i/c.Hidden] * numberOf(element, tr.DO[i])
			require.Equal(t, float32(want), got, "%v, expert %d, column %d", element, i/c.Hidden, i%c.Hidden)
		}
	}
}
