package faulty

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/drivertest"
)

func wrapped(t *testing.T) *Device {
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	return Wrap(dev)
}

// TestConformance checks that the wrapper passes the conformance suite, and that afterwards no
// object is live.
func TestConformance(t *testing.T) {
	dev := wrapped(t)
	drivertest.Run(t, dev)
	assert.Equal(t, Live{}, dev.Live())
	assert.Greater(t, dev.Count(Launch), int64(10))
	require.NoError(t, dev.Close())
}

func TestBroken(t *testing.T) {
	drivertest.RunBroken(t, func() gpu.Device { return wrapped(t) })
}

func TestNthCallFails(t *testing.T) {
	dev := wrapped(t)
	own := errors.New("my own")
	for _, c := range []struct {
		fault Fault
		text  string
		kind  error
	}{
		{Fault{Op: Alloc, N: 2}, "Alloc: injected fault: call 2 was made to fail", nil},
		{Fault{Op: Any, N: 4}, "Alloc: injected fault: call 2 was made to fail", nil},
		{Fault{Op: Alloc, N: 2, Err: own}, "my own", own},
	} {
		dev.ResetCounts()
		dev.Arm(c.fault)
		p, err := dev.Alloc(100)
		require.NoError(t, err)
		require.NoError(t, dev.Free(0))
		_, _, err = dev.Memory()
		require.NoError(t, err)
		_, err = dev.Alloc(100)
		require.EqualError(t, err, c.text)
		if c.kind != nil {
			require.ErrorIs(t, err, c.kind)
		}
		assert.Equal(t, Live{Allocations: 1, Bytes: 100}, dev.Live(), "the failed call did nothing")
		require.NoError(t, dev.Free(p), "only one call fails")
		assert.Equal(t, Live{}, dev.Live())
		assert.True(t, dev.Disarm())
		assert.EqualValues(t, 2, dev.Count(Alloc))
		assert.EqualValues(t, 5, dev.Count(Any))
	}
	dev.Arm(Fault{Op: Launch, N: 1})
	assert.False(t, dev.Disarm(), "a fault without its call has not failed a call")
}

// TestBefore checks that a hook is called before the wrapped device, and that it can delay a
// call and make it fail.
func TestBefore(t *testing.T) {
	dev := wrapped(t)
	own, entered, release := errors.New("my own"), make(chan bool), make(chan bool)
	dev.Before(func(o Op) error {
		switch o {
		case Memory:
			entered <- true
			<-release
		case Alloc:
			return own
		}
		return nil
	})
	done := make(chan error)
	go func() { _, _, err := dev.Memory(); done <- err }()
	<-entered
	_, err := dev.Alloc(1)
	require.Equal(t, own, err)
	assert.Equal(t, Live{}, dev.Live(), "the failed call did nothing")
	assert.EqualValues(t, 2, dev.Count(Any), "delayed and failed calls count")
	close(release)
	require.NoError(t, <-done)
	dev.Before(nil)
	p, err := dev.Alloc(1)
	require.NoError(t, err)
	require.NoError(t, dev.Free(p))
}

func TestBreak(t *testing.T) {
	dev := wrapped(t)
	s, err := dev.NewStream()
	require.NoError(t, err)
	dev.Arm(Fault{Op: Fill32, N: 1, Break: true})
	first := s.Fill32(0, 0, 0)
	require.ErrorIs(t, first, driver.ErrBroken)
	assert.Equal(t, first, dev.Err())
	_, err = dev.Alloc(1)
	require.ErrorIs(t, err, first)
	assert.Regexp(t, `^Alloc: not tried, the device broke at [\d:.]+: Fill32: injected fault: call 1 broke the device$`, err)
	require.NoError(t, s.Close(), "a broken device's stream can be closed")
	assert.Equal(t, Live{}, dev.Live())
}

func TestClosed(t *testing.T) { drivertest.RunClosed(t, wrapped(t)) }

func TestOpNames(t *testing.T) {
	seen := map[string]bool{}
	for o := range opCount {
		require.NotEmpty(t, o.String())
		require.False(t, seen[o.String()], o.String())
		seen[o.String()] = true
	}
	assert.Equal(t, "Op(200)", Op(200).String())
}
