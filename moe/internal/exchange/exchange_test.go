package exchange

import (
	"fmt"
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
type shape struct{ experts, topK, ranks, tokens, chunks int }

var shapes = []shape{{1, 1, 1, 1, 1}, {8, 2, 2, 300, 4}, {10, 4, 3, 65, 1}, {10, 4, 3, 65, 3}, {5, 5, 5, 30, 1}, {1024, 32, 8, 20, 7}, {7, 3, 1, 0, 2}, {129, 8, 64, 90, 2}}

// ids returns random expert ids [tokens, topK], some of them outside the layer, and the rank and
// the chunk of each id. Rank and chunk are -1 for an id outside the layer.
func (s shape) ids() (ids, ranks, chunks []int32) {
	r := rand.New(rand.NewPCG(uint64(s.experts), uint64(s.tokens)))
	for range s.tokens {
		for _, e := range r.Perm(s.experts)[:s.topK] {
			if r.IntN(6) == 0 {
				e = []int{-1, s.experts, 1 << 30}[r.IntN(3)]
			}
			rank, chunk := int32(-1), int32(-1)
			for i := range s.ranks * s.chunks {
				if First(s.experts, s.ranks*s.chunks, i) <= e && e < First(s.experts, s.ranks*s.chunks, i+1) {
					rank, chunk = int32(i/s.chunks), int32(i%s.chunks)
				}
			}
			ids, ranks, chunks = append(ids, int32(e)), append(ranks, rank), append(chunks, chunk)
		}
	}
	return ids, ranks, chunks
}

// parts returns chunk·W + rank of each pair, or -1 for a pair without a rank.
func (s shape) parts(ranks, chunks []int32) []int32 {
	list := append([]int32(nil), ranks...)
	for i, chunk := range chunks {
		if chunk >= 0 {
			list[i] += chunk * int32(s.ranks)
		}
	}
	return list
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

// TestOwners checks the rank of each pair against a search through the ranks' ranges of experts.
func TestOwners(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, s := range shapes {
			t.Run(fmt.Sprintf("%s %+v", when.Name, s), func(t *testing.T) {
				b := kt.New(t, when)
				ids, want, chunks := s.ids()
				ranks, rows := b.Room(4*len(ids)), b.Room(4*len(ids))
				kt.Run(b, Owners{s.experts, s.topK}, max(1, (len(ids)+ownersThreads-1)/ownersThreads), OwnersArgs{
					ExpertIDs: kt.Upload(b, ids), PairRanks: ranks, RowRanks: rows, Ranks: s.ranks, Chunks: s.chunks, Pairs: len(ids),
				})
				kt.SameBits(t, s.parts(want, chunks), kt.Download[int32](b, ranks, len(ids)), "parts of pairs")
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
				ids, ranks, chunks := s.ids()
				parts := s.parts(ranks, chunks)
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
				for part := range s.ranks * s.chunks {
					rank := part % s.ranks
					for i, of := range parts {
						if int(of) != part {
							continue
						}
						first := i / s.topK * s.topK
						for int(ranks[first]) != rank {
							first++
						}
						pairs, rows = append(pairs, uint32(i)), append(rows, int32(places[first]+bases[rank]))
						experts, listed = append(experts, ids[i]-int32(First(s.experts, s.ranks, rank))), append(listed, scores[i])
					}
				}
				n := len(pairs)
				outRows, outExperts, outScores := b.Room(4*n), b.Room(4*n), b.Room(4*n)
				kt.Run(b, Entries{s.experts, s.topK}, max(1, (n+entriesThreads-1)/entriesThreads), EntriesArgs{
					Pairs: kt.Upload(b, pairs), ExpertIDs: kt.Upload(b, ids), Scores: kt.Upload(b, scores), PairRanks: kt.Upload(b, parts), RowPlaces: kt.Upload(b, places),
					Bases: kt.Upload(b, bases), Rows: outRows, LocalExperts: outExperts, RowScores: outScores, Ranks: s.ranks, Count: n,
				})
				kt.SameBits(t, rows, kt.Download[int32](b, outRows, n), "rows")
				kt.SameBits(t, experts, kt.Download[int32](b, outExperts, n), "experts")
				kt.SameBits(t, listed, kt.Download[float32](b, outScores, n), "scores")
			})
		}
	}
}

// TestRows checks that packed rows equal copies made on the host, and that the row after the last
// one is not written.
func TestRows(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, s := range []struct{ width, rows, packed int }{{16, 1, 1}, {16, 7, 40}, {192, 33, 20}, {4096, 3, 5}} {
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
