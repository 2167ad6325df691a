package reference_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
)

// roundingCase is a routing to which the tests apply rounding rules. The cases have experts
// without tokens, equal logits, one expert, K = E, and fewer tokens than a tile.
type roundingCase struct {
	c       spec.Config
	tokens  int
	routing reference.Routing
}

func newRoundingCase(r *rand.Rand) roundingCase {
	v := roundingCase{tokens: 1 + r.IntN(90)}
	v.c.NumExperts = []int{1, 2, 5, 8, 16}[r.IntN(5)]
	v.c.TopK = 1 + r.IntN(v.c.NumExperts)
	levels, skew := []float64{2, 1 << 20}[r.IntN(2)], r.Float64()
	e, k := v.c.NumExperts, v.c.TopK
	for range v.tokens {
		row := make([]float64, e)
		for i := range row {
			row[i] = math.Round((r.NormFloat64()-skew*float64(i))*levels) / levels
		}
		ids := make([]int32, k)
		reference.TopK(ids, row)
		var sum float64
		for _, id := range ids {
			sum += math.Exp(row[id])
		}
		for _, id := range ids {
			v.routing.Scores = append(v.routing.Scores, math.Exp(row[id])/sum)
		}
		v.routing.Logits = append(v.routing.Logits, row...)
		v.routing.ExpertIDs = append(v.routing.ExpertIDs, ids...)
	}
	return v
}

var roundingRules = []spec.RoundingRule{
	spec.NoRounding, spec.RoundNearest, spec.RoundStochastic, spec.RoundMass, spec.RoundBalanced, spec.RoundUp, spec.RoundDown,
	spec.ExpertChoice, spec.CapacityDrop,
}

// TestRoundProperties checks the properties that every rounding rule promises, on random
// routings.
func TestRoundProperties(t *testing.T) {
	cases := 200
	switch {
	case os.Getenv("SONICMOE_LONG") != "":
		cases = 1000
	case testing.Short():
		cases = 40
	}
	for _, rule := range roundingRules {
		t.Run(rule.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, uint64(len(rule))))
			for range cases {
				v := newRoundingCase(r)
				how := spec.Rounding{Rule: rule, RawScores: rule != spec.NoRounding && r.IntN(2) == 0}
				switch rule {
				case spec.ExpertChoice:
					how.Capacity = []float64{0, 1, 1.25}[r.IntN(3)]
				case spec.CapacityDrop:
					how.Capacity = []float64{0.5, 1, 1.25}[r.IntN(3)]
				case spec.NoRounding:
				default:
					how.Tile = []int{1, 2, 8, 16, 64}[r.IntN(5)]
				}
				require.NoError(t, how.Check())
				v.check(t, how, r.Uint64())
			}
		})
	}
}

func (v roundingCase) check(t *testing.T, how spec.Rounding, seed uint64) {
	e := v.c.NumExperts
	p := v.routing.Preferences(v.c, reference.Unrounded)
	list, counts := p.Round(v.c, how, seed)
	what := fmt.Sprintf("%+v E=%d K=%d T=%d", how, e, v.c.TopK, v.tokens)
	require.LessOrEqual(t, int64(len(list)), how.MaxRows(v.c, v.tokens), what)
	f, taken := make([]int, e), make([]bool, v.tokens*e)
	for i, chosen := range p.Chosen {
		if chosen {
			f[i%e]++
		}
	}
	next := 0
	for of, n := range counts {
		for last := int32(-1); n > 0; n-- {
			require.Equal(t, int32(of), list[next].Expert, what)
			require.Greater(t, list[next].Token, last, what)
			last = list[next].Token
			taken[int(last)*e+of] = true
			next++
		}
	}
	require.Len(t, list, next, what)

	drift, forced := 0, false
	for of, n := range counts {
		drift += n - f[of]
		switch how.Rule {
		case spec.NoRounding:
			require.Equal(t, f[of], n, what)
		case spec.ExpertChoice, spec.CapacityDrop:
			capacity := how.CapacityOf(v.c, v.tokens)
			if how.Rule == spec.CapacityDrop {
				require.LessOrEqual(t, n, min(f[of], capacity), what)
			} else if capacity > 0 {
				require.Equal(t, capacity, n, what)
			}
		default:
			require.Zero(t, n%how.Tile, what)
			require.Less(t, max(n-f[of], f[of]-n), how.Tile, what)
		}
		up := (f[of] + how.Rows() - 1) / how.Rows() * how.Rows()
		forced = forced || up > v.tokens
		v.checkBest(t, p, taken, of, how, what)
	}
	if how.Rule == spec.RoundBalanced && !forced {
		require.LessOrEqual(t, 2*max(drift, -drift), how.Tile, what)
	}
	for i := range taken {
		if how.Rule == spec.RoundDown || how.Rule == spec.CapacityDrop {
			require.True(t, p.Chosen[i] || !taken[i], what)
		}
		if how.Rule == spec.RoundUp && !forced {
			require.True(t, taken[i] || !p.Chosen[i], what)
		}
	}
}

