package training

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// TestExpertSums compares the sums over each expert's rows and column with float64 sums.
func TestExpertSums(t *testing.T) {
	for _, when := range kt.Timings() {
		for _, c := range []struct {
			experts, rows, tokens int // rows = 0 leaves out Rows, tokens = 0 leaves out Dense
			add                   bool
		}{
			{1, 1, 0, false}, {1, 0, 1, true}, {3, 40, 0, true}, {5, 0, 300, false}, {33, 900, 70, true}, {2, 1500, 600, false},
		} {
			t.Run(fmt.Sprintf("%s %+v", when.Name, c), func(t *testing.T) {
				b, r := kt.New(t, when), rand.New(rand.NewPCG(uint64(c.experts), uint64(c.rows)))
				normal := func(n int) []float32 {
					list := make([]float32, n)
					for i := range list {
						list[i] = float32(r.NormFloat64())
					}
					return list
				}
				args, want := ExpertSumsArgs{Sums: b.Room(4 * c.experts), Tokens: c.tokens}, make([]float64, c.experts)
				if c.rows > 0 {
					rows, offsets := normal(c.rows), make([]uint32, c.experts+1)
					for e := 1; e < c.experts; e++ {
						offsets[e] = uint32(c.rows * (e - 1) / c.experts) // the first expert has no rows
					}
					offsets[c.experts] = uint32(c.rows)
					for e := range c.experts {
						for _, v := range rows[offsets[e]:offsets[e+1]] {
							want[e] += float64(v)
						}
					}
					args.Rows, args.Offsets = kt.Upload(b, rows), kt.Upload(b, offsets)
				}
				if c.tokens > 0 {
					dense := normal(c.tokens * c.experts)
					for i, v := range dense {
						want[i%c.experts] += float64(v)
					}
					args.Dense = kt.Upload(b, dense)
				}
				if c.add {
					add := normal(c.experts)
					for e, v := range add {
						want[e] += float64(v)
					}
					args.Add = kt.Upload(b, add)
				}
				kt.Run(b, ExpertSums{NumExperts: c.experts}, 0, args)
				var wrong, norm float64
				for e, got := range kt.Download[float32](b, args.Sums, c.experts) {
					wrong, norm = wrong+math.Pow(float64(got)-want[e], 2), norm+want[e]*want[e]
				}
				require.LessOrEqual(t, math.Sqrt(wrong/norm), 2e-6)
			})
		}
	}
}
