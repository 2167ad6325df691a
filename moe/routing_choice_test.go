package moe_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// routing is a test case of TestRoutings: a pass of the whole layer with exactly known logits.
type routing struct {
	name                  string
	experts, topK, tokens int
	// logits returns the logits of a token. An expert with an infinity or NaN for one token must
	// not have a number for another token.
	logits func(token int) []float64
	// chosen returns the experts that the router must choose for the token, in order.
	chosen func(token int) []int32
	// nan reports whether the token's scores and output must be NaN. A nil func means that no
	// token's are.
	nan func(token int) bool
}

// routingIn is a routing in a layer of the given type with the given kind of scores.
type routingIn struct {
	routing
	element moe.Type
	score   moe.Score
}

func always[T any](x T) func(int) T { return func(int) T { return x } }

// logitsOf returns the given logits for the named experts, and 0 for the others.
func logitsOf(experts int, of map[int]float64) []float64 {
	row := make([]float64, experts)
	for e, v := range of {
		row[e] = v
	}
	return row
}

// prefer returns decreasing logits for the listed experts. All are above 0, the logit of the other
// experts.
func prefer(experts int, order ...int32) []float64 {
	row := make([]float64, experts)
	for i, e := range order {
		row[e] = 2 - float64(i)/8
	}
	return row
}

// zipf draws the experts of each token by Zipf's law.
func zipf(tokens, topK, experts int) [][]int32 {
	r, z := rand.New(rand.NewPCG(11, 12)), reference.NewZipf(experts)
	list := make([][]int32, tokens)
	for t := range list {
		list[t] = z.Distinct(topK, r.Float64)
	}
	return list
}

func routings() []routing {
	inf, nan := math.Inf(1), math.NaN()
	few := [][]int32{{60, 3, 31, 63}, {3, 31, 63, 60}, {31, 63, 60, 3}, {63, 60, 3, 31}}
	uneven := zipf(200, 4, 32)
	return []routing{
		{"one expert chosen by every token", 9, 1, 300, always(prefer(9, 7)), always([]int32{7}), nil},
		{"one expert in the choice of every token", 9, 2, 150,
			func(t int) []float64 { return prefer(9, int32(t%7), 7) }, func(t int) []int32 { return []int32{int32(t % 7), 7} }, nil},
		{"most experts empty", 64, 4, 140,
			func(t int) []float64 { return prefer(64, few[t%4]...) }, func(t int) []int32 { return few[t%4] }, nil},
		{"Zipf 1.0", 32, 4, 200,
			func(t int) []float64 { return prefer(32, uneven[t]...) }, func(t int) []int32 { return uneven[t] }, nil},
		{"ties of all", 12, 5, 70, always(make([]float64, 12)), always([]int32{0, 1, 2, 3, 4}), nil},
		{"ties of some", 12, 4, 70, always(logitsOf(12, map[int]float64{9: 1, 5: 1, 2: 1, 11: .5, 4: .5})), always([]int32{2, 5, 9, 4}), nil},
		{"negative ties", 4, 3, 70, always([]float64{-2, -1, -2, -1}), always([]int32{1, 3, 0}), nil},
		{"NaN before numbers", 6, 2, 70, always(logitsOf(6, map[int]float64{1: nan, 4: 1, 2: .5})), always([]int32{1, 4}), always(true)},
		{"two NaN", 4, 3, 70, always([]float64{nan, 0, 1, nan}), always([]int32{0, 3, 2}), always(true)},
		{"NaN alone", 3, 2, 70, always([]float64{nan, nan, nan}), always([]int32{0, 1}), always(true)},
		{"+Inf", 6, 2, 70, always(logitsOf(6, map[int]float64{3: inf, 5: 1})), always([]int32{3, 5}), always(true)},
		{"two +Inf", 6, 3, 70, always(logitsOf(6, map[int]float64{3: inf, 1: inf, 5: 1})), always([]int32{1, 3, 5}), always(true)},
		{"-Inf left out", 6, 3, 70, always(logitsOf(6, map[int]float64{0: -inf, 1: -inf, 4: 1})), always([]int32{4, 2, 3}), nil},
		{"-Inf where numbers run out", 3, 3, 70, always([]float64{0, -inf, 1}), always([]int32{2, 0, 1}), nil},
		{"NaN before +Inf", 3, 2, 70, always([]float64{inf, -inf, nan}), always([]int32{2, 0}), always(true)},
		{"-Inf alone", 3, 1, 70, always([]float64{-inf, -inf, -inf}), always([]int32{0}), always(true)},
		{"NaN, +Inf and -Inf by turns", 5, 2, 150,
			func(t int) []float64 {
				return logitsOf(5, map[int]float64{3: []float64{nan, inf, -inf}[t%3], 0: 1, 4: .5})
			},
			func(t int) []int32 { return [][]int32{{3, 0}, {3, 0}, {0, 4}}[t%3] },
			func(t int) bool { return t%3 != 2 }},
	}
}

