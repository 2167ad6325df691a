package emu

import (
	"math"
	"math/big"
	"math/rand/v2"
	"sonicmoe/ptx"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// narrowValue returns the value of 16 bits by the format's definition.
func narrowValue(n narrowFormat, h uint16) float64 {
	fraction := int(h) & (1<<n.fractionBits - 1)
	exponent := int(h&0x7fff) >> n.fractionBits
	v := 0.0
	switch {
	case exponent == 0:
		v = math.Ldexp(float64(fraction), 1-n.bias-n.fractionBits)
	case h&0x7fff > n.infinity:
		return math.NaN()
	case h&0x7fff == n.infinity:
		v = math.Inf(1)
	default:
		v = math.Ldexp(float64(fraction+1<<n.fractionBits), exponent-n.bias-n.fractionBits)
	}
	return math.Copysign(v, float64(1-2*int(h>>15)))
}

func TestWideningEveryInput(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		for _, c := range []struct {
			n narrowFormat
			f func(uint16) uint32
		}{{bf16Format, f32FromBF16}, {f16Format, f32FromF16}} {
			want, got := narrowValue(c.n, h), c.f(h)
			if want != want {
				require.True(t, isNaN32(got))
				require.Equal(t, uint16(canonicalNaN16), c.n.fromF32(got, roundNearest, false))
				continue
			}
			require.Equal(t, math.Float32bits(float32(want)), got)
			// Rounding back does not change a value of the format.
			require.Equal(t, h, c.n.fromF32(got, roundNearest, false))
			require.Equal(t, h, c.n.fromF32(got, roundZero, false))
		}
	}
}

// narrowOracle rounds by comparing with the two neighbours: magnitudes of a format are in the
// order of their bits.
func narrowOracle(n narrowFormat, x uint32, mode roundMode) uint16 {
	if isNaN32(x) {
		return canonicalNaN16
	}
	sign := uint16(x >> 16 & 0x8000)
	v := math.Abs(float64(toF32(x)))
	lo, hi := uint16(0), n.infinity // lo is the largest code with value <= v
	if math.IsInf(v, 0) {
		return sign | n.infinity
	}
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; narrowValue(n, mid) <= v {
			lo = mid
		} else {
			hi = mid
		}
	}
	if mode == roundZero {
		return sign | lo
	}
	below := narrowValue(n, lo)
	above := narrowValue(n, hi)
	if hi == n.infinity { // the next value if the exponent range continued
		above = below + (below - narrowValue(n, lo-1))
	}
	switch down, up := v-below, above-v; {
	case down < up, down == up && lo&1 == 0:
		return sign | lo
	}
	return sign | hi
}

func TestNarrowingAgainstNeighbours(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	lows := []uint32{0, 1, 0x0fff, 0x1000, 0x1001, 0x2000, 0x7fff, 0x8000, 0x8001, 0xffff}
	for upper := range uint32(1 << 16) {
		for _, low := range []uint32{lows[r.IntN(len(lows))], lows[r.IntN(len(lows))], r.Uint32() & 0xffff} {
			x := upper<<16 | low
			for _, mode := range []roundMode{roundNearest, roundZero} {
				for _, n := range []narrowFormat{bf16Format, f16Format} {
					if got, want := n.fromF32(x, mode, false), narrowOracle(n, x, mode); got != want {
						require.Equalf(t, want, got, "%08x mode %d to %d fraction bits", x, mode, n.fractionBits)
					}
				}
			}
			if got, want := bf16FromF32(x), bf16Format.fromF32(x, roundNearest, false); got != want {
				require.Equalf(t, want, got, "the short way of %08x", x)
			}
		}
	}
	// bf16 with every lower half, for one even and one odd upper half.
	for low := range uint32(1 << 16) {
		for _, upper := range []uint32{0x3f80, 0x3f81, 0xc07f, 0x7f7f, 0x0000} {
			x := upper<<16 | low
			require.Equal(t, narrowOracle(bf16Format, x, roundNearest), bf16FromF32(x))
		}
	}
}

func TestPacking(t *testing.T) {
	assert.Equal(t, uint32(0x3f80_c000), bf16Format.packF32(f32(1), f32(-2), roundNearest, false))
	assert.Equal(t, uint32(0x3f80_0000), bf16Format.packF32(f32(1), f32(-2), roundNearest, true))
	assert.Equal(t, uint32(0x3c00_c000), f16Format.packF32(f32(1), f32(-2), roundNearest, false))
	assert.Equal(t, uint32(0x7bff_fc00), f16Format.packF32(f32(1e9), f32Inf|f32Sign, roundZero, false))
	assert.Equal(t, uint32(0x7fff_0000), bf16Format.packF32(0xffc00000, f32Sign, roundNearest, true))
}

