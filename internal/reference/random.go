package reference

import (
	"math"
	"sync"

	"sonicmoe/internal/spec"
)

// These are the standard deviations of a layer's random inputs in benchmarks.
const (
	ScaleX      = 0.5
	ScaleWeight = 0.02
	ScaleOutput = 0.2 // scale of the gradient of O
)

// Normal is an infinite sequence of random 16-bit values with a normal distribution of mean 0.
// Value i depends only on the seed, the scale and i. A tensor is therefore the same on every
// machine, however many goroutines fill it.
//
// 16 bits of a counter's hash select one of 65,536 quantiles of the distribution. The largest
// value is 4.3 standard deviations.
type Normal struct {
	seed  uint64
	table func() *[1 << 16]uint16 // returns the quantiles, which the first call computes
}

// NewNormal returns the sequence of bf16 values for a seed and a standard deviation, scale.
func NewNormal(seed uint64, scale float64) *Normal { return NewNormalOf(spec.BF16, seed, scale) }

// NewNormalOf is like [NewNormal] for values of type t.
func NewNormalOf(t spec.Type, seed uint64, scale float64) *Normal {
	return &Normal{seed: mix(seed), table: sync.OnceValue(func() *[1 << 16]uint16 {
		table := new([1 << 16]uint16)
		for i, q := range quantiles() {
			table[i] = toBits(t, scale*math.Sqrt2*q)
		}
		return table
	})}
}

// quantiles returns 65,536 quantiles of the standard normal distribution, divided by √2.
var quantiles = sync.OnceValue(func() *[1 << 16]float64 {
	list := new([1 << 16]float64)
	for i := range list {
		p := (float64(i) + 0.5) / (1 << 16)
		list[i] = math.Erfinv(2*p - 1)
	}
	return list
})

// fillPart is the number of values that a goroutine fills at a time, a multiple of 4.
const fillPart = 1 << 16

// Fill sets dst to the values first, first+1, ..., on all processors. first must not be
// negative.
func (r *Normal) Fill(dst []uint16, first int64) {
	parts := (len(dst) + fillPart - 1) / fillPart
	each(parts, func(i int) {
		from := i * fillPart
		r.fill(dst[from:min(from+fillPart, len(dst))], uint64(first)+uint64(from))
	})
}

// Values returns values 0..n-1.
func (r *Normal) Values(n int64) []uint16 {
	dst := make([]uint16, n)
	r.Fill(dst, 0)
	return dst
}

// fill is [Normal.Fill] on one goroutine. One hash gives four values.
func (r *Normal) fill(dst []uint16, first uint64) {
	table := r.table()
	for len(dst) > 0 && first%4 != 0 {
		dst[0] = table[r.index(first)]
		dst, first = dst[1:], first+1
	}
	for ; len(dst) >= 4; dst, first = dst[4:], first+4 {
		h := mix(r.seed + first/4)
		dst[0] = table[uint16(h)]
		dst[1] = table[uint16(h>>16)]
		dst[2] = table[uint16(h>>32)]
		dst[3] = table[uint16(h>>48)]
	}
	for i := range dst {
		dst[i] = table[r.index(first+uint64(i))]
	}
}

// index returns the index of value i in the table of quantiles.
func (r *Normal) index(i uint64) uint16 { return uint16(mix(r.seed+i/4) >> (i % 4 * 16)) }

// mix is the output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), including the
// step that adds the generator's increment. It is a bijection of 64-bit integers.
func mix(x uint64) uint64 {
	x *= 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
