package exchange

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/outside"
	"sonicmoe/internal/spec"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
)

func TestMain(m *testing.M) { os.Exit(drivertest.Main(m, open.Device)) }

// shape is the size of a test: a layer's experts, spread over ranks, and this rank's tokens.
type shape struct{ experts, topK, ranks, tokens int }

var shapes = []shape{{1, 1, 1, 1}, {8, 2, 2, 300}, {10, 4, 3, 65}, {5, 5, 5, 30}, {1024, 32, 8, 20}, {7, 3, 1, 0}, {129, 8, 64, 90}}

// ids returns random expert ids [tokens, topK], some of them outside the layer, and the rank of each
// id. The rank is -1 for an id outside the layer.
func (s shape) ids() (ids, ranks []int32) {
	r := rand.New(rand.NewPCG(uint64(s.experts), uint64(s.tokens)))
	for range s.tokens {
		for _, e := range r.Perm(s.experts)[:s.topK] {
			if r.IntN(6) == 0 {
				e = []int{-1, s.experts, 1 << 30}[r.IntN(3)]
			}
			rank := int32(-1)
			for i := range s.ranks {
				if First(s.experts, s.ranks, i) <= e && e < First(s.experts, s.ranks, i+1) {
					rank = int32(i)
				}
			}
			ids, ranks = append(ids, int32(e)), append(ranks, rank)
		}
	}
	return ids, ranks
}

// firsts returns the ranks of pairs, with -1 for a pair whose token has an earlier pair of the same
// rank.
func (s shape) firsts(ranks []int32) []int32 {
	list := append([]int32(nil), ranks...)
	for i := range list {
		for j := i / s.topK * s.topK; j < i; j++ {
			if ranks[j] == ranks[i] {
				list[i] = -1
			}
		}
	}
	return list
}

// TestOwners checks the rank of each row against a search through the ranks' ranges of experts.
func TestOwners(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, s := range shapes {
			t.Run(fmt.Sprintf("%s %+v", when.Name, s), func(t *testing.T) {
				b := kt.New(t, when)
				ids, want := s.ids()
				rows := b.Room(4 * len(ids))
				kt.Run(b, Owners{s.experts, s.topK}, max(1, (len(ids)+ownersThreads-1)/ownersThreads), OwnersArgs{
					ExpertIDs: kt.Upload(b, ids), RowRanks: rows, Ranks: s.ranks, Pairs: len(ids),
				})
				kt.SameBits(t, s.firsts(want), kt.Download[int32](b, rows, len(ids)), "ranks of rows")
			})
		}
	}
}

// TestEntries checks that the lists of entries that the kernel writes for each rank equal lists that
// the host makes.
func TestEntries(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, s := range shapes {
			t.Run(fmt.Sprintf("%s %+v", when.Name, s), func(t *testing.T) {
				b := kt.New(t, when)
				ids, ranks := s.ids()
				scores, bases, places := make([]float32, len(ids)), make([]uint32, s.ranks), make([]uint32, len(ids))
				for i := range ids {
					scores[i], places[i] = float32(i)/7, order.NoRow
				}
				var pairs []uint32
				var rows, experts []int32
				var listed []float32
				place := uint32(0)
				for rank := range s.ranks {
					bases[rank] = uint32(100*rank) - place // this rank's tokens come after 100·rank rows of other ranks
					for i, of := range s.firsts(ranks) {
						if int(of) == rank {
							places[i] = place
							place++
						}
					}
				}
				for expert := range s.experts {
					for i, id := range ids {
						if int(id) != expert {
							continue
						}
						rank, first := ranks[i], i/s.topK*s.topK
						for ranks[first] != rank {
							first++
						}
						pairs, rows = append(pairs, uint32(i)), append(rows, int32(places[first]+bases[rank]))
						experts, listed = append(experts, id-int32(First(s.experts, s.ranks, int(rank)))), append(listed, scores[i])
					}
				}
				n := len(pairs)
				outRows, outExperts, outScores := b.Room(4*n), b.Room(4*n), b.Room(4*n)
				kt.Run(b, Entries{s.experts, s.topK}, max(1, (n+entriesThreads-1)/entriesThreads), EntriesArgs{
					Pairs: kt.Upload(b, pairs), ExpertIDs: kt.Upload(b, ids), Scores: kt.Upload(b, scores), RowPlaces: kt.Upload(b, places),
					Bases: kt.Upload(b, bases), Rows: outRows, LocalExperts: outExperts, RowScores: outScores, Ranks: s.ranks, Count: n,
				})
				kt.SameBits(t, rows, kt.Download[int32](b, outRows, n), "rows")
				kt.SameBits(t, experts, kt.Download[int32](b, outExperts, n), "experts")
				kt.SameBits(t, listed, kt.Download[float32](b, outScores, n), "scores")
			})
		}
	}
}

