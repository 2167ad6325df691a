package drouter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	"sonicmoe/moe/internal/gradient"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
)

// drouterCase is the size of a test of the router's gradient.
type drouterCase struct {
	hidden, experts, topK, tokens int
	extra                         bool
	// perRange is the number of tokens of a range; 0 means the default, which for small
	// batches gives many ranges of one step.
	perRange int
	rounded  bool
}

// drouterData has the inputs of a case. Some ids lie outside [0, E), and their gradient is
// NaN.
type drouterData struct {
	x              []uint16
	ids            []uint32
	dlogits, extra []float32
	old            []float32
	dense          []float64 // [T, E]: the gradients of the chosen logits and the dense gradients together
}

func (c drouterCase) data() drouterData {
	r := rand.New(rand.NewPCG(uint64(c.experts), uint64(c.tokens)))
	d := drouterData{x: reference.NewNormal(21, 1).Values(int64(c.tokens * c.hidden)), dense: make([]float64, c.tokens*c.experts)}
	for i := range d.dense {
		v := float32(r.NormFloat64())
		d.extra = append(d.extra, v)
		if c.extra {
			d.dense[i] = float64(v)
		}
	}
	for t := range c.tokens {
		for _, e := range r.Perm(c.experts)[:c.topK] {
			v := float32(r.NormFloat64())
			if r.IntN(9) == 0 {
				d.ids, d.dlogits = append(d.ids, uint32(c.experts+r.IntN(3))), append(d.dlogits, float32(math.NaN()))
				continue
			}
			d.ids, d.dlogits = append(d.ids, uint32(e)), append(d.dlogits, v)
			d.dense[t*c.experts+e] += float64(v)
		}
	}
	if c.rounded {
		for i, v := range d.dense {
			d.dense[i] = num.BF16ToFloat64(num.Float64ToBF16(float64(float32(v))))
		}
	}
	for _, v := range reference.NewNormal(22, 5).Values(int64(c.experts * c.hidden)) {
		d.old = append(d.old, float32(num.BF16ToFloat64(v)))
	}
	return d
}

// run returns the gradient as FP32 bits.
func (c drouterCase) run(b *kt.Bed, store gradient.Mode) []uint32 {
	d := c.data()
	k := DRouter{Hidden: c.hidden, NumExperts: c.experts, TopK: c.topK, Extra: c.extra, Rounded: c.rounded}
	ranges, perRange := k.Ranges(c.tokens)
	if c.perRange > 0 {
		ranges, perRange = (c.tokens+c.perRange-1)/c.perRange, c.perRange
	}
	m, n := k.tiles()
	partials := b.Room(ranges * c.experts * c.hidden * 4)
	if ctas := m * n * ranges; ctas > 0 {
		kt.Run(b, k, ctas, Args{
			X: kt.Upload(b, d.x), DLogits: kt.Upload(b, d.dlogits), ExpertIDs: kt.Upload(b, d.ids), AddDense: kt.Upload(b, d.extra), Partials: partials,
			Tokens: c.tokens, PerRange: perRange,
		})
	}
	out := kt.NewStored(b, store, d.old)
	sum := Sum{Hidden: c.hidden, NumExperts: c.experts, Store: store}
	kt.Run(b, sum, 0, SumArgs{Partials: partials, DRouter: out.At, Ranges: ranges})
	return out.Download(b)
}

func (c drouterCase) check(t *testing.T, store gradient.Mode, got []uint32) {
	d := c.data()
	for e := range c.experts {
		for j := range c.hidden {
			var want, size float64
			for t := range c.tokens {
				p := d.dense[t*c.experts+e] * num.BF16ToFloat64(d.x[t*c.hidden+j])
				want += p
				size += math.Abs(p)
			}
			at := e*c.hidden + j
			if !kt.Within(store, got[at], d.old[at], want, size*0x1p-16) {
				t.Fatalf("expert %d, column %d: %g, must be %g", e, j, math.Float32frombits(got[at]), want)
			}
		}
	}
}

func TestDRouter(t *testing.T) {
	for i, c := range []drouterCase{
		{128, 5, 2, 1, false, 0, false}, {192, 70, 3, 63, false, 0, false}, {320, 130, 1, 200, true, 0, false}, {192, 9, 8, 129, true, 0, false}, {128, 64, 16, 700, false, 0, false}, {128, 3, 1, 0, false, 0, false},
		// With more steps than stages, stages are used again.
		{128, 40, 1, 400, false, 448, false}, {64, 70, 16, 700, false, 448, false}, {64, 40, 5, 450, false, 448, false}, {64, 136, 10, 330, true, 384, false}, {64, 140, 4, 400, true, 448, false},
		{192, 70, 3, 63, false, 0, true}, {64, 40, 5, 450, false, 448, true}, {64, 136, 10, 330, true, 384, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			for _, store := range gradient.Modes {
				if store.F32 == (i%2 == 0) || c.tokens < 2 {
					c.check(t, store, c.run(kt.New(t, kt.Early), store))
				}
			}
		})
	}
}

// TestDRouterTimings checks that DRouter computes the same bits under every timing.
func TestDRouterTimings(t *testing.T) {
	for _, c := range []drouterCase{{192, 130, 5, 300, false, 0, false}, {192, 130, 5, 300, false, 0, true}, {192, 130, 5, 300, true, 0, false}, {64, 136, 8, 300, false, 320, false}, {64, 136, 8, 300, true, 320, false}} {
		var first []uint32
		for _, when := range kt.Timings() {
			t.Run(fmt.Sprintf("%+v %s", c, when.Name), func(t *testing.T) {
				got := c.run(kt.New(t, when), gradient.Mode{F32: true})
				if first == nil {
					first = got
				}
				require.Equal(t, first, got)
			})
		}
	}
}

// TestDRouterRanges checks that the ranges of tokens cover all of them, and none is
// empty or too long.
func TestDRouterRanges(t *testing.T) {
	for _, d := range []DRouter{{Hidden: 1536, NumExperts: 128}, {Hidden: 7168, NumExperts: 256}, {Hidden: 128, NumExperts: 1}, {Hidden: 4096, NumExperts: 1024}} {
		for _, total := range []int{1, 63, 64, 65, 24576, 32768, 100001} {
			count, tokens := d.Ranges(total)
			require.Zero(t, tokens%64)
			require.LessOrEqual(t, tokens, drouterRange)
			require.GreaterOrEqual(t, count*tokens, total)
			require.Less(t, (count-1)*tokens, total)
			t.Logf("%+v %d tokens: %d ranges of %d", d, total, count, tokens)
		}
	}
}
