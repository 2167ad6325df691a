package jit_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/store"
	"sonicmoe/jit"
)

// updated is a device whose driver has been updated.
type updated struct {
	*faulty.Device
	producer string
	accepts  []string
}

func (u *updated) Producer() string { return u.producer }
func (u *updated) Accepts(producer string) bool {
	for _, p := range u.accepts {
		if p == producer {
			return true
		}
	}
	return false
}

// TestMachineCodeInALaterPlace checks a cache of two layers. If the user's layer has only PTX, or
// machine code that the device refuses, the bundle's machine code is used, and nothing is compiled.
func TestMachineCodeInALaterPlace(t *testing.T) {
	s, _ := adder(t, 1)
	bundle := cache.Open(cache.Options{Dir: t.TempDir()})
	dev := &updated{newDevice(t), "ptxas", nil}
	_, err := jit.Of(dev).Load(context.Background(), bundle, s, gpu.CompileOptions{})
	require.NoError(t, err)
	jit.Forget(dev)
	key := onlyKey(t, bundle)
	e, _ := store.Of(bundle).Get(key)
	for name, images := range map[string][]store.Image{"PTX alone": nil, "another driver's": {{Producer: "driver 1", Code: []byte("other")}}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.Equal(t, store.Stored, store.Of(cache.Open(cache.Options{Dir: dir})).Put(key, store.Entry{PTX: e.PTX, Images: images}))
			for _, places := range [][]string{{dir, bundle.Dir()}, {dir}} {
				dev := &updated{newDevice(t), "driver 2", []string{"ptxas"}}
				defer jit.Forget(dev)
				c := cache.Open(cache.Options{Dir: places[0], Layers: places[1:]})
				f, err := jit.Of(dev).Load(context.Background(), c, s, gpu.CompileOptions{})
				require.NoError(t, err)
				assert.Equal(t, uint32(8), runAdder(t, dev, f, 7))
				assert.EqualValues(t, 2-len(places), dev.Count(faulty.Compile), "compilations with %d places", len(places))
			}
		})
	}
}

// TestProducers checks that a device loads the image of its own producer from an entry. If there is
// none, it loads an image that it accepts. Without such an image, it compiles.
func TestProducers(t *testing.T) {
	s, _ := adder(t, 1)
	log := &bytes.Buffer{}
	s.Logger = slog.New(slog.NewTextHandler(log, nil))
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	load := func(producer string, accepts ...string) (jit.Origin, *faulty.Device) {
		t.Helper()
		dev := &updated{newDevice(t), producer, accepts}
		t.Cleanup(func() { jit.Forget(dev) })
		f, err := jit.Of(dev).Load(context.Background(), c, s, gpu.CompileOptions{})
		require.NoError(t, err)
		assert.Equal(t, uint32(8), runAdder(t, dev, f, 7))
		return f.Origin, dev.Device
	}
	origin, _ := load("driver 1")
	require.Equal(t, jit.Compiled, origin)
	origin, _ = load("driver 1")
	require.Equal(t, jit.Cached, origin)
	origin, _ = load("driver 2", "driver 1")
	require.Equal(t, jit.Cached, origin, "the device accepts an older driver's machine code")
	require.Empty(t, log.String())
	origin, _ = load("driver 2")
	require.Equal(t, jit.Compiled, origin, "the device refuses an older driver's machine code")
	require.Equal(t, 1, strings.Count(log.String(), "level=INFO"), "one message")
	require.Contains(t, log.String(), `have="driver 1" want="driver 2"`)
	log.Reset()
	for _, producer := range []string{"driver 1", "driver 2"} {
		origin, _ = load(producer)
		require.Equal(t, jit.Cached, origin, "both images stay in the entry")
	}
	require.Empty(t, log.String())

	// The image of the device's own producer is damaged, the image of an accepted producer is good.
	key := onlyKey(t, c)
	e, outcome := store.Of(c).Get(key)
	require.Equal(t, store.Hit, outcome)
	good, ok := e.Image("driver 1")
	require.True(t, ok)
	require.Equal(t, store.Stored, store.Of(c).Put(key, store.Entry{PTX: e.PTX, Images: []store.Image{
		{Producer: "driver 2", Code: []byte("garbage")}, good}}))
	origin, dev := load("driver 2", "driver 1")
	require.Equal(t, jit.Cached, origin)
	require.EqualValues(t, 2, dev.Count(faulty.Load))
	require.Empty(t, log.String())

	// All images are damaged. There must be one compilation, and one warning that names each image.
	require.Equal(t, store.Stored, store.Of(c).Put(key, store.Entry{PTX: e.PTX, Images: []store.Image{
		{Producer: "driver 2", Code: []byte("garbage")}, {Producer: "driver 1", Code: []byte("garbage")}}}))
	origin, _ = load("driver 2", "driver 1")
	require.Equal(t, jit.Compiled, origin)
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("level=WARN")))
	for _, want := range []string{"kernel=adder", key.String(), "image of driver 1", "image of driver 2"} {
		assert.Contains(t, log.String(), want)
	}
	origin, _ = load("driver 2", "driver 1")
	require.Equal(t, jit.Cached, origin, "the entry is repaired")
}

// TestEntryOfAnotherText checks an entry that has another kernel's PTX under this kernel's key. It
// must not run, even if its machine code can be loaded and has a kernel of this name.
func TestEntryOfAnotherText(t *testing.T) {
	s, _ := adder(t, 1)
	other, _ := adder(t, 2)
	load := func(c *cache.Cache, s jit.Source) *jit.Function {
		t.Helper()
		dev := newDevice(t)
		f, err := jit.Of(dev).Load(context.Background(), c, s, gpu.CompileOptions{})
		require.NoError(t, err)
		if s.Label == "adder 1" {
			assert.Equal(t, uint32(8), runAdder(t, dev, f, 7))
		}
		return f
	}
	mine, others := cache.Open(cache.Options{Dir: t.TempDir()}), cache.Open(cache.Options{Dir: t.TempDir()})
	load(mine, s)
	load(others, other)
	wrong, outcome := store.Of(others).Get(onlyKey(t, others))
	require.Equal(t, store.Hit, outcome)
	require.Equal(t, store.Stored, store.Of(mine).Put(onlyKey(t, mine), wrong))
	assert.Equal(t, jit.Compiled, load(mine, s).Origin)
	assert.Equal(t, jit.Cached, load(mine, s).Origin)
}

// onlyKey returns the key of a cache's only entry.
func onlyKey(t testing.TB, c *cache.Cache) store.Key {
	t.Helper()
	list, err := c.List(context.Background())
	require.NoError(t, err)
	require.Len(t, list, 1)
	key, err := store.ParseKey(list[0].Key)
	require.NoError(t, err)
	return key
}
