package mma

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// These formats are tested: the measured ones, and two made-up ones with 32 and 8 elements in a
// step.
var (
	bf16 = &Format{Bytes: 2, Fraction: 25, LeastExponent: -126}
	f16  = &Format{Bytes: 2, Fraction: 25, LeastExponent: -14, ToF32: func(x uint32) uint32 { return minifloat(x, 5, 10) }}
	e5m2 = &Format{Bytes: 1, Fraction: 13, LeastExponent: -14, ToF32: func(x uint32) uint32 { return minifloat(x, 5, 2) }}
	tf32 = &Format{Bytes: 4, Fraction: 25, LeastExponent: -126, ToF32: func(x uint32) uint32 { return x &^ 0x1fff }}
)

// minifloat returns the FP32 bits of an IEEE number with few exponent and fraction bits.
func minifloat(x uint32, exponentBits, fractionBits int) uint32 {
	sign := x >> (exponentBits + fractionBits) << 31
	exponent := int(x >> fractionBits & (1<<exponentBits - 1))
	fraction := x & (1<<fractionBits - 1)
	bias := 1<<(exponentBits-1) - 1
	switch exponent {
	case 0:
		return sign | math.Float32bits(float32(math.Ldexp(float64(fraction), 1-bias-fractionBits)))
	case 1<<exponentBits - 1:
		return sign | f32Inf | fraction<<(23-fractionBits)
	}
	return sign | uint32(exponent-bias+f32Bias)<<23 | fraction<<(23-fractionBits)
}

