package emu

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/assert"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/emu/layout"
)

// foreignTwins has a twin for each foreign kernel: a Go function that computes the same. NVIDIA's
// compiler generated most kernels from the sources next to them.
var foreignTwins = map[string]func(t *testing.T, r *foreignRun){
	"bytes bytes": func(t *testing.T, r *foreignRun) {
		a, b := draw(64, func() uint8 { return uint8(r.rng.Uint32()) }), draw(64, func() int8 { return int8(r.rng.Uint32()) })
		out := put(r, make([]uint8, 64))
		r.launchWith(x(2), x(32), out, put(r, a), put(r, b), int32(64))
		each(r, out, 64, func(i int) uint8 { return uint8(int(a[i])*3 + int(b[i]>>1)) })
	},
	"bytes shorts": func(t *testing.T, r *foreignRun) {
		a, b := draw(64, func() int16 { return int16(r.rng.Uint32()) }), draw(64, func() uint16 { return uint16(r.rng.Uint32()) })
		out := put(r, make([]int16, 64))
		r.launchWith(x(1), x(64), out, put(r, a), put(r, b), int32(64))
		each(r, out, 64, func(i int) int16 {
			x, y := a[i], b[i]
			q, m := x/7, y%11
			return q + min(x, int16(m)) - int16(uint16(x)&y) + (x | 3) + int16(uint16(x)^y) + ^x + x<<2 + int16(y>>3) + x>>1
		})
	},
	"bits bits": func(t *testing.T, r *foreignRun) {
		a, out := r.u32s(64), put(r, make([]uint32, 64))
		r.launchWith(x(1), x(64), out, put(r, a), int32(64))
		each(r, out, 64, func(i int) uint32 {
			x, y := a[i], a[(i+1)%64]
			v := uint32(bits.OnesCount32(x) + 100*bits.LeadingZeros32(x) + 10000*(bits.TrailingZeros32(x)+1))
			v ^= bits.Reverse32(x)
			all, p := uint64(y)<<32|uint64(x), uint32(0)
			for k, n := range []uint{1, 4, 5, 2} {
				p |= uint32(all>>(8*n)&255) << (8 * k)
			}
			v += p
			v ^= uint32(all<<(uint(i)&31)>>32) + uint32(all>>5)
			return v ^ (x>>5&0x7f + x<<20>>25)
		})
	},
	"bits bits64": func(t *testing.T, r *foreignRun) {
		a, out := draw(64, r.rng.Uint64), put(r, make([]uint64, 64))
		r.launchWith(x(1), x(64), out, put(r, a), int32(64))
		each(r, out, 64, func(i int) uint64 {
			x := a[i]
			return uint64(bits.OnesCount64(x)+100*bits.LeadingZeros64(x)+10000*(bits.TrailingZeros64(x)+1)) + (bits.Reverse64(x) ^ (x<<i | x>>(64-i)))
		})
	},
	"fields fields": func(t *testing.T, r *foreignRun) {
		a, out := r.u32s(32), put(r, make([]uint32, 32))
		r.launchWith(x(1), x(32), out, put(r, a), int32(32))
		each(r, out, 32, func(i int) uint32 {
			x := a[i]
			u := uint32(uint64(x) >> i & 0x1ff)
			s := int32(0)
			if i > 0 {
				s = int32(x<<max(0, 29-i)) >> (32 - i)
				if 3+i > 32 { // shifted-in bits are copies of the sign
					s = int32(x) >> 3
				}
			}
			v := u&^(31<<7) | x&31<<7
			w := uint64(x) << 20 >> 13 & (1<<40 - 1)
			top := uint32(bits.Len32(x) - 1)
			return u + uint32(s) + v + uint32(w^w>>32) + top + 31 - top + (x ^ u ^ v)
		})
	},
	"division division": func(t *testing.T, r *foreignRun) {
		a, b := r.i64s(64), draw(64, func() int64 { return r.rng.Int64N(1<<40) - 1<<39 | 1 })
		out := put(r, make([]int64, 64))
		r.launchWith(x(1), x(64), out, put(r, a), put(r, b), int32(64))
		each(r, out, 64, func(i int) int64 {
			x, y := a[i], b[i]
			sx, sy := int32(x), int32(y)|1
			vx, vy := uint32(x), uint32(y)|1
			hx, hy := int32(uint16(x)), int32(uint16(y)|1)
			cx, cy := int32(int8(x)), int32(int8(y&63+1))
			return x/y + x%y + int64(uint64(x)/uint64(y)+uint64(x)%uint64(y)) + int64(sx/sy) + int64(sx%sy) + int64(vx/vy) + int64(vx%vy) +
				int64(hx/hy) + int64(hx%hy) + int64(cx/cy) + int64(cx%cy)
		})
	},
	"functions functions":       functionsTwin,
	"functions_debug functions": functionsTwin,
	"carry carry": func(t *testing.T, r *foreignRun) {
		a, b := r.u32s(128), r.u32s(128)
		out := put(r, make([]uint32, 128))
		r.launchWith(x(1), x(32), out, put(r, a), put(r, b), int32(32))
		carry := uint32(0)
		each(r, out, 128, func(i int) uint32 {
			if i%4 == 0 {
				carry = 0
			}
			var s uint32
			s, carry = bits.Add32(a[i], b[i], carry)
			return s
		})
	},
	"extremes extremes": func(t *testing.T, r *foreignRun) {
		a, out := r.i64s(64), put(r, make([]int64, 64))
		for i := range a {
			if i%3 == 0 {
				a[i] = -a[i]
			}
		}
		r.launchWith(x(1), x(64), out, put(r, a), int32(64))
		abs := func(v int64) int64 { return max(v, -v) }
		clamp := func(v int64) int64 { return max(min(v, math.MaxInt32), math.MinInt32) }
		each(r, out, 64, func(i int) int64 {
			x, y := a[i], a[(i+1)%64]
			s, u := int32(x), int32(y)
			v := min(x, y) + max(x, -y) + abs(x) + int64(max(s, -s)) + int64(min(s, u)) + int64(max(uint32(s), uint32(u)))
			if uint64(x) > uint64(y) {
				v += 3
			} else {
				v -= 5
			}
			v ^= clamp(int64(s)+int64(u))<<3 ^ clamp(int64(s)-int64(u))
			h, g := int16(s), int16(u)
			return v + int64(max(h, g)) - int64(min(h, g))
		})
	},
	"saxpy saxpy": func(t *testing.T, r *foreignRun) {
		a, b, out := r.f32s(100), r.f32s(100), put(r, make([]float32, 100))
		r.launchWith(x(2), x(32), out, put(r, a), put(r, b), float32(1.5), int32(100))
		want := make([]float32, 100)
		for i := range want {
			want[i] = float32(math.FMA(1.5, float64(a[i]), float64(b[i])))
		}
		near(t, want, get[float32](r, out, 100), 0)
	},
	"rounding rounding": func(t *testing.T, r *foreignRun) {
		a, b, out := r.f32s(32), r.f32s(32), put(r, make([]float32, 256))
		r.launchWith(x(1), x(32), out, put(r, a), put(r, b), int32(32))
		got := get[float32](r, out, 256)
		down, up := func(v float64) float32 { // round a float64, which is precise enough here, toward minus and plus infinity
			f := float32(v)
			if float64(f) > v {
				f = math.Nextafter32(f, float32(math.Inf(-1)))
			}
			return f
		}, func(v float64) float32 {
			f := float32(v)
			if float64(f) < v {
				f = math.Nextafter32(f, float32(math.Inf(1)))
			}
			return f
		}
		zero := func(v float64) float32 {
			if v < 0 {
				return up(v)
			}
			return down(v)
		}
		for i := range a {
			x, y := float64(a[i]), float64(b[i])
			want := []float32{up(x + y), down(x + y), zero(x * y), up(x * y), down(math.FMA(x, y, x)), zero(math.FMA(x, y, x)), zero(x / y), up(math.Sqrt(math.Abs(x)))}
			assert.Equal(t, want, got[8*i:8*i+8], "%v, %v", x, y)
		}
	},
	"approximate approximate": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(32), put(r, make([]float32, 256))
		r.launchWith(x(1), x(32), out, put(r, a), int32(32))
		got := get[float32](r, out, 256)
		for i, v := range a {
			x := float64(v)
			for k, want := range []float64{math.Exp(x), math.Log(x*x + 1), math.Sin(x), math.Cos(x), 1 / math.Sqrt(x*x+1), x / (3 + x*x), math.Pow(2+x*x, x), math.Tanh(x)} {
				assert.InDelta(t, want, float64(got[8*i+k]), 1e-5*max(1, math.Abs(want)), "function %d of %v", k, x)
			}
		}
	},
	"library library": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(32), put(r, make([]float32, 256))
		r.launchWith(x(1), x(32), out, put(r, a), int32(32))
		got := get[float32](r, out, 256)
		for i, v := range a {
			x := float64(v)
			for k, want := range []float64{math.Exp(x), math.Log(x*x + 1), math.Sin(float64(float32(100000 * v))), math.Cos(x), math.Tanh(x), math.Erf(x),
				math.Pow(float64(float32(2+x*x)), x), math.Mod(float64(1000*v), 3)} {
				assert.InDelta(t, want, float64(got[8*i+k]), 3e-6*max(1, math.Abs(want)), "function %d of %v", k, x)
			}
		}
	},
	"doubles doubles": func(t *testing.T, r *foreignRun) {
		a, b, out := r.f64s(32), r.f64s(32), put(r, make([]float64, 32))
		r.launchWith(x(1), x(32), out, put(r, a), put(r, b), int32(32))
		for i, got := range get[float64](r, out, 32) {
			x, y := a[i], b[i]
			v := x*y + 1.5 + x/y - math.Sqrt(math.Abs(x)) + math.Min(x, y) - math.Max(x, y) + math.Floor(x) + math.RoundToEven(y)
			if x < y {
				v += x
			} else {
				v += 2 * y
			}
			v += float64(float32(x)) + float64(int32(y)) + float64(int64(x)) + float64(uint32(math.Abs(y))) + math.Copysign(x, y) + (x + y) + math.FMA(x, y, x) - x
			assert.InDelta(t, v, got, 1e-13*max(1, math.Abs(x/y)), "%v %v", x, y)
		}
	},
	"halves halves": func(t *testing.T, r *foreignRun) { halvesTwin(t, r, 1) },
	"shuffles shuffles64": func(t *testing.T, r *foreignRun) {
		a, out := r.f64s(32), put(r, make([]float64, 32))
		r.launchWith(x(1), x(32), out, put(r, a), int32(32))
		sum := 0.0
		for _, v := range a {
			sum += v
		}
		for _, got := range get[float64](r, out, 32) {
			assert.InDelta(t, sum, got, 1e-12)
		}
	},
	"inclusive inclusive": func(t *testing.T, r *foreignRun) {
		a, out := draw(32, func() int32 { return int32(r.rng.IntN(100)) }), put(r, make([]int32, 32))
		r.launchWith(x(1), x(32), out, put(r, a), int32(32))
		sum := int32(0)
		each(r, out, 32, func(i int) int32 { sum += a[i]; return sum })
	},
	"reduce reduce": func(t *testing.T, r *foreignRun) {
		a := draw(1000, func() float32 { return float32(r.rng.IntN(64)) })
		out := put(r, make([]float32, 3))
		r.launchWith(x(3), x(128), out, put(r, a), int32(1000))
		var want, got float32
		for _, v := range a {
			want += v
		}
		for _, v := range get[float32](r, out, 3) {
			got += v
		}
		assert.Equal(t, want, got)
	},
	"transpose transpose": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(64*64), put(r, make([]float32, 64*64))
		r.launchWith([3]int{2, 2}, [3]int{32, 8}, out, put(r, a), int32(64))
		each(r, out, 64*64, func(i int) float32 { return a[i%64*64+i/64] })
	},
	"dynamic reverse": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(512), put(r, make([]float32, 512))
		r.launch.SharedBytes = 1024
		r.launchWith(x(2), x(64), out, put(r, a), int32(128))
		each(r, out, 512, func(i int) float32 { return a[i/256*256+255-i%256] })
	},
	"generic generic": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(64), put(r, make([]float32, 64))
		r.launchWith(x(1), x(64), out, put(r, a), int32(64))
		each(r, out, 64, func(i int) float32 {
			own := func(k int) float32 { return a[i] + float32((k-i+64)&7) }
			v := own(i & 7)
			switch i % 3 {
			case 0:
				v = 2 * a[63-i]
			case 1:
				v = a[i]
			}
			v += own(i >> 1 & 7)
			if i%3 == 0 {
				v += 100
			} else {
				v += 0
			}
			if i%3 == 1 {
				return v + 1000
			}
			return v
		})
	},
	"local local_sort": func(t *testing.T, r *foreignRun) {
		a, out := draw(16*32, func() int32 { return int32(r.rng.Uint32()) }), put(r, make([]int32, 16*32))
		r.launchWith(x(1), x(32), out, put(r, a), int32(32))
		for i := 0; i < len(a); i += 16 {
			slices.Sort(a[i : i+16])
		}
		assert.Equal(t, a, get[int32](r, out, len(a)))
	},
	"constant constant": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(64), put(r, make([]float32, 64))
		r.launchWith(x(1), x(64), out, put(r, a), int32(64))
		want := make([]float32, 64)
		for i := range want {
			for k, at := range []int{7, 3, 1, 0, 2, 6, 5, 4} {
				want[i] = float32(math.FMA(0.5+0.5*float64(k), float64(a[(i+at)%64]), float64(want[i])))
			}
			want[i] += float32("hello world"[i%11])
		}
		near(t, want, get[float32](r, out, 64), 2)
	},
	"variables variables": func(t *testing.T, r *foreignRun) {
		out, sums := put(r, make([]uint32, 32)), put(r, make([]float64, 32))
		r.kernelScratch(out, sums)
		got := get[uint32](r, out, 32)
		assert.Equal(t, uint32(5+0x3fc00000), got[0], "tickets begin at 5, and scratch[3] is 1.5")
		assert.Equal(t, uint32(5+31), got[31])
		table := []float64{1.25, -2.5, 1e300, 0}
		each(r, sums, 32, func(i int) float64 { return table[i&3] + 0 })
	},
	"atomics atomics": func(t *testing.T, r *foreignRun) {
		a := draw(64, func() int32 { return int32(r.rng.IntN(1000)) - 300 })
		start := []int32{0, 5, 5, -1, 0, 0, 0, 0, 0, 0, 0, 0}
		out, wide, f, d := put(r, start), put(r, []uint64{0, 0}), put(r, []float32{0}), put(r, []float64{0})
		r.launchWith(x(2), x(32), out, wide, f, d, put(r, a), int32(64))
		want := slices.Clone(start)
		var sum uint64
		for _, v := range a {
			want[0] += v
			want[1], want[2] = min(want[1], v), max(want[2], v)
			want[3], want[4], want[5], want[6] = want[3]&v, want[4]|v, want[5]^v, want[6]-v
			want[7]++
			if want[8]--; want[8] < 0 {
				want[8] = 10
			}
			sum += uint64(int64(v))
			want[9] += 2 * v
		}
		want[11] = 77
		assert.Equal(t, want, get[int32](r, out, 12))
		assert.Equal(t, sum, get[uint64](r, wide, 1)[0])
		assert.Equal(t, []float32{32}, get[float32](r, f, 1))
		assert.Equal(t, []float64{16}, get[float64](r, d, 1))
	},
	"sharedatomics histogram": func(t *testing.T, r *foreignRun) {
		a, out := draw(500, func() uint8 { return uint8(r.rng.Uint32()) }), put(r, make([]uint32, 65))
		r.launchWith(x(1), x(64), out, put(r, a), int32(500))
		want := make([]uint32, 65)
		for _, v := range a {
			want[v&63]++
		}
		want[64] = 500
		assert.Equal(t, want, get[uint32](r, out, 65))
	},
	"cached cached": func(t *testing.T, r *foreignRun) {
		a, b, out := r.f32s(32), r.f32s(128), put(r, make([]float32, 160))
		r.launchWith(x(1), x(32), out, put(r, a), put(r, b), int32(32))
		got := get[float32](r, out, 160)
		for i := range a {
			sum := a[i] + a[i] + a[i] + a[i] + a[i] + a[i]
			near(t, []float32{sum + b[4*i] + b[4*i+3], b[4*i+1], b[4*i+2], sum, a[i]}, []float32{got[i], got[32+i], got[64+i], got[96+i], got[128+i]}, 4)
		}
	},
	"structs structs": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(12), put(r, make([]float32, 12))
		shape := struct {
			Rows, Cols int32
			Scale      float32
			Bias       [3]int16
			_          [6]byte
			Out        uint64
		}{3, 4, 0.5, [3]int16{1, -2, 3}, [6]byte{}, out}
		r.launchWith(x(1), x(32), shape, put(r, a), int8(-5), uint16(60000), 0.25)
		want := make([]float32, 12)
		for i := range want {
			want[i] = a[i]*0.5 + float32(shape.Bias[i%3]) - 5 + 60000 + 0.25
		}
		near(t, want, get[float32](r, out, 12), 4)
	},
	"jumps jumps": func(t *testing.T, r *foreignRun) {
		a, out := draw(64, func() int32 { return int32(r.rng.IntN(2000)) - 500 }), put(r, make([]int32, 64))
		r.launchWith(x(1), x(64), out, put(r, a), int32(64))
		each(r, out, 64, func(i int) int32 {
			x, v := a[i], int32(0)
			switch x & 7 {
			case 0:
				v = x * 3
			case 1:
				v = x - 7
			case 2:
				v = x ^ 0x55
			case 3:
				v = x / 3
			case 4:
				v = -x
			case 5:
				v = x << 3
			case 6:
				for k := int32(0); k < min(int32(i), 11); k++ {
					v += k * x
				}
			default:
				v = 1000
			}
			for v > 100 && v&1 == 0 {
				v /= 2
			}
			return v
		})
	},
	"clusters clusters": func(t *testing.T, r *foreignRun) {
		out := put(r, make([]uint32, 16*32))
		r.launchWith([3]int{4, 4}, x(32), out)
		each(r, out, 16*32, func(i int) uint32 {
			cta, lane := i/32, i%32
			bx, by := cta%4, cta/4
			rank := bx%2 + 2*(by%2)
			return uint32(100*((rank+1)&3) + lane&3 + 1000*(bx%2+2*(by%2)+4*(bx/2)+16*(by/2)) + 1000000*(2+10*2))
		})
	},
	"tall tall": func(t *testing.T, r *foreignRun) {
		out := put(r, make([]uint32, 8))
		r.launchWith([3]int{2, 4}, x(32), out)
		each(r, out, 8, func(i int) uint32 { return uint32(i / 2 % 2) })
	},
	"solid solid": func(t *testing.T, r *foreignRun) {
		out := put(r, make([]uint32, 24*12))
		r.launchWith([3]int{2, 3, 2}, [3]int{4, 3, 2}, out)
		each(r, out, 24*12, func(i int) uint32 {
			th, b := unravel(i%24, [3]int{4, 3, 2}), unravel(i/24, [3]int{2, 3, 2})
			return uint32(th[0] + 10*th[1] + 100*th[2] + 1000*(b[0]+10*b[1]+100*b[2]))
		})
	},
	"counting counting": func(t *testing.T, r *foreignRun) {
		a, out := draw(128, func() int32 { return int32(r.rng.IntN(2000)) - 1000 }), put(r, make([]int32, 128))
		r.launchWith(x(1), x(128), out, put(r, a), int32(128))
		n := int32(0)
		for _, v := range a {
			if v > 0 {
				n++
			}
		}
		each(r, out, 128, func(int) int32 { return n + 1000*int32(choose(slices.Max(a) > 900)) + 2000 })
	},
	"elect elect": func(t *testing.T, r *foreignRun) {
		out := put(r, make([]uint32, 64))
		r.launchWith(x(1), x(64), out)
		each(r, out, 64, func(i int) uint32 { return uint32(choose(i%32 == 0)) + 11100 })
	},
	"softmax softmax": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(200), put(r, make([]float32, 200))
		r.launchWith(x(2), x(32), out, put(r, a), int32(100))
		softmaxes(t, a, get[float32](r, out, 200), 100)
	},
	"layernorm layernorm": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(500), put(r, make([]float32, 500))
		r.launchWith(x(1), x(128), out, put(r, a), int32(500))
		normalised(t, a, get[float32](r, out, 500))
	},
	"matmul matmul": func(t *testing.T, r *foreignRun) {
		const n = 32
		a, b, out := r.f32s(n*n), r.f32s(n*n), put(r, make([]float32, n*n))
		r.launchWith([3]int{2, 2}, [3]int{16, 16}, out, put(r, a), put(r, b), int32(n))
		for i, got := range get[float32](r, out, n*n) {
			sum := 0.0
			for k := range n {
				sum += float64(a[i/n*n+k]) * float64(b[k*n+i%n])
			}
			assert.InDelta(t, sum, float64(got), 1e-5)
		}
	},
	"bitonic bitonic": func(t *testing.T, r *foreignRun) {
		a, out := r.u32s(128), put(r, make([]uint32, 128))
		r.launchWith(x(1), x(128), out, put(r, a))
		sort.Slice(a, func(i, j int) bool { return a[i] < a[j] })
		assert.Equal(t, a, get[uint32](r, out, 128))
	},
	"ticket ticket": func(t *testing.T, r *foreignRun) {
		a, out := draw(300, func() float32 { return float32(r.rng.IntN(10)) }), put(r, []float32{0})
		r.launchWith(x(4), x(32), out, put(r, make([]float32, 4)), put(r, a), int32(300))
		sum := float32(0)
		for _, v := range a {
			sum += v
		}
		assert.Equal(t, []float32{sum}, get[float32](r, out, 1))
	},
	"compares compares": func(t *testing.T, r *foreignRun) {
		a, b, out := r.f32s(32), r.f32s(32), put(r, make([]float32, 32))
		r.launchWith(x(1), x(32), out, put(r, a), put(r, b), int32(32))
		want := make([]float32, 32)
		for i := range want {
			x, y := a[i], b[i]
			s, q := y, float32(3)
			if i >= 16 {
				s = x
			}
			if x > 0.5 {
				q = 14
			}
			want[i] = float32(choose(x < y)) + float32(choose(x >= y)) + s + q + x + 12.5
		}
		near(t, want, get[float32](r, out, 32), 4)
	},
	"asynccopy asynccopy": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(256), put(r, make([]float32, 256))
		r.launchWith(x(1), x(64), out, put(r, a), int32(64))
		each(r, out, 256, func(i int) float32 {
			from := 63 - i/4
			if from%3 == 1 && i%4 == 3 { // this copy takes only 4 of the last 8 bytes
				return 0
			}
			return a[4*from+i%4]
		})
	},
	"phases phases": func(t *testing.T, r *foreignRun) {
		a, out := draw(64*5, func() int32 { return int32(r.rng.IntN(1000)) }), put(r, make([]int32, 64))
		r.launchWith(x(1), x(64), out, put(r, a), int32(5))
		each(r, out, 64, func(i int) (sum int32) {
			for k := range 5 {
				sum += a[64*k+(i+k+1)&63]
			}
			return sum
		})
	},
	"bulk bulk": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(512), put(r, make([]float32, 512))
		r.launchWith(x(2), x(256), out, put(r, a), int32(512))
		each(r, out, 512, func(i int) float32 { return 2 * a[i] })
	},
	"tensor mma16": func(t *testing.T, r *foreignRun) {
		encode := func(v []float64) []uint16 {
			h := make([]uint16, len(v))
			for i := range v {
				h[i] = uint16(arith.F16Nearest(math.Float32bits(float32(v[i]))))
				v[i] = float64(arith.ToF32(arith.F32FromF16(h[i])))
			}
			return h
		}
		a, b, out := r.f64s(256), r.f64s(128), put(r, make([]float32, 128))
		r.launchWith(x(1), x(32), out, put(r, encode(a)), put(r, encode(b)))
		for i, got := range get[float32](r, out, 128) {
			sum := float64(1 + i%2 + 2*(i/64))
			for k := range 16 {
				sum += a[i/8*16+k] * b[k*8+i%8]
			}
			assert.InDelta(t, sum, float64(got), 1e-5)
		}
	},
	"fragments fragments_halves": func(t *testing.T, r *foreignRun) {
		const depth = 80
		half := func() uint16 { return uint16(arith.F16Nearest(math.Float32bits(float32(r.rng.NormFloat64())))) }
		value := func(h uint16) float64 { return float64(arith.ToF32(arith.F32FromF16(h))) }
		a, b, c, out := draw(32*depth, half), draw(32*depth, half), r.f32s(32*32), put(r, make([]float32, 32*32))
		r.launchWith(x(1), x(128), out, put(r, a), put(r, b), put(r, c), int32(depth))
		for i, got := range get[float32](r, out, 32*32) {
			sum := float64(c[i%32*32+i/32])
			for k := range depth {
				sum += 2 * value(a[i/32*depth+k]) * value(b[i%32*depth+k])
			}
			assert.InDelta(t, sum, float64(got), 2e-5)
		}
	},
	"fragments fragments_shared": func(t *testing.T, r *foreignRun) {
		bf16 := func() uint16 { return arith.BF16FromF32(math.Float32bits(float32(r.rng.NormFloat64()))) }
		value := func(h uint16) float64 { return float64(arith.ToF32(arith.F32FromBF16(h))) }
		number := func() uint8 { return uint8(r.rng.Uint32()) }
		a, b, c, d := draw(8*16, bf16), draw(16*32, bf16), draw(32*16, number), draw(16*8, number)
		out, counts := put(r, make([]float32, 8*32)), put(r, make([]int32, 32*8))
		r.launchWith(x(1), x(32), out, counts, put(r, a), put(r, b), put(r, c), put(r, d))
		for i, got := range get[float32](r, out, 8*32) {
			sum := 1.0
			for k := range 16 {
				sum += value(a[i/32*16+k]) * value(b[k*32+i%32])
			}
			assert.InDelta(t, sum, float64(got), 1e-5)
		}
		each(r, counts, 32*8, func(i int) (sum int32) {
			for k := range 16 {
				sum += int32(c[k*32+i/8]) * int32(d[i%8*16+k])
			}
			return sum
		})
	},
	"sparse sparse_mma": func(t *testing.T, r *foreignRun) {
		const depth = 96
		half := func() uint16 { return uint16(arith.F16Nearest(math.Float32bits(float32(r.rng.NormFloat64())))) }
		value := func(h uint16) float64 { return float64(arith.ToF32(arith.F32FromF16(h))) }
		a, b, c := draw(16*depth, half), draw(8*depth, half), r.f32s(16*8)
		out := put(r, c)
		r.launchWith(x(1), x(32), out, put(r, a), put(r, b), int32(depth))
		for i, got := range get[float32](r, out, len(c)) {
			assert.InDelta(t, float64(c[i])+prunedDot(a[i/8*depth:][:depth], b[i%8*depth:][:depth], value), float64(got), 1e-5)
		}
	},
	"sparse sparse_wgmma": func(t *testing.T, r *foreignRun) {
		const depth = 64
		bf16 := func() uint16 { return arith.BF16FromF32(math.Float32bits(float32(r.rng.NormFloat64()))) }
		value := func(h uint16) float64 { return float64(arith.ToF32(arith.F32FromBF16(h))) }
		a, b, out := draw(64*depth, bf16), draw(8*depth, bf16), put(r, make([]float32, 64*8))
		r.launchWith(x(1), x(128), out, put(r, a), put(r, b))
		for i, got := range get[float32](r, out, 64*8) {
			assert.InDelta(t, prunedDot(a[i/8*depth:][:depth], b[i%8*depth:][:depth], value), float64(got), 1e-5)
		}
	},
	"tensor8 mma8": func(t *testing.T, r *foreignRun) {
		a, b, out := r.u32s(128), r.u32s(64), put(r, make([]int32, 128))
		r.launchWith(x(1), x(32), out, put(r, a), put(r, b))
		at := func(words []uint32, lane, per, j, i int) int32 { return int32(int8(words[per*lane+j] >> (8 * i))) }
		each(r, out, 128, func(n int) (sum int32) {
			lane, reg := n/4, n%4
			row, column := lane/4+8*(reg/2), lane%4*2+reg%2
			for k := range 32 {
				sum += at(a, row%8*4+k%16/4, 4, row/8+2*(k/16), k%4) * at(b, column*4+k%16/4, 2, k/16, k%4)
			}
			return sum
		})
	},
	"tensor8 mmabf16": func(t *testing.T, r *foreignRun) {
		words := func(n int) []uint32 { // each word holds two bf16 numbers
			return draw(n, func() uint32 {
				return arith.BF16Nearest(math.Float32bits(float32(r.rng.NormFloat64())))<<16 | arith.BF16Nearest(math.Float32bits(float32(r.rng.NormFloat64())))
			})
		}
		a, b, out := words(128), words(64), put(r, make([]float32, 128))
		r.launchWith(x(1), x(32), out, put(r, a), put(r, b))
		at := func(words []uint32, lane, per, j, i int) float64 {
			return float64(arith.ToF32(words[per*lane+j] >> (16 * i) << 16))
		}
		for n, got := range get[float32](r, out, 128) {
			lane, reg, sum := n/4, n%4, 0.0
			row, column := lane/4+8*(reg/2), lane%4*2+reg%2
			for k := range 16 {
				sum += at(a, row%8*4+k%8/2, 4, row/8+2*(k/8), k%2) * at(b, column*4+k%8/2, 2, k/8, k%2)
			}
			assert.InDelta(t, sum, float64(got), 1e-5)
		}
	},
	"tensor8 mmatf32": func(t *testing.T, r *foreignRun) {
		words := func(n int) []uint32 {
			return draw(n, func() uint32 { return math.Float32bits(float32(r.rng.NormFloat64())) &^ 0x1fff })
		}
		a, b, out := words(128), words(64), put(r, make([]float32, 128))
		r.launchWith(x(1), x(32), out, put(r, a), put(r, b))
		for n, got := range get[float32](r, out, 128) {
			lane, reg, sum := n/4, n%4, 0.0
			row, column := lane/4+8*(reg/2), lane%4*2+reg%2
			for k := range 8 {
				sum += float64(arith.ToF32(a[4*(row%8*4+k%4)+row/8+2*(k/4)])) * float64(arith.ToF32(b[2*(column*4+k%4)+k/4]))
			}
			assert.InDelta(t, sum, float64(got), 1e-5)
		}
	},
	"warpgroup warpgroup": func(t *testing.T, r *foreignRun) {
		bf16 := func() uint16 { return arith.BF16FromF32(math.Float32bits(float32(r.rng.NormFloat64()))) }
		a, b, out := draw(512, func() uint32 { return uint32(bf16())<<16 | uint32(bf16()) }), draw(128, bf16), put(r, make([]float32, 512))
		r.launchWith(x(1), x(128), out, put(r, a), put(r, b))
		for i, got := range get[float32](r, out, 512) {
			thread, sum := i/4, 0.0
			row, column := layout.AccumulatorPosition(thread, i%4)
			for k := range 16 {
				from := row/16*32 + row%8*4 + k%8/2 // index of the thread that holds element (row, k)
				x := a[4*from+row/8%2+2*(k/8)] >> (16 * (k % 2)) << 16
				// B is K-major: a core matrix is 8 columns by 16 bytes of k.
				y := b[k/8*64+column*8+k%8]
				sum += float64(arith.ToF32(x)) * float64(arith.ToF32(arith.F32FromBF16(y)))
			}
			assert.InDelta(t, sum, float64(got), 1e-5, "row %d, column %d", row, column)
		}
	},
	"triton_add add": func(t *testing.T, r *foreignRun) {
		a, b, out := r.f32s(600), r.f32s(600), put(r, make([]float32, 600))
		r.triton(x(3), out, put(r, a), put(r, b), int32(600))
		each(r, out, 600, func(i int) float32 { return a[i] + b[i] })
	},
	"triton_softmax softmax": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(400), put(r, make([]float32, 400))
		r.triton(x(2), out, put(r, a), int32(200))
		softmaxes(t, a, get[float32](r, out, 400), 200)
	},
	"triton_layernorm layernorm": func(t *testing.T, r *foreignRun) {
		a, out := r.f32s(200), put(r, make([]float32, 200))
		r.triton(x(1), out, put(r, a), int32(200))
		normalised(t, a, get[float32](r, out, 200))
	},
	"triton_scan scan": func(t *testing.T, r *foreignRun) {
		a, out := r.u32s(256), put(r, make([]uint32, 256))
		r.triton(x(1), out, put(r, a))
		sum := uint32(0)
		each(r, out, 256, func(i int) uint32 { sum += a[i]; return sum })
	},
	"triton_count count": func(t *testing.T, r *foreignRun) {
		a, out := r.u32s(600), put(r, make([]uint32, 32))
		r.triton(x(3), out, put(r, a), int32(600))
		want := make([]uint32, 32)
		for _, v := range a {
			want[v&31]++
		}
		assert.Equal(t, want, get[uint32](r, out, 32))
	},
	"triton_scale scale": func(t *testing.T, r *foreignRun) {
		a := draw(600, func() uint16 { return arith.BF16FromF32(math.Float32bits(float32(r.rng.NormFloat64()))) })
		out := put(r, make([]uint16, 600))
		r.triton(x(2), out, put(r, a), float32(1.7), int32(600))
		each(r, out, 600, func(i int) uint16 {
			return arith.BF16FromF32(math.Float32bits(arith.ToF32(arith.F32FromBF16(a[i])) * 1.7))
		})
	},
	"triton_matmul matmul":   func(t *testing.T, r *foreignRun) { r.tritonMatmul(64, 96) },
	"triton_matmul16 matmul": func(t *testing.T, r *foreignRun) { r.tritonMatmul(16, 64) },
	"overlap overlap": func(t *testing.T, r *foreignRun) {
		a, out := r.u32s(64), put(r, make([]uint32, 64))
		r.launchWith(x(2), x(32), out, put(r, a), int32(64))
		each(r, out, 64, func(i int) uint32 { return a[i] + 1 })
	},
	"vectors vectors": func(t *testing.T, r *foreignRun) {
		a4, a2 := draw(128, func() uint8 { return uint8(r.rng.Uint32()) }), draw(128, func() int16 { return int16(r.rng.Uint32()) })
		al, ai := r.i64s(64), r.u32s(64)
		o4, o2, ol, oi := put(r, make([]uint8, 128)), put(r, make([]int16, 64)), put(r, make([]int64, 64)), put(r, make([]uint32, 64))
		r.launchWith(x(1), x(32), o4, o2, ol, oi, put(r, a4), put(r, a2), put(r, al), put(r, ai))
		each(r, o4, 128, func(i int) uint8 { return a4[i/4*4+3-i%4] + uint8(choose(i%4 == 3)) })
		each(r, o2, 64, func(i int) int16 {
			if s := a2[i/2*4:]; i%2 == 0 {
				return s[0] + s[3]
			} else {
				return s[1] - s[2]
			}
		})
		each(r, ol, 64, func(i int) int64 {
			if i%2 == 0 {
				return al[i+1]
			}
			return al[i-1] * 3
		})
		each(r, oi, 64, func(i int) uint32 { return ai[i^1] })
	},
}