func (g routingIn) config() moe.Config {
	return typed(g.element, moe.Config{Hidden: 128, Intermediate: 64, NumExperts: g.experts, TopK: g.topK, Score: g.score})
}

// inputs returns X and the router's weights. Logit e is the product of column e of X and the weight
// 1. For an infinite logit the weight is infinite, and the column has the sign of the logit. For
// NaN the column is 0. The router ignores the other columns of X.
func (g routingIn) inputs() (x, router []uint16) {
	d := g.config().Hidden
	s := g.config().Shapes(g.tokens)
	x, router = reference.NewNormalOf(g.element, 1, reference.ScaleX).Values(s.X.Elements()), make([]uint16, s.Router.Elements())
	for t := range g.tokens {
		for e, v := range g.logits(t) {
			weight := 1.0
			switch {
			case math.IsNaN(v):
				weight, v = math.Inf(1), 0
			case math.IsInf(v, 0):
				weight, v = math.Inf(1), math.Copysign(1, v)
			}
			router[e*d+e], x[t*d+e] = bitsOf(g.element, weight), bitsOf(g.element, v)
		}
	}
	return x, router
}

func (g routingIn) trial(t *testing.T, dev driver.Device, few int) *trial.Trial {
	l := newLayer(t, dev, g.config(), moe.WithoutBackward(), moe.WithDecode(few))
	x, router := g.inputs()
	s := g.config().Shapes(g.tokens)
	tr, err := trial.FromHost(dev, l, g.tokens, x, reference.Weights{
		Router: router, W1: reference.NewNormalOf(g.element, 2, 0.12).Values(s.W1.Elements()), W2: reference.NewNormalOf(g.element, 3, 0.12).Values(s.W2.Elements()),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tr.Close()) })
	return tr
}

// scores returns the scores of a token's experts.
func (g routingIn) scores(token int) (scores []float64) {
	logits, chosen := g.logits(token), g.chosen(token)
	sum, isNaN := 0., g.nan != nil && g.nan(token)
	for e, x := range logits {
		if g.score == spec.SoftmaxAll || slices.Contains(chosen, int32(e)) {
			sum += math.Exp(x)
		}
	}
	for _, e := range chosen {
		x := logits[e]
		switch {
		case g.score == spec.Sigmoid:
			x = 1 / (1 + math.Exp(-x))
		case g.score == spec.SqrtSoftplus:
			x = math.Sqrt(math.Log1p(math.Exp(x)))
		case isNaN: // in a softmax, one NaN or infinity makes every score NaN
			x = math.NaN()
		default:
			x = math.Exp(x) / sum
		}
		scores = append(scores, x)
	}
	return scores
}

