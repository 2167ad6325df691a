package arith

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// narrow describes a 16-bit float format by its definition, with the conversions under test.
type narrow struct {
	fractionBits int
	bias         int
	infinity     uint16 // bits of infinity: all exponent bits are one, the fraction is zero
	format       Format
	nearest      func(x uint32) uint16
	widen        func(h uint16) uint32
}

var narrows = []narrow{
	{7, 127, 0x7f80, formatBF16, BF16FromF32, F32FromBF16},
	{10, 15, 0x7c00, Format16, func(x uint32) uint16 { return uint16(F16Nearest(x)) }, F32FromF16},
}

// toward rounds an FP32 number to the format, with the given mode.
func (n narrow) toward(x uint32, mode Rounding) uint16 {
	v := float64(ToF32(x))
	return uint16(n.format.Encode(n.format.Compute(OpMul, mode, v, 1, 0)))
}

// narrowValue returns the value of a 16-bit number by the format's definition.
func narrowValue(n narrow, h uint16) float64 {
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
		for _, n := range narrows {
			want, got := narrowValue(n, h), n.widen(h)
			if want != want {
				require.True(t, isNaN32(got))
				require.Equal(t, uint16(canonicalNaN16), n.nearest(got))
				continue
			}
			if want := math.Float32bits(float32(want)); got != want {
				require.Equal(t, want, got)
			}
			// Rounding a value of the format back does not change it.
			if back, zero := n.nearest(got), n.toward(got, RoundZero); back != h || zero != h {
				require.Equal(t, h, back)
				require.Equal(t, h, zero)
			}
		}
	}
}

// narrowOracle rounds by comparing with the two neighbouring numbers of the format. Positive
// numbers of a format have the same order as their bits.
func narrowOracle(n narrow, x uint32, mode Rounding) uint16 {
	if isNaN32(x) {
		return canonicalNaN16
	}
	sign := uint16(x >> 16 & 0x8000)
	v := math.Abs(float64(ToF32(x)))
	lo, hi := uint16(0), n.infinity // a binary search; at its end lo is the bits of the largest number that is not above v
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
	if mode == RoundZero {
		return sign | lo
	}
	below := narrowValue(n, lo)
	above := narrowValue(n, hi)
	if hi == n.infinity { // the number after the largest finite one, as if the exponent range went on
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
			for _, n := range narrows {
				if got, want := n.nearest(x), narrowOracle(n, x, RoundNearest); got != want {
					require.Equalf(t, want, got, "%08x to %d fraction bits", x, n.fractionBits)
				}
			}
		}
		x := upper<<16 | lows[r.IntN(len(lows))]
		for _, n := range narrows {
			if got, want := n.toward(x, RoundZero), narrowOracle(n, x, RoundZero); got != want {
				require.Equalf(t, want, got, "%08x toward zero to %d fraction bits", x, n.fractionBits)
			}
		}
	}
	// Try bf16 with every lower half, for some even and odd upper halves.
	for low := range uint32(1 << 16) {
		for _, upper := range []uint32{0x3f80, 0x3f81, 0xc07f, 0x7f7f, 0x0000} {
			x := upper<<16 | low
			if got, want := BF16FromF32(x), narrowOracle(narrows[0], x, RoundNearest); got != want {
				require.Equal(t, want, got)
			}
		}
	}
}

func TestFloatToInteger(t *testing.T) {
	u8, s8, u32, s32, u64, s64 := Int{Bits: 8, Signed: false}, Int{Bits: 8, Signed: true}, Int{Bits: 32, Signed: false}, Int{Bits: 32, Signed: true},
		Int{Bits: 64, Signed: false}, Int{Bits: 64, Signed: true}
	neg := func(x int64) uint64 { return uint64(x) }
	inf, nan := math.Inf(1), math.NaN()
	tests := []struct {
		t    Int
		x    float64
		mode Rounding
		want uint64
	}{
		{u32, 2.5, RoundZero, 2}, {u32, 2.5, RoundNearest, 2}, {u32, 3.5, RoundNearest, 4},
		{u32, 2.1, RoundUp, 3}, {s32, -2.5, RoundZero, neg(-2)}, {s32, -2.5, RoundDown, neg(-3)},
		{s32, -0.5, RoundUp, 0}, {u32, -0.9, RoundZero, 0}, {u32, -1, RoundZero, 0},
		{u32, 0x1p32, RoundZero, math.MaxUint32}, {u32, 0x1p32 - 256, RoundZero, 0xffffff00},
		{u32, inf, RoundZero, math.MaxUint32}, {u32, -inf, RoundZero, 0}, {u32, nan, RoundZero, 0},
		{s32, 0x1p31, RoundZero, math.MaxInt32}, {s32, -0x1p31, RoundZero, neg(math.MinInt32)},
		{s32, -0x1p40, RoundZero, neg(math.MinInt32)}, {s32, nan, RoundZero, 0},
		{u8, 255.5, RoundZero, 255}, {u8, 300, RoundZero, 255}, {s8, -129, RoundZero, neg(-128)}, {s8, 200, RoundZero, 127},
		{u64, 0x1p63, RoundZero, 1 << 63}, {u64, 0x1p64, RoundZero, math.MaxUint64}, {u64, nan, RoundZero, 1 << 63},
		{s64, 0x1p63, RoundZero, math.MaxInt64}, {s64, -0x1p63, RoundZero, 1 << 63}, {s64, nan, RoundZero, 1 << 63},
	}
	for _, c := range tests {
		assert.Equalf(t, c.want, c.t.FromFloat(c.x, c.mode), "%+v from %g mode %d", c.t, c.x, c.mode)
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
				number := new(big.Float).SetInt(v)
				want, _ := number.Float32()
				require.Equalf(t, uint64(math.Float32bits(want)), Format32.Encode(Format32.Round(number, RoundNearest)), "%d bits signed %v of %x", bits, signed, x)
			}
		}
	}
}

func TestIntegerWidths(t *testing.T) {
	u8, s8, s16, u32, s32, u64, s64 := Int{Bits: 8, Signed: false}, Int{Bits: 8, Signed: true}, Int{Bits: 16, Signed: true},
		Int{Bits: 32, Signed: false}, Int{Bits: 32, Signed: true}, Int{Bits: 64, Signed: false}, Int{Bits: 64, Signed: true}
	tests := []struct {
		to, from Int
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
		assert.Equalf(t, c.want, c.to.Convert(c.x, c.from, c.saturate), "%+v", c)
	}
}

func TestRoundIntegral(t *testing.T) {
	for x, want := range map[float64][4]float64{
		2.5: {2, 2, 2, 3}, -2.5: {-2, -2, -3, -2}, 3.5: {4, 3, 3, 4}, 0.4: {0, 0, 0, 1},
	} {
		for mode, w := range want {
			assert.Equal(t, w, RoundIntegral(x, Rounding(mode)), "%g mode %d", x, mode)
		}
	}
}
