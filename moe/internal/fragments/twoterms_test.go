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

// termFormats are formats whose scales have terms: one for each kind of codes.
var termFormats = []Format{
	FormatOf(spec.Config{Weights: "fp8"}), FormatOf(spec.Config{Weights: "nvfp4"}), FormatOf(spec.Config{Weights: "uint4-g32-f16"}),
}

// TestTermsOfAllScales checks that every FP32 significand has two terms. The short run tries a part.
func TestTermsOfAllScales(t *testing.T) {
	every := uint32(997)
	if os.Getenv("SONICMOE_LONG") != "" {
		every = 1
	}
	for significand := uint32(0); significand < 1<<23; significand += every {
		scale := math.Float32frombits(127<<23 | significand)
		if _, _, ok := termFormats[0].terms(scale); !ok {
			t.Fatalf("scale %g has no terms", scale)
		}
	}
}

// numbersOf returns the numbers that a format multiplies by its scales.
func numbersOf(f Format) (list []float32) {
	if f.Code == spec.UInt4 { // code less zero point
		for n := float32(-15); n <= 15; n++ {
			list = append(list, n)
		}
		return list
	}
	for c := range 1 << f.Code.Bits() {
		if n := packed.Code(f.Code, byte(c)); n == n {
			list = append(list, n)
		}
	}
	return list
}

// TestTermsOfCodes checks the equation of the terms for every code, with scales of all magnitudes and
// both signs.
func TestTermsOfCodes(t *testing.T) {
	for _, f := range termFormats {
		require.True(t, f.hasTerms(), f.Name)
		numbers, excess := numbersOf(f), math.Ldexp(1, -f.excess())
		r := rand.New(rand.NewPCG(1, 2))
		for i := range 2000 {
			scale := float32(math.Ldexp(1+r.Float64(), termsFrom+r.IntN(min(20, f.termsBelow())-termsFrom)) * float64(1-i%2*2))
			switch i {
			case 0:
				scale = 0
			case 1:
				scale = float32(math.Copysign(0, -1))
			case 2:
				scale = 0x1p-90
			case 3:
				scale = -float32(math.Ldexp(0x1.fffffep0, min(20, f.termsBelow())-1))
			}
			high, low, ok := f.terms(scale)
			require.True(t, ok, "%s: scale %g", f.Name, scale)
			h, l := num.BF16ToFloat64(high), num.BF16ToFloat64(low)
			for _, code := range numbers {
				n := float64(code) * excess
				want := num.Float32ToBF16(code * scale)
				got := num.Float64ToBF16(n*h + num.BF16ToFloat64(num.Float64ToBF16(n*l)))
				if got != want {
					t.Fatalf("%s: code %g times scale %g: bits %04x, want %04x", f.Name, code, scale, got, want)
				}
			}
		}
	}
}
