package emu

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// oracleDot16 is the definition at the top of wgmma.go taken literally, on
// integers of any size.
func oracleDot16(acc uint32, a, b [16]uint16, f slabFormat) uint32 {
	type term struct {
		numerator *big.Int // value is numerator * 2^-400, exactly
		exponent  int
	}
	element := func(h uint16) term {
		x := f.toF32(h)
		v := new(big.Float).SetMantExp(big.NewFloat(float64(toF32(x))), 200)
		n, _ := v.Int(nil)
		return term{n, max(int(x>>23&0xff)-127, f.leastExponent)}
	}
	var terms []term
	if acc&^f32Sign != 0 {
		v := new(big.Float).SetMantExp(big.NewFloat(float64(toF32(acc))), 400)
		n, _ := v.Int(nil)
		terms = append(terms, term{n, max(int(acc>>23&0xff), 1) - 127})
	}
	for k := range a {
		x, y := element(a[k]), element(b[k])
		if x.numerator.Sign() != 0 && y.numerator.Sign() != 0 {
			terms = append(terms, term{new(big.Int).Mul(x.numerator, y.numerator), x.exponent + y.exponent})
		}
	}
	if len(terms) == 0 {
		return 0
	}
	top := terms[0].exponent
	for _, t := range terms {
		top = max(top, t.exponent)
	}
	// Work in units of 2^-400; the quantum is 2^(top-25). big.Int.Quo cuts
	// toward zero.
	quantum := new(big.Int).Lsh(big.NewInt(1), uint(top-25+400))
	sum := new(big.Int)
	for _, t := range terms {
		sum.Add(sum, new(big.Int).Mul(new(big.Int).Quo(t.numerator, quantum), quantum))
	}
	if sum.Sign() == 0 {
		return 0
	}
	v := new(big.Float).SetPrec(2000).SetMode(big.ToZero).SetInt(sum)
	v.SetMantExp(v, -400)
	return cutOracle(v)
}

// cutOracle rounds toward zero to FP32, beyond its range to infinity.
func cutOracle(v *big.Float) uint32 {
	bound := new(big.Float).SetMantExp(big.NewFloat(1), 128)
	if new(big.Float).Abs(v).Cmp(bound) >= 0 {
		return math.Float32bits(float32(math.Inf(v.Sign())))
	}
	limit := uint(24)
	if e := v.MantExp(nil); e < -125 { // v = m * 2^e, 0.5 <= m < 1
		if e+149 <= 0 {
			if v.Sign() < 0 {
				return f32Sign
			}
			return 0
		}
		limit = uint(e + 149)
	}
	cut := new(big.Float).SetMode(big.ToZero).SetPrec(limit).Set(v)
	r, _ := cut.Float32()
	return math.Float32bits(r)
}

// A slabCase draws the operands of one k16 step.
type slabCase struct {
	name string
	draw func(r *rand.Rand) (acc uint32, a, b [16]uint16)
}

func bf16Of(x float64) uint16 { return bf16FromF32(math.Float32bits(float32(x))) }

