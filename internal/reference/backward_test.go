package reference_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
)

func widen(bits []uint16) []float64 {
	out := make([]float64, len(bits))
	for i, b := range bits {
		out[i] = num.BF16ToFloat64(b)
	}
	return out
}

var backwardConfigs = []spec.Config{
	{Hidden: 128, Intermediate: 64, NumExperts: 1, TopK: 1},
	{Hidden: 192, Intermediate: 64, NumExperts: 5, TopK: 2, GateUp: spec.Interleaved},
	{Hidden: 128, Intermediate: 128, NumExperts: 7, TopK: 3},
}

// TestGradientsAreSlopes checks that every gradient equals the slope of the loss, by central
// differences.
func TestGradientsAreSlopes(t *testing.T) {
	const tokens = 4
	for i, c := range backwardConfigs {
		if i > 1 && testing.Short() {
			break
		}
		t.Run("routed "+c.String(), func(t *testing.T) {
			r := newRandom(t, c, tokens, 21)
			routing, err := r.Route(r.x, nil, reference.Unrounded)
			require.NoError(t, err)
			in := backwardOf(r, tokens, routing.Scores, routing.ExpertIDs)
			in.Routed, in.Extra = true, uniform(tokens*c.NumExperts)
			checkSlopes(t, r, in, tokens)
		})
		t.Run("given "+c.String(), func(t *testing.T) {
			r := newRandom(t, c, tokens, 22)
			scores := uniform(tokens * c.TopK)
			experts := make([]int32, len(scores))
			for i := range experts {
				experts[i] = int32(i % c.NumExperts)
			}
			if c.TopK > 1 {
				experts[0] = experts[1] // a token that has an expert twice
				experts[2], experts[3] = -1, int32(c.NumExperts)
			}
			checkSlopes(t, r, backwardOf(r, tokens, scores, experts), tokens)
		})
	}
}

func uniform(n int) []float64 {
	r := rand.New(rand.NewPCG(5, uint64(n)))
	out := make([]float64, n)
	for i := range out {
		out[i] = r.Float64()*2 - 1
	}
	return out
}

func backwardOf(r random, tokens int, scores []float64, experts []int32) reference.Backward {
	do := reference.NewNormal(99, 1).Values(int64(tokens * r.Config().Hidden))
	return reference.Backward{X: r.x, DO: do, Scores: scores, ExpertIDs: experts}
}

func checkSlopes(t *testing.T, r random, in reference.Backward, tokens int) {
	c := r.Config()
	s := &definition{
		c: c, tokens: tokens, x: widen(r.x), do: widen(in.DO), extra: in.Extra, scores: in.Scores, experts: in.ExpertIDs, routed: in.Routed,
		w: map[string][]float64{"router": widen(r.router), "w1": widen(r.w1), "w2": widen(r.w2)},
	}
	g, err := r.Gradients(in, reference.Unrounded)
	require.NoError(t, err)
	of, err := g.Tokens(nil)
	require.NoError(t, err)
	dw1, err := g.W1(reference.AllRows(c.NumExperts, 2*c.Intermediate))
	require.NoError(t, err)
	dw2, err := g.W2(reference.AllRows(c.NumExperts, c.Hidden))
	require.NoError(t, err)
	s.slopes(t, "dX", s.x, of.DX)
	s.slopes(t, "dW1", s.w["w1"], dw1)
	s.slopes(t, "dW2", s.w["w2"], dw2)
	if in.Routed {
		dwr, err := g.Router(of.DLogits)
		require.NoError(t, err)
		s.slopes(t, "dW_r", s.w["router"], dwr)
		return
	}
	require.Nil(t, of.DLogits)
	s.slopes(t, "dScores", s.scores, of.DScores)
}

