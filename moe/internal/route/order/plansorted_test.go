package order

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/jit/schedule"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestSortedList checks every word of a sorted list's plan against plain Go, and the table of row
// pairs against the offsets.
func TestSortedList(t *testing.T) {
	for _, when := range kt.Timings() {
		for i, size := range []struct{ experts, tokens, perCTA, percent, tail int }{
			{1, 1, 64, 100, 1}, {1, 300, 64, 100, 0}, {4, 3, 64, 50, 7}, {7, 130, 64, 30, 40}, {33, 600, 256, 5, 100}, {100, 70, 64, 60, 3}, {40, 64, 64, 5, 0}, {3, 65, 64, 0, 9},
		} {
			t.Run(fmt.Sprintf("%s %+v", when.Name, size), func(t *testing.T) {
				c := sortedCase(rand.New(rand.NewPCG(uint64(i), 4)), size.experts, size.tokens, size.percent, size.tail)
				c.perCTA = size.perCTA
				b := kt.New(t, when)
				of, by := c.runSorted(b)
				c.check(b, of, by)
				var pairs []uint32
				want := c.want()
				for e := range c.experts {
					for row := want.offsets[e]; row < want.offsets[e+1]; row += schedule.PairRows {
						pairs = append(pairs, uint32(e), row, min(schedule.PairRows, want.offsets[e+1]-row), 0)
					}
				}
				require.Equal(t, []uint32{uint32(len(pairs) / 4)}, kt.Download[uint32](b, of.RowPairs, 1))
				require.True(t, slices.Equal(pairs, kt.Download[uint32](b, of.Table, len(pairs))), "row pairs")
				require.Equal(t, []uint32{0, 0}, kt.Download[uint32](b, of.Tickets, 2))
			})
		}
	}
}

// sortedCase returns a sorted list. Each expert has each token with a probability of `percent` %,
// except the last two experts, which have no tokens.
func sortedCase(r *rand.Rand, experts, tokens, percent, tail int) (c listCase) {
	c.experts, c.numTokens = experts, tokens
	for e := range experts {
		for tok := range tokens {
			if r.IntN(100) < percent && (experts < 3 || e < experts-2) {
				c.ids, c.tokens, c.scores = append(c.ids, int32(e)), append(c.tokens, int32(tok)), append(c.scores, r.Uint32()|1)
			}
		}
	}
	for range tail {
		c.ids, c.tokens, c.scores = append(c.ids, -1), append(c.tokens, -1), append(c.scores, 0)
	}
	return c
}

func (c listCase) runSorted(b *kt.Bed) (PlanTensors, Regrouped) {
	of, by := c.room(b)
	kt.Run(b, PlanSorted{NumExperts: c.experts}, 0, PlanSortedArgs{
		PlanTensors: of, TokenOf: kt.Upload(b, c.tokens), Entries: len(c.ids), Regrouped: by, TokenRanges: TokenRanges{Tokens: c.numTokens, PerCTA: c.perCTA},
	})
	return of, by
}

// TestUnsortedList checks that a list in random order gives no address outside the tensors, neither
// in the kernel, where the emulator would report it, nor in the plan.
func TestUnsortedList(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	c := listCase{experts: 9, numTokens: 200, perCTA: 64}
	for range 700 {
		c.ids, c.tokens, c.scores = append(c.ids, int32(r.IntN(12)-1)), append(c.tokens, int32(r.Uint32())), append(c.scores, 1)
	}
	b := kt.New(t, kt.Early)
	of, by := c.runSorted(b)
	offsets, starts := kt.Download[uint32](b, of.Offsets, c.experts+1), kt.Download[uint32](b, by.Starts, c.numTokens+1)
	require.True(t, slices.IsSorted(offsets), "offsets %v", offsets)
	require.True(t, slices.IsSorted(starts), "starts %v", starts)
	n := int(offsets[c.experts])
	require.LessOrEqual(t, n, len(c.ids))
	require.Equal(t, n, int(starts[c.numTokens]))
	for row, token := range kt.Download[uint32](b, of.Gather, n) {
		require.Less(t, token, uint32(c.numTokens), "row %d", row)
	}
	for place, row := range kt.Download[uint32](b, by.TokenRows, n) {
		require.Less(t, row, uint32(n), "place %d", place)
	}
}