func slabCases() []slabCase {
	each := func(f func() uint16) (v [16]uint16) {
		for k := range v {
			v[k] = f()
		}
		return v
	}
	finite := func(r *rand.Rand) uint16 {
		for {
			if h := uint16(r.Uint32()); h&0x7f80 != 0x7f80 {
				return h
			}
		}
	}
	return []slabCase{
		{"uniform", func(r *rand.Rand) (uint32, [16]uint16, [16]uint16) {
			u := func() uint16 { return bf16Of(2*r.Float64() - 1) }
			return math.Float32bits(float32(20 * r.NormFloat64())), each(u), each(u)
		}},
		{"spread", func(r *rand.Rand) (uint32, [16]uint16, [16]uint16) {
			u := func() uint16 { return bf16Of(math.Ldexp(2*r.Float64()-1, r.IntN(25)-12)) }
			acc := math.Ldexp(2*r.Float64()-1, r.IntN(60)-30)
			return math.Float32bits(float32(acc)), each(u), each(u)
		}},
		{"cancellation", func(r *rand.Rand) (uint32, [16]uint16, [16]uint16) {
			u := func() uint16 { return bf16Of(r.NormFloat64()) }
			a, b := each(u), each(u)
			sum := 0.0
			for k := 0; k < 16; k += 2 {
				a[k+1], b[k+1] = a[k], b[k]^0x8000
			}
			b[15] ^= uint16(r.IntN(2)) // sometimes not quite
			if r.IntN(2) == 0 {
				a[0] = 0
				sum = float64(toF32(f32FromBF16(a[1]))) * float64(toF32(f32FromBF16(b[1])))
			}
			return math.Float32bits(float32(-sum)), a, b
		}},
		{"zeros", func(r *rand.Rand) (uint32, [16]uint16, [16]uint16) {
			u := func() uint16 {
				if r.IntN(3) > 0 {
					return uint16(r.IntN(2)) << 15
				}
				return finite(r)
			}
			return uint32(r.IntN(2)) << 31, each(u), each(u)
		}},
		{"subnormals", func(r *rand.Rand) (uint32, [16]uint16, [16]uint16) {
			u := func() uint16 { return uint16(r.Uint32())&0x80ff | uint16(r.IntN(8))<<r.IntN(12)&0x7fff }
			v := func() uint16 {
				if h := u(); h&0x7f80 != 0x7f80 {
					return h
				}
				return 1
			}
			return r.Uint32() & 0x80ffffff, each(v), each(v)
		}},
		{"any finite", func(r *rand.Rand) (uint32, [16]uint16, [16]uint16) {
			acc := r.Uint32()
			if acc&f32Inf == f32Inf {
				acc &= f32Sign
			}
			u := func() uint16 { return finite(r) }
			return acc, each(u), each(u)
		}},
	}
}

func TestDot16AgainstDefinition(t *testing.T) {
	for _, c := range slabCases() {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			nonzero := 0
			for range 1500 {
				acc, a, b := c.draw(r)
				var x, y [1]slabRow
				bf16Slab.decode(x[:], a[:], false)
				bf16Slab.decode(y[:], b[:], false)
				want := oracleDot16(acc, a, b, bf16Slab)
				require.Equalf(t, want, dot16(acc, &x[0], &y[0]), "acc %08x a %04x b %04x", acc, a, b)
				if want&^f32Sign != 0 {
					nonzero++
				}
			}
			require.Greater(t, nonzero, 300, "the case draws almost only zeros")
		})
	}
}

func TestDot16OfF16(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		var a, b [16]uint16
		for k := range a {
			a[k], b[k] = uint16(r.Uint32())&0xbfff, uint16(r.Uint32())&0xbfff
		}
		acc := math.Float32bits(float32(r.NormFloat64()))
		var x, y [1]slabRow
		f16Slab.decode(x[:], a[:], false)
		f16Slab.decode(y[:], b[:], false)
		require.Equalf(t, oracleDot16(acc, a, b, f16Slab), dot16(acc, &x[0], &y[0]), "acc %08x a %04x b %04x", acc, a, b)
	}
}