// checkBest checks that an expert prefers every token that it takes to every token that it
// leaves.
func (v roundingCase) checkBest(t *testing.T, p reference.Preferences, taken []bool, of int, how spec.Rounding, what string) {
	e := v.c.NumExperts
	better := func(a, b int) bool { // reports whether token a comes before token b
		i, j := a*e+of, b*e+of
		x, y := p.Score[i], p.Score[j]
		switch {
		case how.Rule == spec.ExpertChoice:
			x, y = p.Raw[i], p.Raw[j]
		case p.Chosen[i] != p.Chosen[j]:
			return p.Chosen[i]
		}
		return x > y || x == y && a < b
	}
	worst, best := -1, -1 // the worst token that the expert takes, the best token that it leaves
	for tok := range v.tokens {
		if taken[tok*e+of] {
			if worst < 0 || better(worst, tok) {
				worst = tok
			}
		} else if best < 0 || better(tok, best) {
			best = tok
		}
	}
	if worst >= 0 && best >= 0 {
		require.True(t, better(worst, best), "%s: expert %d left token %d for %d", what, of, best, worst)
	}
}

// TestRoundStochasticIsFair checks that the mean of a stochastic count over 10,000 seeds is f,
// the number of tokens that chose the expert, within four standard errors. It also checks that
// the draws of different experts are not correlated.
func TestRoundStochasticIsFair(t *testing.T) {
	const tile = 8
	seeds := 10000
	if testing.Short() {
		seeds = 2000
	}
	var v roundingCase
	for r := rand.New(rand.NewPCG(3, 1)); v.tokens < 60 || v.c.NumExperts != 8; {
		v = newRoundingCase(r)
	}
	p := v.routing.Preferences(v.c, reference.Unrounded)
	_, f := p.Round(v.c, spec.Rounding{}, 0)
	sum, pairs := make([]float64, len(f)), 0.0
	for seed := range uint64(seeds) {
		_, n := p.Round(v.c, spec.Rounding{Rule: spec.RoundStochastic, Tile: tile}, seed)
		for e := range f {
			sum[e] += float64(n[e])
		}
		how := spec.Rounding{}
		if how.Draw(seed, 0)>>31 == how.Draw(seed, 1)>>31 {
			pairs++
		}
	}
	for e := range f {
		part := float64(f[e]%tile) / tile
		if (f[e]+tile-1)/tile*tile > v.tokens {
			part = 0 // rounding up would take more tokens than there are, so the rule always rounds down
			f[e] = f[e] / tile * tile
		}
		stderr := tile * math.Sqrt(part*(1-part)/float64(seeds))
		assert.InDelta(t, float64(f[e]), sum[e]/float64(seeds), 4*stderr+1e-9, "expert %d", e)
	}
	assert.InDelta(t, 0.5, pairs/float64(seeds), 3*0.5/math.Sqrt(float64(seeds)))
}

