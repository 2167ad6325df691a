package moe_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/published"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// TestEstimate compares the estimate of Qwen3-30B-A3B at 16,384 tokens with a
// calculation by hand.
func TestEstimate(t *testing.T) {
	c := moe.Config{Hidden: 2048, Intermediate: 768, NumExperts: 128, TopK: 8}
	f, err := moe.Estimate(c, moe.Workload{Tokens: 16384})
	require.NoError(t, err)
	assert.Equal(t, 131072, f.Rows)
	assert.EqualValues(t, 2*(128*2048+128*3*768*2048), f.Weights)
	assert.EqualValues(t, (28672+8*8)*16384, f.Saved, "2d + 4Kn + 8K bytes a token")
	assert.InDelta(t, 128, f.Experts, 1e-9)
	assert.Equal(t, spec.H200.Roofline(spec.ForwardWork(c, 16384)), f.Forward)
	assert.Equal(t, spec.H200.Roofline(spec.BackwardWork(c, 16384)), f.Backward)
	// One token reads 8 experts and the router: 75.5 MB and 0.5 MB, at 4.29 TB/s.
	assert.InDelta(t, 17.7e3, float64(f.Decode), 200)
}

// TestEstimatePadding compares the padding of uniform routing with the padding of random routings.
func TestEstimatePadding(t *testing.T) {
	c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 160, TopK: 6}
	const tokens = 4096
	f, err := moe.Estimate(c, moe.Workload{Tokens: tokens})
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	sums := map[int]float64{}
	draws := 40
	if testing.Short() {
		draws = 10
	}
	for range draws {
		counts := make([]int, c.NumExperts)
		for range tokens {
			for _, e := range r.Perm(c.NumExperts)[:c.TopK] {
				counts[e]++
			}
		}
		of, err := moe.Estimate(c, moe.Workload{Histogram: counts})
		require.NoError(t, err)
		require.Equal(t, tokens, of.Tokens)
		for tile, share := range of.Padding {
			sums[tile] += share / float64(draws)
		}
	}
	assert.InDeltaMapValues(t, sums, f.Padding, 0.01)
}

// TestEstimateHistogram checks the experts, rows and tiles of a histogram.
func TestEstimateHistogram(t *testing.T) {
	c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}
	f, err := moe.Estimate(c, moe.Workload{Histogram: []int{0, 64, 65, 1}})
	require.NoError(t, err)
	assert.Equal(t, 65, f.Tokens)
	assert.Equal(t, 3.0, f.Experts)
	padded := map[int]float64{64: (64+128+64)/130.0 - 1, 128: (128+128+128)/130.0 - 1, 256: 3*256/130.0 - 1}
	assert.InDeltaMapValues(t, padded, f.Padding, 1e-12)
	f, err = moe.Estimate(c, moe.Workload{Histogram: make([]int, 4)})
	require.NoError(t, err)
	assert.Zero(t, f.Padding[64]+f.Experts)
}

// TestEstimateMatchesLayer checks that the estimate has the workspace of the layer.
func TestEstimateMatchesLayer(t *testing.T) {
	c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 8, TopK: 2, Logits: moe.F32, SharedExperts: 3, SharedGate: true}
	dev, err := emulated.New(emulated.Options{Target: driver.H200()})
	require.NoError(t, err)
	defer dev.Close()
	layer := newLayer(t, dev, c)
	sizes, err := layer.Sizes(100)
	require.NoError(t, err)
	f, err := moe.Estimate(c, moe.Workload{Tokens: 100})
	require.NoError(t, err)
	assert.Equal(t, sizes.Workspace, f.Workspace)
	assert.Equal(t, sizes.BackwardWorkspace, f.BackwardWorkspace)
}

