package rounding

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/order"
)

// roundingCase is the routing of a test case, before rounding. Some cases have equal scores,
// experts that no token chose, a single expert, K = E, or fewer tokens than a tile.
type roundingCase struct {
	c      spec.Config
	tokens int
	seed   uint64
	logits []float64
	ids    []int32
	scores []float32
}

func newRoundingCase(r *rand.Rand, how spec.Rounding) *roundingCase {
	return routingToRound(r, how, 1+r.IntN(150), []int{1, 2, 7, 33, 64}[r.IntN(5)])
}

func routingToRound(r *rand.Rand, how spec.Rounding, tokens, experts int) *roundingCase {
	v := &roundingCase{tokens: tokens, seed: r.Uint64()}
	v.c = spec.Config{Hidden: 128, Intermediate: 64, NumExperts: experts, Rounding: how}
	v.c.Logits = []spec.Type{spec.BF16, spec.F32}[r.IntN(2)]
	v.c.TopK = 1 + r.IntN(min(v.c.NumExperts, 8))
	levels, skew, e := []float64{2, 1 << 20}[r.IntN(2)], 0.2*r.Float64(), v.c.NumExperts
	for t := range v.tokens {
		row := make([]float64, e)
		for i := range row {
			x := math.Round((r.NormFloat64()-skew*float64(i))*levels) / levels
			row[i] = num.BF16ToFloat64(num.Float64ToBF16(x))
		}
		if t%50 == 49 {
			row[r.IntN(e)] = math.NaN()
		}
		v.logits = append(v.logits, row...)
		v.choose(row)
	}
	return v
}

// choose adds a token with these logits.
func (v *roundingCase) choose(row []float64) {
	ids := make([]int32, v.c.TopK)
	reference.TopK(ids, row)
	var sum float64
	for _, id := range ids {
		sum += math.Exp(row[id] - row[ids[0]])
	}
	for _, id := range ids {
		v.scores = append(v.scores, float32(math.Exp(row[id]-row[ids[0]])/sum))
	}
	v.ids = append(v.ids, ids...)
}

// preferences runs Keys and compares the resulting preferences with the reference. It returns the
// preferences, and the tables of keys and raw scores.
func (v *roundingCase) preferences(b *kt.Bed) (p reference.Preferences, keys, raw []uint32) {
	e, how := v.c.NumExperts, v.c.Rounding
	args := KeysArgs{Scores: kt.Upload(b, v.scores), ExpertIDs: kt.Upload(b, v.ids), Tokens: v.tokens}
	if v.c.Logits == spec.F32 {
		short := make([]float32, len(v.logits))
		for i, l := range v.logits {
			short[i] = float32(l)
		}
		args.Logits = kt.Upload(b, short)
	} else {
		short := make([]uint16, len(v.logits))
		num.EncodeBF16(short, v.logits)
		args.Logits = kt.Upload(b, short)
	}
	n, stride := v.tokens*e, KeyStride(v.tokens)
	args.Keys, args.Raw = b.Room(4*stride*e), b.Room(4*stride*e)
	kt.Run(b, Keys{NumExperts: e, TopK: v.c.TopK, Logits: v.c.Logits, Rounding: how}, 0, args)
	keys, raw = kt.Download[uint32](b, args.Keys, stride*e), kt.Download[uint32](b, args.Raw, stride*e)

	want := reference.Routing{Logits: v.logits, Scores: reference.Widen(v.scores), ExpertIDs: v.ids}.Preferences(v.c, reference.Rounded)
	p = reference.Preferences{Experts: e, Raw: make([]float64, n), Score: make([]float64, n), Chosen: make([]bool, n)}
	float := func(bits uint32) float64 { return float64(math.Float32frombits(bits & scoreBits)) }
	for i := range n {
		at := i%e*stride + i/e
		p.Score[i], p.Chosen[i] = float(keys[at]), keys[at]&chosenBit != 0
		p.Raw[i] = want.Raw[i]
		if how.RawScores {
			p.Raw[i] = float(raw[at])
		} else if how.Rule == spec.ExpertChoice {
			p.Raw[i] = p.Score[i]
		}
		if how.Rule == spec.ExpertChoice { // the kernel never sets chosenBit for this rule
			p.Chosen[i] = want.Chosen[i]
		}
		if how.Rule != spec.ExpertChoice {
			require.Equal(b.T, want.Chosen[i], p.Chosen[i])
			near(b.T, want.Score[i], p.Score[i])
		}
		near(b.T, want.Raw[i], p.Raw[i])
	}
	return p, keys, raw
}

