package tune

import (
	"context"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/faulty"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
	"sonicmoe/moe/internal/emit"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/tiles"
)

// quick returns options with which a search tries few candidates, once or twice each, even on a
// busy machine.
func quick(c *cache.Cache) Options {
	return Options{Cache: c, Budget: time.Hour, Most: 2, Rounds: 1, Warm: time.Nanosecond}
}

// TestSecondProcess checks that tuning runs no kernel on the caller's device, and
// that a second process with the saved plan tunes nothing and compiles nothing.
func TestSecondProcess(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	dev := newDevice(t)
	plan, err := Layer(ctx, dev, small, quick(cache.Open(cache.Options{Dir: dir})))
	require.NoError(t, err)
	require.Len(t, plan.reports, len(kernel.Kernels.Products()))
	for _, r := range plan.reports {
		assert.Equal(t, 2, r.Count(autotune.Measured), r)
		assert.NotZero(t, r.Count(autotune.Rejected))
		assert.Equal(t, "a worker process", r.Where)
	}
	assert.Zero(t, dev.Count(faulty.Launch))
	before, err := cache.Open(cache.Options{Dir: dir}).List(ctx)
	require.NoError(t, err)
	for _, info := range before {
		assert.Contains(t, info.Label, "proven ", "a plan changes nothing until it is saved")
	}
	require.NoError(t, plan.Save(ctx, dev))

	second := newDevice(t)
	c := cache.Open(cache.Options{Dir: dir, ReadOnly: true})
	again, err := Layer(ctx, second, small, quick(c))
	require.NoError(t, err)
	assert.Empty(t, again.reports, "a second process tunes nothing")
	assert.Equal(t, plan.Tilings, again.Tilings)
	require.NoError(t, again.Save(ctx, second), "nothing is left to store")
	f := autotune.NewFile()
	require.NoError(t, again.Put(f))
	l, err := moe.New(ctx, second, small, moe.WithCache(c), moe.WithTunedFrom(f))
	require.NoError(t, err)
	assert.Equal(t, plan.Tilings, l.Tilings(), "a file of what was tuned before")
	l, err = moe.New(ctx, second, small, moe.WithCache(c))
	require.NoError(t, err)
	assert.Zero(t, second.Count(faulty.Compile), "and compiles nothing")
	assert.Equal(t, plan.Tilings, l.Tilings())
	for name, origin := range l.ChosenBy() {
		assert.Equal(t, autotune.Tuned.String(), origin, name)
	}

	// An exported bundle has the choices for machines that have never tuned.
	bundle := filepath.Join(t.TempDir(), "tuned.tar")
	_, err = c.ExportFile(ctx, bundle)
	require.NoError(t, err)
	carried := newDevice(t)
	l, err = moe.New(ctx, carried, small, moe.WithCache(cache.Open(cache.Options{Dir: bundle, ReadOnly: true})))
	require.NoError(t, err)
	assert.Zero(t, carried.Count(faulty.Compile))
	assert.Equal(t, autotune.Tuned.String(), l.ChosenBy()["up"])

	// Only a stale choice is tuned again.
	key := emit.Key(dev.Target(), small, spec.ProductDown).String()
	down, err := tiles.Parse(map[string]string{"down": plan.Tilings["down"]})
	require.NoError(t, err)
	value, err := autotune.Encode(down[spec.ProductDown], "another version's")
	require.NoError(t, err)
	c = cache.Open(cache.Options{Dir: dir})
	require.NoError(t, c.PutChoice(key, value))

	// With the bundle as a second layer of the cache, nothing is tuned, and the plan has the valid
	// choice from the bundle.
	behind, err := Layer(ctx, second, small, quick(cache.Open(cache.Options{Dir: dir, Layers: []string{bundle}})))
	require.NoError(t, err)
	assert.Empty(t, behind.reports)
	assert.Equal(t, plan.Tilings, behind.Tilings)
	f = autotune.NewFile()
	require.NoError(t, behind.Put(f))
	stored, ok := f.GetChoice(key)
	assert.True(t, ok)
	assert.NotEqual(t, value, stored)

	third, err := Layer(ctx, second, small, quick(c))
	require.NoError(t, err)
	require.Len(t, third.reports, 1)
	assert.Equal(t, "down", third.reports[0].Problem)
}