// triton launches a kernel that Triton compiled. Such a kernel takes pointers to scratch
// memory after its own parameters, and does not use them.
func (r *foreignRun) triton(grid [3]int, params ...any) {
	for len(params) < len(r.kernel.Params()) {
		params = append(params, uint64(0))
	}
	r.launch.SharedBytes = 32 << 10
	r.launchWith(grid, r.kernel.entry.Block, params...)
}

// tritonMatmul tests an FP16 matrix product of two by two tiles.
func (r *foreignRun) tritonMatmul(tile, k int) {
	n := 2 * tile
	encode := func(v []float64) []uint16 {
		h := make([]uint16, len(v))
		for i := range v {
			h[i] = uint16(arith.F16Nearest(math.Float32bits(float32(v[i]))))
			v[i] = float64(arith.ToF32(arith.F32FromF16(h[i])))
		}
		return h
	}
	a, b, out := r.f64s(n*k), r.f64s(k*n), put(r, make([]uint16, n*n))
	r.triton([3]int{2, 2}, out, put(r, encode(a)), put(r, encode(b)), int32(n), int32(n), int32(k))
	for i, got := range get[uint16](r, out, n*n) {
		sum := 0.0
		for j := range k {
			sum += a[i/n*k+j] * b[j*n+i%n]
		}
		assert.InDelta(r.t, sum, float64(arith.ToF32(arith.F32FromF16(got))), 2e-2)
	}
}

