package moe_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/store"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/moe/tools"
	"sonicmoe/ptx/ptxas"
)

// assembler replaces ptxas on another machine. It is a device that names ptxas as the producer of
// its machine code.
type assembler struct{ *faulty.Device }

func (assembler) Producer() string { return "ptxas 13.0.88" }

// carried is a device that accepts the machine code of an assembler, as driver/cuda accepts the
// code of ptxas.
type carried struct{ *faulty.Device }

func (carried) Accepts(producer string) bool { return producer == assembler{}.Producer() }

// TestStartFromABundleMadeElsewhere makes a bundle without a device. It checks that a layer starts
// from the bundle without compilations.
func TestStartFromABundleMadeElsewhere(t *testing.T) {
	ctx := context.Background()
	f := fill(t)
	maker, dev := newCounted(t), carried{newCounted(t)}
	sources, err := tools.Sources(dev.Target(), smallConfig, moe.WithoutBackward(), moe.WithoutDecode())
	require.NoError(t, err)
	require.Len(t, sources, f.kernels)

	made := cache.Open(cache.Options{Dir: t.TempDir()})
	require.NoError(t, jit.Warm(ctx, made, dev.Target().Arch, sources, jit.WarmOptions{By: assembler{maker}}))
	assert.EqualValues(t, f.kernels, maker.Count(faulty.Compile))
	bundle := filepath.Join(t.TempDir(), "warm.tar")
	_, err = made.ExportFile(ctx, bundle)
	require.NoError(t, err)
	unpacked := cache.Open(cache.Options{Dir: t.TempDir()})
	_, err = unpacked.ImportFile(ctx, bundle, cache.BundleOptions{})
	require.NoError(t, err)

	for name, o := range map[string]cache.Options{
		"bundle":             {Dir: bundle, ReadOnly: true},
		"imported":           {Dir: unpacked.Dir()},
		"imported read-only": {Dir: unpacked.Dir(), ReadOnly: true},
		"layer":              {Dir: t.TempDir(), Layers: []string{bundle}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &warnings{}
			o.Logger = newLogger(w)
			jit.Forget(dev)
			t.Cleanup(func() { jit.Forget(dev) })
			dev.ResetCounts()
			l, err := moe.New(ctx, dev, smallConfig, moe.WithCache(cache.Open(o)), moe.WithLogger(newLogger(w)), moe.WithoutBackward(), moe.WithoutDecode())
			require.NoError(t, err)
			assert.Zero(t, dev.Count(faulty.Compile))
			assert.EqualValues(t, f.kernels, dev.Count(faulty.Load))
			for kernel, origin := range l.LoadedFrom() {
				assert.Equal(t, jit.Cached.String(), origin, kernel)
			}
			assert.Empty(t, w.said)
			assert.Equal(t, f.want, forwardOn(t, dev.Device, l))
		})
	}
}

// TestStartFromARefusedBundle checks that New ignores machine code in a read-only bundle if the
// device refuses it. Each start compiles the kernel, because a read-only bundle cannot store the
// result.
func TestStartFromARefusedBundle(t *testing.T) {
	ctx := context.Background()
	f := fill(t)
	dir := f.copyTo(t)
	c := cache.Open(cache.Options{Dir: dir})
	key := keyOf(t, dir, "down")
	e, _ := store.Of(c).Get(key)
	e.Images[0].Code = []byte("\x7fELF for another chip")
	require.Equal(t, store.Stored, store.Of(c).Put(key, e))
	bundle := filepath.Join(t.TempDir(), "warm.tar")
	_, err := c.ExportFile(ctx, bundle)
	require.NoError(t, err)
	for range 2 {
		dev := newCounted(t)
		s := start(t, dev, cache.Options{Dir: bundle, ReadOnly: true})
		assert.Equal(t, 1, s.compiled)
		assert.Len(t, s.warnings, 1)
		assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
	}
	own := t.TempDir()
	dev := newCounted(t)
	assert.Equal(t, 1, start(t, dev, cache.Options{Dir: own, Layers: []string{bundle}}).compiled)
	s := start(t, dev, cache.Options{Dir: own, Layers: []string{bundle}})
	assert.Zero(t, s.compiled, "the refreshed entry stands before the layer's")
	assert.Empty(t, s.warnings)
}

// TestWarmWithPtxas checks that ptxas assembles every kernel of a layer to an image that an entry
// can hold.
func TestWarmWithPtxas(t *testing.T) {
	ctx := context.Background()
	by, err := jit.Ptxas(ctx, "sm_90a")
	if errors.Is(err, ptxas.ErrNotFound) {
		t.Skip(err)
	}
	require.NoError(t, err)
	sources, err := tools.Sources(driver.H200(), smallConfig)
	require.NoError(t, err)
	if testing.Short() {
		sources = sources[:2]
	}
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	require.NoError(t, jit.Warm(ctx, c, "sm_90a", sources, jit.WarmOptions{By: by}))
	list, err := c.List(ctx)
	require.NoError(t, err)
	require.Len(t, list, len(sources))
	for _, info := range list {
		assert.NoError(t, info.Err)
		assert.Equal(t, []string{by.Producer()}, info.Producers)
		key, err := store.ParseKey(info.Key)
		require.NoError(t, err)
		e, _ := store.Of(c).Get(key)
		assert.Empty(t, ptxas.Complaint(e.Images[0].Log), info.Label)
	}
}

func TestSourcesRefuse(t *testing.T) {
	old := driver.H200()
	old.Major, old.Name = 8, "an old one"
	_, err := tools.Sources(old, smallConfig)
	require.ErrorIs(t, err, driver.ErrUnsupported)
	assert.ErrorContains(t, err, "an old one")
	var arg *moe.ArgError
	_, err = tools.Sources(driver.H200(), moe.Config{})
	require.ErrorAs(t, err, &arg)
	_, err = tools.Sources(driver.H200(), smallConfig, moe.WithTilings(tiles.Choice{spec.ProductDW1: {TileN: 7}}.Text()))
	require.ErrorAs(t, err, &arg)
}

// This example fills a cache for a GPU of another machine: the PTX of every kernel,
// and machine code if ptxas is installed.
func Example_sources() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "warm")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	sources, err := tools.Sources(driver.H200(), moe.Config{Hidden: 1536, Intermediate: 256, NumExperts: 128, TopK: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	c := cache.Open(cache.Options{Dir: dir})
	var o jit.WarmOptions // stores only PTX; for machine code set o.By to the result of jit.Ptxas(ctx, "sm_90a")
	o.Progress = func(w jit.Warmed) { fmt.Println(w.Label) }
	o.Parallel = 1
	if err := jit.Warm(ctx, c, driver.H200().Arch, sources[:2], o); err != nil {
		fmt.Println(err)
	}
	// Output:
	// router d=1536 n=256 E=128 K=8 w1=concatenated logits=bf16
	// small-batch-logits d=1536 n=256 E=128 K=8 w1=concatenated logits=bf16
}