// near checks that got equals want, except for the errors of approximate exponentials: the last
// bits may differ, and subnormal FP32 results may be 0.
func near(t testing.TB, want, got float64) {
	const leastNormal = 0x1p-126
	if got == 0 && 0 < want && want < leastNormal {
		return
	}
	if want != got && !(math.IsNaN(want) && math.IsNaN(got)) {
		require.InEpsilon(t, want, got, 1e-5)
	}
}

func (v *roundingCase) run(b *kt.Bed) {
	c, how, e := v.c, v.c.Rounding, v.c.NumExperts
	p, keys, raw := v.preferences(b)
	ranges := order.TokenRanges{Tokens: v.tokens, PerCTA: 64}
	counts := kt.CountsOf(v.ids, e, ranges.PerCTA*c.TopK, ranges.Count())
	size := int(how.MaxRows(c, v.tokens))
	at := CutoffArgs{
		Keys: kt.Upload(b, keys), Counts: kt.Upload(b, counts), Cutoffs: b.Room(CutoffBytes * e), Tokens: v.tokens, Ranges: ranges.Count(),
		Capacity: how.CapacityOf(c, v.tokens),
	}
	at.Seed(v.seed)
	kt.Run(b, Cutoff{NumExperts: e, Rounding: how}, 0, at)
	list := ListArgs{
		Keys: at.Keys, Raw: kt.Upload(b, raw), Cutoffs: at.Cutoffs, TokenOf: b.Room(4 * size), ExpertIDs: b.Room(4 * size), Scores: b.Room(4 * size),
		Tokens: v.tokens, Entries: size,
	}
	kt.Run(b, List{NumExperts: e, Rounding: how}, 0, list)

	want, wantCounts := p.Round(c, how, v.seed)
	cutoffs := kt.Download[uint32](b, at.Cutoffs, 4*e)
	for i, n := range wantCounts {
		require.Equal(b.T, n, int(cutoffs[4*i]), "expert %d gets, of %+v %v T=%d", i, how, c, v.tokens)
	}
	tokens, ids := kt.Download[int32](b, list.TokenOf, size), kt.Download[int32](b, list.ExpertIDs, size)
	scores := kt.Download[uint32](b, list.Scores, size)
	for i := range size {
		if i >= len(want) {
			require.Equal(b.T, [3]int32{-1, -1, 0}, [3]int32{tokens[i], ids[i], int32(scores[i])}, "the rest of the list")
			continue
		}
		require.Equal(b.T, [2]int32{want[i].Token, want[i].Expert}, [2]int32{tokens[i], ids[i]}, "entry %d of %+v %v T=%d", i, how, c, v.tokens)
		got := float64(math.Float32frombits(scores[i]))
		require.True(b.T, got == want[i].Score || math.IsNaN(got) && math.IsNaN(want[i].Score), "entry %d's score", i)
	}
}

// TestRounding compares every rule with the reference. Preferences may differ by the errors of
// exponentials. The list that follows from the preferences must be equal to the last bit.
func TestRounding(t *testing.T) {
	cases := 5
	switch {
	case kt.Long():
		cases = 1000
	case testing.Short():
		cases = 2
	}
	for _, rule := range spec.RoundingRules[1:] {
		t.Run(rule.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(len(rule))))
			for range cases {
				newRoundingCase(r, anyRounding(r, rule)).run(kt.New(t, kt.Early))
			}
		})
	}
}

