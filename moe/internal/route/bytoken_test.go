package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// A list planned and regrouped by token, against plain Go to the last word.
func TestByToken(t *testing.T) {
	for _, when := range kt.Timings() {
		for i, size := range []struct{ experts, tokens, entries, perCTA int }{
			{1, 1, 1, 64}, {4, 3, 200, 64}, {7, 130, 300, 64}, {33, 1500, 2500, 1024}, {40, 64, 64, 64},
		} {
			t.Run(fmt.Sprintf("%s %+v", when.Name, size), func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(i), 3))
				var ids, tokens []int32
				var scores []uint32
				for range size.entries {
					ids = append(ids, int32(r.IntN(size.experts+1))) // some out of range
					tokens = append(tokens, int32(r.IntN(size.tokens+1))-int32(r.IntN(2)))
					scores = append(scores, r.Uint32()|1)
				}
				listCase{size.experts, size.tokens, size.perCTA, ids, tokens, scores}.run(kt.New(t, when))
			})
		}
	}
}

type listCase struct {
	experts, numTokens, perCTA int
	ids, tokens                []int32
	scores                     []uint32
}

func (c listCase) run(b *kt.Bed) {
	var gather, pairs, inverse, offsets, starts, rows, weights []uint32
	inverse = kt.Poisoned[uint32](len(c.ids))
	for e := range c.experts {
		offsets = append(offsets, uint32(len(gather)))
		for i, id := range c.ids {
			if int(id) == e && c.tokens[i] >= 0 && int(c.tokens[i]) < c.numTokens {
				inverse[i] = uint32(len(gather))
				gather, pairs = append(gather, uint32(c.tokens[i])), append(pairs, uint32(i))
			}
		}
	}
	offsets = append(offsets, uint32(len(gather)))
	for tok := range c.numTokens {
		starts = append(starts, uint32(len(rows)))
		for row, of := range gather {
			if int(of) == tok {
				rows, weights = append(rows, uint32(row)), append(weights, c.scores[pairs[row]])
			}
		}
	}
	starts = append(starts, uint32(len(rows)))

	n := len(c.ids)
	entries := TokenRanges{Tokens: n, PerCTA: 64}
	of := Entries{TokenOf: kt.Upload(b, c.tokens), NumTokens: c.numTokens}
	ids, counts := kt.Upload(b, c.ids), b.Room(4*entries.Count()*c.experts)
	kt.Run(b, Count{NumExperts: c.experts, TopK: 1, List: true}, 0, CountArgs{ExpertIDs: ids, Counts: counts, TokenRanges: entries, Entries: of})
	plan := PlanArgs{PlanTensors: PlanTensors{
		ExpertIDs: ids, Gather: b.Room(4 * n), Inverse: b.Room(4 * n), Pairs: b.Room(4 * n), Offsets: b.Room(4 * (c.experts + 1)),
		Table: b.Room(16 * (c.experts + n)), RowPairs: b.Room(4), Tickets: b.Room(8),
	}, Counts: counts, TokenRanges: entries, Entries: of}
	kt.Run(b, Plan{NumExperts: c.experts, TopK: 1, Pairs: true, List: true}, 0, plan)
	by := ByTokenArgs{
		Offsets: plan.Offsets, Gather: plan.Gather, Pairs: plan.Pairs, Scores: kt.Upload(b, c.scores),
		Starts: b.Room(4 * len(starts)), Rows: b.Room(4 * n), Weights: b.Room(4 * n), Unordered: b.Room(4 * n),
		TokenRanges: TokenRanges{Tokens: c.numTokens, PerCTA: c.perCTA},
	}
	kt.Run(b, ByToken{NumExperts: c.experts}, 0, by)
	rest := kt.Poisoned[uint32](n - len(gather))
	for name, v := range map[string][2][]uint32{
		"offsets": {offsets, kt.Download[uint32](b, plan.Offsets, len(offsets))},
		"gather":  {append(gather, rest...), kt.Download[uint32](b, plan.Gather, n)},
		"pairs":   {append(pairs, rest...), kt.Download[uint32](b, plan.Pairs, n)},
		"inverse": {inverse, kt.Download[uint32](b, plan.Inverse, n)},
		"starts":  {starts, kt.Download[uint32](b, by.Starts, len(starts))},
		"rows":    {append(rows, rest...), kt.Download[uint32](b, by.Rows, n)},
		"weights": {append(weights, rest...), kt.Download[uint32](b, by.Weights, n)},
	} {
		require.True(b.T, slices.Equal(v[0], v[1]), "%s: want %v, got %v", name, v[0], v[1])
	}
}
