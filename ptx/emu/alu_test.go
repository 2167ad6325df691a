package emu

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
	"sonicmoe/ptx/emu/internal/arith"
)

// Each case is PTX text that computes %d3 (or %r3, or predicate %p1) from the operands %d0 to %d2.
// %r0 to %r2 are the lower halves of %d0 to %d2.
const aluFrame = `
	ld.param.u64 %d8, [out];
	mov.u32 %r8, %tid.x;
	mad.wide.u32 %d8, %r8, 32, %d8;
	ld.global.u64 %d0, [%d8];
	ld.global.u64 %d1, [%d8+8];
	ld.global.u64 %d2, [%d8+16];
	mov.b64 {%r0, %r4}, %d0;
	mov.b64 {%r1, %r5}, %d1;
	mov.b64 {%r2, %r6}, %d2;
	mov.u64 %d3, 0;
	mov.u32 %r3, 0;
	setp.eq.u32 %p1, 1, 0;
	setp.lt.u32 %p2, %r0, %r1;
	`

const (
	storeWide = "\n\tst.global.u64 [%d8+24], %d3;"
	store32   = "\n\tcvt.u64.u32 %d3, %r3;" + storeWide
	storePred = "\n\tselp.b32 %r3, 1, 0, %p1;" + store32
)

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func low(f func(a, b, c uint32) uint32) func(a, b, c uint64) uint64 {
	return func(a, b, c uint64) uint64 { return uint64(f(uint32(a), uint32(b), uint32(c))) }
}

func onF32(f func(a, b, c float32) float32) func(a, b, c uint64) uint64 {
	return low(func(a, b, c uint32) uint32 { return arith.FromF32(f(arith.ToF32(a), arith.ToF32(b), arith.ToF32(c))) })
}

