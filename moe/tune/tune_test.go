package tune_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/autotune"
	"sonicmoe/cache"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/faulty"
	"sonicmoe/jit"
	"sonicmoe/moe"
	"sonicmoe/moe/kernel"
	"sonicmoe/moe/tune"
)

func TestMain(m *testing.M) {
	autotune.WorkerMain()
	os.Exit(m.Run())
}

var small = moe.Config{Hidden: 128, Intermediate: 64, Experts: 4, TopK: 2, TokensHint: 40}

func newDevice(t testing.TB) *faulty.Device {
	t.Helper()
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	counted := faulty.Wrap(dev)
	t.Cleanup(func() {
		jit.Forget(counted)
		assert.NoError(t, counted.Close())
	})
	return counted
}

// quick options try few candidates, once or twice each.
func quick(c *cache.Cache) tune.Options {
	return tune.Options{Cache: c, Search: autotune.Options{Most: 2, Rounds: 1, Warm: time.Nanosecond}}
}

// Tuning runs no kernel on the caller's device; what it saves makes a second
// process tune nothing and compile nothing.
func TestSecondProcess(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	dev := newDevice(t)
	plan, err := tune.Layer(ctx, dev, small, quick(cache.Open(cache.Options{Dir: dir})))
	require.NoError(t, err)
	t.Log("\n" + plan.String())
	require.Len(t, plan.Reports, len(kernel.Products()))
	for _, r := range plan.Reports {
		assert.Equal(t, 2, r.Count(autotune.Measured), r)
		assert.NotZero(t, r.Count(autotune.Rejected))
		assert.Equal(t, "a worker process", r.Where)
	}
	assert.Zero(t, dev.Count(faulty.Launch))
	require.NoError(t, plan.Save(ctx, dev))

	second := newDevice(t)
	c := cache.Open(cache.Options{Dir: dir, ReadOnly: true})
	again, err := tune.Layer(ctx, second, small, quick(c))
	require.NoError(t, err)
	assert.Empty(t, again.Reports, "a second process tunes nothing")
	assert.Equal(t, plan.Choice, again.Choice)
	l, err := moe.New(ctx, second, small, moe.WithCache(c))
	require.NoError(t, err)
	assert.Zero(t, second.Count(faulty.Compile), "and compiles nothing")
	assert.Equal(t, plan.Choice, l.Choice())
	for name, origin := range l.ChosenBy() {
		assert.Equal(t, autotune.Tuned, origin, name)
	}
}
