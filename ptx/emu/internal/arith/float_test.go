package arith

import (
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/emu/internal/lanes"
)

// divF32 computes div.rn{.ftz}.f32 with the exact arithmetic.
func divF32(a, b uint32, ftz bool) uint32 {
	x, y := float64(ToF32(FlushIf(ftz, a))), float64(ToF32(FlushIf(ftz, b)))
	return FlushIf(ftz, uint32(Format32.Encode(Format32.Compute(OpDiv, RoundNearest, x, y, 0))))
}

// sqrtF32 computes sqrt.rn{.ftz}.f32 with the exact arithmetic.
func sqrtF32(a uint32, ftz bool) uint32 {
	return uint32(Format32.Encode(Format32.Compute(OpSqrt, RoundNearest, float64(ToF32(FlushIf(ftz, a))), 0, 0)))
}

func f32(x float64) uint32 { return math.Float32bits(float32(x)) }

const (
	leastSubnormal = 0x00000001
	leastNormal    = 0x00800000
	signalling     = 0xff800001
)

// randomF32 returns random FP32 bits, many of them near the ends of the range.
func randomF32(r *rand.Rand) uint32 {
	x := r.Uint32()
	switch r.IntN(4) {
	case 0: // numbers near 1, whose products and sums have similar sizes
		x = x&0x807fffff | (124+uint32(r.IntN(6)))<<23
	case 1: // numbers with few significant bits, whose results are often ties
		x &= 0xffff8000
	case 2: // numbers near the subnormal range
		x = x&0x807fffff | uint32(r.IntN(3))<<23
	}
	if x&F32Inf == F32Inf {
		x &= 0xbfffffff
	}
	return x
}

// roundOracle rounds an exact number to the nearest FP32 number, ties to even.
func roundOracle(v *big.Float) uint32 {
	r, _ := v.Float32()
	return math.Float32bits(r)
}

func TestArithmeticAgainstExact(t *testing.T) {
	exact := func(x uint32) *big.Float { return new(big.Float).SetPrec(1000).SetFloat64(float64(ToF32(x))) }
	r := rand.New(rand.NewPCG(1, 1))
	for range 60000 {
		a, b, c := randomF32(r), randomF32(r), randomF32(r)
		if r.IntN(3) == 0 { // c nearly cancels the product a*b
			c = FromF32(-ToF32(MulF32(a, b, false)))
			c ^= uint32(r.IntN(4))
			if c&F32Inf == F32Inf {
				c = 0
			}
		}
		product := exact(0).Mul(exact(a), exact(b))
		if want := roundOracle(product); want&^F32Sign != 0 {
			require.Equal(t, want, MulF32(a, b, false), "%08x * %08x", a, b)
		}
		if want := roundOracle(exact(0).Add(exact(a), exact(b))); want&^F32Sign != 0 {
			require.Equal(t, want, AddF32(a, b, false), "%08x + %08x", a, b)
		}
		if want := roundOracle(exact(0).Add(product, exact(c))); want&^F32Sign != 0 {
			require.Equal(t, want, FmaF32(a, b, c, false), "%08x * %08x + %08x", a, b, c)
		}
	}
}

// TestFMARoundsOnce checks a case in which rounding first to float64 and then to FP32 is wrong: the
// sum exceeds a tie of FP32 by less than float64 can represent.
func TestFMARoundsOnce(t *testing.T) {
	a, b, c := f32(1+0x1p-12), f32(1+0x1p-12), f32(0x1p-60)
	naive := math.Float32bits(float32(float64(ToF32(a))*float64(ToF32(b)) + float64(ToF32(c))))
	got := FmaF32(a, b, c, false)
	require.Equal(t, f32(1+0x1p-11+0x1p-23), got)
	require.NotEqual(t, naive, got)
	require.Equal(t, f32(1+0x1p-11), FmaF32(a, b, c^F32Sign, false))
}

