package choose

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/order"
)

// TestFromLogitsAdversarial checks each kind of score on rows of logits that are easy to
// get wrong.
func TestFromLogitsAdversarial(t *testing.T) {
	inf, nan, sigmoid := math.Inf(1), math.NaN(), func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	root := func(x float64) float64 { return math.Sqrt(math.Log1p(math.Exp(x))) }
	half := math.Sqrt(math.Ln2) // the square root of softplus(0)
	for _, tt := range []struct {
		name   string
		logits []float64
		ids    []int32
		// softmax, sigmoids and roots are the wanted scores of each kind without renormalisation.
		// normed has the sigmoids divided by their sum. nil: the kind is not tried.
		softmax, sigmoids, roots, normed []float64
	}{
		{"equal", []float64{0, 0, 0, 0}, []int32{0, 1}, []float64{.25, .25}, []float64{.5, .5}, []float64{half, half}, []float64{.5, .5}},
		{"zeros of both signs", []float64{math.Copysign(0, -1), 0, -1, 0}, []int32{0, 1}, nil, []float64{.5, .5}, []float64{half, half}, []float64{.5, .5}},
		{"negative", []float64{-3, -1, -2, -1}, []int32{1, 3}, nil, []float64{sigmoid(-1), sigmoid(-1)}, []float64{root(-1), root(-1)}, []float64{.5, .5}},
		{"far below", []float64{-50, -60, -50, -70}, []int32{0, 2}, nil, []float64{sigmoid(-50), sigmoid(-50)}, []float64{root(-50), root(-50)}, []float64{.5, .5}},
		{"below normal numbers", []float64{-95, -95, -99, -99}, []int32{0, 1}, nil, nil, nil, []float64{.5, .5}},
		{"nothing left", []float64{-200, -200, -200, -200}, []int32{0, 1}, []float64{.25, .25}, []float64{0, 0}, []float64{0, 0}, []float64{nan, nan}},
		{"NaN", []float64{0, 2, 0, nan}, []int32{3, 1}, []float64{nan, nan}, []float64{nan, sigmoid(2)}, []float64{nan, root(2)}, []float64{nan, nan}},
		{"+Inf", []float64{0, 2, inf, 0}, []int32{2, 1}, []float64{nan, nan}, []float64{1, sigmoid(2)}, []float64{inf, root(2)}, []float64{1 / (1 + sigmoid(2)), sigmoid(2) / (1 + sigmoid(2))}},
		{"-Inf", []float64{-inf, -inf, 1, -inf}, []int32{2, 0}, []float64{1, 0}, []float64{sigmoid(1), 0}, []float64{root(1), 0}, []float64{1, 0}},
		{"one expert", []float64{3}, []int32{0}, []float64{1}, []float64{sigmoid(3)}, []float64{root(3)}, []float64{1}},
		{"K is E", []float64{1, 2}, []int32{1, 0}, []float64{sigmoid(1), sigmoid(-1)}, []float64{sigmoid(2), sigmoid(1)}, []float64{root(2), root(1)}, nil},
	} {
		for kind, want := range map[string][]float64{"softmax": tt.softmax, "sigmoid": tt.sigmoids, "root": tt.roots, "normed": tt.normed} {
			if want == nil {
				continue
			}
			t.Run(tt.name+" "+kind, func(t *testing.T) {
				c := spec.Config{NumExperts: len(tt.logits), TopK: len(tt.ids), Logits: spec.F32, Score: spec.Sigmoid}
				switch kind {
				case "softmax":
					c.Score = spec.SoftmaxAll
				case "root":
					c.Score = spec.SqrtSoftplus
				case "normed":
					c.Renormalize = spec.RenormSum
				}
				selects(t, c, tt.logits, nil, tt.ids, want)
			})
		}
	}
}

// TestFromLogitsGroups checks three things: of two groups with equal sums the lower one is kept,
// the sums of groups are over biased scores, and the written scores have no bias.
func TestFromLogitsGroups(t *testing.T) {
	c := spec.Config{NumExperts: 6, TopK: 2, Logits: spec.F32, Score: spec.Sigmoid, Groups: 3, TopGroups: 1, GroupSumOfTwo: true}
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	selects(t, c, []float64{1, 2, 2, 1, 0, 0}, nil, []int32{1, 0}, []float64{sigmoid(2), sigmoid(1)})
	selects(t, c, []float64{0, 0, 1, 1, 1, 1}, nil, []int32{2, 3}, []float64{sigmoid(1), sigmoid(1)})
	c.GroupSumOfTwo = false
	selects(t, c, []float64{0, 3, 2, 2, 3, 1}, nil, []int32{1, 0}, []float64{sigmoid(3), .5})
	c.GroupSumOfTwo, c.SelectionBias = true, true
	selects(t, c, []float64{1, 2, 2, 1, 0, 0}, []float32{0, 0, 0, 0, 1, 2}, []int32{5, 4}, []float64{.5, .5})
}

// selects runs FromLogits for one token and compares experts, scores and counts. There is
// a selection bias unless bias is nil.
func selects(t *testing.T, c spec.Config, logits []float64, bias []float32, ids []int32, scores []float64) {
	t.Helper()
	b := kt.New(t, kt.Early)
	var row []float32
	for _, v := range logits {
		row = append(row, float32(v))
	}
	args := FromLogitsArgs{
		Logits: kt.Upload(b, row), Scores: b.Room(4 * c.TopK), ExpertIDs: b.Room(4 * c.TopK), Counts: b.Room(4 * c.NumExperts),
		TokenRanges: order.TokenRanges{Tokens: 1, PerCTA: order.RangeStep},
	}
	if bias != nil {
		args.SelectionBias = kt.Upload(b, bias)
	}
	kt.Run(b, FromLogits{c}, 1, args)
	require.Equal(t, ids, kt.Download[int32](b, args.ExpertIDs, c.TopK))
	for k, got := range kt.Download[float32](b, args.Scores, c.TopK) {
		switch want := scores[k]; {
		case math.IsNaN(want):
			require.True(t, got != got, "score of slot %d is %g, must be NaN", k, got)
		case want == 0 || math.IsInf(want, 0):
			require.Equal(t, float32(want), got, "score of slot %d", k)
		default:
			require.InEpsilon(t, want, got, 1e-5, "score of slot %d", k)
		}
	}
	require.Equal(t, kt.CountsOf(ids, c.NumExperts, c.TopK, 1), kt.Download[uint32](b, args.Counts, c.NumExperts))
}