// kernelScratch tests a kernel whose threads all use one module variable.
func (r *foreignRun) kernelScratch(out, sums uint64) {
	r.launchWith(x(1), x(32), out, sums, int32(32))
}

// halvesTwin computes each step in float64 and rounds the step's result to FP16.
func halvesTwin(t *testing.T, r *foreignRun, _ int) {
	half := func(v float64) float64 {
		return float64(arith.ToF32(arith.F32FromF16(uint16(arith.F16Nearest(math.Float32bits(float32(v)))))))
	}
	encode := func(v []float64) []uint16 {
		out := make([]uint16, len(v))
		for i := range v {
			v[i] = half(v[i])
			out[i] = uint16(arith.F16Nearest(math.Float32bits(float32(v[i]))))
		}
		return out
	}
	a, b, out := r.f64s(64), r.f64s(64), put(r, make([]uint16, 64))
	r.launchWith(x(1), x(64), out, put(r, encode(a)), put(r, encode(b)), int32(64))
	for i, got := range get[uint16](r, out, 64) {
		x, y := a[i], b[i]
		v := half(half(x*y) + half(x-y))
		v = half(v*x + y)
		v = math.Max(v, -math.Abs(x))
		if !(x < y) {
			v = math.Min(v, y)
		}
		assert.Equal(t, half(v+half(0.5*x)), float64(arith.ToF32(arith.F32FromF16(got))), "%v, %v", x, y)
	}
}