func TestArithmeticSpecialCases(t *testing.T) {
	inf, one, zero := uint32(F32Inf), f32(1), uint32(0)
	for name, c := range map[string][2]uint32{
		"inf-inf":                 {SubF32(inf, inf, false), canonicalNaN},
		"inf*0":                   {MulF32(inf, zero, false), canonicalNaN},
		"fma inf*0+1":             {FmaF32(inf, zero, one, false), canonicalNaN},
		"fma inf*1-inf":           {FmaF32(inf, one, inf|F32Sign, false), canonicalNaN},
		"NaN made canonical":      {AddF32(signalling, one, false), canonicalNaN},
		"-0 + -0":                 {AddF32(F32Sign, F32Sign, false), F32Sign},
		"1 - 1":                   {SubF32(one, one, false), 0},
		"fma cancels to +0":       {FmaF32(one, one, one|F32Sign, false), 0},
		"add keeps subnormals":    {AddF32(leastSubnormal, leastSubnormal, false), 2},
		"add.ftz inputs":          {AddF32(leastSubnormal|F32Sign, leastSubnormal|F32Sign, true), F32Sign},
		"add.ftz result":          {SubF32(leastNormal+1, leastNormal, true), 0},
		"mul.ftz result sign":     {MulF32(leastNormal|F32Sign, f32(0.5), true), F32Sign},
		"mul without ftz":         {MulF32(leastNormal|F32Sign, f32(0.5), false), F32Sign | 0x400000},
		"fma.ftz input":           {FmaF32(one, one, leastSubnormal, true), one},
		"fma.ftz result":          {FmaF32(leastNormal, f32(-0.5), zero, true), F32Sign},
		"div by zero":             {divF32(one, F32Sign, false), inf | F32Sign},
		"div.ftz by subnormal":    {divF32(one, leastSubnormal, true), inf},
		"overflow":                {MulF32(0x7f7fffff, f32(2), false), inf},
		"fma overflows once":      {FmaF32(0x7f7fffff, f32(2), 0xff7fffff, false), 0x7f7fffff},
		"sqrt.rn":                 {sqrtF32(f32(2), false), f32(math.Sqrt2)},
		"sqrt.rn of negative":     {sqrtF32(f32(-1), false), canonicalNaN},
		"max(+0,-0)":              {MaxF32(zero, F32Sign, false, false), 0},
		"max(-0,+0)":              {MaxF32(F32Sign, zero, false, false), 0},
		"min(+0,-0)":              {MinF32(zero, F32Sign, false, false), F32Sign},
		"min(-0,+0)":              {MinF32(F32Sign, zero, false, false), F32Sign},
		"max drops NaN":           {MaxF32(signalling, one, false, false), one},
		"min drops NaN":           {MinF32(one, signalling, false, false), one},
		"max.NaN":                 {MaxF32(signalling, one, false, true), canonicalNaN},
		"min.NaN":                 {MinF32(one, signalling, false, true), canonicalNaN},
		"max of NaNs":             {MaxF32(signalling, signalling, false, false), canonicalNaN},
		"min of NaNs":             {MinF32(signalling, signalling, false, false), canonicalNaN},
		"max.ftz":                 {MaxF32(leastSubnormal, F32Sign, true, false), 0},
		"max of negative numbers": {MaxF32(f32(-2), f32(-1), false, false), f32(-1)},
		"min of mixed":            {MinF32(f32(-2), f32(1), false, false), f32(-2)},
		"max with inf":            {MaxF32(inf|F32Sign, f32(-1), false, false), f32(-1)},
	} {
		assert.Equalf(t, c[1], c[0], "%s: %08x", name, c[0])
	}
}

