package ptx_test

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

// binary is an operation with two inputs: the builder's method, and the same function in Go.
type binary struct {
	name string
	emit func(a, b ptx.U32) ptx.U32
	eval func(a, b uint32) uint32
}

func flag(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

func toFlag(p ptx.Pred) ptx.U32 { return ptx.Select(p, ptx.Uint(1), ptx.Uint(0)) }

var binaries = []binary{
	{"add", ptx.U32.Add, func(a, b uint32) uint32 { return a + b }},
	{"sub", ptx.U32.Sub, func(a, b uint32) uint32 { return a - b }},
	{"mul", ptx.U32.Mul, func(a, b uint32) uint32 { return a * b }},
	{"mul.hi", ptx.U32.MulHi, func(a, b uint32) uint32 { return uint32(uint64(a) * uint64(b) >> 32) }},
	{"div", ptx.U32.Div, func(a, b uint32) uint32 { return a / b }},
	{"rem", ptx.U32.Rem, func(a, b uint32) uint32 { return a % b }},
	{"min", ptx.U32.Min, func(a, b uint32) uint32 { return min(a, b) }},
	{"max", ptx.U32.Max, func(a, b uint32) uint32 { return max(a, b) }},
	{"and", ptx.U32.And, func(a, b uint32) uint32 { return a & b }},
	{"or", ptx.U32.Or, func(a, b uint32) uint32 { return a | b }},
	{"xor", ptx.U32.Xor, func(a, b uint32) uint32 { return a ^ b }},
	{"shl", ptx.U32.Shl, func(a, b uint32) uint32 { return a << b }},
	{"shr", ptx.U32.Shr, func(a, b uint32) uint32 { return a >> b }},
	{"not", func(a, _ ptx.U32) ptx.U32 { return a.Not() }, func(a, _ uint32) uint32 { return ^a }},
	{"popc", func(a, _ ptx.U32) ptx.U32 { return a.Popc() }, func(a, _ uint32) uint32 { return uint32(bits.OnesCount32(a)) }},
	{"clz", func(a, _ ptx.U32) ptx.U32 { return a.Clz() }, func(a, _ uint32) uint32 { return uint32(bits.LeadingZeros32(a)) }},
	{"mad", func(a, b ptx.U32) ptx.U32 { return a.Mad(b, a) }, func(a, b uint32) uint32 { return a*b + a }},
	{"wide", func(a, b ptx.U32) ptx.U32 { _, hi := a.MulWide(b).Unpack(); return hi }, func(a, b uint32) uint32 { return uint32(uint64(a) * uint64(b) >> 32) }},
	{"add s32", func(a, b ptx.U32) ptx.U32 { return a.Signed().Add(b.Signed()).Bits() }, func(a, b uint32) uint32 { return a + b }},
	{"min s32", func(a, b ptx.U32) ptx.U32 { return a.Signed().Min(b.Signed()).Bits() }, func(a, b uint32) uint32 { return uint32(min(int32(a), int32(b))) }},
	{"div s32", func(a, b ptx.U32) ptx.U32 { return a.Signed().Div(b.Signed()).Bits() }, func(a, b uint32) uint32 { return uint32(int32(a) / int32(b)) }},
	{"rem s32", func(a, b ptx.U32) ptx.U32 { return a.Signed().Rem(b.Signed()).Bits() }, func(a, b uint32) uint32 { return uint32(int32(a) % int32(b)) }},
	{"shr s32", func(a, b ptx.U32) ptx.U32 { return a.Signed().Shr(b).Bits() }, func(a, b uint32) uint32 { return uint32(int32(a) >> min(b, 31)) }},
	{"mul.hi s32", func(a, b ptx.U32) ptx.U32 { return a.Signed().MulHi(b.Signed()).Bits() }, func(a, b uint32) uint32 { return uint32(int64(int32(a)) * int64(int32(b)) >> 32) }},
	{"lt", func(a, b ptx.U32) ptx.U32 { return toFlag(a.Lt(b)) }, func(a, b uint32) uint32 { return flag(a < b) }},
	{"ge s32", func(a, b ptx.U32) ptx.U32 { return toFlag(a.Signed().Ge(b.Signed())) }, func(a, b uint32) uint32 { return flag(int32(a) >= int32(b)) }},
	{"ne and", func(a, b ptx.U32) ptx.U32 { return toFlag(a.Ne(b).And(b.EqI(3).Negated())) }, func(a, b uint32) uint32 { return flag(a != b && b != 3) }},
	{"or xor", func(a, b ptx.U32) ptx.U32 { return toFlag(a.Le(b).Or(b.Gt(a)).Xor(a.EqI(1).Not())) }, func(a, b uint32) uint32 { return flag(a <= b != (a != 1)) }},
}

// TestFoldingAndSimplifyingKeepTheMeaning checks that each operation returns the same bits whether
// its inputs are two registers, a constant on either side, or two constants.
func TestFoldingAndSimplifyingKeepTheMeaning(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	special := []uint32{0, 1, 2, 3, 5, 8, 31, 32, 33, 64, 1 << 16, 1<<31 - 1, 1 << 31, 1<<32 - 1}
	draw := func() uint32 {
		if rng.IntN(3) == 0 {
			return rng.Uint32()
		}
		return special[rng.IntN(len(special))]
	}
	pairs := 150
	if testing.Short() {
		pairs = 40
	}
	for _, op := range binaries {
		for range pairs {
			a, b := draw(), draw()
			if b == 0 && (strings.HasPrefix(op.name, "div") || strings.HasPrefix(op.name, "rem")) {
				b = 7
			}
			want := op.eval(a, b)
			for form := range 4 {
				k := ptx.NewKernel("k")
				x, y := ptx.Uint(int(a)), ptx.Uint(int(b))
				if form&1 != 0 {
					x = k.ParamU32("a")
				}
				if form&2 != 0 {
					y = k.ParamU32("b")
				}
				got := op.emit(x, y)
				if form == 0 {
					c, ok := got.Const()
					require.True(t, ok, "%s of constants is not folded", op.name)
					require.Equal(t, want, c, "%s(%d, %d)", op.name, a, b)
					continue
				}
				ptx.StGlobal(k.ParamPtr("out"), got)
				m, err := k.Build()
				require.NoError(t, err)
				require.Equal(t, want, run(t, m, map[string]uint32{"a": a, "b": b}), "%s(%d, %d)\n%s", op.name, a, b, m.Print().PTX)
			}
		}
	}
}

// TestDivisionByConstants checks division at the dividends where the quotient changes.
func TestDivisionByConstants(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	divisors := []uint32{3, 5, 6, 7, 9, 10, 12, 60, 641, 65535, 65537, 1<<31 - 1, 1<<31 + 1, 1<<32 - 1, 1<<32 - 2}
	for range 40 {
		divisors = append(divisors, 1+rng.Uint32()>>rng.IntN(31))
	}
	for _, d := range divisors {
		k := ptx.NewKernel("k")
		n := k.ParamU32("n")
		ptx.StGlobal(k.ParamPtr("out"), n.DivI(int(d)))
		m, err := k.Build()
		require.NoError(t, err)
		last := math.MaxUint32 / d * d
		for _, x := range []uint32{0, 1, d - 1, d, d + 1, 2*d - 1, 2 * d, last - 1, last, math.MaxUint32, 1 << 31, rng.Uint32(), rng.Uint32()} {
			require.Equal(t, x/d, run(t, m, map[string]uint32{"n": x}), "%d / %d", x, d)
		}
	}
}

// run interprets the straight-line code of a module, and returns the value that the code stores.
func run(t *testing.T, m *ptx.Module, params map[string]uint32) uint32 {
	t.Helper()
	regs := make([]uint64, len(m.Entries[0].Registers))
	value := func(o ptx.Operand) uint64 {
		switch o.Kind {
		case ptx.OpReg:
			return regs[o.Reg]
		case ptx.OpNotReg:
			return 1 - regs[o.Reg]
		}
		return uint64(o.Imm)
	}
	for _, in := range m.Entries[0].Body {
		f, arg := in.Form, func(i int) uint64 { return value(in.Args[i]) }
		var d uint64
		switch f.ID {
		case isa.LdParam:
			d = uint64(params[in.Args[1].Sym])
		case isa.StGlobal:
			return uint32(arg(1))
		case isa.CvtaToGlobal, isa.Mov:
			d = arg(1)
		case isa.Unpack64:
			regs[in.Args[0].List[0].Reg], regs[in.Args[0].List[1].Reg] = arg(1)&math.MaxUint32, arg(1)>>32
			continue
		case isa.Selp:
			if d = arg(2); arg(3)&1 != 0 {
				d = arg(1)
			}
		case isa.Not:
			if d = ^arg(1); f.Mod(in.Mods, "type") == ".pred" {
				d = 1 - arg(1)
			} else {
				d &= math.MaxUint32
			}
		case isa.Popc:
			d = uint64(bits.OnesCount32(uint32(arg(1))))
		case isa.Clz:
			d = uint64(bits.LeadingZeros32(uint32(arg(1))))
		default:
			var c uint64
			if len(in.Args) > 3 {
				c = arg(3)
			}
			d = integer(t, f, in.Mods, arg(1), arg(2), c)
		}
		regs[in.Args[0].Reg] = d
	}
	t.Fatal("nothing is stored")
	return 0
}

// integer computes an instruction with two or three 32-bit inputs by big integers. It does not use
// the builder's folding.
func integer(t *testing.T, f *isa.Form, m isa.Mods, a, b, c uint64) uint64 {
	t.Helper()
	signed := f.ArgType(m, 1).Signed()
	wide := func(x uint64) *big.Int {
		if signed {
			return big.NewInt(int64(int32(x)))
		}
		return big.NewInt(int64(uint32(x)))
	}
	x, y, d := wide(a), wide(b), new(big.Int)
	shift := uint(min(uint32(b), 64))
	switch f.ID {
	case isa.Add:
		d.Add(x, y)
	case isa.Sub:
		d.Sub(x, y)
	case isa.MulLo, isa.MulWide:
		d.Mul(x, y)
	case isa.MulHi:
		d.Rsh(d.Mul(x, y), 32)
	case isa.MadLo:
		d.Add(d.Mul(x, y), wide(c))
	case isa.Div:
		d.Quo(x, y)
	case isa.Rem:
		d.Rem(x, y)
	case isa.Min, isa.Max:
		if d = x; (x.Cmp(y) < 0) != (f.ID == isa.Min) {
			d = y
		}
	case isa.And:
		d.And(x, y)
	case isa.Or:
		d.Or(x, y)
	case isa.Xor:
		d.Xor(x, y)
	case isa.Shl:
		d.Lsh(x, shift)
	case isa.Shr:
		d.Rsh(x, shift)
	case isa.Setp:
		n := x.Cmp(y)
		return uint64(flag(map[string]bool{".eq": n == 0, ".ne": n != 0, ".lt": n < 0, ".le": n <= 0, ".gt": n > 0, ".ge": n >= 0}[f.Mod(m, "cmp")]))
	default:
		t.Fatalf("no evaluation of %s", f.Name)
	}
	width := uint(f.ArgType(m, 0).Bits())
	return d.And(d, new(big.Int).SetUint64(^uint64(0)>>(64-width))).Uint64()
}

// TestSimplifications checks the number of instructions that remain, besides the load of the
// parameter, if one operand is a constant.
func TestSimplifications(t *testing.T) {
	for i, c := range []struct {
		body func(k *ptx.Kernel, n ptx.U32)
		want []string
	}{
		{func(k *ptx.Kernel, n ptx.U32) { ptx.Uint(3).AddI(4).MulI(5).ShlI(1) }, nil},
		{func(k *ptx.Kernel, n ptx.U32) {
			n.AddI(0)
			n.SubI(0)
			n.MulI(1)
			n.DivI(1)
			n.OrI(0)
			n.XorI(0)
			n.ShlI(0)
			n.ShrI(0)
		}, nil},
		{func(k *ptx.Kernel, n ptx.U32) { n.MulI(0); ptx.Uint(0).Mul(n); ptx.Uint(1).Mul(n); ptx.Uint(0).Add(n) }, nil},
		{func(k *ptx.Kernel, n ptx.U32) { n.DivI(8) }, []string{"shr.u32 %r1, %r0, 3;"}},
		{func(k *ptx.Kernel, n ptx.U32) { n.RemI(8) }, []string{"and.b32 %r1, %r0, 7;"}},
		{func(k *ptx.Kernel, n ptx.U32) { n.DivI(6); n.RemI(6) }, []string{
			"mul.hi.u32 %r1, %r0, 1431655766;", "sub.u32 %r2, %r0, %r1;", "shr.u32 %r3, %r2, 1;", "add.u32 %r4, %r3, %r1;", "shr.u32 %r5, %r4, 2;",
			"mul.hi.u32 %r6, %r0, 1431655766;", "sub.u32 %r7, %r0, %r6;", "shr.u32 %r8, %r7, 1;", "add.u32 %r9, %r8, %r6;", "shr.u32 %r10, %r9, 2;",
			"mul.lo.u32 %r11, %r10, 6;", "sub.u32 %r12, %r0, %r11;"}},
		{func(k *ptx.Kernel, n ptx.U32) { n.Signed().DivI(8) }, []string{"div.s32 %r1, %r0, 8;"}},
		{func(k *ptx.Kernel, n ptx.U32) { n.Mad(ptx.Uint(1), n) }, []string{"add.u32 %r1, %r0, %r0;"}},
		{func(k *ptx.Kernel, n ptx.U32) { n.U64().Add(ptx.Uint(3).MulWideI(5)) }, []string{"cvt.u64.u32 %d0, %r0;", "add.u64 %d1, %d0, 15;"}},
		{func(k *ptx.Kernel, n ptx.U32) { ptx.Uint(3).MadWide(ptx.Uint(5), n.U64()) }, []string{"cvt.u64.u32 %d0, %r0;", "add.u64 %d1, %d0, 15;"}},
		{func(k *ptx.Kernel, n ptx.U32) {
			p := n.EqI(0)
			p.And(ptx.True())
			p.Or(ptx.False())
			p.Xor(ptx.True())
			p.Not()
			p.And(ptx.False())
		}, []string{"setp.eq.u32 %p0, %r0, 0;"}},
		{func(k *ptx.Kernel, n ptx.U32) { n.SubI(-1); n.Signed().AddI(-1) }, []string{"sub.u32 %r1, %r0, 4294967295;", "add.s32 %r2, %r0, -1;"}},
		{func(k *ptx.Kernel, n ptx.U32) { ptx.Uint(9).ReduxAdd(); ptx.Uint(9).ReduxMax(); ptx.Uint(9).ShflXor(1) }, nil},
		{func(k *ptx.Kernel, n ptx.U32) { ptx.Uint(9).F32(); ptx.Uint(9).B16().U32(); ptx.Float(1).BF16().F32() }, nil},
	} {
		var want string
		for _, s := range c.want {
			want += "\n" + s
		}
		got := text(t, func(k *ptx.Kernel) { c.body(k, k.ParamU32("n")) })
		assert.Equal(t, "ld.param.u32 %r0, [n];"+want, got, "case %d", i)
	}
}

func floatConst(t *testing.T, x ptx.F32) float32 {
	t.Helper()
	c, ok := x.Bits().Const()
	require.True(t, ok, "not folded")
	return math.Float32frombits(c)
}

func f32(x float32) ptx.F32 { return ptx.Uint(int(math.Float32bits(x))).AsF32() }

// TestFloatConstantsAreExact compares folded sums, products and fused multiply-adds with results of
// big floats, rounded once.
func TestFloatConstantsAreExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 9))
	exact := func(x float32) *big.Float { return new(big.Float).SetPrec(2000).SetFloat64(float64(x)) }
	round := func(x *big.Float) float32 { f, _ := x.Float32(); return f }
	for range 20000 {
		draw := func() float32 {
			e := uint32(1 + rng.IntN(254))
			if rng.IntN(2) == 0 {
				e = uint32(120 + rng.IntN(16)) // similar exponents, so that sums need rounding
			}
			return math.Float32frombits(rng.Uint32()&0x807fffff | e<<23)
		}
		a, b, c := draw(), draw(), draw()
		for _, r := range []struct {
			name string
			got  ptx.F32
			want *big.Float
		}{
			{"add", f32(a).Add(f32(b)), new(big.Float).SetPrec(2000).Add(exact(a), exact(b))},
			{"sub", f32(a).Sub(f32(b)), new(big.Float).SetPrec(2000).Sub(exact(a), exact(b))},
			{"mul", f32(a).Mul(f32(b)), new(big.Float).SetPrec(2000).Mul(exact(a), exact(b))},
			{"fma", f32(a).Fma(f32(b), f32(c)), new(big.Float).SetPrec(2000).Add(new(big.Float).SetPrec(2000).Mul(exact(a), exact(b)), exact(c))},
		} {
			require.Equal(t, round(r.want), floatConst(t, r.got), "%s %g %g %g", r.name, a, b, c)
		}
	}
}

