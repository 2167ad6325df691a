package choose

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/order"
)

// routerCase is a router whose logits are known exactly: a token has few values that are not 0, and
// all values are small multiples of 1/8.
type routerCase struct {
	hidden, experts, topK, tokens, perCTA int
}

func (c routerCase) String() string {
	return fmt.Sprintf("d=%d E=%d K=%d T=%d perCTA=%d", c.hidden, c.experts, c.topK, c.tokens, c.perCTA)
}

func (c routerCase) shape() Router {
	return Router{Hidden: c.hidden, NumExperts: c.experts, TopK: c.topK}
}

// routerInput has the tokens X [T, d] and the weights [E, d] as numbers.
type routerInput struct {
	routerCase
	x, w []float32
}

// input returns tokens with up to 5 values that are not 0, in columns from 4 on. Many logits are
// equal.
func (c routerCase) input() routerInput {
	r := rand.New(rand.NewPCG(uint64(c.experts), uint64(c.tokens*100+c.topK)))
	in := routerInput{c, make([]float32, c.tokens*c.hidden), make([]float32, c.experts*c.hidden)}
	for t := range c.tokens {
		for range 5 {
			in.x[t*c.hidden+4+r.IntN(c.hidden-4)] = float32(r.IntN(7) - 3)
		}
	}
	for i := range in.w {
		if i%c.hidden >= 4 {
			in.w[i] = float32(r.IntN(9)-4) / 8
		}
	}
	return in
}

func bf16s(values []float32) []uint16 {
	out := make([]uint16, len(values))
	for i, v := range values {
		out[i] = num.Float32ToBF16(v)
	}
	return out
}

// logits returns the logits of a token. They are exact for the inputs of these tests.
func (in routerInput) logits(token int) []float64 {
	out := make([]float64, in.experts)
	for e := range out {
		for j := range in.hidden {
			out[e] += float64(in.x[token*in.hidden+j]) * float64(in.w[e*in.hidden+j])
		}
	}
	return out
}

// want returns the routing that follows from the logits.
func (in routerInput) want() (scores []float64, ids []int32) {
	for t := range in.tokens {
		logits := in.logits(t)
		chosen := make([]int32, in.topK)
		reference.TopK(chosen, logits)
		var sum float64
		for _, e := range chosen {
			sum += math.Exp(logits[e] - logits[chosen[0]])
		}
		for _, e := range chosen {
			scores = append(scores, math.Exp(logits[e]-logits[chosen[0]])/sum)
		}
		ids = append(ids, chosen...)
	}
	return scores, ids
}

// check runs the router and compares ids and counts exactly, and scores within a relative 1e-5.
func (in routerInput) check(b *kt.Bed) {
	shape := in.shape()
	pairs, ctas := in.tokens*in.topK, (in.tokens+in.perCTA-1)/in.perCTA
	scores, ids, counts := b.Room(4*pairs), b.Room(4*pairs), b.Room(4*ctas*in.experts)
	args := RouterArgs{
		X: kt.Upload(b, bf16s(in.x)), Weights: kt.Upload(b, bf16s(in.w)), Scores: scores, ExpertIDs: ids, Counts: counts,
		TokenRanges: order.TokenRanges{Tokens: in.tokens, PerCTA: in.perCTA},
	}
	if in.topK%2 == 0 {
		args.Logits = b.Room(2 * in.tokens * in.experts)
	}
	kt.Run(b, shape, ctas, args)
	in.checkLogits(b, args.Logits)
	in.checkFew(b, args)
	wantScores, wantIDs := in.want()
	gotIDs, gotScores := kt.Download[int32](b, ids, pairs), kt.Download[float32](b, scores, pairs)
	for t := range in.tokens {
		at, to := t*in.topK, (t+1)*in.topK
		if !slices.Equal(wantIDs[at:to], gotIDs[at:to]) {
			require.Equal(b.T, wantIDs[at:to], gotIDs[at:to], "token %d, %v: %v", t, in.routerCase, in.logits(t))
		}
		for k := at; k < to; k++ {
			want, got := wantScores[k], float64(gotScores[k])
			if math.IsNaN(want) != math.IsNaN(got) || math.Abs(got-want) > 1e-5*want {
				b.T.Fatalf("token %d slot %d, %v: score %g, must be %g", t, k-at, in.routerCase, got, want)
			}
		}
	}
	want := kt.CountsOf(wantIDs, in.experts, in.perCTA*in.topK, ctas)
	require.True(b.T, slices.Equal(want, kt.Download[uint32](b, counts, len(want))), "counts, %v", in.routerCase)
}

