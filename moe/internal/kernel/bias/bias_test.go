package bias

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel/dh"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/weights"
)

// TestScores checks that Scores adds the scores of repeated ids in the order of
// slots. Ids outside [0, E), and entries of a list without rows, add nothing.
func TestScores(t *testing.T) {
	for _, tt := range []struct {
		tokens, experts, topK int
		list                  bool
	}{{1, 1, 1, false}, {19, 48, 3, false}, {9, 130, 32, false}, {30, 33, 5, true}, {3, 7, 40, true}} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			pairs := tt.tokens * tt.topK
			var ids []int32
			var scores []float32
			want := make([]float32, tt.tokens*tt.experts)
			starts, rows, pairOf := []uint32{0}, []uint32{}, kt.Poisoned[uint32](pairs)
			for token := range tt.tokens {
				for slot := range tt.topK {
					pair := token*tt.topK + slot
					id := int32((pair*pair+slot/2)%(tt.experts+2)) - 1 // neighbouring slots have equal ids; the ids -1 and E occur, too
					ids, scores = append(ids, id), append(scores, float32(math.Sin(float64(pair+1))))
					if id < 0 || int(id) >= tt.experts {
						continue
					}
					want[token*tt.experts+int(id)] += scores[pair]
					row := uint32(pairs - 1 - len(rows)) // the rows are in reverse order; any permutation would do
					rows, pairOf[row] = append(rows, row), uint32(pair)
				}
				starts = append(starts, uint32(len(rows)))
			}
			for _, when := range kt.Timings() {
				b := kt.New(t, when)
				out := b.Room(4*len(want) + 4)
				kt.Run(b, Scores{NumExperts: tt.experts, TopK: tt.topK, List: tt.list}, 0, ScoresArgs{
					Scores: kt.Upload(b, scores), ExpertIDs: kt.Upload(b, ids), Starts: kt.Upload(b, starts), TokenRows: kt.Upload(b, append(rows, kt.Poison)),
					Pairs: kt.Upload(b, pairOf), ByExpert: out, Tokens: tt.tokens,
				})
				require.Equal(t, want, kt.Download[float32](b, out, len(want)))
				require.EqualValues(t, kt.Poison, kt.Download[uint32](b, out, len(want)+1)[len(want)])
			}
		})
	}
}

// TestSum checks that Sum computes db1 for every layout of gate and up, and for
// experts with no sums, one sum, and more sums than a CTA loads at once. When
// gradients are added, an expert without rows stays unchanged.
func TestSum(t *testing.T) {
	counts := []int{0, 1, 64, 3300, 65, 0, 300}
	offsets := []uint32{0}
	for _, n := range counts {
		offsets = append(offsets, offsets[len(offsets)-1]+uint32(n))
	}
	for i, c := range []spec.Config{
		{Intermediate: 64}, {Intermediate: 192, GateUp: spec.Interleaved}, {Intermediate: 80, GateUp: spec.Apart},
		{Intermediate: 144, GateUp: spec.Interleaved, InOut: true}, {Intermediate: 64, Activation: spec.ReLU2},
	} {
		c.NumExperts, c.Hidden, c.Bias = len(counts), 128, true
		for _, store := range []gradient.Mode{{F32: true}, {F32: true, Accumulate: true}} {
			t.Run(fmt.Sprintf("%v add=%v", c, store.Accumulate), func(t *testing.T) {
				width, n, row := c.HWidth(), c.Intermediate, weights.DH(c)
				all := int(dh.ColumnSumBytes(c, int(offsets[len(counts)]))) / 4
				parts := make([]float32, all)
				for j, v := range reference.NewNormal(3, 1).Values(int64(all)) {
					parts[j] = math.Float32frombits(uint32(v) << 16)
				}
				b := kt.New(t, kt.Timings()[i%len(kt.Timings())])
				db, db3 := b.Room(4*len(counts)*width), b.Room(4*len(counts)*width)
				kt.Run(b, Sum{Config: c, Store: store}, 0, SumArgs{ColumnSums: kt.Upload(b, parts), Offsets: kt.Upload(b, offsets), DB: db, DB3: db3})
				got := kt.Download[float32](b, db, len(counts)*width)
				up := kt.Download[float32](b, db3, len(counts)*width)
				for e, rows := range counts {
					for column := range width {
						var want, size float64
						for block := range (rows + dh.ColumnSumRows - 1) / dh.ColumnSumRows {
							v := float64(parts[(int(offsets[e])/dh.ColumnSumRows+e+block)*row.Elements()+inRow(c, row, column)])
							want, size = want+v, size+math.Abs(v)
						}
						x := got[e*width+place(c, column)]
						if c.GateUp == spec.Apart {
							x = []float32{got[e*n+column%n], up[e*n+column%n]}[column/n]
						}
						if store.Accumulate {
							require.True(t, math.IsNaN(float64(x)), "what is there is NaN")
							continue
						}
						require.InDelta(t, want, x, size*0x1p-20, "expert %d, column %d", e, column)
					}
				}
			})
		}
	}
}

// inRow returns the column of dH that belongs to a column of H.
func inRow(c spec.Config, row weights.Rows, column int) int {
	if row.Parts == 2 {
		return column/c.Intermediate*row.Width + column%c.Intermediate
	}
	return column
}

// place returns the index of the bias in b1 that is added to a column of H.
func place(c spec.Config, column int) int {
	if c.GateUp == spec.Interleaved && !c.InOut {
		return column%c.Intermediate*2 + column/c.Intermediate
	}
	return column
}