// TestShift checks places with the shifts of their experts.
func TestShift(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, s := range shapes {
			t.Run(fmt.Sprintf("%s %+v", when.Name, s), func(t *testing.T) {
				b := kt.New(t, when)
				ids, ranks := s.ids()
				shifts, places, want := make([]uint32, s.experts), make([]uint32, len(ids)), make([]uint32, len(ids)+1)
				for e := range shifts {
					shifts[e] = uint32(1000*e) - 7
				}
				for i, id := range ids {
					places[i], want[i] = order.NoRow, order.NoRow
					if ranks[i] >= 0 {
						places[i] = uint32(3 * i)
						want[i] = places[i] + shifts[id]
					}
				}
				want[len(ids)] = kt.Poison
				to := b.Room(4 * len(want))
				kt.Run(b, Shift{}, max(1, (len(ids)+shiftThreads-1)/shiftThreads), ShiftArgs{
					ExpertIDs: kt.Upload(b, ids), Places: kt.Upload(b, places), Shifts: kt.Upload(b, shifts), Shifted: to, Pairs: len(ids),
				})
				kt.SameBits(t, want, kt.Download[uint32](b, to, len(want)), "places")
			})
		}
	}
}

// TestArrange checks the rows of the entries of one rank, which are sorted by expert. The rows of an
// expert start at a multiple of 1000.
func TestArrange(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, n := range []int{1, 255, 600} {
			t.Run(fmt.Sprintf("%s %d", when.Name, n), func(t *testing.T) {
				const experts, first = 4, 50
				b := kt.New(t, when)
				tokens, of, shifts := make([]int32, n), make([]int32, n), make([]uint32, experts)
				rows := 1000*experts + first + n
				gather, pairs, inverse := kt.Poisoned[uint32](rows), kt.Poisoned[uint32](rows), kt.Poisoned[uint32](first+n+1)
				for i := range n {
					e := i * experts / n
					tokens[i], of[i] = int32(7*i), int32(e)
					start := (e*n + experts - 1) / experts // the expert's first entry
					shifts[e] = uint32(1000*e - first - start)
					row := 1000*e + i - start
					gather[row], pairs[row], inverse[first+i] = uint32(7*i), uint32(first+i), uint32(row)
				}
				g, p, inv := b.Room(4*len(gather)), b.Room(4*len(pairs)), b.Room(4*len(inverse))
				kt.Run(b, Arrange{}, (n+arrangeThreads-1)/arrangeThreads, ArrangeArgs{
					Tokens: kt.Upload(b, tokens), Experts: kt.Upload(b, of), First: first, Count: n, Shifts: kt.Upload(b, shifts), Gather: g, Pairs: p, Inverse: inv,
				})
				kt.SameBits(t, gather, kt.Download[uint32](b, g, len(gather)), "gather")
				kt.SameBits(t, pairs, kt.Download[uint32](b, p, len(pairs)), "pairs")
				kt.SameBits(t, inverse, kt.Download[uint32](b, inv, len(inverse)), "inverse")
			})
		}
	}
}

