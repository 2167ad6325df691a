package arith

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/isa"
)

// TestNearest compares sums, differences and products of random 16-bit numbers, and of numbers at
// the ends of the formats, with the exact results rounded once.
func TestNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, of := range []isa.Type{isa.F16, isa.BF16} {
		f := FormatOf(of)
		special := []uint64{0, 1, 2, 3, 0x7f, 0x80, 0x81, 0x3ff, 0x400, 0x3c00, 0x3f80, 0x7bff, 0x7f7f}
		draw := func() float64 {
			for {
				x := r.Uint64() & 0xffff
				if r.IntN(4) == 0 {
					x = special[r.IntN(len(special))] | x&0x8000
				}
				if v := FloatOf(of, x); !math.IsInf(v, 0) && v == v {
					return v
				}
			}
		}
		for range 200_000 {
			a, b := draw(), draw()
			if r.IntN(3) == 0 { // two terms of similar size make sums that are near a tie
				b = f.nearest(a * (1 + r.Float64()) / float64(int(2)<<r.IntN(12)))
			}
			for _, op := range []Op{OpAdd, OpSub, OpMul} {
				x, y := new(big.Float).SetPrec(exactBits).SetFloat64(a), new(big.Float).SetPrec(exactBits).SetFloat64(b)
				switch op {
				case OpAdd:
					x.Add(x, y)
				case OpSub:
					x.Sub(x, y)
				default:
					x.Mul(x, y)
				}
				want := op.Float(a, b, 0)
				if x.Sign() != 0 {
					want = f.Round(x, RoundNearest)
				}
				got := f.Compute(op, RoundNearest, a, b, 0)
				require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%v: %d of %g and %g", of, op, a, b)
			}
		}
	}
}