func TestArithmetic(t *testing.T) {
	for _, c := range []struct {
		code string
		tail string
		want func(a, b, c uint64) uint64
	}{
		{"add.u32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return a + b })},
		{"sub.s32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return a - b })},
		{"mul.lo.u32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return a * b })},
		{"mul.hi.u32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { h, _ := bits.Mul32(a, b); return h })},
		{"mul.hi.s32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return uint32(int64(int32(a)) * int64(int32(b)) >> 32) })},
		{"mad.lo.s32 %r3, %r0, %r1, %r2;", store32, low(func(a, b, c uint32) uint32 { return a*b + c })},
		{"mul.wide.u32 %d3, %r0, %r1;", storeWide, func(a, b, _ uint64) uint64 { return uint64(uint32(a)) * uint64(uint32(b)) }},
		{"mul.wide.s32 %d3, %r0, %r1;", storeWide, func(a, b, _ uint64) uint64 { return uint64(int64(int32(a)) * int64(int32(b))) }},
		{"mad.wide.u32 %d3, %r0, %r1, %d2;", storeWide, func(a, b, c uint64) uint64 { return uint64(uint32(a))*uint64(uint32(b)) + c }},
		{"mad.wide.s32 %d3, %r0, %r1, %d2;", storeWide, func(a, b, c uint64) uint64 { return uint64(int64(int32(a))*int64(int32(b))) + c }},
		{"add.u64 %d3, %d0, %d1;", storeWide, func(a, b, _ uint64) uint64 { return a + b }},
		{"sub.s64 %d3, %d0, %d1;", storeWide, func(a, b, _ uint64) uint64 { return a - b }},
		{"mul.lo.u64 %d3, %d0, %d1;", storeWide, func(a, b, _ uint64) uint64 { return a * b }},
		{"mad.lo.u64 %d3, %d0, %d1, %d2;", storeWide, func(a, b, c uint64) uint64 { return a*b + c }},
		{"or.b32 %r3, %r1, 1; div.u32 %r3, %r0, %r3;", store32, low(func(a, b, _ uint32) uint32 { return a / (b | 1) })},
		{"or.b32 %r3, %r1, 1; div.s32 %r3, %r0, %r3;", store32, low(func(a, b, _ uint32) uint32 { return uint32(int32(a) / int32(b|1)) })},
		{"or.b32 %r3, %r1, 1; rem.s32 %r3, %r0, %r3;", store32, low(func(a, b, _ uint32) uint32 { return uint32(int32(a) % int32(b|1)) })},
		{"or.b64 %d3, %d1, 1; div.u64 %d3, %d0, %d3;", storeWide, func(a, b, _ uint64) uint64 { return a / (b | 1) }},
		{"or.b64 %d3, %d1, 1; rem.u64 %d3, %d0, %d3;", storeWide, func(a, b, _ uint64) uint64 { return a % (b | 1) }},
		{"div.u32 %r3, %r0, 0;", store32, low(func(_, _, _ uint32) uint32 { return ^uint32(0) })},
		{"rem.s32 %r3, %r0, 0;", store32, low(func(a, _, _ uint32) uint32 { return a })},
		{"min.s32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return uint32(min(int32(a), int32(b))) })},
		{"max.u32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return max(a, b) })},
		{"min.u64 %d3, %d0, %d1;", storeWide, func(a, b, _ uint64) uint64 { return min(a, b) }},
		{"max.s64 %d3, %d0, %d1;", storeWide, func(a, b, _ uint64) uint64 { return uint64(max(int64(a), int64(b))) }},
		{"and.b32 %r3, %r0, %r1; xor.b32 %r3, %r3, %r2; not.b32 %r3, %r3;", store32, low(func(a, b, c uint32) uint32 { return ^(a&b ^ c) })},
		{"and.b64 %d3, %d0, %d1; xor.b64 %d3, %d3, %d2; not.b64 %d3, %d3;", storeWide, func(a, b, c uint64) uint64 { return ^(a&b ^ c) }},
		{"shl.b32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return a << b })},
		{"shr.u32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return a >> b })},
		{"shr.s32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return uint32(int32(a) >> b) })},
		{"shl.b64 %d3, %d0, %r1;", storeWide, func(a, b, _ uint64) uint64 { return a << uint32(b) }},
		{"shr.s64 %d3, %d0, %r1;", storeWide, func(a, b, _ uint64) uint64 { return uint64(int64(a) >> uint32(b)) }},
		{"popc.b32 %r3, %r0;", store32, func(a, _, _ uint64) uint64 { return uint64(bits.OnesCount32(uint32(a))) }},
		{"popc.b64 %r3, %d0;", store32, func(a, _, _ uint64) uint64 { return uint64(bits.OnesCount64(a)) }},
		{"clz.b32 %r3, %r0;", store32, func(a, _, _ uint64) uint64 { return uint64(bits.LeadingZeros32(uint32(a))) }},
		{"clz.b64 %r3, %d0;", store32, func(a, _, _ uint64) uint64 { return uint64(bits.LeadingZeros64(a)) }},
		{"prmt.b32 %r3, %r0, %r1, 0x5410;", store32, low(func(a, b, _ uint32) uint32 { return a&0xffff | b<<16 })},
		{"prmt.b32 %r3, %r0, %r1, 0x7b3f;", store32, low(func(a, b, _ uint32) uint32 {
			sign := func(x uint32) uint32 { return uint32(int32(x) >> 31) }
			return sign(b)&0xff | a>>24<<8 | sign(a)&0xff<<16 | b>>24<<24
		})},
		{"setp.lt.s32 %p1, %r0, %r1;", storePred, func(a, b, _ uint64) uint64 { return b2u(int32(a) < int32(b)) }},
		{"setp.ge.u32 %p1, %r0, %r1;", storePred, func(a, b, _ uint64) uint64 { return b2u(uint32(a) >= uint32(b)) }},
		{"setp.ne.u64 %p1, %d0, %d1;", storePred, func(a, b, _ uint64) uint64 { return b2u(a != b) }},
		{"setp.gt.s64 %p1, %d0, %d1;", storePred, func(a, b, _ uint64) uint64 { return b2u(int64(a) > int64(b)) }},
		{"setp.le.u32 %p1, %r0, %r2; and.pred %p1, %p1, %p2; not.pred %p1, %p1;", storePred,
			func(a, b, c uint64) uint64 { return b2u(!(uint32(a) <= uint32(c) && uint32(a) < uint32(b))) }},
		{"selp.b64 %d3, %d0, %d1, %p2;", storeWide, func(a, b, _ uint64) uint64 {
			if uint32(a) < uint32(b) {
				return a
			}
			return b
		}},
		{"@%p2 mov.u32 %r3, %r2; @!%p2 mov.u32 %r3, %r1;", store32, func(a, b, c uint64) uint64 {
			if uint32(a) < uint32(b) {
				return uint64(uint32(c))
			}
			return uint64(uint32(b))
		}},
		{"add.rn.f32 %r3, %r0, %r1;", store32, onF32(func(a, b, _ float32) float32 { return a + b })},
		{"sub.rn.f32 %r3, %r0, %r1;", store32, onF32(func(a, b, _ float32) float32 { return a - b })},
		{"mul.rn.f32 %r3, %r0, %r1;", store32, onF32(func(a, b, _ float32) float32 { return a * b })},
		{"neg.f32 %r3, %r0;", store32, low(func(a, _, _ uint32) uint32 { return a ^ 1<<31 })},
		{"setp.lt.f32 %p1, %r0, %r1;", storePred, func(a, b, _ uint64) uint64 { return b2u(arith.ToF32(uint32(a)) < arith.ToF32(uint32(b))) }},
		{"setp.neu.f32 %p1, %r0, %r1;", storePred, func(a, b, _ uint64) uint64 { return b2u(arith.ToF32(uint32(a)) != arith.ToF32(uint32(b))) }},
		{"cvt.rn.f32.s32 %r3, %r0;", store32, low(func(a, _, _ uint32) uint32 { return math.Float32bits(float32(int32(a))) })},
		{"cvt.u16.u32 %h0, %r0; cvt.u32.u16 %r3, %h0;", store32, low(func(a, _, _ uint32) uint32 { return a & 0xffff })},
		{"cvt.s64.s32 %d3, %r0;", storeWide, func(a, _, _ uint64) uint64 { return uint64(int64(int32(a))) }},
		{"mov.b64 %d3, {%r1, %r0};", storeWide, func(a, b, _ uint64) uint64 { return a<<32 | uint64(uint32(b)) }},
		{"mov.b32 {%h0, %h1}, %r0; mov.b32 %r3, {%h1, %h0};", store32, low(func(a, _, _ uint32) uint32 { return bits.RotateLeft32(a, 16) })},
		{"cvt.rn.bf16.f32 %h0, %r0; cvt.f32.bf16 %r3, %h0;", store32, low(func(a, _, _ uint32) uint32 { return arith.F32FromBF16(arith.BF16FromF32(a)) })},
		{"cvt.rn.bf16x2.f32 %r3, %r0, %r1;", store32, low(func(a, b, _ uint32) uint32 { return uint32(arith.BF16FromF32(a))<<16 | uint32(arith.BF16FromF32(b)) })},
	} {
		t.Run(c.code, func(t *testing.T) {
			p := assemble(t, body(aluFrame+c.code+c.tail), "k")
			words, in := edgeWords()
			a := p.u32s(words...)
			p.params(a, 0)
			p.launch.Block = [3]int{len(in)}
			require.NoError(t, p.run())
			got := p.read(a, len(words))
			for i, v := range in {
				have := uint64(got[8*i+7])<<32 | uint64(got[8*i+6])
				require.Equal(t, c.want(v[0], v[1], v[2]), have, "%#x", v)
			}
		})
	}
}

// edgeWords draws 96 random triples of operands. About a third of the operands are edge values.
// Result in has the triples. Result words has them as the kernel's memory: 8 words for each triple,
// 6 for the operands and 2 for the results.
func edgeWords() (words []uint32, in [][3]uint64) {
	rng := rand.New(rand.NewPCG(1, 2))
	edges := []uint64{0, 1, 31, 32, 33, 63, 64, 0x7fffffff, 0x80000000, 0xffffffff, 1 << 63, ^uint64(0),
		0x3f800000, 0x7f800000, 0xff800000, 0x7fc00000, 0x00000001, 0x80000001, 0x3f808000}
	for range 96 {
		var v [3]uint64
		for i := range v {
			v[i] = rng.Uint64()
			if rng.IntN(3) == 0 {
				v[i] = edges[rng.IntN(len(edges))]
			}
			words = append(words, uint32(v[i]), uint32(v[i]>>32))
		}
		words = append(words, 0, 0)
		in = append(in, v)
	}
	return words, in
}

// TestF16Instructions checks that FP32 numbers convert to f16, one or two at a time, and back to
// FP32, with the right rounding.
func TestF16Instructions(t *testing.T) {
	values := []float32{0, 1, -1.5, 0x1p-14, 0x1.ffp-15, -0x1p-24, 0x1p-25, 65504, 65519, 65520, -1e9, float32(math.Inf(1)), 1 + 0x1p-11, 1 + 0x3p-11}
	k := ptx.NewKernel("k")
	in, out := k.ParamPtr("in"), k.ParamPtr("out")
	tid := k.TidX()
	v := ptx.LdGlobal[ptx.F32](in.Index(tid, 4))
	both := k.PackF16(v, v.Neg())
	lo, hi := both.Unpack()
	for i, x := range []ptx.U32{both.Bits(), v.F16().U32(), lo.Bits(), hi.Bits()} {
		ptx.StGlobal(out.Index(tid, 16).At(4*i), x)
	}
	p := build(t, k)
	var bits []uint32
	for _, v := range values {
		bits = append(bits, math.Float32bits(v))
	}
	o := p.u32s(make([]uint32, 4*len(values))...)
	p.params(p.u32s(bits...), o)
	p.launch.Block = [3]int{len(values)}
	require.NoError(t, p.run())
	// want computes the expected value by arithmetic. Neighbouring f16 numbers of one binade differ
	// by 2^-10 of its power of two; subnormal numbers are multiples of 2^-24.
	want := func(v float32) float64 {
		x := math.Abs(float64(v))
		unit := math.Exp2(max(math.Floor(math.Log2(x)), -14) - 10)
		if x = math.RoundToEven(x/unit) * unit; v == 0 || math.IsInf(float64(v), 0) {
			x = math.Abs(float64(v))
		}
		if x > 65504 {
			x = math.Inf(1)
		}
		return math.Copysign(x, float64(v))
	}
	for i, v := range values {
		got := p.read(o+uint64(16*i), 4)
		require.Equal(t, want(v), float64(arith.ToF32(got[2])), "%g", v)
		require.Equal(t, -want(v), float64(arith.ToF32(got[3])), "-%g", v)
		require.Equal(t, got[0]&0xffff, got[1], "%g", v)
		require.Equal(t, got[1]^0x8000, got[0]>>16, "%g", v)
	}
}

// TestPairsOfBF16 checks the builder's operations on 32-bit words that hold two bf16 numbers:
// products and differences, which are rounded to nearest even and may be subnormal; the copy of one
// half to both halves; and the rotation of the word.
func TestPairsOfBF16(t *testing.T) {
	cases := []struct{ a, b, product, difference uint32 }{
		{0x3fc04000, 0xc0403f00, 0xc0903f80, 0x40903fc0}, // upper half 1.5 · -3, lower half 2 · 0.5
		{0x3f813f82, 0x3f813fc0, 0x3f823fc3, 0x0000bef8}, // 129² / 2¹⁴ is rounded down; 130 · 192 / 2¹⁴ is exact
		{0x3f813f83, 0x3fc03fc0, 0x3fc23fc4, 0xbefcbef4}, // both products and both differences are ties between two bf16 numbers
		{0x004080c0, 0x7e807e80, 0x3f00bfc0, 0xfe80fe80}, // products 2^-127 and -1.5 · 2^-126
		{0x00807f7f, 0x3f004000, 0x00407f80, 0xbf007f7f}, // a product below 2^-126, and one that overflows
	}
	k := ptx.NewKernel("k")
	in, out := k.ParamPtr("in"), k.ParamPtr("out")
	tid := k.TidX()
	a, b := ptx.LdGlobal[ptx.U32](in.Index(tid, 8)).AsBF16x2(), ptx.LdGlobal[ptx.U32](in.Index(tid, 8).At(4)).AsBF16x2()
	lower, upper := a.Halves()
	one := ptx.Uint(0x3f803f80).AsBF16x2()
	for i, x := range []ptx.U32{a.Mul(b).Mul(one).Bits(), a.Sub(b).Bits(), lower.Bits(), upper.Bits(), a.Bits().RotateRight(5)} {
		ptx.StGlobal(out.Index(tid, 20).At(4*i), x)
	}
	p := build(t, k)
	var words []uint32
	for _, c := range cases {
		words = append(words, c.a, c.b)
	}
	o := p.u32s(make([]uint32, 5*len(cases))...)
	p.params(p.u32s(words...), o)
	p.launch.Block = [3]int{len(cases)}
	require.NoError(t, p.run())
	got := p.read(o, 5*len(cases))
	for i, c := range cases {
		require.Equal(t, []uint32{c.product, c.difference, c.a<<16 | c.a&0xffff, c.a>>16 | c.a&0xffff0000, bits.RotateLeft32(c.a, -5)}, got[5*i:][:5], "%#x, %#x", c.a, c.b)
	}
	lower, upper = ptx.Uint(0x12345678).AsBF16x2().Halves()
	require.Equal(t, []ptx.U32{ptx.Uint(0x56785678), ptx.Uint(0x12341234), ptx.Uint(0xc091a2b3)}, []ptx.U32{lower.Bits(), upper.Bits(), ptx.Uint(0x12345678).RotateRight(5)}, "constants")
}
