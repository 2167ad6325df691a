package arith

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/isa"
)

// TestNearest compares sums, differences, products and fused products of random 16-bit numbers, and of numbers at
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
		for range 100_000 {
			a, b, c := draw(), draw(), draw()
			if r.IntN(3) == 0 { // two terms of similar size make sums that are near a tie
				b = f.nearest(a * (1 + r.Float64()) / float64(int(2)<<r.IntN(12)))
			}
			if r.IntN(3) == 0 { // c is close to the product, or to half of a unit in its last place
				c = f.nearest(-a * b * (1 + r.Float64()) * float64(r.IntN(2)*2-1) / float64(int(1)<<r.IntN(24)))
				c = max(-f.Largest(), min(c, f.Largest()))
			}
			for _, op := range []Op{OpAdd, OpSub, OpMul, OpFma} {
				x, y := new(big.Float).SetPrec(exactBits).SetFloat64(a), new(big.Float).SetPrec(exactBits).SetFloat64(b)
				switch op {
				case OpAdd:
					x.Add(x, y)
				case OpSub:
					x.Sub(x, y)
				default:
					x.Mul(x, y)
				}
				if op == OpFma {
					x.Add(x, y.SetFloat64(c))
				}
				want := op.Float(a, b, c)
				if x.Sign() != 0 {
					want = f.Round(x, RoundNearest)
				}
				got := f.Compute(op, RoundNearest, a, b, c)
				if want, got := math.Float64bits(want), math.Float64bits(got); want != got { // require.Equal is slow
					require.Equal(t, want, got, "%v: %d of %g, %g and %g", of, op, a, b, c)
				}
			}
		}
	}
}

// TestEncode checks the bits of every number of the 16-bit formats and of FP8.
func TestEncode(t *testing.T) {
	for _, of := range []isa.Type{isa.F16, isa.BF16} {
		for x := range uint64(1 << 16) {
			v := FloatOf(of, x)
			if want := FormatOf(of).Encode(v); v == v && want != x || v != v && want != canonicalNaN16 {
				require.Equal(t, x, want, "%v: %g", of, v)
			}
		}
	}
	for _, f := range []Format{FormatE4M3, FormatE5M2} {
		for x := range uint64(1 << 8) {
			if v := FromFP8(f, x); v == v {
				require.Equal(t, x, f.Encode(v), "%v: %g", f, v)
			}
		}
	}
}
