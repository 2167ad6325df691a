package moe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/internal/faulty"
	"sonicmoe/jit"
	"sonicmoe/moe"
)

func TestNewRefusesConfig(t *testing.T) {
	dev := newCounted(t)
	for _, test := range []struct {
		field string
		spoil func(c *moe.Config)
	}{
		{"Config.Hidden", func(c *moe.Config) { c.Hidden = 100 }},
		{"Config.Hidden", func(c *moe.Config) { c.Hidden = 1 << 21 }},
		{"Config.Intermediate", func(c *moe.Config) { c.Intermediate = 0 }},
		{"Config.NumExperts", func(c *moe.Config) { c.NumExperts = -1 }},
		{"Config.TopK", func(c *moe.Config) { c.TopK = 5 }},
		{"Config.GateUp", func(c *moe.Config) { c.GateUp = "sideways" }},
		{"Config.Logits", func(c *moe.Config) { c.Logits = 9 }},
		{"Config.TokensHint", func(c *moe.Config) { c.TokensHint = -1 }},
	} {
		c := smallConfig
		test.spoil(&c)
		_, err := moe.New(context.Background(), dev, c, moe.WithoutCache())
		var arg *moe.ArgError
		require.ErrorAs(t, err, &arg, test.field)
		assert.Equal(t, test.field, arg.Field)
	}
	assert.Zero(t, dev.Count(faulty.Any))
}

// TestNegativeDecode checks that WithDecode takes no negative number of tokens.
func TestNegativeDecode(t *testing.T) {
	_, err := moe.New(t.Context(), newCounted(t), smallConfig, moe.WithoutCache(), moe.WithDecode(-7))
	wantArgError(t, err, "WithDecode")
	require.ErrorContains(t, err, "is -7, must be 0 or more tokens")
}

// TestListingOfNoKernel checks that the error of a wrong name has the names that contain it, or the
// first few names, and not all names.
func TestListingOfNoKernel(t *testing.T) {
	l, err := moe.New(t.Context(), newCounted(t), smallConfig, moe.WithoutCache())
	require.NoError(t, err)
	for name, words := range map[string]string{"nope": "such as router, ", "dw": "such as dw2"} {
		_, err := l.Listing(name)
		wantArgError(t, err, "kernel")
		require.ErrorContains(t, err, "kernel is "+name+", must be one of the layer's kernels, "+words)
		require.ErrorContains(t, err, fmt.Sprintf("(%d in all)", len(l.Kernels())))
		require.Less(t, len(err.Error()), 200)
	}
}

func TestNewRefusesDevice(t *testing.T) {
	_, err := moe.New(context.Background(), nil, smallConfig)
	var arg *moe.ArgError
	require.ErrorAs(t, err, &arg)
	assert.Equal(t, "device", arg.Field)

	for _, cc := range [][2]int{{8, 0}, {8, 9}, {10, 0}, {9, 1}} {
		dev := otherDevice{newCounted(t), cc}
		_, err := moe.New(context.Background(), dev, smallConfig, moe.WithoutCache())
		require.ErrorIs(t, err, driver.ErrUnsupported)
		assert.ErrorContains(t, err, fmt.Sprintf("some GPU has compute capability %d.%d, the kernels need 9.0", cc[0], cc[1]))
		assert.Zero(t, dev.Count(faulty.Any))
	}

	counted := newCounted(t)
	_, err = moe.New(context.Background(), struct{ driver.Device }{counted}, smallConfig, moe.WithoutCache())
	require.ErrorIs(t, err, driver.ErrUnsupported)
	assert.ErrorContains(t, err, "the device is a struct { driver.Device }, which cannot compile kernels: want a gpu.Device")
	assert.Zero(t, counted.Count(faulty.Any))

	closed, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	_, err = moe.New(context.Background(), closed, smallConfig, moe.WithoutCache())
	require.ErrorIs(t, err, driver.ErrInvalid)
	assert.ErrorContains(t, err, "closed")
	jit.Forget(closed)
}

// otherDevice is a device with another compute capability.
type otherDevice struct {
	*faulty.Device
	capability [2]int
}

func (d otherDevice) Target() driver.Target {
	t := d.Device.Target()
	t.Name, t.Major, t.Minor = "some GPU", d.capability[0], d.capability[1]
	return t
}

// brokenDevice is a device that has broken.
type brokenDevice struct{ *faulty.Device }