// TestEstimatePublished checks that estimates of all published models take almost
// no time.
func TestEstimatePublished(t *testing.T) {
	list, err := published.Models()
	require.NoError(t, err)
	start := time.Now()
	for _, m := range list {
		f, err := moe.Estimate(m.Config, moe.Workload{Tokens: 16384})
		require.NoError(t, err, m.Name)
		assert.Positive(t, f.Forward, m.Name)
		assert.Greater(t, f.Backward, f.Forward, m.Name)
		assert.Less(t, f.Decode, f.Forward, m.Name)
		assert.Equal(t, moe.Check(m.Config) == nil, f.Workspace > 0, m.Name)
		assert.GreaterOrEqual(t, f.Padding[64], 0.0, m.Name)
		assert.GreaterOrEqual(t, f.Padding[128], f.Padding[64], m.Name)
		assert.GreaterOrEqual(t, f.Padding[256], f.Padding[128], m.Name)
	}
	assert.Less(t, time.Since(start), time.Second)
}

func TestEstimateRefuses(t *testing.T) {
	c := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 2}
	for _, tt := range []struct {
		config moe.Config
		load   moe.Workload
		want   string
	}{
		{moe.Config{}, moe.Workload{}, "Config.Hidden is 0"},
		{c, moe.Workload{Tokens: -1}, "Workload.Tokens is -1, must be 1 to 1073741823, or a Histogram: T·K is below 2^31"},
		{c, moe.Workload{}, "Workload.Tokens is 0, must be 1 to"},
		{c, moe.Workload{Histogram: []int{1}}, "Workload.Histogram is 1 experts, must be of 4"},
		{c, moe.Workload{Histogram: []int{1, -1, 0, 0}}, "Workload.Histogram[1] is -1, must be 0 or more"},
		{c, moe.Workload{Histogram: []int{1, math.MaxInt, 0, 0}}, "all together below 2^31"},
		{c, moe.Workload{Histogram: []int{7, 0, 0, 0}}, "Workload.Histogram is 7 rows, must be of a multiple of 2, each token's experts"},
		{c, moe.Workload{Tokens: 9, Histogram: []int{1, 1, 0, 0}}, "Workload.Tokens is 9, must be 0, or 1: the histogram has 2 rows, 2 a token"},
	} {
		_, err := moe.Estimate(tt.config, tt.load)
		require.ErrorContains(t, err, tt.want)
	}
}

func ExampleEstimate() {
	f, err := moe.Estimate(moe.Config{Hidden: 4096, Intermediate: 1536, NumExperts: 128, TopK: 8}, moe.Workload{Tokens: 16384})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("saved %d MiB, tiles of 128 rows add %.0f %%\n", f.Saved>>20, 100*f.Padding[128])
	fmt.Printf("no faster than %v forward, %v backward\n", f.Forward.Round(10*time.Microsecond), f.Backward.Round(10*time.Microsecond))
	// Output:
	// saved 897 MiB, tiles of 128 rows add 6 %
	// no faster than 6.54ms forward, 12.73ms backward
}

// TestEstimateRounding checks the padding of a histogram with and without rounding.
func TestEstimateRounding(t *testing.T) {
	plain := moe.Config{Hidden: 128, Intermediate: 64, NumExperts: 4, TopK: 1}
	rounded := plain
	rounded.Rounding = moe.Rounding{Rule: spec.RoundNearest, Tile: 64}
	padding := func(c moe.Config, load moe.Workload) map[int]float64 {
		f, err := moe.Estimate(c, load)
		require.NoError(t, err)
		return f.Padding
	}
	histogram, uniform := moe.Workload{Histogram: []int{0, 70, 120, 66}}, moe.Workload{Tokens: 4096}
	require.InDelta(t, (128+128+128)/256.0-1, padding(plain, histogram)[64], 1e-12)
	require.Zero(t, padding(rounded, histogram)[64], "64, 128 and 64 rows")
	require.InDelta(t, 384/256.0-1, padding(rounded, histogram)[128], 1e-12)
	require.Positive(t, padding(plain, uniform)[64])
	require.InDelta(t, 0, padding(rounded, uniform)[64], 1e-9)
}
