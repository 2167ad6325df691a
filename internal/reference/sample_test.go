package reference_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/reference"
)

func TestSampleTokensTouchesEveryExpert(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, tt := range []struct{ tokens, k, e, want int }{
		{1, 1, 1, 1}, {100, 2, 8, 256}, {1000, 8, 128, 64}, {5000, 1, 1024, 16}, {3000, 10, 512, 300}, {64, 4, 8, 1}, {64, 4, 8, 0},
	} {
		experts := make([]int32, tt.tokens*tt.k)
		for i := range experts {
			experts[i] = int32(r.IntN(tt.e) * r.IntN(tt.e+2) / tt.e) // not uniform, and some ids are outside 0..e-1
		}
		experts[len(experts)-1] = -1
		got := reference.SampleTokens(experts, tt.tokens, tt.k, tt.e, tt.want)
		require.GreaterOrEqual(t, len(got), min(tt.want, tt.tokens))
		require.LessOrEqual(t, len(got), max(tt.want, 1)+tt.e)
		require.True(t, slices.IsSorted(got))
		require.Len(t, slices.Compact(slices.Clone(got)), len(got), "a token twice")
		used, touched := map[int32]bool{}, map[int32]bool{}
		for i, e := range experts {
			if e < 0 || int(e) >= tt.e {
				continue
			}
			used[e] = true
			if slices.Contains(got, int32(i/tt.k)) {
				touched[e] = true
			}
		}
		assert.Equal(t, used, touched)
		assert.Equal(t, got, reference.SampleTokens(experts, tt.tokens, tt.k, tt.e, tt.want))
	}
}

func TestSampleTokensSpread(t *testing.T) {
	experts := make([]int32, 100)
	assert.Equal(t, []int32{0, 33, 66, 99}, reference.SampleTokens(experts, 100, 1, 4, 4))
	experts[50], experts[51] = 3, 3
	assert.Equal(t, []int32{0, 33, 51, 66, 99}, reference.SampleTokens(experts, 100, 1, 4, 4))
	assert.Len(t, reference.SampleTokens(experts, 100, 1, 4, 100), 100)
	assert.Empty(t, reference.SampleTokens(nil, 0, 2, 4, 10))
}

func TestGather(t *testing.T) {
	assert.Equal(t, []int{4, 5, 0, 1}, reference.Gather([]int{0, 1, 2, 3, 4, 5}, []int32{2, 0}, 2))
}

func TestWiden(t *testing.T) {
	assert.Equal(t, []float64{0.5, float64(float32(0.1))}, reference.Widen([]float32{0.5, 0.1}))
}