// TestSumPlaces checks rows, weights and slots against those that the host finds, for each rank.
func TestSumPlaces(t *testing.T) {
	for _, when := range kt.Timings() {
		for i, s := range shapes {
			t.Run(fmt.Sprintf("%s %+v", when.Name, s), func(t *testing.T) {
				b := kt.New(t, when)
				ids, ranks := s.ids()
				own := i % s.ranks
				n := len(ids)
				scores, shifts, places, rowPlaces := make([]float32, n), make([]uint32, s.experts), make([]uint32, n), make([]uint32, n)
				rows, weights, slots := make([]uint32, n+1), make([]uint32, n+1), kt.Poisoned[uint32](n+1)
				for e := range shifts {
					shifts[e] = uint32(1000*e) - 7
				}
				place := uint32(0)
				for pair, rank := range ranks {
					scores[pair], places[pair], rowPlaces[pair] = float32(pair)/7, order.NoRow, order.NoRow
					rows[pair], weights[pair] = order.NoRow, math.Float32bits(1)
					if rank < 0 {
						continue
					}
					earlier := uint32(0)
					for _, of := range ranks[pair/s.topK*s.topK : pair] {
						if of == rank {
							earlier++
						}
					}
					places[pair], slots[place] = place, earlier
					place++
					if earlier == 0 {
						rowPlaces[pair] = uint32(3 * pair)
					}
					rows[pair] = rowPlaces[pair]
					if int(rank) == own {
						rows[pair], weights[pair] = places[pair]+shifts[ids[pair]], math.Float32bits(scores[pair])
					}
				}
				rows[n], weights[n] = kt.Poison, kt.Poison
				gotRows, gotWeights, gotSlots := b.Room(4*len(rows)), b.Room(4*len(weights)), b.Room(4*len(slots))
				kt.Run(b, SumPlaces{s.experts, s.topK}, max(1, (n+sumPlacesThreads-1)/sumPlacesThreads), SumPlacesArgs{
					ExpertIDs: kt.Upload(b, ids), Scores: kt.Upload(b, scores), Places: kt.Upload(b, places), RowPlaces: kt.Upload(b, rowPlaces), Shifts: kt.Upload(b, shifts),
					Rows: gotRows, Weights: gotWeights, Slots: gotSlots, Rank: own, Ranks: s.ranks, Pairs: n,
				})
				kt.SameBits(t, rows, kt.Download[uint32](b, gotRows, len(rows)), "rows")
				kt.SameBits(t, weights, kt.Download[uint32](b, gotWeights, len(weights)), "weights")
				kt.SameBits(t, slots, kt.Download[uint32](b, gotSlots, len(slots)), "slots")
			})
		}
	}
}

// TestSlots checks the rows and scores of tokens with up to three entries. Entries before the first one
// and after the last one are left out.
func TestSlots(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, n := range []int{1, 255, 600} {
			t.Run(fmt.Sprintf("%s %d", when.Name, n), func(t *testing.T) {
				const topK, first = 3, 50
				b, r := kt.New(t, when), rand.New(rand.NewPCG(uint64(n), 3))
				all := first + n + 7
				tokens, slots, inverse, scores := make([]int32, all), make([]uint32, all), make([]uint32, all), make([]float32, all)
				rows, weights := kt.Poisoned[uint32](all*topK), kt.Poisoned[uint32](all*topK)
				for i, at := range r.Perm(all * topK)[:all] {
					tokens[i], slots[i], inverse[i], scores[i] = int32(at/topK), uint32(at%topK), r.Uint32(), r.Float32()
					if i >= first && i < first+n {
						rows[at], weights[at] = inverse[i], math.Float32bits(scores[i])
					}
				}
				gotRows, gotWeights := b.Room(4*len(rows)), b.Room(4*len(weights))
				kt.Run(b, Slots{topK}, (n+slotsThreads-1)/slotsThreads, SlotsArgs{
					Tokens: kt.Upload(b, tokens), Scores: kt.Upload(b, scores), Slots: kt.Upload(b, slots), Inverse: kt.Upload(b, inverse),
					First: first, Count: n, Rows: gotRows, Weights: gotWeights,
				})
				kt.SameBits(t, rows, kt.Download[uint32](b, gotRows, len(rows)), "rows")
				kt.SameBits(t, weights, kt.Download[uint32](b, gotWeights, len(weights)), "weights")
			})
		}
	}
}