// checkFew checks that the kernels for small batches write the same bits as the router:
// ChooseRanges, and Choose with its plan.
func (in routerInput) checkFew(b *kt.Bed, of RouterArgs) {
	pairs, shape := in.tokens*in.topK, in.shape()
	sums, scores, ids := b.Room(4*in.tokens*in.experts), b.Room(4*pairs), b.Room(4*pairs)
	kt.Run(b, SmallBatchLogits{Router: shape, Written: spec.F32}, 0, SmallBatchLogitsArgs{X: of.X, Weights: of.Weights, Logits: sums, Tokens: in.tokens})
	in.checkRanges(b, of, sums)
	if in.tokens > MaxAtOnce {
		return
	}
	args := ChooseArgs{SmallBatchLogits: sums, Scores: scores, Tokens: in.tokens, PlanTensors: order.PlanTensors{
		ExpertIDs: ids, Gather: b.Room(4 * pairs), Inverse: b.Room(4 * pairs), Offsets: b.Room(4 * (in.experts + 1)),
		Table: b.Room(int(order.Plan{NumExperts: in.experts}.TableBytes(pairs))), RowPairs: b.Room(4), Tickets: b.Room(8),
	}}
	if of.Logits != 0 {
		args.Logits = b.Room(2 * in.tokens * in.experts)
	}
	kt.Run(b, Choose{Router: shape}, 0, args)
	in.checkLogits(b, args.Logits)
	chosen := kt.Download[int32](b, ids, pairs)
	kt.SameBits(b.T, kt.Download[int32](b, of.ExpertIDs, pairs), chosen, "experts of small batches")
	kt.SameBits(b.T, kt.Download[uint32](b, of.Scores, pairs), kt.Download[uint32](b, scores, pairs), "scores of small batches")
	want := kt.PlanOf(chosen, in.topK, in.experts)
	for _, out := range []struct {
		name string
		at   driver.DevicePtr
		want []uint32
	}{
		{"offsets", args.Offsets, want.Offsets}, {"gather", args.Gather, want.Gather}, {"inverse", args.Inverse, want.Inverse},
		{"table", args.Table, want.Table}, {"row pairs", args.RowPairs, []uint32{want.RowPairs}}, {"tickets", args.Tickets, []uint32{0, 0}},
	} {
		kt.SameBits(b.T, out.want, kt.Download[uint32](b, out.at, len(out.want)), out.name+" of small batches")
	}
}

// checkRanges checks that ChooseRanges, from the same sums, writes the same bits as the router.
func (in routerInput) checkRanges(b *kt.Bed, of RouterArgs, sums driver.DevicePtr) {
	pairs, ranges := in.tokens*in.topK, ChosenRanges(in.tokens, 5)
	args := ChooseRangesArgs{SmallBatchLogits: sums, Scores: b.Room(4 * pairs), ExpertIDs: b.Room(4 * pairs), Counts: b.Room(4 * ranges.Count() * in.experts), TokenRanges: ranges}
	if of.Logits != 0 {
		args.Logits = b.Room(2 * in.tokens * in.experts)
	}
	kt.Run(b, ChooseRanges{in.shape()}, 0, args)
	in.checkLogits(b, args.Logits)
	chosen := kt.Download[int32](b, args.ExpertIDs, pairs)
	kt.SameBits(b.T, kt.Download[int32](b, of.ExpertIDs, pairs), chosen, "experts by ranges")
	kt.SameBits(b.T, kt.Download[uint32](b, of.Scores, pairs), kt.Download[uint32](b, args.Scores, pairs), "scores by ranges")
	want := kt.CountsOf(chosen, in.experts, ranges.PerCTA*in.topK, ranges.Count())
	kt.SameBits(b.T, want, kt.Download[uint32](b, args.Counts, len(want)), "counts by ranges")
}