// functionsTwin tests function calls: with values and structures as arguments, by address,
// recursive, and through a table of virtual functions.
func functionsTwin(t *testing.T, r *foreignRun) {
	const n = 70
	in := draw(n, func() int32 { return r.rng.Int32N(1000) })
	out := put(r, make([]int32, n))
	r.launchWith(x(2), x(64), out, put(r, in), int32(n))
	each(r, out, n, func(i int) int32 {
		at := int32(i)
		v := in[i] + at
		v += v + at + at // adds both fields of the structure; the double is i/2, times two
		if i%2 == 0 {
			v += v + 3
		} else {
			v += v - 3
		}
		v += []int32{0, 1, 1, 2, 3, 5}[i%6]
		if in[i]%2 == 1 {
			v += in[i] * at
		} else {
			v += in[i] + 7
		}
		return v + []int32{5, 13, 3, 9, 64, -1, 77, 0}[in[i]%8]
	})
}

// prunedDot returns the dot product of a and b, after keeping the two largest of each four elements
// of a.
func prunedDot(a, b []uint16, value func(uint16) float64) (sum float64) {
	for at := 0; at < len(a); at += 4 {
		order := []int{0, 1, 2, 3}
		slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(math.Abs(value(a[at+j])), math.Abs(value(a[at+i]))) })
		for _, k := range order[:2] {
			sum += value(a[at+k]) * value(b[at+k])
		}
	}
	return sum
}

// softmaxes checks the softmax of each row of a, which has the given width.
func softmaxes(t *testing.T, a, got []float32, width int) {
	for first := 0; first < len(a); first += width {
		sum := 0.0
		for _, v := range a[first : first+width] {
			sum += math.Exp(float64(v))
		}
		for i, v := range a[first : first+width] {
			assert.InEpsilon(t, math.Exp(float64(v))/sum, float64(got[first+i]), 1e-5)
		}
	}
}

// normalised checks that got has the values of a minus their mean, over their standard deviation.
func normalised(t *testing.T, a, got []float32) {
	mean, square := 0.0, 0.0
	for _, v := range a {
		mean += float64(v) / float64(len(a))
		square += float64(v) * float64(v) / float64(len(a))
	}
	for i, v := range got {
		assert.InDelta(t, (float64(a[i])-mean)/math.Sqrt(square-mean*mean+1e-5), float64(v), 1e-5)
	}
}
