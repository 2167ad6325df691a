package parallel

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/jit/schedule"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/kernel/dh"
)

// seat is a transport that only has a number.
type seat struct {
	Transport
	rank, ranks int
}

func (s seat) Rank() int  { return s.rank }
func (s seat) Ranks() int { return s.ranks }

// TestRowsOfDH checks that the portions of dH have every row once, and every block in the portion in which its last
// rows arrive.
func TestRowsOfDH(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 39))
		ranks := 1 + r.IntN(6)
		experts := ranks + r.IntN(4)
		own := r.IntN(ranks)
		p := &backward{pass: pass{Rank: &Rank{transport: seat{rank: own, ranks: ranks}}}}
		p.Config.NumExperts = experts
		for range ranks {
			var of []int64
			for range experts {
				of = append(of, int64(r.IntN(3)*r.IntN(200)))
			}
			p.pairs = append(p.pairs, of)
		}
		first := p.firstOf(own)
		p.Chunks, p.Rank.count = ranks, p.firstOf(own+1)-first
		p.divide()
		p.groups = 1 + r.IntN(max(1, ranks-1))
		portionOf := p.portionsOfHomes()
		require.Zero(t, portionOf[own])
		tables := make([][]uint32, p.groups+1)
		for expert := range p.Rank.count {
			p.addRows(tables, expert, portionOf)
		}
		found, entries := map[string]int{}, 0 // portion of each row of each expert
		for portion, table := range tables {
			for ; len(table) > 0; table = table[schedule.PairBytes/4:] {
				require.LessOrEqual(t, table[2], uint32(schedule.PairRows))
				entries++
				for row := range table[2] {
					at := fmt.Sprint(table[0], " ", table[1]+row)
					require.NotContains(t, found, at)
					found[at] = portion
				}
			}
		}
		all := 0
		for expert := range p.Rank.count {
			var portions []int // of the homes of the rows
			for home, of := range p.pairs {
				for range of[first+expert] {
					portions = append(portions, portionOf[home])
				}
			}
			for row := range portions {
				block := portions[row/dh.ColumnSumRows*dh.ColumnSumRows : min(len(portions), (row/dh.ColumnSumRows+1)*dh.ColumnSumRows)]
				latest := 0
				for _, of := range block {
					latest = max(latest, of)
				}
				got, ok := found[fmt.Sprint(expert, " ", p.madeBefore[expert]+int64(row))]
				require.True(t, ok)
				require.Equal(t, latest, got, "seed %d, expert %d, row %d", seed, expert, row)
			}
			all += len(portions)
		}
		require.Len(t, found, all)
		require.LessOrEqual(t, entries, all/schedule.PairRows+(ranks+1)*p.Rank.count, "more entries than planBytes has room for")
	}
}

// TestPortionBits checks gradients of layers whose experts have several blocks, with tokens of one rank and of several.
func TestPortionBits(t *testing.T) {
	c := testCase{config: moe.Config{Hidden: 16, Intermediate: 16, NumExperts: 6, TopK: 6, Bias: true}, tokens: []int{100, 45, 130}}
	backwardBits(t, c, 2, false, true)
}
