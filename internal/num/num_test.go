package num_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
)

// format is bf16 or fp16 with its conversions.
type format struct {
	name        string
	decode      func(uint16) float64
	of32        func(float32) uint16
	of64        func(float64) uint16
	infinity    uint16
	encodeAll   func([]uint16, []float32)
	decodeAll   func([]float32, []uint16)
	largest     float64
	leastNormal float64
}

var formats = []format{
	{"bf16", num.BF16ToFloat64, num.Float32ToBF16, num.Float64ToBF16, 0x7f80, num.EncodeBF16[float32], num.DecodeBF16[float32], 0x1.fep127, 0x1p-126},
	{"fp16", num.F16ToFloat64, num.Float32ToF16, num.Float64ToF16, 0x7c00, num.EncodeF16[float32], num.DecodeF16[float32], 65504, 0x1p-14},
}

// TestRoundTrip checks that every number keeps its bits through both conversions, and that
// every NaN stays NaN.
func TestRoundTrip(t *testing.T) {
	for _, f := range formats {
		assert.Equal(t, f.largest, f.decode(f.infinity-1), f.name)
		for b := range uint32(1 << 16) {
			bits := uint16(b)
			x := f.decode(bits)
			if math.IsNaN(x) {
				require.EqualValues(t, 0x7fff, f.of64(x), "%s %#x", f.name, bits)
				require.EqualValues(t, 0x7fff, f.of32(float32(x)), "%s %#x", f.name, bits)
				continue
			}
			require.Equal(t, bits, f.of64(x), "%s %g", f.name, x)
			require.Equal(t, bits, f.of32(float32(x)), "%s %g", f.name, x)
		}
	}
}

// TestNearest compares the conversions with a search for the nearest number. If two numbers are
// equally near, the even one must result.
func TestNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, f := range formats {
		for range 200000 {
			below := uint16(r.UintN(uint(f.infinity)))
			lo, hi := f.decode(below), f.decode(below+1)
			if below+1 == f.infinity {
				hi = 2*lo - f.decode(below-1) // the number that would come after the largest one
			}
			part := []float64{0.5, 0.5 + 0x1p-30, 0.5 - 0x1p-30, r.Float64()}[r.IntN(4)]
			x := lo + part*(hi-lo)
			want := below
			if mid := lo + (hi-lo)/2; x > mid || x == mid && below%2 == 1 {
				want++
			}
			if got := f.of64(x); got != want {
				t.Fatalf("%s %g between %g and %g: %#x, must be %#x", f.name, x, lo, hi, got, want)
			}
			if got := f.of64(-x); got != want|0x8000 {
				t.Fatalf("%s %g: %#x, must be %#x", f.name, -x, got, want|0x8000)
			}
			if got := f.of32(float32(x)); float64(float32(x)) == x && got != want {
				t.Fatalf("%s %g as float32: %#x, must be %#x", f.name, x, got, want)
			}
		}
		assert.Equal(t, f.infinity, f.of64(math.Inf(1)), f.name)
		assert.Equal(t, f.infinity, f.of64(math.MaxFloat64), f.name)
		assert.Equal(t, f.infinity|0x8000, f.of32(float32(math.Inf(-1))), f.name)
		assert.EqualValues(t, 0, f.of64(0x1p-1000), f.name)
		assert.EqualValues(t, 0x8000, f.of64(math.Copysign(0, -1)), f.name)
	}
}

// TestSlices checks slices of all lengths, also long ones that several goroutines convert.
func TestSlices(t *testing.T) {
	for _, f := range formats {
		for _, n := range []int{0, 1, 7, 1 << 16, 1<<18 + 3} {
			src, bits, back := make([]float32, n), make([]uint16, n+1), make([]float32, n)
			for i := range src {
				src[i] = float32(math.Sin(float64(i)))
			}
			f.encodeAll(bits, src)
			f.decodeAll(back, bits[:n])
			for i := range src {
				if bits[i] != f.of32(src[i]) || back[i] != float32(f.decode(bits[i])) {
					t.Fatalf("%s of %g, element %d of %d: %#x, and back %g", f.name, src[i], i, n, bits[i], back[i])
				}
			}
			require.Zero(t, bits[n], "nothing behind the slice")
		}
		require.Panics(t, func() { f.encodeAll(make([]uint16, 1), make([]float32, 2)) })
	}
}

