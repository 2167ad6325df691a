package tune

import (
	"context"
	"flag"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/open"
	"sonicmoe/internal/drivertest"
	"sonicmoe/internal/peers"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// tuneLimit is the longest time to tune a layer with an empty cache on an H200.
const tuneLimit = 60 * time.Second

var rows = flag.String("rows", "7B n=256", "`layers` that TestTuneOnGPU tunes: names with commas, slice, or all")

// TestTuneOnGPU tunes layers with an empty cache. It then starts each layer as a second process
// would, and checks that this tunes nothing and compiles nothing. Set CUDA_CACHE_DISABLE=1.
func TestTuneOnGPU(t *testing.T) {
	if drivertest.Name() != "cuda" {
		t.Skip("SONICMOE_DEVICE is not cuda: the times are of a GPU")
	}
	list, err := peers.Select(*rows)
	require.NoError(t, err)
	for _, row := range list {
		t.Run(row.Name, func(t *testing.T) { tuneOnGPU(t, row) })
	}
}

func tuneOnGPU(t *testing.T, row peers.Row) {
	ctx, dir := context.Background(), t.TempDir()
	dev, err := open.Device(ctx, "cuda")
	require.NoError(t, err)
	defer dev.Close()
	defer jit.Forget(dev)

	plan, err := Layer(ctx, dev, row.Config, Options{Cache: cache.Open(cache.Options{Dir: dir})})
	if plan != nil {
		t.Log("\n" + plan.String())
	}
	require.NoError(t, err)
	assert.Less(t, plan.Took, tuneLimit)
	for _, r := range plan.reports {
		assert.GreaterOrEqual(t, r.Count(autotune.Measured), 6, r.Problem)
		for _, status := range []autotune.Status{autotune.Wrong, autotune.Faulted, autotune.Hung, autotune.Died, autotune.Unbuilt} {
			assert.Zero(t, r.Count(status), "%s: %v", r.Problem, status)
		}
		assert.LessOrEqual(t, r.Row(r.Chosen).Gain, 0.05, "%s: the cost model's point loses more than 5 %% against %v", r.Problem, r.Chosen)
	}
	require.NoError(t, plan.Save(ctx, dev))
	require.NoError(t, dev.Err())

	jit.Forget(dev)
	before := maps.Clone(cuda.Calls(dev))
	c := cache.Open(cache.Options{Dir: dir, ReadOnly: true})
	start := time.Now()
	again, err := Layer(ctx, dev, row.Config, Options{Cache: c})
	require.NoError(t, err)
	assert.Empty(t, again.reports)
	looked := time.Since(start)
	start = time.Now()
	l, err := moe.New(ctx, dev, row.Config, moe.WithCache(c))
	require.NoError(t, err)
	t.Logf("second process: looked for choices in %v, moe.New in %v with %v", looked, time.Since(start), l.Tilings())
	for call, n := range cuda.Calls(dev) {
		if call == "cuLinkCreate" || call == "cuLinkCreate_v2" {
			assert.Equal(t, before[call], n, "a second process compiles")
		}
	}
	assert.Equal(t, plan.Tilings, l.Tilings())
}
