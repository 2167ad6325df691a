package dw

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestDWPlan checks that the table lists each expert's splits together, heavy
// experts first.
func TestDWPlan(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	many := make([]int, 300)
	for i := range many {
		many[i] = r.IntN(5) * r.IntN(200)
	}
	for i, rows := range [][]int{{0}, {1}, {64, 0, 65, 64, 640, 0}, {0, 0, 0}, many} {
		for _, split := range []int{64, 0} {
			t.Run(fmt.Sprintf("%d split=%d", i, split), func(t *testing.T) {
				p := Plan{NumExperts: len(rows), SplitRows: split}
				offsets, order := []uint32{0}, make([]int, len(rows))
				for e, n := range rows {
					offsets, order[e] = append(offsets, offsets[e]+uint32(n)), e
				}
				slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rows[b], rows[a]) })
				var want []uint32
				busy := 0
				for rank, e := range order {
					n := max(1, (rows[e]+splitRows(split)-1)/splitRows(split))
					base := len(want) / 8
					for range n {
						want = append(want, uint32(e), offsets[e], uint32(rows[e]), uint32(base), uint32(n), uint32(rank), 0, 0)
					}
					if rows[e] > 0 {
						busy = len(want) / 8
					}
				}
				total := int(offsets[len(rows)])
				require.LessOrEqual(t, len(want)/8, p.Splits(total))
				b := kt.New(t, kt.Early)
				const words = 5000
				splits, counts, tickets, state := b.Room(SplitBytes*p.Splits(total)), b.Room(8), b.Room(8), b.Room(4*words+4)
				kt.Run(b, p, 0, PlanArgs{Offsets: kt.Upload(b, offsets), Splits: splits, Counts: counts, Tickets: tickets, State: state, StateWords: words})
				require.Equal(t, want, kt.Download[uint32](b, splits, len(want)))
				require.Equal(t, []uint32{uint32(len(want) / 8), uint32(busy)}, kt.Download[uint32](b, counts, 2))
				require.Equal(t, []uint32{0, 0}, kt.Download[uint32](b, tickets, 2))
				require.Equal(t, append(make([]uint32, words), kt.Poison), kt.Download[uint32](b, state, words+1))
			})
		}
	}
}

// TestDWPlanSlots checks that launches of up to SplitRows rows have no partial
// sums.
func TestDWPlanSlots(t *testing.T) {
	require.Zero(t, Plan{NumExperts: 4}.Slots(SplitRows, 132))
	require.Equal(t, 132, Plan{NumExperts: 4}.Slots(SplitRows+1, 132))
	require.Equal(t, 132, Plan{NumExperts: 4, SplitRows: 64}.Slots(65, 132))
}