func TestApproximateFunctions(t *testing.T) {
	const inf, negInf, negZero = F32Inf, F32Inf | F32Sign, F32Sign
	subnormal := uint32(0x00400000) // 2^-127
	tests := []struct {
		name string
		ftz  bool
		x    uint32
		want uint32
	}{
		{"ex2", false, f32(3), f32(8)}, {"ex2", false, f32(-149), leastSubnormal},
		{"ex2", true, f32(-127), 0}, {"ex2", false, negInf, 0}, {"ex2", false, inf, inf},
		{"ex2", false, negZero, f32(1)}, {"ex2", true, subnormal, f32(1)}, {"ex2", false, f32(128), inf},
		{"ex2", false, signalling, canonicalNaN},
		{"lg2", false, f32(8), f32(3)}, {"lg2", false, f32(1), 0}, {"lg2", false, 0, negInf},
		{"lg2", false, negZero, negInf}, {"lg2", false, f32(-1), canonicalNaN}, {"lg2", false, inf, inf},
		{"lg2", false, subnormal, f32(-127)}, {"lg2", true, subnormal, negInf},
		{"rcp", false, f32(4), f32(0.25)}, {"rcp", false, negZero, negInf}, {"rcp", false, negInf, negZero},
		{"rcp", false, f32(0x1p127), subnormal}, {"rcp", true, f32(0x1p127), 0},
		{"rcp", true, subnormal | F32Sign, negInf}, {"rcp", false, subnormal, f32(0x1p127)},
		{"rsqrt", false, f32(4), f32(0.5)}, {"rsqrt", false, 0, inf}, {"rsqrt", false, negZero, negInf},
		{"rsqrt", false, inf, 0}, {"rsqrt", false, f32(-1), canonicalNaN}, {"rsqrt", true, subnormal, inf},
		{"sqrt", false, f32(9), f32(3)}, {"sqrt", false, negZero, negZero}, {"sqrt", false, f32(-1), canonicalNaN},
		{"sqrt", false, negInf, canonicalNaN}, {"sqrt", true, subnormal | F32Sign, negZero},
		{"tanh", false, inf, f32(1)}, {"tanh", false, negInf, f32(-1)}, {"tanh", false, negZero, negZero},
		{"tanh", false, subnormal, subnormal}, {"tanh", false, signalling, canonicalNaN},
		{"sin", false, inf, canonicalNaN}, {"sin", false, negZero, negZero}, {"cos", false, 0, f32(1)},
	}
	for _, c := range tests {
		got := Approx[c.name](c.x, c.ftz)
		assert.Equalf(t, c.want, got, "%s(%08x) ftz=%v = %08x", c.name, c.x, c.ftz, got)
	}
	// For values that are no special cases, check identities instead of repeating the formula.
	r := rand.New(rand.NewPCG(9, 9))
	for range 2000 {
		x := math.Abs(float64(ToF32(f32(math.Exp(4 * r.NormFloat64())))))
		l := float64(ToF32(lg2Approx(f32(x), false)))
		require.InEpsilon(t, x, math.Pow(2, l), 1e-7*max(1, math.Abs(l)))
		require.InEpsilon(t, 1, x*float64(ToF32(rcpApprox(f32(x), false))), 1.2e-7)
		require.InEpsilon(t, 1, x*math.Pow(float64(ToF32(RsqrtApprox(f32(x), false))), 2), 2.4e-7)
		e := math.Exp(2 * x)
		if x < 8 {
			require.InEpsilon(t, 1-2/(e+1), float64(ToF32(tanhApprox(f32(x), false))), 1e-6)
		}
	}
}

func TestFloatCompare(t *testing.T) {
	nan := uint32(canonicalNaN)
	pairs := []struct {
		a, b uint32
		hold string // names of the comparisons that are true
	}{
		{f32(1), f32(2), "ne lt le neu ltu leu num"},
		{f32(2), f32(1), "ne gt ge neu gtu geu num"},
		{0, F32Sign, "eq le ge equ leu geu num"},
		{F32Inf, F32Inf, "eq le ge equ leu geu num"},
		{nan, f32(1), "equ neu ltu leu gtu geu nan"},
		{f32(1), nan, "equ neu ltu leu gtu geu nan"},
		{nan, nan, "equ neu ltu leu gtu geu nan"},
	}
	require.Len(t, Compares, 14)
	for _, p := range pairs {
		want := map[string]bool{}
		for _, name := range strings.Fields(p.hold) {
			want[name] = true
		}
		for name, c := range Compares {
			assert.Equalf(t, want[name], c.F32(p.a, p.b, false), "%s %08x %08x", name, p.a, p.b)
		}
	}
	assert.True(t, Compares["gt"].F32(leastSubnormal, 0, false))
	assert.False(t, Compares["gt"].F32(leastSubnormal, 0, true))
}

