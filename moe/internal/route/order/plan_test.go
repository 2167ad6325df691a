package order

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/reference"
	"sonicmoe/jit/schedule"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// routing generates the expert ids of tokens·topK pairs.
type routing struct {
	name string
	make func(r *rand.Rand, tokens, topK, experts int) []int32
}

func ids(id func(r *rand.Rand, token, slot, experts int) int) func(*rand.Rand, int, int, int) []int32 {
	return func(r *rand.Rand, tokens, topK, experts int) (list []int32) {
		for i := range tokens * topK {
			list = append(list, int32(id(r, i/topK, i%topK, experts)))
		}
		return list
	}
}

var routings = []routing{
	{"uniform", ids(func(r *rand.Rand, _, _, e int) int { return r.IntN(e) })},
	{"all to the first", ids(func(*rand.Rand, int, int, int) int { return 0 })},
	{"all to the last", ids(func(_ *rand.Rand, _, _, e int) int { return e - 1 })},
	{"Zipf 1.0", ids(func(r *rand.Rand, _, _, e int) int { return int(reference.NewZipf(e).Draw(r.Float64())) })},
	{"few experts", ids(func(r *rand.Rand, _, _, e int) int { return min(r.IntN(3)*7, e-1) })},
	{"one a token, repeated", ids(func(_ *rand.Rand, t, _, e int) int { return t * 5 % e })},
	{"out of range", ids(func(r *rand.Rand, _, _, e int) int {
		return []int{r.IntN(e), -1, e, 1<<31 - 1, -1 << 31, e + 1}[r.IntN(6)]
	})},
	{"none in range", ids(func(r *rand.Rand, _, _, e int) int { return []int{-1, e, 1<<31 - 1}[r.IntN(3)] })},
	{"the last token only", ids(func(*rand.Rand, int, int, int) int { return -1 })},
}

// ids returns the expert ids of a routing. In the routing "the last token only", only the last
// token has valid ids.
func (g routing) ids(tokens, topK, experts int) []int32 {
	list := g.make(rand.New(rand.NewPCG(uint64(tokens), uint64(experts*100+topK))), tokens, topK, experts)
	if g.name == "the last token only" {
		for slot := range topK {
			list[len(list)-1-slot] = int32(slot % experts)
		}
	}
	return list
}

// planCase is the size of one launch of Count and one of Plan.
type planCase struct {
	experts, topK, tokens, perCTA, spare int
	routing                              routing
}

func (c planCase) String() string {
	return fmt.Sprintf("E=%d K=%d T=%d perCTA=%d spare=%d %s", c.experts, c.topK, c.tokens, c.perCTA, c.spare, c.routing.name)
}

func (c planCase) run(b *kt.Bed) {
	ids := c.routing.ids(c.tokens, c.topK, c.experts)
	ctas := (c.tokens+c.perCTA-1)/c.perCTA + c.spare
	counts := kt.CountsOf(ids, c.experts, c.perCTA*c.topK, ctas)
	onDevice, countsAt := kt.Upload(b, ids), b.Room(4*len(counts))
	ranges := TokenRanges{Tokens: c.tokens, PerCTA: c.perCTA}
	kt.Run(b, Count{NumExperts: c.experts, TopK: c.topK}, ctas, CountArgs{ExpertIDs: onDevice, Counts: countsAt, TokenRanges: ranges})
	require.True(b.T, slices.Equal(counts, kt.Download[uint32](b, countsAt, len(counts))), "counts, %v", c)

	want, pairs := kt.PlanOf(ids, c.topK, c.experts), len(ids)
	entries := c.experts + pairs/schedule.PairRows
	gather, inverse, offsets := b.Room(4*pairs), b.Room(4*pairs), b.Room(4*(c.experts+1))
	pairsAt := b.Room(4 * pairs)
	table, blocks, tickets := b.Room(16*entries), b.Room(4), b.Room(8)
	plan, wantPairs := Plan{NumExperts: c.experts, TopK: c.topK, Pairs: c.tokens%2 == 1}, []uint32(nil)
	if plan.Pairs {
		wantPairs = want.Pairs
	}
	kt.Run(b, plan, ctas, PlanArgs{PlanTensors: PlanTensors{
		ExpertIDs: onDevice, Gather: gather, Inverse: inverse, Pairs: pairsAt, Offsets: offsets, Table: table, RowPairs: blocks, Tickets: tickets,
	}, Counts: kt.Upload(b, counts), TokenRanges: ranges})
	for _, out := range []struct {
		name string
		at   driver.DevicePtr
		want []uint32
	}{
		{"offsets", offsets, want.Offsets},
		{"gather", gather, append(want.Gather, kt.Poisoned[uint32](pairs-len(want.Gather))...)},
		{"pairs", pairsAt, append(wantPairs, kt.Poisoned[uint32](pairs-len(wantPairs))...)},
		{"inverse", inverse, want.Inverse},
		{"table", table, append(want.Table, kt.Poisoned[uint32](4*entries-len(want.Table))...)},
		{"block count", blocks, []uint32{want.RowPairs}},
		{"tickets", tickets, []uint32{0, 0}},
	} {
		got := kt.Download[uint32](b, out.at, len(out.want))
		if !slices.Equal(out.want, got) {
			require.Equal(b.T, out.want, got, "%s, %v", out.name, c)
		}
	}
}

// TestPlan checks every word that Count and Plan write against plain Go, for several numbers of
// CTAs.
func TestPlan(t *testing.T) {
	tokens := []int{1, 31, 63, 64, 65, 127, 128, 129, 1000}
	turn, every := 0, 13
	if testing.Short() {
		every = 53
	}
	for _, experts := range []int{1, 2, 7, 32, 33, 60, 128, 1000, 1024} {
		t.Run(fmt.Sprintf("E=%d", experts), func(t *testing.T) {
			for _, topK := range []int{1, 2, 8, 16} {
				for _, n := range tokens {
					for _, g := range routings {
						for split, perCTA := range []int{1024, 64, 192} {
							turn++
							// The long test runs all combinations.
							if !kt.Long() && turn%every != 0 {
								continue
							}
							b := kt.New(t, kt.Early)
							planCase{experts, topK, n, perCTA, split, g}.run(b)
						}
					}
				}
			}
		})
	}
}

// TestPlanTimings checks that the order of atomics and warps does not change the plan.
func TestPlanTimings(t *testing.T) {
	for _, when := range kt.Timings() {
		t.Run(when.Name, func(t *testing.T) {
			for _, g := range routings {
				planCase{33, 8, 129, 64, 1, g}.run(kt.New(t, when))
			}
		})
	}
}
