package reference_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
)

func TestTopK(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	tests := []struct {
		name   string
		logits []float64
		want   []int32
	}{
		{"order", []float64{1, 3, 2}, []int32{1, 2, 0}},
		{"ties", []float64{2, 1, 2, 2}, []int32{0, 2, 3}},
		{"negative ties", []float64{-2, -1, -2, -1}, []int32{1, 3, 0, 2}},
		{"zeros are equal", []float64{math.Copysign(0, -1), 0, -1}, []int32{0, 1}},
		{"NaN first", []float64{5, nan, -inf, nan}, []int32{1, 3, 0, 2}},
		{"NaN before the largest", []float64{1, 2, nan}, []int32{2, 1}},
		{"infinities", []float64{0, inf, -inf, inf}, []int32{1, 3, 0}},
	}
	for _, tt := range tests {
		got := make([]int32, len(tt.want))
		reference.TopK(got, tt.logits)
		assert.Equal(t, tt.want, got, tt.name)
	}
}

// TestTopKOfManyTies checks that equal logits keep their order in a long row.
func TestTopKOfManyTies(t *testing.T) {
	logits := make([]float64, 1024)
	for i := range logits {
		logits[i] = float64(i % 3)
	}
	got := make([]int32, 342)
	reference.TopK(got, logits)
	for i, e := range got[:341] {
		require.Equal(t, int32(3*i+2), e)
	}
	assert.Equal(t, int32(1), got[341])
}

func TestRouteIsTheDefinition(t *testing.T) {
	const tokens = 70 // more tokens than one task handles
	for _, c := range configs {
		r := newRandom(t, c, tokens, 21)
		got, err := r.Route(r.x, nil, reference.Unrounded)
		require.NoError(t, err)
		for tok := range tokens {
			logits := make([]float64, c.NumExperts)
			for e := range logits {
				for i := range c.Hidden {
					logits[e] += num.BF16ToFloat64(r.x[tok*c.Hidden+i]) * num.BF16ToFloat64(r.router[e*c.Hidden+i])
				}
			}
			require.InDeltaSlice(t, logits, got.Logits[tok*c.NumExperts:][:c.NumExperts], 1e-12)
			experts := got.ExpertIDs[tok*c.TopK:][:c.TopK]
			var sum float64
			for _, e := range experts {
				sum += math.Exp(logits[e])
			}
			for j, e := range experts {
				require.InDelta(t, math.Exp(logits[e])/sum, got.Scores[tok*c.TopK+j], 1e-12)
				larger := 0
				for _, other := range logits {
					if other > logits[e] {
						larger++
					}
				}
				require.Equal(t, j, larger, "place of expert %d", e)
			}
		}
	}
}

// logitLayer returns a layer, and a token whose logits have exactly the given values.
func logitLayer(t *testing.T, format spec.Type, k int, logits ...float64) (*reference.Layer, []uint16) {
	t.Helper()
	c := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: len(logits), TopK: k, Logits: format}
	s := c.Shapes(1)
	x, router := make([]uint16, s.X.Elements()), make([]uint16, s.Router.Elements())
	x[0], x[1] = num.Float64ToBF16(1), num.Float64ToBF16(1)
	for e, v := range logits {
		high := num.Float64ToBF16(v)
		router[e*128] = high
		if rest := v - num.BF16ToFloat64(high); rest == rest && rest != 0 {
			router[e*128+1] = num.Float64ToBF16(rest)
		}
	}
	l, err := reference.NewLayer(c, router, make([]uint16, s.W1.Elements()), make([]uint16, s.W2.Elements()))
	require.NoError(t, err)
	return l, x
}

// TestLogitFormatDecidesTies checks that the logits 1 and 1.001, which are equal in bf16,
// choose the lower expert if logits are bf16.
func TestLogitFormatDecidesTies(t *testing.T) {
	tests := []struct {
		format   spec.Type
		rounding reference.Rounding
		first    int32
	}{
		{spec.BF16, reference.Rounded, 0},
		{spec.F32, reference.Rounded, 1},
		{spec.BF16, reference.Unrounded, 1},
	}
	for _, tt := range tests {
		l, x := logitLayer(t, tt.format, 2, 1, 1+1.0/1024, -1)
		got, err := l.Route(x, nil, tt.rounding)
		require.NoError(t, err)
		assert.Equal(t, tt.first, got.ExpertIDs[0], "%+v", tt)
	}
}

func TestScoresAreASoftmaxOfTheSelected(t *testing.T) {
	l, x := logitLayer(t, spec.BF16, 2, 1, 400, 399, 398)
	got, err := l.Route(x, nil, reference.Unrounded)
	require.NoError(t, err)
	assert.Equal(t, []int32{1, 2}, got.ExpertIDs)
	assert.InDelta(t, 1/(1+math.Exp(-1)), got.Scores[0], 1e-15)
	assert.InDelta(t, 1, got.Scores[0]+got.Scores[1], 1e-15)
}