func TestFloatConstants(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	tiny := math.Float32frombits(1)
	negZero := float32(math.Copysign(0, -1))
	for _, c := range []struct {
		got  ptx.F32
		want uint32
	}{
		{f32(1).Neg(), 0xbf800000},
		{f32(0).Neg(), 0x80000000},
		{f32(nan).Add(f32(1)), 0x7fffffff},
		{f32(inf).Sub(f32(inf)), 0x7fffffff},
		{f32(inf).Fma(f32(0), f32(1)), 0x7fffffff},
		{f32(nan).Max(f32(2)), 0x40000000},
		{f32(2).Min(f32(nan)), 0x40000000},
		{f32(nan).Max(f32(2), ".NaN"), 0x7fffffff},
		{f32(nan).Min(f32(nan)), 0x7fffffff},
		{f32(negZero).Max(f32(0)), 0},
		{f32(negZero).Min(f32(0)), 0x80000000},
		{f32(tiny).Add(f32(tiny)), 2},
		{f32(tiny).Add(f32(tiny), ".ftz"), 0},
		{f32(-tiny).Mul(f32(1), ".ftz"), 0x80000000},
		{ptx.Uint(1<<24 + 1).F32(), 0x4b800000}, // ties to even
		{f32(1 + 1.0/256).BF16().F32(), 0x3f800000},
		{f32(1 + 3.0/256).BF16().F32(), 0x3f820000},
		{f32(nan).BF16().F32(), 0x7fff0000},
	} {
		assert.Equal(t, fmt.Sprintf("%08x", c.want), fmt.Sprintf("%08x", math.Float32bits(floatConst(t, c.got))))
	}
	for _, c := range []struct {
		got  ptx.Pred
		want bool
	}{
		{f32(1).Lt(f32(2)), true}, {f32(nan).Ne(f32(1)), false}, {f32(nan).Eq(f32(nan)), false},
		{f32(2).Ge(f32(2)), true}, {f32(0).Eq(f32(negZero)), true}, {f32(1).Gt(f32(inf)), false},
	} {
		n, ok := toFlag(c.got).Const()
		assert.True(t, ok)
		assert.Equal(t, flag(c.want), n)
	}
	n, ok := ptx.Uint(0x33221100).Prmt(ptx.Uint(0x776655f4), ptx.Uint(0xc150)).Const()
	assert.True(t, ok)
	assert.Equal(t, uint32(0xff115500), n)
}