// TestSampledGradientsEqualFull checks that gradients of some tokens or weight rows have the
// same bits as in a computation of all gradients.
func TestSampledGradientsEqualFull(t *testing.T) {
	const tokens = 37
	c := spec.Config{Hidden: 320, Intermediate: 64, NumExperts: 6, TopK: 2, GateUp: spec.Interleaved}
	r := newRandom(t, c, tokens, 31)
	for _, rounding := range []reference.Rounding{reference.Unrounded, reference.Rounded} {
		routing, err := r.Route(r.x, nil, rounding)
		require.NoError(t, err)
		in := backwardOf(r, tokens, routing.Scores, routing.ExpertIDs)
		in.Routed, in.Extra = true, uniform(tokens*c.NumExperts)
		g, err := r.Gradients(in, rounding)
		require.NoError(t, err)
		full, err := g.Tokens(nil)
		require.NoError(t, err)
		sample := []int32{36, 3, 3, 0, 20}
		part, err := g.Tokens(sample)
		require.NoError(t, err)
		assert.Equal(t, reference.Gather(full.DX, sample, c.Hidden), part.DX)
		assert.Equal(t, reference.Gather(full.DScores, sample, c.TopK), part.DScores)
		assert.Equal(t, reference.Gather(full.DLogits, sample, c.TopK), part.DLogits)
		for _, w := range []struct {
			of         func([]reference.ExpertRow) ([]float64, error)
			rows, cols int
		}{{g.W1, 2 * c.Intermediate, c.Hidden}, {g.W2, c.Hidden, c.Intermediate}} {
			full, err := w.of(reference.AllRows(c.NumExperts, w.rows))
			require.NoError(t, err)
			list := []reference.ExpertRow{{5, w.rows - 1}, {0, 0}, {5, 7}, {5, 7}, {2, 33}}
			part, err := w.of(list)
			require.NoError(t, err)
			for i, at := range list {
				assert.Equal(t, full[(at.Expert*w.rows+at.Row)*w.cols:][:w.cols], part[i*w.cols:][:w.cols], "%v", at)
			}
		}
	}
}

// TestGradientsFromSavedH checks that H as a kernel saves it, in bf16 and by packed row, gives
// the same gradients as H computed again from X.
func TestGradientsFromSavedH(t *testing.T) {
	const tokens = 19
	c := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 3}
	r := newRandom(t, c, tokens, 41)
	scores := uniform(tokens * c.TopK)
	experts := make([]int32, len(scores))
	for i := range experts {
		experts[i] = int32(i*7%6) - 1 // the ids -1 and 4 are skipped
	}
	out, err := r.Experts(r.x, scores, experts, nil, reference.Rounded)
	require.NoError(t, err)
	packed := reference.Gather(out.H, reference.Group(experts, c.NumExperts).Flat, 2*c.Intermediate)

	in := backwardOf(r, tokens, scores, experts)
	anew := allGradients(t, r, in)
	in.H = bf16s(packed)
	assert.Equal(t, anew, allGradients(t, r, in))
}

// allGradients returns the gradients of X, W1 and W2, concatenated.
func allGradients(t *testing.T, r random, in reference.Backward) []float64 {
	c := r.Config()
	g, err := r.Gradients(in, reference.Rounded)
	require.NoError(t, err)
	of, err := g.Tokens(nil)
	require.NoError(t, err)
	dw1, err := g.W1(reference.AllRows(c.NumExperts, 2*c.Intermediate))
	require.NoError(t, err)
	dw2, err := g.W2(reference.AllRows(c.NumExperts, c.Hidden))
	require.NoError(t, err)
	return append(append(append(of.DX, of.DScores...), dw1...), dw2...)
}

// TestRoundedGradientsAreNear checks that rounding changes the gradients, but by less than the
// errors that kernels may have.
func TestRoundedGradientsAreNear(t *testing.T) {
	const tokens = 96
	c := spec.Config{Hidden: 192, Intermediate: 128, NumExperts: 4, TopK: 2}
	r := newRandom(t, c, tokens, 51)
	routing, err := r.Route(r.x, nil, reference.Rounded)
	require.NoError(t, err)
	in := backwardOf(r, tokens, routing.Scores, routing.ExpertIDs)
	in.Routed, in.Extra = true, uniform(tokens*c.NumExperts)
	exact, err := r.Gradients(in, reference.Unrounded)
	require.NoError(t, err)
	rounded, err := r.Gradients(in, reference.Rounded)
	require.NoError(t, err)
	near := func(what string, got, want []float64, rows, cols int) {
		report := reference.Compare(bf16s(got), want, rows, cols)
		assert.NoError(t, report.Check(reference.VsUnrounded), what)
		assert.Greater(t, report.Frobenius, 5e-4, "%s: nothing was rounded", what)
	}
	x, err := exact.Tokens(nil)
	require.NoError(t, err)
	y, err := rounded.Tokens(nil)
	require.NoError(t, err)
	near("dX", y.DX, x.DX, tokens, c.Hidden)
	w1 := reference.AllRows(c.NumExperts, 2*c.Intermediate)
	a, err := exact.W1(w1)
	require.NoError(t, err)
	b, err := rounded.W1(w1)
	require.NoError(t, err)
	near("dW1", b, a, len(w1), c.Hidden)
	w2 := reference.AllRows(c.NumExperts, c.Hidden)
	a, err = exact.W2(w2)
	require.NoError(t, err)
	b, err = rounded.W2(w2)
	require.NoError(t, err)
	near("dW2", b, a, len(w2), c.Intermediate)
}