// TestRows checks that packed rows equal copies made on the host, and that the row after the last
// one is not written.
func TestRows(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, s := range []struct{ width, rows, packed int }{{16, 1, 1}, {16, 7, 40}, {192, 33, 20}, {192, 1, 0}, {2880, 4, 9}, {4096, 3, 5}, {4112, 3, 7}, {7168, 5, 8}, {7168, 1, 0}} {
			t.Run(fmt.Sprintf("%s %+v", when.Name, s), func(t *testing.T) {
				b, r := kt.New(t, when), rand.New(rand.NewPCG(uint64(s.width), 1))
				from, index := make([]uint16, s.width*s.rows), make([]uint32, s.packed)
				for i := range from {
					from[i] = uint16(r.Uint32())
				}
				var want []uint16
				for i := range index {
					index[i] = r.Uint32N(uint32(s.rows))
					want = append(want, from[int(index[i])*s.width:][:s.width]...)
				}
				want = append(want, kt.Poisoned[uint16](s.width)...)
				to := b.Room(2 * len(want))
				kt.Run(b, Rows{s.width}, 0, RowsArgs{From: kt.Upload(b, from), Index: kt.Upload(b, index), To: to, Count: s.packed})
				kt.SameBits(t, want, kt.Download[uint16](b, to, len(want)), "rows")
			})
		}
	}
}

// TestWords checks that packed words equal copies made on the host, and that the word after the
// last one is not written.
func TestWords(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, n := range []int{0, 1, 255, 600} {
			t.Run(fmt.Sprintf("%s %d", when.Name, n), func(t *testing.T) {
				b, r := kt.New(t, when), rand.New(rand.NewPCG(uint64(n), 1))
				from, index, want := make([]uint32, 50), make([]uint32, n), make([]uint32, n+1)
				for i := range from {
					from[i] = r.Uint32()
				}
				for i := range index {
					index[i] = r.Uint32N(50)
					want[i] = from[index[i]]
				}
				want[n] = kt.Poison
				to := b.Room(4 * (n + 1))
				kt.Run(b, Words{}, max(1, (n+wordsThreads-1)/wordsThreads), WordsArgs{From: kt.Upload(b, from), Index: kt.Upload(b, index), To: to, Count: n})
				kt.SameBits(t, want, kt.Download[uint32](b, to, n+1), "words")
			})
		}
	}
}

// TestAssemble checks that ptxas accepts the kernels without a warning, which includes spills.
func TestAssemble(t *testing.T) {
	ptxas := outside.Ptxas(t)
	for _, c := range []spec.Config{{Hidden: 2048, NumExperts: 128, TopK: 8}, {Hidden: 7168, NumExperts: 999, TopK: 32}} {
		for _, k := range append(Kernels, OfRank...) {
			built, err := k.Build(registry.Layer{Config: c})
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), k.Name())
			require.NoError(t, os.WriteFile(path, built.Source("").Module.Print().PTX, 0o600))
			out, err := exec.Command(ptxas, "-arch=sm_90a", "-warn-spills", "-o", path+".cubin", path).CombinedOutput()
			require.NoError(t, err, "%s: %s", k.Name(), out)
			require.Empty(t, string(out), k.Name())
		}
	}
}
