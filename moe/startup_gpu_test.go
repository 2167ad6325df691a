package moe_test

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/open"
	"sonicmoe/internal/peers"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

// Bounds of a start on an H200.
const (
	coldStart = time.Second
	warmStart = 30 * time.Millisecond
)

// TestStartOnGPU starts a layer from an empty cache and then from a full one, and
// counts the calls of the driver. Set CUDA_CACHE_DISABLE=1, or the driver's own
// cache shortens the first start.
func TestStartOnGPU(t *testing.T) {
	if os.Getenv("SONICMOE_DEVICE") != "cuda" {
		t.Skip("SONICMOE_DEVICE is not cuda: the times are of a GPU's driver")
	}
	if os.Getenv("CUDA_CACHE_DISABLE") != "1" {
		t.Log("CUDA_CACHE_DISABLE is not 1: the driver's own cache may answer the first start")
	}
	ctx, dir := context.Background(), t.TempDir()
	dev, err := open.Device(ctx, "cuda")
	require.NoError(t, err)
	defer dev.Close()
	defer jit.Forget(dev)
	row, _ := peers.Find("7B n=256")
	w := &warnings{}
	begin := func() (*moe.Layer, time.Duration, map[string]int64) {
		jit.Forget(dev)
		before, at := cuda.Calls(dev), time.Now()
		l, err := moe.New(ctx, dev, row.Config, moe.WithCache(cache.Open(cache.Options{Dir: dir, Logger: newLogger(w)})), moe.WithLogger(newLogger(w)))
		took := time.Since(at)
		require.NoError(t, err)
		calls := cuda.Calls(dev)
		for name, n := range before {
			if calls[name] -= n; calls[name] == 0 {
				delete(calls, name)
			}
		}
		return l, took, calls
	}

	l, cold, calls := begin()
	t.Logf("cold %v, driver calls %v", cold, calls)
	kernels := int64(len(l.Kernels()))
	assert.Equal(t, kernels, calls["cuLinkCreate_v2"]+calls["cuLinkCreate"])
	assert.Less(t, cold, coldStart)

	var times []time.Duration
	for range 5 {
		var warm time.Duration
		_, warm, calls = begin()
		times = append(times, warm)
		for _, name := range slices.Sorted(maps.Keys(calls)) {
			assert.False(t, strings.HasPrefix(name, "cuLink"), "a warm start calls %s", name)
		}
	}
	t.Logf("warm %v, driver calls %v", times, calls)
	assert.Less(t, times[0], warmStart)
	assert.Equal(t, kernels, calls["cuModuleLoadData"]+calls["cuModuleLoadDataEx"])
	assert.Empty(t, w.said)
}
