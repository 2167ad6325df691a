package moe_test

import (
	"context"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/open"
	"sonicmoe/internal/peers"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

// These are the longest allowed times of a start on an H200.
const (
	coldStart = time.Second
	warmStart = 30 * time.Millisecond
)

// TestStartOnGPU starts a layer from an empty cache and then from a full one, and counts the calls
// of the driver. Set CUDA_CACHE_DISABLE=1. Otherwise the driver's own cache shortens the first
// start.
func TestStartOnGPU(t *testing.T) {
	if !onGPU() {
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
		return startOnGPU(t, dev, row.Config, cache.Open(cache.Options{Dir: dir, Logger: newLogger(w)}), w)
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

// startOnGPU creates a layer as in a new process. It returns the layer, the time of the start, and
// the number of calls of each function of the driver.
func startOnGPU(t *testing.T, dev driver.Device, c moe.Config, from *cache.Cache, w *warnings) (*moe.Layer, time.Duration, map[string]int64) {
	jit.Forget(dev)
	before, at := cuda.Calls(dev), time.Now()
	l, err := moe.New(t.Context(), dev, c, moe.WithCache(from), moe.WithLogger(newLogger(w)))
	took := time.Since(at)
	require.NoError(t, err)
	calls := cuda.Calls(dev)
	for name, n := range before {
		calls[name] -= n
	}
	maps.DeleteFunc(calls, func(_ string, n int64) bool { return n == 0 })
	return l, took, calls
}

var bundle = flag.String("bundle", "", "a `file` for TestBundleOnGPU, made with \"warmup fill -row '7B n=256' -export FILE\"")

// TestBundleOnGPU starts a layer from a bundle with machine code of ptxas, without and with a
// separate cache directory. It counts the calls of the driver.
func TestBundleOnGPU(t *testing.T) {
	if !onGPU() {
		t.Skip("SONICMOE_DEVICE is not cuda: the emulated device does not load machine code of ptxas")
	}
	ctx := context.Background()
	row, _ := peers.Find("7B n=256")
	made := *bundle
	if made == "" {
		made = makeBundle(t, row.Config)
	}
	dev, err := open.Device(ctx, "cuda")
	require.NoError(t, err)
	defer dev.Close()
	defer jit.Forget(dev)

	unpacked := cache.Open(cache.Options{Dir: t.TempDir()})
	_, err = unpacked.ImportFile(ctx, made, cache.BundleOptions{})
	require.NoError(t, err)
	for _, place := range []struct {
		name string
		o    cache.Options
	}{
		{"the bundle itself, read-only", cache.Options{Dir: made, ReadOnly: true}},
		{"imported, read-only", cache.Options{Dir: unpacked.Dir(), ReadOnly: true}},
		{"after a directory that may be written", cache.Options{Dir: t.TempDir(), Layers: []string{made}}},
	} {
		w := &warnings{}
		place.o.Logger = newLogger(w)
		l, took, calls := startOnGPU(t, dev, row.Config, cache.Open(place.o), w)
		t.Logf("%s: %v, driver calls %v", place.name, took, calls)
		for _, name := range slices.Sorted(maps.Keys(calls)) {
			assert.False(t, strings.HasPrefix(name, "cuLink"), "%s: a start calls %s", place.name, name)
		}
		for kernel, origin := range l.LoadedFrom() {
			assert.Equal(t, jit.Cached.String(), origin, kernel)
		}
		assert.Less(t, took, 50*time.Millisecond, place.name)
		assert.Empty(t, w.said)
	}
}

// makeBundle fills a cache with this machine's ptxas.
func makeBundle(t *testing.T, c moe.Config) string {
	t.Helper()
	ctx := context.Background()
	by, err := jit.Ptxas(ctx, "sm_90a")
	if err != nil {
		t.Skipf("%v; or give a bundle with -bundle", err)
	}
	sources, err := tools.Sources(driver.H200(), c)
	require.NoError(t, err)
	made := cache.Open(cache.Options{Dir: t.TempDir()})
	require.NoError(t, jit.Warm(ctx, made, "sm_90a", sources, jit.WarmOptions{By: by}))
	path := filepath.Join(t.TempDir(), "warm.tar")
	_, err = made.ExportFile(ctx, path)
	require.NoError(t, err)
	return path
}