// TestGradientsOfNothing checks that experts without tokens have weight gradients of 0, and so
// has a layer without tokens.
func TestGradientsOfNothing(t *testing.T) {
	c := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 3, TopK: 1}
	for _, tokens := range []int{0, 2} {
		r := newRandom(t, c, tokens, 61)
		experts := make([]int32, tokens)
		for i := range experts {
			experts[i] = -1
		}
		all := allGradients(t, r, backwardOf(r, tokens, uniform(tokens), experts))
		assert.Equal(t, make([]float64, tokens*(c.Hidden+1)+c.NumExperts*3*c.Intermediate*c.Hidden), all)
	}
}

// TestNaNNeverPasses checks that a NaN in the result or in the expected values is never within
// bounds.
func TestNaNNeverPasses(t *testing.T) {
	const tokens = 6
	c := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 2, TopK: 1}
	r := newRandom(t, c, tokens, 71)
	experts := make([]int32, tokens)
	in := backwardOf(r, tokens, uniform(tokens), experts)
	in.DO[3*c.Hidden+5] = num.Float64ToBF16(math.NaN())
	g, err := r.Gradients(in, reference.Unrounded)
	require.NoError(t, err)
	of, err := g.Tokens(nil)
	require.NoError(t, err)
	require.Error(t, reference.Compare(bf16s(of.DX), of.DX, tokens, c.Hidden).Check(reference.VsUnrounded), "wanted")
	clean := reference.Compare(bf16s(of.DX[:3*c.Hidden]), of.DX[:3*c.Hidden], 3, c.Hidden)
	require.NoError(t, clean.Check(reference.VsUnrounded), "tokens beside it")
	dw1, err := g.W1(reference.AllRows(1, 2*c.Intermediate))
	require.NoError(t, err)
	got := make([]float32, len(dw1))
	require.Error(t, reference.Compare(got, dw1, 2*c.Intermediate, c.Hidden).Check(reference.VsUnrounded))
}

func TestGradientArgErrors(t *testing.T) {
	c := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 3, TopK: 2}
	r := newRandom(t, c, 2, 81)
	good := backwardOf(r, 2, make([]float64, 4), make([]int32, 4))
	for _, tt := range []struct {
		change func(*reference.Backward)
		want   string
	}{
		{func(b *reference.Backward) { b.X = b.X[1:] }, "x is 255 elements, must be [T, 128]"},
		{func(b *reference.Backward) { b.DO = b.DO[1:] }, "do is 255 elements, must be 256 ([T, d], as x)"},
		{func(b *reference.Backward) { b.Scores = nil }, "scores is 0 elements, must be 4 ([T, K])"},
		{func(b *reference.Backward) { b.H = make([]uint16, 5) }, "h is 5 elements, must be 512 ([R, 2n] of the rows in use)"},
		{func(b *reference.Backward) { b.Extra = make([]float64, 6) }, "extra is 6 elements, must be nil where the layer does not route"},
		{func(b *reference.Backward) { b.Extra, b.Routed = make([]float64, 5), true }, "extra is 5 elements, must be 6 ([T, E])"},
	} {
		in := good
		tt.change(&in)
		_, err := r.Gradients(in, reference.Rounded)
		require.EqualError(t, err, tt.want)
	}
	g, err := r.Gradients(good, reference.Rounded)
	require.NoError(t, err)
	_, err = g.Tokens([]int32{2})
	require.EqualError(t, err, "tokens[0] is 2, must be a token of x, 0 to 1")
	_, err = g.W1([]reference.ExpertRow{{0, 1}, {2, 128}})
	require.EqualError(t, err, "rows[1] is row 128 of expert 2, must be rows 0 to 127 of experts 0 to 2")
	_, err = g.W2([]reference.ExpertRow{{3, 0}})
	require.EqualError(t, err, "rows[0] is row 0 of expert 3, must be rows 0 to 127 of experts 0 to 2")
	_, err = g.Router(nil)
	require.EqualError(t, err, "dlogits is 0 elements, must be 4 ([T, K])")
}