// checkLogits compares the logits, if any were written. They are exact in bf16.
func (in routerInput) checkLogits(b *kt.Bed, at driver.DevicePtr) {
	if at == 0 {
		return
	}
	got := kt.Download[uint16](b, at, in.tokens*in.experts)
	for t := range in.tokens {
		for e, want := range in.logits(t) {
			// The sum of -0 and +0 must be +0.
			if want, got := num.Float64ToBF16(want+0), got[t*in.experts+e]; got != want {
				require.Equal(b.T, want, got, "logit of token %d, expert %d, %v", t, e, in.routerCase)
			}
		}
	}
}

// TestRouter checks the chosen ids exactly, also for equal logits, several chunks of experts,
// numbers of experts that are no multiple of 8, and K = E.
func TestRouter(t *testing.T) {
	for _, c := range []routerCase{
		{128, 1, 1, 1, 64}, {128, 2, 2, 63, 64}, {128, 3, 3, 65, 64}, {192, 7, 2, 129, 128}, {128, 8, 8, 64, 64},
		{128, 16, 16, 130, 192}, {320, 33, 5, 127, 64}, {128, 60, 4, 200, 64}, {128, 128, 8, 128, 128},
		{128, 250, 16, 70, 128}, {128, 256, 8, 65, 64}, {128, 257, 1, 64, 64}, {192, 300, 9, 30, 64},
		{128, 1000, 16, 66, 128}, {128, 1024, 10, 40, 64},
	} {
		t.Run(c.String(), func(t *testing.T) { c.input().check(kt.New(t, kt.Early)) })
	}
}

// TestRouterEveryK checks every K up to 16, in threads with fewer keys than K, exactly K, or more.
func TestRouterEveryK(t *testing.T) {
	for k := 1; k <= 16; k++ {
		for i, experts := range []int{k, 24, 104} {
			if testing.Short() && i != k%3 {
				continue
			}
			c := routerCase{128, max(experts, k), k, 40, 64}
			t.Run(c.String(), func(t *testing.T) { c.input().check(kt.New(t, kt.Early)) })
		}
	}
}

func TestRouterTimings(t *testing.T) {
	for _, when := range kt.Timings() {
		t.Run(when.Name, func(t *testing.T) {
			routerCase{640, 60, 4, 200, 128}.input().check(kt.New(t, when))
			routerCase{192, 300, 3, 100, 64}.input().check(kt.New(t, when))
		})
	}
}

// special returns the input with infinite weights in two columns of some experts. The tokens have
// all nine pairs of signs in these columns, so that the experts' logits become NaN, +Inf or -Inf.
func (in routerInput) special(first, second []int) routerInput {
	for t := range in.tokens {
		in.x[t*in.hidden] = float32(t%3 - 1)
		in.x[t*in.hidden+1] = float32(t/3%3 - 1)
	}
	inf := float32(math.Inf(1))
	for _, e := range first {
		in.w[e*in.hidden] = inf
	}
	for _, e := range second {
		in.w[e*in.hidden+1] = inf
	}
	return in
}

