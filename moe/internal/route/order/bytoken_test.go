package order

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestByToken plans a list of tokens and experts and groups its rows by token. It compares every u32
// of the result with a plan made in plain Go.
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
					ids = append(ids, int32(r.IntN(size.experts+1))) // the largest id is out of range
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

// listPlan has the outputs of a plan of a list. The kernels must not write memory after the last
// row.
type listPlan struct{ offsets, gather, pairs, inverse, starts, rows, weights []uint32 }

// want computes the plan in plain Go.
func (c listCase) want() (p listPlan) {
	p.inverse = slices.Repeat([]uint32{NoRow}, len(c.ids))
	for e := range c.experts {
		p.offsets = append(p.offsets, uint32(len(p.gather)))
		for i, id := range c.ids {
			if int(id) == e && c.tokens[i] >= 0 && int(c.tokens[i]) < c.numTokens {
				p.inverse[i] = uint32(len(p.gather))
				p.gather, p.pairs = append(p.gather, uint32(c.tokens[i])), append(p.pairs, uint32(i))
			}
		}
	}
	p.offsets = append(p.offsets, uint32(len(p.gather)))
	for tok := range c.numTokens {
		p.starts = append(p.starts, uint32(len(p.rows)))
		for row, of := range p.gather {
			if int(of) == tok {
				p.rows, p.weights = append(p.rows, uint32(row)), append(p.weights, c.scores[p.pairs[row]])
			}
		}
	}
	p.starts = append(p.starts, uint32(len(p.rows)))
	return p
}

// room allocates the outputs.
func (c listCase) room(b *kt.Bed) (PlanTensors, Regrouped) {
	n := len(c.ids)
	return PlanTensors{
		ExpertIDs: kt.Upload(b, c.ids), Gather: b.Room(4 * n), Inverse: b.Room(4 * n), Pairs: b.Room(4 * n), Offsets: b.Room(4 * (c.experts + 1)),
		Table: b.Room(16 * (c.experts + n)), RowPairs: b.Room(4), Tickets: b.Room(8),
	}, Regrouped{Scores: kt.Upload(b, c.scores), Starts: b.Room(4 * (c.numTokens + 1)), TokenRows: b.Room(4 * n), Weights: b.Room(4 * n), Unordered: b.Room(4 * n)}
}

// check compares every word of a plan with the expected plan.
func (c listCase) check(b *kt.Bed, of PlanTensors, by Regrouped) {
	want, n := c.want(), len(c.ids)
	rest := kt.Poisoned[uint32](n - len(want.gather))
	for name, v := range map[string][2][]uint32{
		"offsets": {want.offsets, kt.Download[uint32](b, of.Offsets, len(want.offsets))},
		"gather":  {append(want.gather, rest...), kt.Download[uint32](b, of.Gather, n)},
		"pairs":   {append(want.pairs, rest...), kt.Download[uint32](b, of.Pairs, n)},
		"inverse": {want.inverse, kt.Download[uint32](b, of.Inverse, n)},
		"starts":  {want.starts, kt.Download[uint32](b, by.Starts, len(want.starts))},
		"rows":    {append(want.rows, rest...), kt.Download[uint32](b, by.TokenRows, n)},
		"weights": {append(want.weights, rest...), kt.Download[uint32](b, by.Weights, n)},
	} {
		require.True(b.T, slices.Equal(v[0], v[1]), "%s: want %v, got %v", name, v[0], v[1])
	}
}

func (c listCase) run(b *kt.Bed) {
	of, by := c.room(b)
	entries := TokenRanges{Tokens: len(c.ids), PerCTA: 64}
	list := Entries{TokenOf: kt.Upload(b, c.tokens), NumTokens: c.numTokens}
	counts := b.Room(4 * entries.Count() * c.experts)
	kt.Run(b, Count{NumExperts: c.experts, TopK: 1, List: true}, 0, CountArgs{ExpertIDs: of.ExpertIDs, Counts: counts, TokenRanges: entries, Entries: list})
	kt.Run(b, Plan{NumExperts: c.experts, TopK: 1, Pairs: true, List: true}, 0, PlanArgs{PlanTensors: of, Counts: counts, TokenRanges: entries, Entries: list})
	kt.Run(b, ByToken{NumExperts: c.experts}, 0, ByTokenArgs{
		Offsets: of.Offsets, Gather: of.Gather, Pairs: of.Pairs, Regrouped: by, TokenRanges: TokenRanges{Tokens: c.numTokens, PerCTA: c.perCTA},
	})
	c.check(b, of, by)
}