// TestSlicesHaveTheBitsOfNumbers checks that the conversion of a slice has the same bits as
// conversions of single numbers. It uses all 16-bit numbers, the FP32 numbers at and next to
// each of them and each tie, and some thousand others, including NaN.
func TestSlicesHaveTheBitsOfNumbers(t *testing.T) {
	all := make([]uint16, 1<<16)
	var wide []float32
	for b := range uint32(1 << 16) {
		all[b] = uint16(b)
		for _, middle := range []uint32{b << 16, b<<16 | 0x8000, math.Float32bits(num.F16ToFloat32(uint16(b))), math.Float32bits(num.F16ToFloat32(uint16(b))) + 1<<12} {
			for _, bits := range []uint32{middle - 1, middle, middle + 1} {
				wide = append(wide, math.Float32frombits(bits))
			}
		}
		wide = append(wide, math.Float32frombits(b*65521)) // many different numbers: multiples of an odd number
	}
	for i := range uint32(400) { // subnormal FP16 numbers and smaller ones, in finer steps
		wide = append(wide, float32(i)*0x1p-26, -float32(i)*0x1p-26, math.Float32frombits(i), math.Float32frombits(i<<14))
	}
	for _, f := range formats {
		back, bits := make([]float32, len(all)), make([]uint16, len(wide))
		for _, from := range []int{0, 3} { // an offset of 3 leaves a rest that is converted one by one
			f.decodeAll(back[from:], all[from:])
			f.encodeAll(bits[from:], wide[from:])
			for i, b := range all[from:] {
				one := num.BF16ToFloat32
				if f.name == "fp16" {
					one = num.F16ToFloat32
				}
				require.Equal(t, math.Float32bits(one(b)), math.Float32bits(back[from+i]), "%s %#x", f.name, b)
			}
			for i, x := range wide[from:] {
				if want := f.of32(x); want != bits[from+i] {
					require.Equal(t, want, bits[from+i], "%s %g, %#x", f.name, x, math.Float32bits(x))
				}
			}
		}
		for n := range 70 { // every number is converted, and nothing is written past the end
			got := make([]uint16, n+1)
			f.encodeAll(got, wide[:n])
			require.Equal(t, bits[:n], got[:n])
			require.Zero(t, got[n])
			values := make([]float32, n+1)
			f.decodeAll(values, all[0x3c00:0x3c00+n])
			require.Equal(t, n, len(slices.DeleteFunc(values, func(x float32) bool { return x == 0 })))
		}
	}
}

func TestBytes(t *testing.T) {
	assert.Nil(t, num.Bytes([]float32{}))
	assert.Equal(t, []byte{1, 0, 2, 0}, num.Bytes([]uint16{1, 2}))
	assert.Len(t, num.Bytes([]float64{1, 2}), 16)
	s := []uint32{0}
	num.Bytes(s)[0] = 7
	assert.EqualValues(t, 7, s[0], "the same memory")
}

func BenchmarkSlices(b *testing.B) {
	values, bits := make([]float32, 1<<20), make([]uint16, 1<<20)
	for i := range values {
		values[i] = float32(i%1000) / 1000
	}
	for _, f := range formats {
		b.Run("encode "+f.name, func(b *testing.B) {
			b.SetBytes(int64(4 * len(values)))
			for b.Loop() {
				f.encodeAll(bits, values)
			}
		})
		b.Run("decode "+f.name, func(b *testing.B) {
			b.SetBytes(int64(4 * len(values)))
			for b.Loop() {
				f.decodeAll(values, bits)
			}
		})
	}
}

func Example() {
	weights := []float32{1, -2.5, 3.14159}
	bits := make([]uint16, len(weights))
	num.EncodeBF16(bits, weights)
	fmt.Println(len(num.Bytes(bits)), "bytes:", num.BF16ToFloat32(bits[2]))
	// Output: 6 bytes: 3.140625
}
