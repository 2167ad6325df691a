package moe_test

import (
	"context"
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

// envBundle names a bundle that was made on another machine with "warmup fill -row
// '7B n=256' -export FILE".
const envBundle = "SONICMOE_BUNDLE"

// TestBundleOnGPU starts a layer from a bundle that ptxas filled, without and with
// a directory of its own, and counts the calls of the driver.
func TestBundleOnGPU(t *testing.T) {
	if os.Getenv("SONICMOE_DEVICE") != "cuda" {
		t.Skip("SONICMOE_DEVICE is not cuda: the emulated device does not load machine code of ptxas")
	}
	ctx := context.Background()
	row, _ := peers.Find("7B n=256")
	bundle := os.Getenv(envBundle)
	if bundle == "" {
		bundle = makeBundle(t, row.Config)
	}
	dev, err := open.Device(ctx, "cuda")
	require.NoError(t, err)
	defer dev.Close()
	defer jit.Forget(dev)

	unpacked := cache.Open(cache.Options{Dir: t.TempDir()})
	_, err = unpacked.ImportFile(ctx, bundle)
	require.NoError(t, err)
	for _, place := range []struct {
		name string
		o    cache.Options
	}{
		{"the bundle itself, read-only", cache.Options{Dir: bundle, ReadOnly: true}},
		{"imported, read-only", cache.Options{Dir: unpacked.Dir(), ReadOnly: true}},
		{"behind a directory of one's own", cache.Options{Dir: t.TempDir(), Layers: []string{bundle}}},
	} {
		w := &warnings{}
		place.o.Logger = newLogger(w)
		jit.Forget(dev)
		before, at := cuda.Calls(dev), time.Now()
		l, err := moe.New(ctx, dev, row.Config, moe.WithCache(cache.Open(place.o)), moe.WithLogger(newLogger(w)))
		took := time.Since(at)
		require.NoError(t, err)
		calls := cuda.Calls(dev)
		for name, n := range before {
			calls[name] -= n
		}
		maps.DeleteFunc(calls, func(_ string, n int64) bool { return n == 0 })
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
		t.Skipf("%v; or set %s to a bundle", err, envBundle)
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