func TestBadLogitsShowInScores(t *testing.T) {
	nan := math.NaN()
	tests := []struct {
		name   string
		logits []float64
		nan    bool
	}{
		{"NaN selected among numbers", []float64{1, nan, 2}, true},
		{"NaN selected", []float64{nan, nan, 2}, true},
		{"+Inf selected", []float64{math.Inf(1), 1, 2}, true},
	}
	for _, tt := range tests {
		l, x := logitLayer(t, spec.BF16, 2, tt.logits...)
		got, err := l.Route(x, nil, reference.Rounded)
		require.NoError(t, err)
		assert.Equal(t, tt.nan, math.IsNaN(got.Scores[0]+got.Scores[1]), tt.name)
	}
}

// TestRouteLogits checks the experts and scores of a token for every scoring function, and
// for logits that are NaN, infinite, or so small that scores underflow.
func TestRouteLogits(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	sig := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	soft := func(x float64) float64 { return math.Sqrt(math.Log(1 + math.Exp(x))) }
	half, e := []float64{0.5, 0.5}, math.E
	all := spec.Config{Score: spec.SoftmaxAll}
	allSum := spec.Config{Score: spec.SoftmaxAll, Renormalize: spec.RenormSum}
	sigmoid := spec.Config{Score: spec.Sigmoid}
	sigmoidSum := spec.Config{Score: spec.Sigmoid, Renormalize: spec.RenormSum, NormEpsilon: 1e-20}
	root := spec.Config{Score: spec.SqrtSoftplus}
	rootSum := spec.Config{Score: spec.SqrtSoftplus, Renormalize: spec.RenormSum, ScoreScale: 1.5}
	biased := spec.Config{Score: spec.Sigmoid, SelectionBias: true}
	groups := func(score spec.Score, by bool, bias bool) spec.Config {
		return spec.Config{Score: score, Groups: 2, TopGroups: 1, GroupSumOfTwo: by, SelectionBias: bias}
	}
	tests := []struct {
		name    string
		config  spec.Config
		logits  []float64
		bias    []float32
		experts []int32
		scores  []float64
	}{
		{"softmax of the chosen", spec.Config{}, []float64{0, 2, 1, -9}, nil, []int32{1, 2}, []float64{e / (1 + e), 1 / (1 + e)}},
		{"all negative", spec.Config{}, []float64{-7, -5, -6, -5}, nil, []int32{1, 3}, half},
		{"softmax of all", all, []float64{0, 0, 0, 0}, nil, []int32{0, 1}, []float64{0.25, 0.25}},
		{"softmax of all, renormalised", allSum, []float64{-800, -800, -900, -900}, nil, []int32{0, 1}, half},
		{"softmax of all, one far above", allSum, []float64{0, 900, 0, 0}, nil, []int32{1, 0}, []float64{1, 0}},
		{"softmax with NaN", all, []float64{1, 2, nan, 3}, nil, []int32{2, 3}, []float64{nan, nan}},
		{"softmax with a NaN that all see", all, []float64{nan, nan, nan, 3}, nil, []int32{0, 1}, []float64{nan, nan}},
		{"softmax with infinity", all, []float64{1, inf, 0, 0}, nil, []int32{1, 0}, []float64{nan, nan}},
		{"softmax of -infinity alone", all, []float64{-inf, -inf, -inf, -inf}, nil, []int32{0, 1}, []float64{nan, nan}},
		{"softmax with some -infinity", all, []float64{-inf, 0, -inf, -inf}, nil, []int32{1, 0}, []float64{1, 0}},
		{"chosen -infinity alone", spec.Config{}, []float64{-inf, -inf, -inf, -inf}, nil, []int32{0, 1}, []float64{nan, nan}},
		{"sigmoid", sigmoid, []float64{-3, -1, -2, -4}, nil, []int32{1, 2}, []float64{sig(-1), sig(-2)}},
		{"sigmoid tells 40 from 50", sigmoid, []float64{40, 50, 45, 0}, nil, []int32{1, 2}, []float64{1, 1}},
		{"sigmoid of infinities", sigmoid, []float64{-inf, inf, -inf, -inf}, nil, []int32{1, 0}, []float64{1, 0}},
		{"sigmoid with NaN", sigmoid, []float64{nan, inf, 0, 0}, nil, []int32{0, 1}, []float64{nan, 1}},
		{"NaN in all of the token", sigmoidSum, []float64{nan, inf, 0, 0}, nil, []int32{0, 1}, []float64{nan, nan}},
		{"sigmoid, renormalised", sigmoidSum, []float64{-30, -30, -31, -32}, nil, []int32{0, 1}, half},
		{"underflow with epsilon", sigmoidSum, []float64{-200, -200, -201, -202}, nil, []int32{0, 1}, []float64{0, 0}},
		{"underflow without", spec.Config{Score: spec.Sigmoid, Renormalize: spec.RenormSum}, []float64{-200, -200, -201, -202}, nil, []int32{0, 1}, []float64{nan, nan}},
		{"a floor", spec.Config{Score: spec.Sigmoid, Renormalize: spec.RenormClamp, NormEpsilon: 4}, []float64{0, 0, -1, -1}, nil, []int32{0, 1}, []float64{0.125, 0.125}},
		{"a floor far below", spec.Config{Score: spec.Sigmoid, Renormalize: spec.RenormClamp, NormEpsilon: 1e-9}, []float64{0, 0, -1, -1}, nil, []int32{0, 1}, half},
		{"root of softplus", root, []float64{1, -1, 100, -100}, nil, []int32{2, 0}, []float64{10, soft(1)}},
		{"root of softplus of infinities", root, []float64{-inf, inf, -inf, -inf}, nil, []int32{1, 0}, []float64{inf, 0}},
		{"root of softplus, renormalised and scaled", rootSum, []float64{1, 1, 0, 0}, nil, []int32{0, 1}, []float64{0.75, 0.75}},
		{"bias chooses, and enters nothing else", biased, []float64{2, 1, 0, -1}, []float32{0, 0, 0, 3}, []int32{3, 0}, []float64{sig(-1), sig(2)}},
		{"equal by bias", biased, []float64{0, 0, 0, 0}, []float32{-1, 2, 0, 2}, []int32{1, 3}, half},
		{"bias of a softmax", spec.Config{Score: spec.SoftmaxAll, SelectionBias: true}, []float64{0, 0, 0, 0}, []float32{0, 0, 1, 1}, []int32{2, 3}, []float64{0.25, 0.25}},
		{"group by its best", groups(spec.SoftmaxTopK, false, false), []float64{-5, -1, -2, -2}, nil, []int32{1, 0}, []float64{sig(4), sig(-4)}},
		{"group by two", groups(spec.Sigmoid, true, false), []float64{-5, 1, 0.5, 0.5}, nil, []int32{2, 3}, []float64{sig(0.5), sig(0.5)}},
		{"groups with equal best", groups(spec.Sigmoid, false, false), []float64{-5, 1, 1, 0}, nil, []int32{1, 0}, []float64{sig(1), sig(-5)}},
		{"groups with equal sums", groups(spec.Sigmoid, true, false), []float64{0, 1, 1, 0}, nil, []int32{1, 0}, []float64{sig(1), 0.5}},
		{"group with NaN", groups(spec.Sigmoid, false, false), []float64{5, 5, nan, -5}, nil, []int32{2, 3}, []float64{nan, sig(-5)}},
		{"group with NaN, by two", groups(spec.Sigmoid, true, false), []float64{5, 5, nan, -5}, nil, []int32{2, 3}, []float64{nan, sig(-5)}},
		{"group by bias", groups(spec.Sigmoid, true, true), []float64{5, 5, 0, 0}, []float32{-1, -1, 0, 0.5}, []int32{3, 2}, half},
		{"biases below zero hide nothing", groups(spec.Sigmoid, true, true), []float64{0, 0, 0, 0}, []float32{-7, -7, -5, -6}, []int32{2, 3}, half},
		{"-infinity in a kept group", groups(spec.SoftmaxAll, false, false), []float64{0, -inf, -1, -1}, nil, []int32{0, 1}, []float64{1 / (1 + 2/e), 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.config
			c.Hidden, c.Intermediate, c.NumExperts, c.TopK, c.Logits = 16, 16, len(tt.logits), len(tt.experts), spec.F32
			w := newTensors(c, 0, 1)
			w.Weights.SelectionBias = tt.bias
			l, err := reference.New(c, w.Weights)
			require.NoError(t, err)
			for _, r := range []reference.Rounding{reference.Unrounded, reference.Rounded} {
				got, err := l.RouteLogits(append(tt.logits, tt.logits...), r)
				require.NoError(t, err)
				assert.Equal(t, append(tt.experts, tt.experts...), got.ExpertIDs)
				for k, want := range tt.scores {
					// The tests expect 0 for the sigmoid of -200, which is true only after
					// rounding to FP32.
					if r == reference.Unrounded && tt.logits[0] == -200 {
						continue
					}
					if math.IsNaN(want) || math.IsInf(want, 0) {
						assert.Equal(t, fmt.Sprint(want), fmt.Sprint(got.Scores[k]))
					} else {
						assert.InDelta(t, want, got.Scores[k], 1e-6)
					}
				}
			}
		})
	}
	c := spec.Config{Hidden: 16, Intermediate: 16, NumExperts: 3, TopK: 1}
	l, err := reference.New(c, newTensors(c, 0, 1).Weights)
	require.NoError(t, err)
	_, err = l.RouteLogits(make([]float64, 4), reference.Rounded)
	assert.EqualError(t, err, "logits is 4 elements, must be [T, 3]")
}
