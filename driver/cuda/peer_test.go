//go:build linux || darwin

package cuda

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
)

// TestReach checks that a device reaches itself without a driver call, and another GPU if the
// driver allows it. It must not reach devices of other libraries or packages.
func TestReach(t *testing.T) {
	f := newFake(t)
	one, same := f.open(), f.open()
	opened, err := Open(t.Context(), 1, Options{Library: f.path})
	require.NoError(t, err)
	two := opened.(*device)
	emu, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	f.log()
	for _, test := range []struct {
		name  string
		other driver.Device
		fails symbol
		code  int
		reach bool
		log   string
		err   error
	}{
		{name: "itself", other: one, reach: true},
		{name: "the same GPU", other: same, reach: true},
		{name: "another GPU", other: two, reach: true, log: "peer 40 41\nenable 0xe9 0\n"},
		{name: "already enabled", other: two, fails: symCtxEnablePeerAccess, code: peerEnabled, reach: true, log: "peer 40 41\n"},
		{name: "not enabled", other: two, fails: symCtxEnablePeerAccess, code: 2, log: "peer 40 41\n", err: driver.ErrOutOfMemory},
		{name: "not answered", other: two, fails: symDeviceCanAccessPeer, code: 2, err: driver.ErrOutOfMemory},
		{name: "another library", other: newFake(t).open()},
		{name: "another package", other: emu},
	} {
		t.Run(test.name, func(t *testing.T) {
			f.fail(test.fails, test.code)
			reach, err := one.Reach(test.other)
			assert.Equal(t, test.reach, reach)
			assert.ErrorIs(t, err, test.err)
			assert.Equal(t, test.log, f.log())
		})
	}
	f.fail(0, 0)
	f.control("fake_apart")
	reach, err := one.Reach(two)
	require.NoError(t, err)
	assert.False(t, reach, "GPUs without a connection")
}

// TestWithin checks that the device's context is current while Within calls its function, and
// that Within returns the function's error.
func TestWithin(t *testing.T) {
	f := newFake(t)
	dev := f.open()
	ran := errors.New("ran")
	require.ErrorIs(t, Within(dev, func() error {
		if r := dev.raw(symCtxSynchronize, nil); r != success { // fails without a context
			return dev.check(symCtxSynchronize, r)
		}
		return ran
	}), ran)
	require.NoError(t, dev.Close())
	require.ErrorIs(t, Within(dev, func() error { return ran }), driver.ErrInvalid)
	emu, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	require.ErrorIs(t, Within(emu, func() error { return ran }), driver.ErrUnsupported)
}