// checkRouting compares experts and scores of the first tokens with the expected ones. For each
// token it returns whether the output must consist of numbers.
func (g routingIn) checkRouting(t *testing.T, r trial.Results, tokens int) (number []bool) {
	for token := range tokens {
		require.Equal(t, g.chosen(token), r.ExpertIDs[token*g.topK:][:g.topK], "experts of token %d", token)
		number = append(number, g.nan == nil || !g.nan(token))
		for k, want := range g.scores(token) {
			switch got := float64(r.Scores[token*g.topK+k]); {
			case math.IsNaN(want):
				require.True(t, got != got, "score of token %d, slot %d is %g, must be NaN", token, k, got)
			case math.IsInf(want, 0):
				require.Equal(t, want, got, "score of token %d, slot %d", token, k)
			default:
				require.InDelta(t, want, got, 1e-6, "score of token %d, slot %d", token, k)
			}
		}
	}
	return number
}

// checkProducts compares O and H with the reference for the same routing. Tokens with NaN scores
// must have NaN in every column of the output.
func checkProducts(t *testing.T, tr *trial.Trial, r trial.Results, number []bool) {
	c := tr.Layer.Config()
	ref, err := reference.NewLayer(c, tr.Router, tr.W1, tr.W2)
	require.NoError(t, err)
	out, err := ref.Experts(tr.X, reference.Widen(r.Scores), r.ExpertIDs, nil, reference.Rounded)
	require.NoError(t, err)
	checkH(t, c, r.H, out.H, r.ExpertIDs)
	var got []uint16
	var want []float64
	for token := range tr.Tokens {
		row := r.O[token*c.Hidden:][:c.Hidden]
		if number[token] {
			got, want = append(got, row...), append(want, out.O[token*c.Hidden:][:c.Hidden]...)
			continue
		}
		for i, bits := range row {
			v := numberOf(c.Type, bits)
			require.True(t, v != v && bits != reference.Poison, "O of token %d, column %d is %#x, must be a NaN that was written", token, i, bits)
		}
	}
	require.NoError(t, reference.CompareOf(c.Type, got, want, len(got)/c.Hidden, c.Hidden).Check(reference.BoundsOf(c.Type, reference.Rounded)), "O")
}

// TestRoutings checks each case: first the choice, exactly, then the products.
func TestRoutings(t *testing.T) {
	for _, element := range []moe.Type{moe.BF16, moe.F16} {
		for i, g := range routings() {
			if testing.Short() && (element == moe.F16) != (i%3 == 0) {
				continue // -short runs each case with only one of the two types
			}
			g := routingIn{g, element, spec.SoftmaxTopK}
			t.Run(element.String()+" "+g.name, func(t *testing.T) {
				few := 0
				if !testing.Short() {
					few = i % 2 * g.tokens // alternates between the kernels for small and large batches
				}
				tr := g.trial(t, testDevice(t), few)
				r := forward(t, tr, tr.Args)
				checkProducts(t, tr, r, g.checkRouting(t, r, g.tokens))
				infer := forward(t, tr, tr.Inference())
				require.Equal(t, r.O, infer.O, "inference gives the bits of training")
			})
		}
	}
}

// TestRoutingsOfKinds makes the same choices with all other kinds of scores, which treat NaN and
// infinities differently. Some of the batches are small.
func TestRoutingsOfKinds(t *testing.T) {
	for i, g := range routings() {
		for j, kind := range []moe.Score{spec.SoftmaxAll, spec.Sigmoid, spec.SqrtSoftplus} {
			if testing.Short() && (i+j)%3 != 0 {
				continue // -short runs each kind with only a third of the cases
			}
			g := routingIn{g, []moe.Type{moe.BF16, moe.F16}[i%2], kind}
			t.Run(kind.String()+" "+g.name, func(t *testing.T) {
				const few = 33
				tr := g.trial(t, testDevice(t), few)
				for _, tokens := range []int{g.tokens, few} {
					require.NoError(t, tr.Poison())
					require.NoError(t, tr.Call().Route(tr.Stream(), first(t, tr, tokens)))
					require.NoError(t, tr.Stream().Synchronize(testContext(t)))
					r, err := tr.Results(false)
					require.NoError(t, err)
					g.checkRouting(t, r, tokens)
				}
			})
		}
	}
}