func (brokenDevice) Err() error { return &driver.Error{Op: "launch", Kind: driver.ErrBroken} }

// TestNewRefusesBrokenDevice checks that New refuses a broken device even if all
// kernels are loaded.
func TestNewRefusesBrokenDevice(t *testing.T) {
	dev := brokenDevice{newCounted(t)}
	_, err := moe.New(context.Background(), dev, smallConfig, moe.WithoutCache())
	require.ErrorIs(t, err, driver.ErrBroken)
	assert.Zero(t, dev.Count(faulty.Any))
}

func TestNewContext(t *testing.T) {
	dev := newCounted(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := moe.New(ctx, dev, smallConfig, moe.WithoutCache())
	require.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, dev.Count(faulty.Any), "nothing is started")

	// Cancelled during compilation, New returns while the device still compiles.
	ctx, cancel = context.WithCancel(context.Background())
	release := make(chan bool)
	dev.Before(func(op faulty.Op) error {
		if op == faulty.Compile {
			cancel()
			<-release
		}
		return nil
	})
	_, err = moe.New(ctx, dev, smallConfig, moe.WithoutCache())
	require.ErrorIs(t, err, context.Canceled)
	close(release)

	l, err := moe.New(context.Background(), dev, smallConfig, moe.WithoutCache())
	require.NoError(t, err)
	assert.EqualValues(t, len(l.Kernels()), dev.Count(faulty.Compile), "what was begun was of use")
}

var errInjected = errors.New("injected")

// TestEveryStepFails makes each step of New fail in turn. It checks that New reports the failure,
// leaves nothing on the device and nothing harmful in the cache, and that a later New works.
func TestEveryStepFails(t *testing.T) {
	f := fill(t)
	dev := newCounted(t)
	start(t, dev, cache.Options{Dir: "off"})
	steps := dev.Count(faulty.Any)
	require.Greater(t, steps, int64(3*f.kernels))
	free, _, err := dev.Memory()
	require.NoError(t, err)
	stride := int64(1)
	if testing.Short() {
		stride = 4 // each kernel takes three steps, so every kind of step occurs
	}
	for n := int64(1); n <= steps; n += stride {
		jit.Forget(dev)
		dev.Arm(faulty.Fault{N: n, Err: errInjected})
		c := cache.Open(cache.Options{Dir: t.TempDir()})
		_, err := moe.New(context.Background(), dev, smallConfig, moe.WithCache(c), moe.WithoutBackward(), moe.WithoutDecode())
		require.ErrorIs(t, err, errInjected, "step %d of %d", n, steps)
		assert.ErrorContains(t, err, "kernel ")
		left, _, err := dev.Memory()
		require.NoError(t, err)
		assert.Equal(t, free, left, "device memory after step %d failed", n)

		require.True(t, dev.Disarm())
		dev.ResetCounts()
		l, err := moe.New(context.Background(), dev, smallConfig, moe.WithCache(c), moe.WithoutBackward(), moe.WithoutDecode())
		require.NoError(t, err)
		assert.LessOrEqual(t, dev.Count(faulty.Compile), int64(1), "only what failed is done again")
		s := start(t, dev, cache.Options{Dir: c.Dir()})
		assert.Zero(t, s.compiled)
		if n%7 == 2 { // a sample of the steps is enough
			assert.Equal(t, f.want, forwardOn(t, dev, l))
			assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
		}
	}
}

// TestEveryStepFailsFromTheCache checks that New with a full cache succeeds if a step fails. It
// compiles one kernel.
func TestEveryStepFailsFromTheCache(t *testing.T) {
	f := fill(t)
	dev := newCounted(t)
	start(t, dev, cache.Options{Dir: f.dir})
	steps := dev.Count(faulty.Any)
	require.Greater(t, steps, int64(2*f.kernels))
	for n := int64(1); n <= steps; n++ {
		dev.Arm(faulty.Fault{N: n, Err: errInjected})
		s := start(t, dev, cache.Options{Dir: f.dir})
		require.True(t, dev.Disarm(), "step %d of %d", n, steps)
		assert.LessOrEqual(t, s.compiled, 1, "step %d", n)
		assert.LessOrEqual(t, len(s.warnings), 1, "step %d: %v", n, s.warnings)
		if n%7 == 0 {
			assert.Equal(t, f.want, forwardOn(t, dev, s.layer))
		}
	}
}