// TestRoundByHand compares each rule with values computed by hand: experts with f = 5, 4, 3 and
// 9 tokens, and tiles of 8 and 16 tokens.
func TestRoundByHand(t *testing.T) {
	const tokens, experts = 16, 4
	f := []int{5, 4, 3, 9}
	p := reference.Preferences{Experts: experts, Raw: make([]float64, tokens*experts), Score: make([]float64, tokens*experts), Chosen: make([]bool, tokens*experts)}
	for i := range p.Raw {
		tok, e := i/experts, i%experts
		p.Raw[i] = 1 / float64(2+tok)
		p.Chosen[i] = tok >= tokens-f[e]
		p.Score[i] = p.Raw[i]
	}
	for _, tt := range []struct {
		rule spec.RoundingRule
		want []int
	}{
		{spec.RoundNearest, []int{8, 0, 0, 8}},
		{spec.RoundBalanced, []int{8, 0, 0, 16}},
		{spec.RoundUp, []int{8, 8, 8, 16}},
		{spec.RoundDown, []int{0, 0, 0, 8}},
	} {
		_, got := p.Round(spec.Config{TopK: 1, NumExperts: experts}, spec.Rounding{Rule: tt.rule, Tile: 8}, 1)
		assert.Equal(t, tt.want, got, tt.rule.String())
	}
	list, _ := p.Round(spec.Config{TopK: 1, NumExperts: experts}, spec.Rounding{Rule: spec.RoundNearest, Tile: 8}, 1)
	var tokensOf0 []int32
	for _, entry := range list[:8] {
		tokensOf0 = append(tokensOf0, entry.Token)
		assert.Equal(t, entry.Token < 11, entry.Raw)
	}
	assert.Equal(t, []int32{0, 1, 2, 11, 12, 13, 14, 15}, tokensOf0, "its five, and the best of the others")
}

// TestRoundedLogits checks that the gradients of the logits are the slopes of Σ g·score, with
// the taken tokens fixed.
func TestRoundedLogits(t *testing.T) {
	for _, raw := range []bool{false, true} {
		r := rand.New(rand.NewPCG(11, 1))
		var v roundingCase
		for v.c.NumExperts < 5 || v.c.TopK < 2 || v.tokens < 20 {
			v = newRoundingCase(r)
		}
		how := spec.Rounding{Rule: spec.RoundNearest, Tile: 8, RawScores: raw}
		e, k := v.c.NumExperts, v.c.TopK
		p := v.routing.Preferences(v.c, reference.Unrounded)
		list, _ := p.Round(v.c, how, 0)
		g := make([]float64, len(list))
		for i := range g {
			g[i] = r.NormFloat64()
		}
		got := v.routing.RoundedLogits(v.c, p, list, g)
		score := func(logits []float64, entry reference.Entry) float64 {
			row := logits[int(entry.Token)*e:][:e]
			var sum float64
			if entry.Raw {
				for _, l := range row {
					sum += math.Exp(l)
				}
			} else {
				for _, id := range v.routing.ExpertIDs[int(entry.Token)*k:][:k] {
					sum += math.Exp(row[id])
				}
			}
			return math.Exp(row[entry.Expert]) / sum
		}
		const step = 1e-5
		for i := range got {
			var slope float64
			for j, entry := range list {
				if int(entry.Token) == i/e {
					up, down := append([]float64{}, v.routing.Logits...), append([]float64{}, v.routing.Logits...)
					up[i] += step
					down[i] -= step
					slope += g[j] * (score(up, entry) - score(down, entry)) / (2 * step)
				}
			}
			require.InDelta(t, slope, got[i], 1e-8, "raw=%v, logit %d", raw, i)
		}
	}
}

// TestCountsOfHistogram checks that the counts computed from a histogram equal the counts of
// Round, for the rules that do not depend on scores.
func TestCountsOfHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 8))
	for i := range 200 {
		c := spec.Config{Hidden: 128, Intermediate: 64, NumExperts: 1 + r.IntN(12), TopK: 1}
		tokens, seed := 1+r.IntN(100), r.Uint64()
		p := reference.Preferences{Experts: c.NumExperts, Raw: make([]float64, tokens*c.NumExperts), Score: make([]float64, tokens*c.NumExperts), Chosen: make([]bool, tokens*c.NumExperts)}
		chosen := make([]int, c.NumExperts)
		for at := range p.Chosen {
			if r.IntN(3) == 0 {
				p.Chosen[at] = true
				chosen[at%c.NumExperts]++
			}
		}
		for _, rule := range append([]spec.RoundingRule{spec.NoRounding}, spec.RoundingRules[1:]...) {
			if rule == spec.RoundMass {
				continue
			}
			how := spec.Rounding{Rule: rule}
			switch rule {
			case spec.ExpertChoice:
				how.Capacity = []float64{0, 1}[i%2]
			case spec.CapacityDrop:
				how.Capacity = 0.75
			case spec.NoRounding:
			default:
				how.Tile = []int{1, 8, 16}[i%3]
			}
			_, want := p.Round(c, how, seed)
			require.Equal(t, want, how.Counts(c, chosen, tokens, seed), "%v of %v, %d tokens", how, chosen, tokens)
		}
	}
}