// TestRoundingSimilarScores checks that the cutoff is right if many keys have the same first digit.
// The kernel keeps these keys in shared memory in any order.
func TestRoundingSimilarScores(t *testing.T) {
	cases := 4
	if testing.Short() {
		cases = 2
	}
	for _, rule := range []spec.RoundingRule{spec.RoundNearest, spec.RoundMass, spec.ExpertChoice, spec.CapacityDrop} {
		t.Run(rule.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(4, uint64(len(rule))))
			for range cases {
				how := anyRounding(r, rule)
				how.Tile = min(how.Tile, 8)
				if how.Rule == spec.CapacityDrop {
					how.Capacity = 0.5
				}
				v := routingToRound(r, how, 100+r.IntN(100), 4)
				v.c.TopK = 2
				v.ids, v.scores = nil, nil
				for t := range v.tokens {
					for i := range v.c.NumExperts {
						v.logits[t*v.c.NumExperts+i] = math.Round(r.Float64()*100) / (1 << 14)
					}
					v.choose(v.logits[t*v.c.NumExperts:][:v.c.NumExperts])
				}
				v.run(kt.New(t, kt.Early))
			}
		})
	}
}

// anyRounding returns a random rounding with the given rule.
func anyRounding(r *rand.Rand, rule spec.RoundingRule) spec.Rounding {
	how := spec.Rounding{Rule: rule, RawScores: r.IntN(2) == 0}
	switch rule {
	case spec.ExpertChoice:
		how.Capacity = []float64{0, 1, 1.25}[r.IntN(3)]
	case spec.CapacityDrop:
		how.Capacity = []float64{0.5, 1, 1.25}[r.IntN(3)]
	default:
		how.Tile = []int{1, 8, 16, 64, 128}[r.IntN(5)]
	}
	return how
}

// TestRoundingLarge runs 100 cases of the sizes of real layers, with all rules in turn. It takes a
// minute on a GPU.
func TestRoundingLarge(t *testing.T) {
	if !kt.Long() {
		t.Skip("large cases run with SONICMOE_LONG=1, on a GPU")
	}
	for i := range 100 {
		rule := spec.RoundingRules[1+i%(len(spec.RoundingRules)-1)]
		t.Run(fmt.Sprint(i, " ", rule), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(3, uint64(i)))
			how := anyRounding(r, rule)
			routingToRound(r, how, 2048+r.IntN(14337), []int{8, 64, 128, 256, 512}[r.IntN(5)]).run(kt.New(t, kt.Early))
		})
	}
}

// TestRoundingTimings checks that the order of atomics and warps does not change the list.
func TestRoundingTimings(t *testing.T) {
	for _, when := range kt.Timings() {
		t.Run(when.Name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(2, 2))
			for _, rule := range []spec.RoundingRule{spec.RoundMass, spec.RoundBalanced} {
				newRoundingCase(r, spec.Rounding{Rule: rule, Tile: 16}).run(kt.New(t, when))
			}
		})
	}
}

// TestRoundingDraw checks that the kernel draws the same numbers as package spec, for all
// experts and any seed.
func TestRoundingDraw(t *testing.T) {
	const experts, tile, tokens = 64, 64, 64
	b := kt.New(t, kt.Early)
	for _, seed := range []uint64{0, 1, 1<<32 - 1, 1 << 63, math.MaxUint64} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			counts, how := make([]uint32, experts), spec.Rounding{Rule: spec.RoundStochastic, Tile: tile}
			for e := range counts {
				counts[e] = uint32(e)
			}
			at := CutoffArgs{
				Keys: kt.Upload(b, make([]uint32, experts*tokens)), Counts: kt.Upload(b, counts), Cutoffs: b.Room(CutoffBytes * experts), Tokens: tokens, Ranges: 1,
			}
			at.Seed(seed)
			kt.Run(b, Cutoff{NumExperts: experts, Rounding: how}, 0, at)
			cutoffs := kt.Download[uint32](b, at.Cutoffs, 4*experts)
			for e := range experts {
				goesUp := float64(how.Draw(seed, e))/(1<<32) < float64(e)/tile
				require.Equal(t, goesUp, cutoffs[4*e] == tile, "expert %d", e)
			}
		})
	}
}