func TestFloatToInteger(t *testing.T) {
	u8, s8, u32, s32, u64, s64 := intType{8, false}, intType{8, true}, intType{32, false}, intType{32, true},
		intType{64, false}, intType{64, true}
	neg := func(x int64) uint64 { return uint64(x) }
	inf, nan := math.Inf(1), math.NaN()
	tests := []struct {
		t    intType
		x    float64
		mode roundMode
		want uint64
	}{
		{u32, 2.5, roundZero, 2}, {u32, 2.5, roundNearest, 2}, {u32, 3.5, roundNearest, 4},
		{u32, 2.1, roundUp, 3}, {s32, -2.5, roundZero, neg(-2)}, {s32, -2.5, roundDown, neg(-3)},
		{s32, -0.5, roundUp, 0}, {u32, -0.9, roundZero, 0}, {u32, -1, roundZero, 0},
		{u32, 0x1p32, roundZero, math.MaxUint32}, {u32, 0x1p32 - 256, roundZero, 0xffffff00},
		{u32, inf, roundZero, math.MaxUint32}, {u32, -inf, roundZero, 0}, {u32, nan, roundZero, 0},
		{s32, 0x1p31, roundZero, math.MaxInt32}, {s32, -0x1p31, roundZero, neg(math.MinInt32)},
		{s32, -0x1p40, roundZero, neg(math.MinInt32)}, {s32, nan, roundZero, 0},
		{u8, 255.5, roundZero, 255}, {u8, 300, roundZero, 255}, {s8, -129, roundZero, neg(-128)}, {s8, 200, roundZero, 127},
		{u64, 0x1p63, roundZero, 1 << 63}, {u64, 0x1p64, roundZero, math.MaxUint64}, {u64, nan, roundZero, 1 << 63},
		{s64, 0x1p63, roundZero, math.MaxInt64}, {s64, -0x1p63, roundZero, 1 << 63}, {s64, nan, roundZero, 1 << 63},
	}
	for _, c := range tests {
		assert.Equalf(t, c.want, c.t.fromFloat(c.x, c.mode), "%+v from %g mode %d", c.t, c.x, c.mode)
	}
}

func TestIntegerToFloat(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for range 20000 {
		x := r.Uint64() >> r.IntN(64)
		if r.IntN(2) == 0 {
			x = ^x
		}
		for _, bits := range []uint{8, 16, 32, 64} {
			for _, signed := range []bool{false, true} {
				v := new(big.Int).SetUint64(x & (^uint64(0) >> (64 - bits)))
				if signed && v.Bit(int(bits)-1) == 1 {
					v.Sub(v, new(big.Int).Lsh(big.NewInt(1), bits))
				}
				want, _ := new(big.Float).SetInt(v).Float32()
				require.Equalf(t, math.Float32bits(want), intType{bits, signed}.toF32(x), "%d bits signed %v of %x", bits, signed, x)
			}
		}
	}
}

func TestIntegerWidths(t *testing.T) {
	u8, s8, s16, u32, s32, u64, s64 := intType{8, false}, intType{8, true}, intType{16, true},
		intType{32, false}, intType{32, true}, intType{64, false}, intType{64, true}
	tests := []struct {
		to, from intType
		saturate bool
		x, want  uint64
	}{
		{s64, s32, false, 0xffffffff, math.MaxUint64}, {s64, u32, false, 0xffffffff, 0xffffffff},
		{u64, s32, false, 0x80000000, 0xffffffff80000000}, {u32, s8, false, 0x80, 0xffffff80},
		{u32, u64, false, 0x123456789, 0x23456789}, {s16, u32, false, 0x18000, 0xffffffffffff8000},
		{u8, s32, true, 0xffffffff, 0}, {u8, s32, true, 300, 255}, {s8, s32, true, 0xfffffe00, 0xffffffffffffff80},
		{s8, s32, true, 0xfffffff0, 0xfffffffffffffff0}, {s32, u64, true, 1 << 40, math.MaxInt32}, {s32, u32, true, 7, 7},
		{u32, s64, true, 1 << 63, 0}, {s64, u64, true, 1 << 63, math.MaxInt64},
	}
	for _, c := range tests {
		assert.Equalf(t, c.want, c.to.convert(c.x, c.from, c.saturate), "%+v", c)
	}
}

func TestRoundIntegral(t *testing.T) {
	for x, want := range map[float64][4]float64{
		2.5: {2, 2, 2, 3}, -2.5: {-2, -2, -3, -2}, 3.5: {4, 3, 3, 4}, 0.4: {0, 0, 0, 1},
	} {
		for mode, w := range want {
			assert.Equal(t, w, roundIntegral(x, roundMode(mode)), "%g mode %d", x, mode)
		}
	}
}

// FP32 numbers convert to f16, one or two at a time, and back.
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
	// By arithmetic: an f16 is a multiple of 2^-24, and of 2^-10 of its power of two.
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
		require.Equal(t, want(v), float64(toF32(got[2])), "%g", v)
		require.Equal(t, -want(v), float64(toF32(got[3])), "-%g", v)
		require.Equal(t, got[0]&0xffff, got[1], "%g", v)
		require.Equal(t, got[1]^0x8000, got[0]>>16, "%g", v)
	}
}