func TestSomeProducts(t *testing.T) {
	ctx, dev := context.Background(), newDevice(t)
	o := quick(cache.Open(cache.Options{Dir: t.TempDir()}))
	o.Products = []string{"down"}
	plan, err := Layer(ctx, dev, small, o)
	require.NoError(t, err)
	require.Len(t, plan.reports, 1)
	assert.Zero(t, plan.Tilings["up"])
	assert.NotZero(t, plan.Tilings["down"])
	f := autotune.NewFile()
	require.NoError(t, plan.Put(f))
	l, err := moe.New(ctx, dev, small, moe.WithoutCache(), moe.WithTunedFrom(f), moe.WithoutBackward())
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"up": autotune.CostModel.String(), "down": autotune.Tuned.String()}, l.ChosenBy())
	assert.Equal(t, plan.Tilings["down"], l.Tilings()["down"])

	o.Products = []string{"sideways"}
	_, err = Layer(ctx, dev, small, o)
	assert.ErrorContains(t, err, "must be one of")
	o.Products = nil
	_, err = Layer(ctx, dev, moe.Config{}, o)
	assert.ErrorContains(t, err, "Config.Hidden")
	o.Products, o.ForwardOnly = []string{"down", "dh"}, true
	_, err = Layer(ctx, dev, small, o)
	assert.ErrorContains(t, err, "ForwardOnly")
}

// TestLayerInUse checks that tuning a configuration does not change a layer in use.
func TestLayerInUse(t *testing.T) {
	ctx, dev := context.Background(), newDevice(t)
	c := cache.Open(cache.Options{Dir: t.TempDir()})
	l, err := moe.New(ctx, dev, small, moe.WithCache(c), moe.WithoutBackward())
	require.NoError(t, err)
	before := l.Tilings()
	o := quick(c)
	o.ForwardOnly, o.MinGain = true, 1e-9
	plan, err := Layer(ctx, dev, small, o)
	require.NoError(t, err)
	require.Len(t, plan.reports, 2)
	require.NoError(t, plan.Save(ctx, dev))
	assert.Equal(t, before, l.Tilings())
	assert.NoError(t, dev.Err())
}

// TestRefused checks that Layer refuses arguments that cannot be tuned before it allocates
// anything.
func TestRefused(t *testing.T) {
	ctx, dev := context.Background(), newDevice(t)
	o := quick(cache.Open(cache.Options{Dir: t.TempDir()}))
	var arg *moe.ArgError
	_, err := Layer(ctx, nil, small, o)
	require.ErrorAs(t, err, &arg)
	assert.ErrorContains(t, err, "dev is nil, must be a device")
	for hint, says := range map[int]string{
		math.MaxInt:   "at most 1073741823",
		1<<30 - 1:     "fit the device's 8192 MiB",
		1_000_000_000: "must be few enough",
	} {
		c := small
		c.TokensHint = hint
		_, err := Layer(ctx, dev, c, o)
		require.ErrorAs(t, err, &arg, hint)
		assert.Equal(t, "Config.TokensHint", arg.Field)
		assert.ErrorContains(t, err, says, hint)
	}
	closed, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	_, err = Layer(ctx, closed, small, o)
	require.ErrorIs(t, err, driver.ErrInvalid)
	assert.ErrorContains(t, err, "closed")
	_, err = moe.New(ctx, closed, small, moe.WithoutCache())
	assert.ErrorContains(t, err, "closed")
}

func TestCancellation(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o := quick(cache.Open(cache.Options{Dir: t.TempDir()}))
	o.Progress = func(p Progress) {
		if p.Product == "down" && p.Stage == "verify" {
			cancel()
		}
	}
	dev := newDevice(t)
	plan, err := Layer(ctx, dev, small, o)
	require.ErrorIs(t, err, context.Canceled)
	assert.NotEmpty(t, plan.reports, "what was found is there")
	assert.Contains(t, plan.String(), "\n1 products tuned in", "down's search has not ended")
	assert.NoError(t, dev.Err())
	require.NoError(t, plan.Put(autotune.NewFile()))
}

// TestAnotherDevice checks that a worker whose chip differs does not tune for the caller's device.
func TestAnotherDevice(t *testing.T) {
	o := quick(cache.Open(cache.Options{Dir: t.TempDir()}))
	o.Device, o.Products = "cuda", []string{"up"}
	plan, err := Layer(context.Background(), newDevice(t), small, o)
	require.NoError(t, err)
	assert.Contains(t, plan.reports[0].Where, "the worker process did not start")
	assert.Equal(t, 1, plan.reports[0].Count(autotune.Unproven))
	assert.Equal(t, plan.reports[0].Default, plan.reports[0].Chosen)
}