// Hand-worked steps, each of which tells the rule from a neighbour of it.
func TestDot16ByHand(t *testing.T) {
	one := bf16Of(1)
	bit := func(e int) uint16 { return bf16Of(math.Ldexp(1, e)) }
	f := func(x float64) uint32 { return math.Float32bits(float32(x)) }
	tests := []struct {
		name string
		acc  uint32
		a, b []uint16
		want uint32
	}{
		{"25 fraction bits are kept", 0, []uint16{one, bit(-25), bf16Of(-1)}, []uint16{one, one, one}, f(0x1p-25)},
		{"the 26th is not", 0, []uint16{one, bit(-26), bf16Of(-1)}, []uint16{one, one, one}, 0},
		{"cut of each term is toward zero", 0,
			[]uint16{one, bf16Of(-0x1.8p-25), bf16Of(-1)}, []uint16{one, one, one}, f(-0x1p-25)},
		// 1.5*1.5 = 2.25 counts as exponent 0: 2^-25 survives beside it.
		{"products are not normalised", 0,
			[]uint16{bf16Of(1.5), bit(-25), bf16Of(-1.5)}, []uint16{bf16Of(1.5), one, bf16Of(1.5)}, f(0x1p-25)},
		{"the sum is cut, not rounded", f(1), []uint16{bit(-24), bit(-25)}, []uint16{one, one}, f(1)},
		{"also when negative", f(-1), []uint16{bit(-24), bit(-25)}, []uint16{bf16Of(-1), bf16Of(-1)}, f(-1)},
		{"carries across terms are exact", f(1), []uint16{bit(-24), bit(-24)}, []uint16{one, one}, f(1 + 0x1p-23)},
		{"the accumulator is aligned too", f(0x1p-30), []uint16{one}, []uint16{one}, f(1)},
		{"an accumulator of -0 gives +0", f32Sign, nil, nil, 0},
		{"a zero times a large number does not align", f(0x1p-60), []uint16{0}, []uint16{bit(120)}, f(0x1p-60)},
		{"the largest exponent", f(0x1p127), []uint16{bit(63)}, []uint16{bit(63)}, f(0x1.8p127)},
		{"beyond the range", f(0x1p127), []uint16{bit(64)}, []uint16{bit(63)}, f32Inf},
		{"infinity", f(1), []uint16{0x7f80}, []uint16{bf16Of(-2)}, f32Inf | f32Sign},
		{"infinity times zero", f(1), []uint16{0x7f80}, []uint16{0}, canonicalNaN},
		{"infinities of both signs", 0, []uint16{0x7f80, 0x7f80}, []uint16{one, bf16Of(-1)}, canonicalNaN},
		{"NaN input", 0, []uint16{0x7fc1}, []uint16{one}, canonicalNaN},
		{"infinite accumulator", f32Inf, []uint16{one}, []uint16{one}, f32Inf},
		{"infinite accumulator against infinity", f32Inf, []uint16{0xff80}, []uint16{one}, canonicalNaN},
		{"NaN accumulator", 0x7f800001, []uint16{one}, []uint16{one}, canonicalNaN},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			var a, b [16]uint16
			copy(a[:], c.a)
			copy(b[:], c.b)
			var x, y [1]slabRow
			bf16Slab.decode(x[:], a[:], false)
			bf16Slab.decode(y[:], b[:], false)
			require.Equal(t, c.want, dot16(c.acc, &x[0], &y[0]))
		})
	}
}

func TestMMA(t *testing.T) {
	const m, n = 64, 24
	r := rand.New(rand.NewPCG(5, 6))
	a, b := make([]uint16, m*16), make([]uint16, n*16)
	for i := range a {
		a[i] = bf16Of(r.NormFloat64())
	}
	for i := range b {
		b[i] = bf16Of(r.NormFloat64())
	}
	acc := make([]uint32, m*n)
	for i := range acc {
		acc[i] = math.Float32bits(r.Float32())
	}
	x, y := make([]slabRow, m), make([]slabRow, n)
	for _, negate := range []bool{false, true} {
		got := append([]uint32(nil), acc...)
		bf16Slab.decode(x, a, negate)
		bf16Slab.decode(y, b, false)
		mma(got, x, y)
		for i := range m {
			for j := range n {
				row := [16]uint16(a[i*16:])
				if negate {
					for k := range row {
						row[k] ^= 0x8000
					}
				}
				require.Equal(t, oracleDot16(acc[i*n+j], row, [16]uint16(b[j*16:]), bf16Slab), got[i*n+j])
			}
		}
	}
}

func BenchmarkMMA64x256(b *testing.B) {
	const m, n = 64, 256
	r := rand.New(rand.NewPCG(7, 8))
	elements := make([]uint16, n*16)
	for i := range elements {
		elements[i] = bf16Of(r.NormFloat64())
	}
	acc := make([]uint32, m*n)
	x, y := make([]slabRow, m), make([]slabRow, n)
	for b.Loop() {
		bf16Slab.decode(x, elements, false)
		bf16Slab.decode(y, elements, false)
		mma(acc, x, y)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(m*n), "ns/dot16")
}