// TestRouterSpecialLogits checks that NaN is chosen before any number and makes the scores NaN, and
// that infinities are ordered like numbers.
func TestRouterSpecialLogits(t *testing.T) {
	odd := func(from, to int) (list []int) {
		for e := from | 1; e < to; e += 2 {
			list = append(list, e)
		}
		return list
	}
	all := func(n int) (list []int) {
		for e := range n {
			list = append(list, e)
		}
		return list
	}
	// columns returns the experts whose logits one lane of a quad has: two columns of each 8.
	columns := func(first, to int) (list []int) {
		for e := first; e < to; e += 8 {
			list = append(list, e, e+1)
		}
		return list
	}
	for _, c := range []struct {
		name          string
		of            routerCase
		first, second []int
	}{
		{"some", routerCase{128, 16, 4, 18, 64}, []int{0, 3, 9}, []int{3, 15}},
		{"NaN runs out", routerCase{128, 8, 6, 18, 64}, []int{1, 2, 5}, []int{5, 6, 7}},
		{"NaN for every expert", routerCase{128, 5, 3, 18, 64}, all(5), []int{2}},
		{"one lane has all", routerCase{128, 256, 16, 18, 64}, columns(2, 256), columns(6, 256)},
		{"K is E", routerCase{128, 16, 16, 18, 64}, odd(0, 16), []int{4}},
		{"several chunks", routerCase{128, 600, 16, 18, 64}, odd(0, 600), odd(300, 600)},
		{"first chunk NaN", routerCase{128, 300, 16, 18, 64}, all(152), []int{299}},
	} {
		t.Run(c.name, func(t *testing.T) { c.of.input().special(c.first, c.second).check(kt.New(t, kt.Early)) })
	}
}

// TestRouterZeros checks that a logit of -0, here a product too small for bf16, equals +0.
func TestRouterZeros(t *testing.T) {
	c := routerCase{128, 24, 5, 16, 64}
	in := routerInput{c, make([]float32, c.tokens*c.hidden), make([]float32, c.experts*c.hidden)}
	for i := range in.tokens {
		in.x[i*c.hidden+3] = 0x1p-70
	}
	for e := 0; e < c.experts; e += 2 {
		in.w[e*c.hidden+3] = -0x1p-75
	}
	// Every logit is too small for bf16, so the router rounds it to +0 or -0. If both are equal, each
	// token takes the first experts in order.
	b := kt.New(t, kt.Early)
	shape := c.shape()
	scores, ids, counts := b.Room(4*c.tokens*c.topK), b.Room(4*c.tokens*c.topK), b.Room(4*c.experts)
	kt.Run(b, shape, 1, RouterArgs{
		X: kt.Upload(b, bf16s(in.x)), Weights: kt.Upload(b, bf16s(in.w)), Scores: scores, ExpertIDs: ids, Counts: counts,
		TokenRanges: order.TokenRanges{Tokens: c.tokens, PerCTA: c.perCTA},
	})
	for i, id := range kt.Download[int32](b, ids, c.tokens*c.topK) {
		require.Equal(t, int32(i%c.topK), id, "token %d", i/c.topK)
	}
	for _, s := range kt.Download[float32](b, scores, c.tokens*c.topK) {
		require.InEpsilon(t, 1/float64(c.topK), s, 1e-6)
	}
}

// TestChains checks the number of chains of a logit, and that the chains have all k-tiles. Chunks
// of many experts have one chain, because a second set of accumulators would not fit.
func TestChains(t *testing.T) {
	for _, tt := range []struct{ experts, hidden, want int }{
		{8, 4096, 4}, {128, 4096, 4}, {129, 4096, 1}, {256, 4096, 1}, {512, 4096, 4}, {8, 64, 1},
	} {
		r := Router{NumExperts: tt.experts, Hidden: tt.hidden, TopK: 1, Logits: spec.BF16}
		count, depth := r.chains()
		require.Equal(t, tt.want, count, "%+v", tt)
		require.GreaterOrEqual(t, count*depth, r.kTiles(), "%+v", tt)
		require.Less(t, (count-1)*depth, r.kTiles(), "%+v", tt)
	}
}
