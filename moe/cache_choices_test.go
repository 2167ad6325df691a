package moe_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/emit"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/moe/tools"
)

// other is a tiling that the cost model does not choose for smallConfig.
func other(t testing.TB, product spec.ProductID) gemm.Tiling {
	t.Helper()
	p := kernel.Kernels.Product(product)
	def := kernel.Choose(smallConfig, emulated.Target())
	for _, a := range p.Alternatives(smallConfig, emulated.Target()) {
		if a.Rejected == "" && a.Tiling != def[product] {
			return a.Tiling
		}
	}
	t.Fatal("no other point")
	return gemm.Tiling{}
}

// tuned returns a choice in the format of tuning. An empty digest means the digest of the present
// kernels.
func tuned(t testing.TB, product spec.ProductID, p gemm.Tiling, digest string) []byte {
	t.Helper()
	if digest == "" {
		sources, _, err := emit.Product(emulated.Target(), smallConfig, kernel.Kernels.Product(product), p)
		require.NoError(t, err)
		digest = autotune.Digest(sources)
	}
	value, err := autotune.Encode(p, digest)
	require.NoError(t, err)
	return value
}

func choiceKey(product spec.ProductID) string {
	return emit.Key(emulated.Target(), smallConfig, product).String()
}

// TestStoredChoices checks that New uses valid stored choices and reports their origin, and that it
// replaces stale ones with the cost model's.
func TestStoredChoices(t *testing.T) {
	dev, c := newCounted(t), cache.Open(cache.Options{Dir: t.TempDir()})
	up, down := other(t, spec.ProductUp), other(t, spec.ProductDown)
	def := kernel.Choose(smallConfig, dev.Target())
	require.NoError(t, c.PutChoice(choiceKey(spec.ProductUp), tuned(t, spec.ProductUp, up, "")))
	require.NoError(t, c.PutChoice(choiceKey(spec.ProductDown), tuned(t, spec.ProductDown, down, "of another version")))
	require.NoError(t, c.PutChoice(choiceKey(spec.ProductDH), []byte("damage")))
	require.NoError(t, c.PutChoice(choiceKey(spec.ProductDW2), tuned(t, spec.ProductDW2, gemm.Tiling{}, "of no point")))
	require.NoError(t, c.PutChoice(choiceKey(spec.ProductDW1), tuned(t, spec.ProductDW1, gemm.Tiling{TileN: 96, Stages: 3, GroupM: 1, ClusterM: 1}, "gone")))

	w := &warnings{}
	l, err := moe.New(t.Context(), dev, smallConfig, moe.WithCache(c), moe.WithLogger(newLogger(w)))
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"up": autotune.Tuned.String(), "down": autotune.Stale.String(), "dh": autotune.Unreadable.String(),
		"dx": autotune.CostModel.String(), "dw1": autotune.Stale.String(), "dw2": autotune.Stale.String()}, l.ChosenBy())
	want := def.With(spec.ProductUp, up)
	assert.Equal(t, want.Text(), l.Tilings())
	require.Len(t, w.said, 4)
	for _, said := range w.said {
		assert.Contains(t, said, "the cost model decides")
	}

	// Another process that creates the same layer compiles nothing, and Sources lists the kernels
	// of the same tilings.
	forward := forwardOn(t, dev, l)
	again := startWith(t, dev, &warnings{}, moe.WithCache(c))
	assert.Zero(t, again.compiled)
	assert.Equal(t, up.String(), again.layer.Tilings()["up"])
	sources, err := tools.Sources(dev.Target(), smallConfig, moe.WithTunedFrom(c))
	require.NoError(t, err)
	before := dev.Count(faulty.Compile)
	require.NoError(t, jit.Warm(t.Context(), c, dev.Target().Arch, sources, jit.WarmOptions{By: dev}))
	assert.Equal(t, before, dev.Count(faulty.Compile), "Sources are what New compiled")

	// Without tuning the cost model chooses all tilings; the bits are the same.
	alone := startWith(t, dev, &warnings{}, moe.WithCache(c), moe.WithoutTuning())
	assert.Equal(t, def.Text(), alone.layer.Tilings())
	assert.Equal(t, autotune.CostModel.String(), alone.layer.ChosenBy()["up"])
	assert.Empty(t, alone.warnings)
	assert.Equal(t, forward, forwardOn(t, dev, alone.layer))

	// A nil file and a nil cache are wrong sources.
	for _, none := range []interface {
		GetChoice(key string) (value []byte, ok bool)
	}{nil, (*autotune.File)(nil), (*cache.Cache)(nil)} {
		_, err := moe.New(t.Context(), dev, smallConfig, moe.WithoutCache(), moe.WithTunedFrom(none))
		assert.ErrorContains(t, err, "WithTunedFrom is nil")
	}

	// Tilings of the caller take precedence over stored ones.
	given := startWith(t, dev, &warnings{}, moe.WithCache(c), moe.WithTilings(tiles.Choice{spec.ProductUp: def[spec.ProductUp]}.Text()))
	assert.Equal(t, autotune.Given.String(), given.layer.ChosenBy()["up"])
	assert.Equal(t, def[spec.ProductUp].String(), given.layer.Tilings()["up"])

	assert.Len(t, given.layer.ChosenBy(), 2, "without backward")
}

// TestChoicesFromAFile checks that all ranks that read one file use the same tilings, whatever
// choices their caches have.
func TestChoicesFromAFile(t *testing.T) {
	f := autotune.NewFile()
	up := other(t, spec.ProductUp)
	require.NoError(t, f.PutChoice(choiceKey(spec.ProductUp), tuned(t, spec.ProductUp, up, "")))
	path := filepath.Join(t.TempDir(), "choices.json")
	require.NoError(t, f.WriteFile(path))
	for range 2 {
		dev, c := newCounted(t), cache.Open(cache.Options{Dir: t.TempDir()})
		require.NoError(t, c.PutChoice(choiceKey(spec.ProductDown), tuned(t, spec.ProductDown, other(t, spec.ProductDown), "")))
		file, err := autotune.ReadFile(t.Context(), path)
		require.NoError(t, err)
		s := startWith(t, dev, &warnings{}, moe.WithCache(c), moe.WithTunedFrom(file))
		want := kernel.Choose(smallConfig, dev.Target()).With(spec.ProductUp, up)
		assert.Equal(t, want.Text(), s.layer.Tilings())
	}
}

// TestChoiceKey checks that the key contains the layer, the chip and a bucket of
// rows per expert, but not the number of tokens.
func TestChoiceKey(t *testing.T) {
	c := smallConfig
	at := func(tokens int) string {
		c.TokensHint = tokens
		return emit.Key(driver.H200(), c, spec.ProductUp).String()
	}
	assert.Equal(t, at(1000), at(1001))
	assert.Equal(t, at(0), at(16384), "the hint that stands for none")
	assert.NotEqual(t, at(8), at(8192))
	distinct := map[string]bool{}
	for n := 1; n < 1<<20; n *= 2 {
		distinct[at(n)] = true
	}
	assert.LessOrEqual(t, len(distinct), int(autotune.Buckets))
	assert.Contains(t, at(0), "NVIDIA H200, 132 SMs")
	c.Logits = moe.F32
	assert.NotEqual(t, emit.Key(driver.H200(), smallConfig, spec.ProductUp), emit.Key(driver.H200(), c, spec.ProductUp))
	_, err := tools.FindProduct("sideways")
	assert.ErrorContains(t, err, "[up down dh dw2 dw1 dx]")
}
