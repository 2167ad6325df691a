package fragments

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/num"
	"sonicmoe/internal/packed"
	"sonicmoe/internal/spec"
)

// TestTermsOfAllScales checks that every FP32 significand has two terms. The short run tries a part.
func TestTermsOfAllScales(t *testing.T) {
	every := uint32(997)
	if os.Getenv("SONICMOE_LONG") != "" {
		every = 1
	}
	for significand := uint32(0); significand < 1<<23; significand += every {
		scale := math.Float32frombits(127<<23 | significand)
		if _, _, ok := terms(scale); !ok {
			t.Fatalf("scale %g has no terms", scale)
		}
	}
}

// TestTermsOfCodes checks the equation of the terms for every E4M3 code, with scales of all
// magnitudes and both signs.
func TestTermsOfCodes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		scale := float32(math.Ldexp(1+r.Float64(), termsFrom+r.IntN(termsBelow-termsFrom)) * float64(1-i%2*2))
		switch i {
		case 0:
			scale = 0
		case 1:
			scale = float32(math.Copysign(0, -1))
		case 2:
			scale = 0x1p-90
		case 3:
			scale = -0x1.fffffep7
		}
		high, low, ok := terms(scale)
		require.True(t, ok, "scale %g", scale)
		h, l := num.BF16ToFloat64(high), num.BF16ToFloat64(low)
		for c := range 256 {
			if c&0x7f == 0x7f {
				continue
			}
			code := packed.Code(spec.E4M3, byte(c))
			n := float64(code) * math.Ldexp(1, -termsExcess)
			want := num.Float32ToBF16(code * scale)
			got := num.Float64ToBF16(n*h + num.BF16ToFloat64(num.Float64ToBF16(n*l)))
			if got != want {
				t.Fatalf("code %g times scale %g: bits %04x, want %04x", code, scale, got, want)
			}
		}
	}
}