// TestCutoffRoom checks the cutoff of keys with the same first digit: as many keys as shared memory
// holds, and two more. One more key would not be enough, because a kernel that keeps one key too
// many only overwrites the cursor, which it does not read again.
func TestCutoffRoom(t *testing.T) {
	for _, tokens := range []int{mostKept, mostKept + 2} {
		r, keys := rand.New(rand.NewPCG(5, uint64(tokens))), make([]uint32, KeyStride(tokens))
		for i := range tokens {
			keys[i] = chosenBit | 0x3f000000 | r.Uint32N(1<<16) // some are equal
		}
		sorted := slices.Sorted(slices.Values(keys[:tokens]))
		slices.Reverse(sorted)
		for _, n := range []int{5000, tokens} {
			b := kt.New(t, kt.Early)
			at := CutoffArgs{
				Keys: kt.Upload(b, keys), Counts: kt.Upload(b, []uint32{uint32(tokens)}), Cutoffs: b.Room(CutoffBytes), Tokens: tokens, Ranges: 1, Capacity: n,
			}
			kt.Run(b, Cutoff{NumExperts: 1, Rounding: spec.Rounding{Rule: spec.CapacityDrop}}, 0, at)
			last := sorted[n-1]
			ties := n - slices.Index(sorted, last)
			require.Equal(t, []uint32{uint32(n), last, uint32(ties), 0}, kt.Download[uint32](b, at.Cutoffs, 4), "%d of %d", n, tokens)
		}
	}
}

// TestRoundMass compares the probability of rounding up with its definition, dropped/(dropped +
// added). dropped is the sum of the scores of the tokens that rounding down drops, and added is the
// sum of the scores of the tokens that rounding up adds.
func TestRoundMass(t *testing.T) {
	const experts, tile, tokens = 64, 8, 20
	r := rand.New(rand.NewPCG(6, 6))
	var keys, counts []uint32
	var down, up [experts]int
	var share [experts]float64 // the probability
	for e := range experts {
		f := e % (tokens + 1)
		chosen, others := make([]float32, f), make([]float32, tokens-f)
		for _, list := range [][]float32{chosen, others} {
			for i := range list {
				list[i] = float32(1+r.IntN(4)) / 4 // some are equal, also at a multiple of the tile
			}
			slices.Sort(list)
			slices.Reverse(list)
		}
		scores := slices.Concat(chosen, others)
		row := make([]uint32, tokens)
		for i, at := range r.Perm(tokens) {
			if row[at] = math.Float32bits(scores[i]); i < f {
				row[at] |= chosenBit
			}
		}
		keys, counts = append(keys, row...), append(counts, uint32(f))
		if down[e], up[e] = f/tile*tile, (f+tile-1)/tile*tile; up[e] > tokens {
			up[e] = down[e]
		}
		var dropped, all float64
		for i := down[e]; i < up[e]; i++ {
			if all += float64(scores[i]); i < f {
				dropped += float64(scores[i])
			}
		}
		if all > 0 {
			share[e] = dropped / all
		}
	}
	b, how := kt.New(t, kt.Early), spec.Rounding{Rule: spec.RoundMass, Tile: tile}
	at := CutoffArgs{Keys: kt.Upload(b, keys), Counts: kt.Upload(b, counts), Cutoffs: b.Room(CutoffBytes * experts), Tokens: tokens, Ranges: 1}
	seeds := uint64(12)
	if testing.Short() {
		seeds = 4 // 256 draws
	}
	for seed := range seeds {
		at.Seed(seed)
		kt.Run(b, Cutoff{NumExperts: experts, Rounding: how}, 0, at)
		cutoffs := kt.Download[uint32](b, at.Cutoffs, 4*experts)
		for e := range experts {
			draw, want := float64(how.Draw(seed, e))/(1<<32), down[e]
			if math.Abs(draw-share[e]) < 1e-6 {
				continue // too close: the rounding of the kernel's FP32 probability decides
			}
			if draw < share[e] {
				want = up[e]
			}
			require.EqualValues(t, want, cutoffs[4*e], "expert %d with %d of %d tokens: drew %g, share %g", e, counts[e], tokens, draw, share[e])
		}
	}
}