// oracle computes a step literally by the rule in the package comment, with unbounded integers.
func oracle(acc uint32, a, b []uint32, f *Format) uint32 {
	type term struct {
		numerator *big.Int // the exact value is numerator * 2^-400
		exponent  int
	}
	scaled := func(x uint32, by int) *big.Int {
		v := new(big.Float).SetMantExp(big.NewFloat(float64(math.Float32frombits(x))), by)
		n, _ := v.Int(nil)
		return n
	}
	element := func(h uint32) term {
		x := f.widen(h)
		return term{scaled(x, 200), max(int(x>>23&0xff)-127, f.LeastExponent)}
	}
	var terms []term
	if acc&^f32Sign != 0 {
		terms = append(terms, term{scaled(acc, 400), max(int(acc>>23&0xff), 1) - 127})
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
	// Integers count units of 2^-400; the quantum is 2^(top-fraction). big.Int.Quo cuts toward
	// zero.
	quantum := new(big.Int).Lsh(big.NewInt(1), uint(top-f.Fraction+400))
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

// cutOracle rounds v toward zero to FP32. A value beyond FP32's range becomes infinite.
func cutOracle(v *big.Float) uint32 {
	bound := new(big.Float).SetMantExp(big.NewFloat(1), 128)
	if new(big.Float).Abs(v).Cmp(bound) >= 0 {
		return math.Float32bits(float32(math.Inf(v.Sign())))
	}
	limit := uint(24)
	if e := v.MantExp(nil); e < -125 { // v = m * 2^e, 0.5 <= m < 1
		if e+149 <= 0 {
			return 0
		}
		limit = uint(e + 149)
	}
	cut := new(big.Float).SetMode(big.ToZero).SetPrec(limit).Set(v)
	r, _ := cut.Float32()
	return math.Float32bits(r)
}

// draw is a distribution from which the accumulator and the elements of one bf16 step are drawn.
type draw struct {
	name    string
	acc     func(r *rand.Rand) uint32
	element func(r *rand.Rand) uint32
}

func f32Bits(x float64) uint32 { return math.Float32bits(float32(x)) }
func bf16Of(x float64) uint32  { return f32Bits(x) >> 16 }

func finite(r *rand.Rand) uint32 {
	for {
		if h := r.Uint32() & 0xffff; h&0x7f80 != 0x7f80 {
			return h
		}
	}
}

var draws = []draw{
	{"uniform",
		func(r *rand.Rand) uint32 { return f32Bits(20 * r.NormFloat64()) },
		func(r *rand.Rand) uint32 { return bf16Of(2*r.Float64() - 1) }},
	{"spread",
		func(r *rand.Rand) uint32 { return f32Bits(math.Ldexp(2*r.Float64()-1, r.IntN(60)-30)) },
		func(r *rand.Rand) uint32 { return bf16Of(math.Ldexp(2*r.Float64()-1, r.IntN(25)-12)) }},
	{"few values, which cancel",
		func(r *rand.Rand) uint32 { return f32Bits(float64(r.IntN(9) - 4)) },
		func(r *rand.Rand) uint32 { return bf16Of([]float64{-1, 1, -0x1p-12, 0x1p-12, -1.5, 1.5}[r.IntN(6)]) }},
	{"zeros",
		func(r *rand.Rand) uint32 { return uint32(r.IntN(2)) << 31 },
		func(r *rand.Rand) uint32 {
			if r.IntN(3) > 0 {
				return uint32(r.IntN(2)) << 15
			}
			return bf16Of(r.NormFloat64())
		}},
	{"subnormals",
		func(r *rand.Rand) uint32 { return r.Uint32() & 0x80ffffff },
		func(r *rand.Rand) uint32 {
			if h := r.Uint32()&0x80ff | uint32(r.IntN(8))<<r.IntN(12)&0x7fff; h&0x7f80 != 0x7f80 {
				return h
			}
			return 1
		}},
	{"any finite",
		func(r *rand.Rand) uint32 { return r.Uint32() &^ 0x40000000 },
		finite},
	{"the largest sums", // accumulator and products near the largest exponent, all with the same sign
		func(r *rand.Rand) uint32 { return f32Bits(1.99999) + uint32(r.IntN(3)) - 1 },
		func(r *rand.Rand) uint32 { return bf16Of(1.9921875) }},
	{"ends of the vector code's range",
		func(r *rand.Rand) uint32 {
			return f32Bits(math.Ldexp(r.Float64(), []int{-92, -89, 119, 121}[r.IntN(4)]))
		},
		func(r *rand.Rand) uint32 {
			return bf16Of(math.Ldexp(1+r.Float64(), []int{-46, -45, -44, 58, 59, 60}[r.IntN(6)]))
		}},
	{"infinities and NaN",
		func(r *rand.Rand) uint32 { return f32Bits([]float64{0, 1, math.Inf(1), math.NaN()}[r.IntN(4)]) },
		func(r *rand.Rand) uint32 {
			return []uint32{0x7f80, 0xff80, 0x7fc0, 0, 0x3f80, 0xbf80}[min(r.IntN(80), 5)]
		}},
}

func TestDotAgainstDefinition(t *testing.T) {
	for _, d := range draws {
		if d.name == "infinities and NaN" {
			continue // the definition in this test has finite numbers only; TestDotByHand checks infinities and NaN
		}
		t.Run(d.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			nonzero := 0
			for range 1500 {
				a, b := make([]uint32, 16), make([]uint32, 16)
				for k := range a {
					a[k], b[k] = d.element(r), d.element(r)
				}
				acc := d.acc(r)
				want := oracle(acc, a, b, bf16)
				require.Equalf(t, want, Dot(acc, a, b, bf16), "acc %08x a %04x b %04x", acc, a, b)
				if want&^f32Sign != 0 {
					nonzero++
				}
			}
			require.Greater(t, nonzero, 300, "the case draws almost only zeros")
		})
	}
}

func TestDotOfOtherFormats(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		format *Format
		mask   uint32 // mask that keeps the elements finite
	}{{f16, 0xbfff}, {e5m2, 0xbf}, {tf32, 0xbfffffff}} {
		for range 1500 {
			a, b := make([]uint32, c.format.Depth()), make([]uint32, c.format.Depth())
			for k := range a {
				a[k], b[k] = r.Uint32()&c.mask, r.Uint32()&c.mask
			}
			acc := f32Bits(r.NormFloat64())
			require.Equalf(t, oracle(acc, a, b, c.format), Dot(acc, a, b, c.format),
				"%d bytes, acc %08x a %x b %x", c.format.Bytes, acc, a, b)
		}
	}
}

