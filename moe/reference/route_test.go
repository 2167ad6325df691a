package reference_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/num"
	"sonicmoe/moe/reference"
	"sonicmoe/moe/spec"
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

// A long row of equal logits needs a sort that keeps their order.
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
	const tokens = 70 // more than one task's
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

// logitLayer gives a layer and one token with these logits, exactly.
func logitLayer(t *testing.T, format spec.Logits, k int, logits ...float64) (*reference.Layer, []uint16) {
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

// bf16 makes 1 and 1.001 equal, and then the lower expert wins.
func TestLogitFormatDecidesTies(t *testing.T) {
	tests := []struct {
		format   spec.Logits
		rounding reference.Rounding
		first    int32
	}{
		{spec.LogitsBF16, reference.Rounded, 0},
		{spec.LogitsF32, reference.Rounded, 1},
		{spec.LogitsBF16, reference.Unrounded, 1},
	}
	for _, tt := range tests {
		l, x := logitLayer(t, tt.format, 2, 1, 1+1.0/1024, -1)
		got, err := l.Route(x, nil, tt.rounding)
		require.NoError(t, err)
		assert.Equal(t, tt.first, got.ExpertIDs[0], "%+v", tt)
	}
}

func TestScoresAreASoftmaxOfTheSelected(t *testing.T) {
	l, x := logitLayer(t, spec.LogitsBF16, 2, 1, 400, 399, 398)
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
		l, x := logitLayer(t, spec.LogitsBF16, 2, tt.logits...)
		got, err := l.Route(x, nil, reference.Rounded)
		require.NoError(t, err)
		assert.Equal(t, tt.nan, math.IsNaN(got.Scores[0]+got.Scores[1]), tt.name)
	}
}
