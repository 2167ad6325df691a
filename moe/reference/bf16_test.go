package reference_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/moe/reference"
)

func TestEveryBF16SurvivesDecoding(t *testing.T) {
	for i := range 1 << 16 {
		bits := uint16(i)
		x := reference.FromBF16(bits)
		want := bits
		if math.IsNaN(x) {
			want = 0x7fff
		}
		if got := reference.ToBF16(x); got != want {
			t.Fatalf("%#04x decodes to %v, which encodes to %#04x", bits, x, got)
		}
		if got := reference.Float32ToBF16(float32(x)); got != want {
			t.Fatalf("%#04x decodes to %v, which encodes from float32 to %#04x", bits, x, got)
		}
	}
}

// Between each two neighbours: the middle goes to the even one, and the nearest
// float64 beside the middle goes to its own side. A way through FP32 would
// see all three as the middle.
func TestRoundingBetweenNeighbours(t *testing.T) {
	const maxFinite = 0x7f7f
	for i := range uint16(maxFinite) {
		low, high := reference.FromBF16(i), reference.FromBF16(i+1)
		middle := low + (high-low)/2
		even := i + i&1
		for _, sign := range []float64{1, -1} {
			s := uint16(0)
			if sign < 0 {
				s = 0x8000
			}
			require.Equal(t, even|s, reference.ToBF16(sign*middle), "%#04x", i)
			require.Equal(t, even|s, reference.Float32ToBF16(float32(sign*middle)), "%#04x", i)
			require.Equal(t, i|s, reference.ToBF16(sign*math.Nextafter(middle, 0)), "%#04x", i)
			require.Equal(t, (i+1)|s, reference.ToBF16(sign*math.Nextafter(middle, math.Inf(1))), "%#04x", i)
		}
	}
}

func TestRoundingEdges(t *testing.T) {
	tests := []struct {
		x    float64
		want uint16
	}{
		{0, 0}, {math.Copysign(0, -1), 0x8000}, {1, 0x3f80}, {-2, 0xc000},
		{1 + 1.0/256, 0x3f80}, {1 + 3.0/256, 0x3f82}, {1 + 1.0/256 + 1e-12, 0x3f81},
		{math.Inf(1), 0x7f80}, {math.Inf(-1), 0xff80}, {math.NaN(), 0x7fff},
		{math.MaxFloat32, 0x7f80}, {math.MaxFloat64, 0x7f80}, {-math.MaxFloat64, 0xff80},
		{0x1.fep127, 0x7f7f}, {0x1.ffp127, 0x7f80}, {math.Nextafter(0x1.ffp127, 0), 0x7f7f},
		{math.SmallestNonzeroFloat64, 0}, {-math.SmallestNonzeroFloat64, 0x8000},
		{0x1p-133, 1}, {0x1p-134, 0}, {0x1.8p-133, 2}, {math.Nextafter(0x1p-134, 1), 1},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, reference.ToBF16(tt.x), "%x", tt.x)
	}
	negativeNaN := math.Float32frombits(0xffc00000)
	assert.Equal(t, uint16(0x7fff), reference.Float32ToBF16(negativeNaN))
	assert.True(t, math.IsNaN(reference.FromBF16(reference.Poison)))
}

// math/big is the judge of random numbers, of which half come close to a tie.
func TestRandomRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		bits := uint64(r.IntN(2))<<63 | uint64(1023-126+r.IntN(253))<<52 | r.Uint64()>>12
		if r.IntN(2) == 0 { // at or near a tie
			bits = bits&^(1<<45-1) | 1<<44
			bits += uint64(r.IntN(3)) - 1
		}
		x := math.Float64frombits(bits)
		want, _ := new(big.Float).SetPrec(8).SetMode(big.ToNearestEven).SetFloat64(x).Float64()
		if got := reference.FromBF16(reference.ToBF16(x)); got != want {
			t.Fatalf("%x rounds to %x, not to %x", x, got, want)
		}
		f := float32(x)
		want, _ = new(big.Float).SetPrec(8).SetMode(big.ToNearestEven).SetFloat64(float64(f)).Float64()
		if got := reference.FromBF16(reference.Float32ToBF16(f)); got != want {
			t.Fatalf("float32 %x rounds to %x, not to %x", f, got, want)
		}
	}
}

func TestRandomSubnormals(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100_000 {
		x := (r.Float64() - 0.5) * 0x1p-125
		if r.IntN(2) == 0 { // a tie
			x = (math.Floor(r.Float64()*128) + 0.5) * 0x1p-133
		}
		if math.Abs(x) >= 0x1p-126 {
			continue
		}
		want := math.RoundToEven(x*0x1p133) * 0x1p-133
		if got := reference.FromBF16(reference.ToBF16(x)); got != want {
			t.Fatalf("%x rounds to %x, not to %x", x, got, want)
		}
	}
}