func pad(elements []uint32) []uint32 { return append(elements, make([]uint32, 16-len(elements))...) }

// TestDotByHand checks steps that were computed by hand. Each would have another result under a
// rule that is similar to the chip's but wrong.
func TestDotByHand(t *testing.T) {
	one := bf16Of(1)
	bit := func(e int) uint32 { return bf16Of(math.Ldexp(1, e)) }
	tests := []struct {
		name string
		acc  uint32
		a, b []uint32
		want uint32
	}{
		{"25 fraction bits are kept", 0, []uint32{one, bit(-25), bf16Of(-1)}, []uint32{one, one, one}, f32Bits(0x1p-25)},
		{"the 26th is not", 0, []uint32{one, bit(-26), bf16Of(-1)}, []uint32{one, one, one}, 0},
		{"cut of each term is toward zero", 0,
			[]uint32{one, bf16Of(-0x1.8p-25), bf16Of(-1)}, []uint32{one, one, one}, f32Bits(-0x1p-25)},
		// 1.5*1.5 = 2.25 counts as exponent 0, so a term of 2^-25 is not cut off.
		{"products are not normalised", 0,
			[]uint32{bf16Of(1.5), bit(-25), bf16Of(-1.5)}, []uint32{bf16Of(1.5), one, bf16Of(1.5)}, f32Bits(0x1p-25)},
		{"the sum is cut, not rounded", f32Bits(1), []uint32{bit(-24), bit(-25)}, []uint32{one, one}, f32Bits(1)},
		{"also when negative", f32Bits(-1), []uint32{bit(-24), bit(-25)}, []uint32{bf16Of(-1), bf16Of(-1)}, f32Bits(-1)},
		{"carries across terms are exact", f32Bits(1), []uint32{bit(-24), bit(-24)}, []uint32{one, one}, f32Bits(1 + 0x1p-23)},
		{"the accumulator is aligned too", f32Bits(0x1p-30), []uint32{one}, []uint32{one}, f32Bits(1)},
		{"an accumulator of -0 gives +0", f32Sign, nil, nil, 0},
		{"a zero times a large number does not align", f32Bits(0x1p-60), []uint32{0}, []uint32{bit(120)}, f32Bits(0x1p-60)},
		{"the largest exponent", f32Bits(0x1p127), []uint32{bit(63)}, []uint32{bit(63)}, f32Bits(0x1.8p127)},
		{"beyond the range", f32Bits(0x1p127), []uint32{bit(64)}, []uint32{bit(63)}, f32Inf},
		{"infinity", f32Bits(1), []uint32{0x7f80}, []uint32{bf16Of(-2)}, f32Inf | f32Sign},
		{"infinity times zero", f32Bits(1), []uint32{0x7f80}, []uint32{0}, canonicalNaN},
		{"infinities of both signs", 0, []uint32{0x7f80, 0x7f80}, []uint32{one, bf16Of(-1)}, canonicalNaN},
		{"NaN input", 0, []uint32{0x7fc1}, []uint32{one}, canonicalNaN},
		{"infinite accumulator", f32Inf, []uint32{one}, []uint32{one}, f32Inf},
		{"infinite accumulator against infinity", f32Inf, []uint32{0xff80}, []uint32{one}, canonicalNaN},
		{"NaN accumulator", 0x7f800001, []uint32{one}, []uint32{one}, canonicalNaN},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, Dot(c.acc, pad(c.a), pad(c.b), bf16))
		})
	}
}
