package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/reference"
	kt "sonicmoe/moe/internal/kernel/kerneltest"
	"sonicmoe/moe/internal/route/order"
)

// fma32 returns a·b + c, rounded to FP32 once. The product is exact in float64. The sum is
// rounded to odd in float64, so that rounding it to FP32 cannot round twice.
func fma32(a, b, c float32) float32 {
	p, x := float64(a)*float64(b), float64(c)
	s := p + x
	back := s - p
	if lost := (p - (s - back)) + (x - back); lost != 0 && math.Float64bits(s)&1 == 0 {
		s = math.Nextafter(s, math.Copysign(math.Inf(1), lost))
	}
	return float32(s)
}

func TestFMA32(t *testing.T) {
	const tiny = 0x1p-149
	require.Equal(t, float32(1+0x1p-23), fma32(1, 1, 0x1p-23))
	// 1 + 2^-24 is a tie in FP32; the lower bits of the exact sum decide it.
	require.Equal(t, float32(1), fma32(0x1p-12, 0x1p-12, 1))
	require.Equal(t, float32(1+0x1p-23), fma32(0x1p-12, 0x1p-12+0x1p-30, 1))
	require.Equal(t, float32(1+0x1p-23), fma32(1+0x1p-23, 1, tiny))
	require.Equal(t, float32(1), fma32(-tiny, 1, 1))
}

// aggregateCase is the size of a test. Some of its slots have no row, and their score is NaN.
type aggregateCase struct {
	hidden, topK, tokens int
	unit, extra          bool
	// shared adds the rows of shared experts before the extra rows; gate gives these rows
	// scores.
	shared, gate bool
}

func (c aggregateCase) run(b *kt.Bed) {
	r := rand.New(rand.NewPCG(uint64(c.hidden), uint64(c.tokens*100+c.topK)))
	rows := c.tokens * c.topK
	y := reference.NewNormal(7, 1).Values(int64(rows * c.hidden))
	inverse, scores := make([]uint32, rows), make([]float32, rows)
	for i, row := range r.Perm(rows) {
		inverse[i], scores[i] = uint32(row), r.Float32()
		if r.IntN(5) == 0 {
			inverse[i], scores[i] = order.NoRow, float32(math.NaN())
		}
	}
	want, extra := make([]uint16, c.tokens*c.hidden), reference.NewNormal(8, 1).Values(int64(c.tokens*c.hidden))
	shared, gates := reference.NewNormal(9, 1).Values(int64(c.tokens*c.hidden)), make([]float32, c.tokens)
	for t := range gates {
		gates[t] = r.Float32()
	}
	for t := range c.tokens {
		for col := range c.hidden {
			var sum float32
			for k := t * c.topK; k < (t+1)*c.topK; k++ {
				if inverse[k] != order.NoRow {
					v := math.Float32frombits(uint32(y[int(inverse[k])*c.hidden+col]) << 16)
					weight := scores[k]
					if c.unit {
						weight = 1
					}
					sum = fma32(v, weight, sum)
				}
			}
			if c.shared {
				weight := gates[t]
				if c.unit || !c.gate {
					weight = 1
				}
				sum = fma32(math.Float32frombits(uint32(shared[t*c.hidden+col])<<16), weight, sum)
			}
			if c.extra {
				sum += math.Float32frombits(uint32(extra[t*c.hidden+col]) << 16)
			}
			want[t*c.hidden+col] = num.Float32ToBF16(sum)
		}
	}
	kernel := Aggregate{Hidden: c.hidden, TopK: c.topK, Unit: c.unit, Extra: c.extra, Shared: c.shared, SharedGate: c.gate, Early: !c.unit && c.tokens%2 != 0}
	o := b.Room(2 * len(want))
	kt.Run(b, kernel, 0, AggregateArgs{Y: kt.Upload(b, y), O: o, Inverse: kt.Upload(b, inverse), Scores: kt.Upload(b, scores), AddRows: kt.Upload(b, extra),
		SharedRows: kt.Upload(b, shared), SharedScores: kt.Upload(b, gates), Tokens: c.tokens})
	got := kt.Download[uint16](b, o, len(want))
	for i := range want {
		require.Equal(b.T, want[i], got[i], "%+v token %d column %d", c, i/c.hidden, i%c.hidden)
	}
}

// TestAggregate checks that Aggregate computes the bits of FP32 sums in slot order.
func TestAggregate(t *testing.T) {
	turn := 0
	for _, size := range [][3]int{{128, 1, 1}, {128, 2, 63}, {192, 3, 65}, {320, 8, 17}, {128, 9, 5}, {2880, 4, 3}, {192, 16, 33}, {1536, 8, 2}} {
		for _, unit := range []bool{false, true} {
			turn++
			c := aggregateCase{hidden: size[0], topK: size[1], tokens: size[2], unit: unit, extra: turn%3 == 1, shared: turn%5 > 1, gate: turn%5 > 2}
			t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) { c.run(kt.New(t, kt.Early)) })
		}
	}
}