// TestWholeWarpArithmetic checks that the vector code for whole warps computes the same as the code
// for single lanes.
func TestWholeWarpArithmetic(t *testing.T) {
	special := []uint32{0, F32Sign, 1, F32Sign | 1, leastNormal, leastNormal - 1, 0x7f7fffff, F32Inf, F32Sign | F32Inf, signalling, 0x7fc12345}
	r := rand.New(rand.NewPCG(21, 22))
	draw := func() (v lanes.Vector) {
		for l := range v {
			if v[l] = randomF32(r); r.IntN(4) == 0 {
				v[l] = special[r.IntN(len(special))]
			}
		}
		return v
	}
	for range 4000 {
		a, b, c := draw(), draw(), draw()
		for _, ftz := range []bool{false, true} {
			for name, op := range map[string]struct {
				all func(d *lanes.Vector) bool
				one func(l int) uint32
			}{
				"add": {func(d *lanes.Vector) bool { return lanes.Add(d, &a, &b, false, ftz) }, func(l int) uint32 { return AddF32(a[l], b[l], ftz) }},
				"sub": {func(d *lanes.Vector) bool { return lanes.Add(d, &a, &b, true, ftz) }, func(l int) uint32 { return SubF32(a[l], b[l], ftz) }},
				"mul": {func(d *lanes.Vector) bool { return lanes.Multiply(d, &a, &b, ftz) }, func(l int) uint32 { return MulF32(a[l], b[l], ftz) }},
				"fma": {func(d *lanes.Vector) bool { return lanes.MultiplyAdd(d, &a, &b, &c, ftz) }, func(l int) uint32 { return FmaF32(a[l], b[l], c[l], ftz) }},
			} {
				var d lanes.Vector
				if !op.all(&d) {
					t.Skip("this CPU has no code for whole warps")
				}
				for l := range d {
					if want := op.one(l); d[l] != want {
						t.Fatalf("%s ftz=%v of %08x, %08x, %08x: %08x, want %08x", name, ftz, a[l], b[l], c[l], d[l], want)
					}
				}
			}
		}
	}
}

// TestFlushedQuotients checks .ftz for quotients: a subnormal operand or result becomes a zero of
// its sign.
func TestFlushedQuotients(t *testing.T) {
	f := math.Float32bits
	const tiny = 1e-40
	for _, c := range []struct {
		a, b       float32
		plain, ftz float32
	}{
		{tiny, 1, tiny, 0},
		{1e-38, 1e4, 1e-42, 0},
		{3, 2, 1.5, 1.5},
		{1, tiny, float32(math.Inf(1)), float32(math.Inf(1))},
		{0x1p-126, 0x1p-1, 0x1p-125, 0x1p-125},
		{1e30, 0x1p-130, float32(math.Inf(1)), float32(math.Inf(1))},
		{1e-30, 0x1p-130, 1e-30 / 0x1p-130, float32(math.Inf(1))},
	} {
		assert.Equal(t, f(c.plain), divF32(f(c.a), f(c.b), false), "%g / %g", c.a, c.b)
		assert.Equal(t, f(c.ftz), divF32(f(c.a), f(c.b), true), "%g / %g, flushed", c.a, c.b)
	}
	assert.Equal(t, f(float32(math.Copysign(0, -1))), divF32(f(-tiny), f(1), true))
}