// given is a routing [T, K] that a caller chooses.
type given struct {
	name   string
	ids    func(token int) []int32
	scores func(token int) []float32
	// same is an ordinary routing that must give the same O. It is nil if the ids are already
	// ordinary.
	same func(token int) ([]int32, []float32)
}

// givenConfig is the layer of the given routings, whose tokens have 3 slots.
var givenConfig = moe.Config{Hidden: 192, Intermediate: 64, NumExperts: 48, TopK: 3}

func givens(tokens int) []given {
	uneven := zipf(tokens, 3, 48)
	usual, outside := []float32{.5, .25, .125}, []int32{48, 49, 1<<31 - 1, -1, -1 << 31}
	return []given{
		{"one expert chosen by every token", always([]int32{5, 5, 5}), always(usual),
			func(int) ([]int32, []float32) { return []int32{5, -1, -1}, []float32{.875, 0, 0} }},
		{"repeated ids", func(t int) []int32 { return []int32{int32(t % 48), int32(t % 5), int32(t % 48)} }, always(usual),
			func(t int) ([]int32, []float32) {
				return []int32{int32(t % 48), int32(t % 5), -1}, []float32{.625, .25, 0}
			}},
		{"ids beyond E", func(t int) []int32 { return []int32{outside[t%5], int32(t % 48), outside[t%3]} }, always(usual),
			func(t int) ([]int32, []float32) { return []int32{0, int32(t % 48), 47}, []float32{0, .25, 0} }},
		{"no id below E", func(t int) []int32 { return []int32{outside[t%5], 48, outside[t%3]} }, always(usual),
			func(int) ([]int32, []float32) { return []int32{0, 1, 2}, []float32{0, 0, 0} }},
		{"most experts empty", func(t int) []int32 { return []int32{47, int32(t % 2), 20} }, always(usual), nil},
		{"Zipf 1.0", func(t int) []int32 { return uneven[t] }, always(usual), nil},
	}
}

// TestGivenRoutings checks ForwardExperts with unusual ids. An equivalent ordinary
// routing must give the same O.
func TestGivenRoutings(t *testing.T) {
	const tokens = 150
	tr := trialOn(t, testDevice(t), givenConfig, tokens, moe.WithoutBackward())
	ref, err := reference.NewLayer(givenConfig, tr.Router, tr.W1, tr.W2)
	require.NoError(t, err)
	s, a := tr.Stream(), tr.Args
	for _, g := range givens(tokens) {
		t.Run(g.name, func(t *testing.T) {
			var ids, sameIDs []int32
			var scores, sameScores []float32
			for token := range tokens {
				ids, scores = append(ids, g.ids(token)...), append(scores, g.scores(token)...)
				if g.same != nil {
					i, s := g.same(token)
					sameIDs, sameScores = append(sameIDs, i...), append(sameScores, s...)
				}
			}
			require.NoError(t, tr.Poison())
			require.NoError(t, s.CopyToDevice(a.ExpertIDs.Ptr, num.Bytes(ids)))
			require.NoError(t, s.CopyToDevice(a.Scores.Ptr, num.Bytes(scores)))
			require.NoError(t, tr.Call().ForwardExperts(s, a))
			require.NoError(t, s.Synchronize(testContext(t)))
			got, err := tr.Results(true)
			require.NoError(t, err)

			want, err := ref.Experts(tr.X, reference.Widen(scores), ids, nil, reference.Rounded)
			require.NoError(t, err)
			checkH(t, givenConfig, got.H, want.H, ids)
			if g.same != nil {
				want, err = ref.Experts(tr.X, reference.Widen(sameScores), sameIDs, nil, reference.Rounded)
				require.NoError(t, err)
			}
			require.NoError(t, reference.Compare(got.O, want.O, tokens, givenConfig.Hidden).Check(reference.VsRounded), "O")
		})
	}
}
