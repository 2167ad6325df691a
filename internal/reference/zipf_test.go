package reference_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
)

// TestZipfDraw checks the probabilities 6/11, 3/11 and 2/11 of three experts. A number on the
// bound between two experts gives the next expert.
func TestZipfDraw(t *testing.T) {
	z := reference.NewZipf(3)
	for _, tt := range []struct {
		u    float64
		want int32
	}{{0, 0}, {0.54, 0}, {z[0], 1}, {0.81, 1}, {0.82, 2}, {0.999999, 2}} {
		assert.Equal(t, tt.want, z.Draw(tt.u), "u = %v", tt.u)
	}
	assert.Zero(t, reference.NewZipf(1).Draw(0.99))
	assert.Equal(t, int32(1), reference.NewZipf(2).Draw(0.7))
}

func TestZipfDistinct(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var first [8]int
	for range 10000 {
		list := reference.NewZipf(8).Distinct(8, r.Float64)
		assert.ElementsMatch(t, []int32{0, 1, 2, 3, 4, 5, 6, 7}, list)
		first[list[0]]++
	}
	// Expert i is drawn first with a probability of 1/(i+1) / 2.718, where 2.718 = 1 + 1/2 +
	// ... + 1/8. The tolerance is 5 standard deviations.
	for i, n := range first {
		want := 10000 / (2.717857 * float64(i+1))
		assert.InDelta(t, want, n, 250, "expert %d", i)
	}
}

// TestZipfDistinctOfTheRare checks that experts with a tiny probability, or with none, are
// drawn too: in a bounded number of draws, and in proportion to their probabilities.
func TestZipfDistinctOfTheRare(t *testing.T) {
	r, draws := rand.New(rand.NewPCG(1, 2)), 0
	next := func() float64 {
		draws++
		require.Less(t, draws, 1_000_000, "drawn without end")
		return r.Float64()
	}
	second := map[int32]int{}
	for range 2000 {
		list := reference.Zipf{1 - 4e-15, 1 - 4e-15, 1 - 3e-15, 1}.Distinct(3, next)
		require.Len(t, list, 3)
		require.ElementsMatch(t, []int32{0, 2, 3}, list, "expert 1 has no share")
		second[list[1]]++
	}
	assert.InDelta(t, 3, float64(second[3])/float64(second[2]), 0.5)
	assert.ElementsMatch(t, []int32{0, 1, 2}, reference.Zipf{1, 1, 1}.Distinct(3, next))
}
