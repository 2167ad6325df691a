package drouter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

func TestExtraRows(t *testing.T) {
	for _, c := range []struct{ hidden, experts, tokens int }{{128, 1, 1}, {192, 70, 130}, {320, 130, 65}, {64, 264, 70}} {
		var first []uint16
		for _, when := range kt.Timings() {
			t.Run(fmt.Sprintf("%+v %s", c, when.Name), func(t *testing.T) {
				b := kt.New(t, when)
				r := rand.New(rand.NewPCG(5, 6))
				extra := make([]float32, c.tokens*c.experts)
				for i := range extra {
					extra[i] = float32(r.NormFloat64())
				}
				w := reference.NewNormal(23, 1).Values(int64(c.experts * c.hidden))
				k := ExtraRows{Hidden: c.hidden, NumExperts: c.experts}
				out := b.Room(2 * c.tokens * c.hidden)
				kt.Run(b, k, 0, ExtraRowsArgs{DLogits: kt.Upload(b, extra), RouterWeights: kt.Upload(b, w), Rows: out, Tokens: c.tokens})
				got := kt.Download[uint16](b, out, c.tokens*c.hidden)
				if first != nil {
					require.Equal(t, first, got)
					return
				}
				first = got
				for i := range got {
					var want, size float64
					for e := range c.experts {
						p := float64(extra[i/c.hidden*c.experts+e]) * num.BF16ToFloat64(w[e*c.hidden+i%c.hidden])
						want += p
						size += math.Abs(p)
					}
					if !kt.Between(got[i], want, size*0x1p-16) {
						t.Fatalf("token %d, column %d: %g, must be %g", i/c.hidden, i%c.hidden, num.BF16ToFloat64(got[i]), want)
					}
				}
			})
		}
	}
}
