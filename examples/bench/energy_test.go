package main

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
)

// steps is a meter that adds a number of joules at each reading, and fails at one of the
// readings.
type steps struct {
	joules, step float64
	readings     int
	failsAt      int
}

func (s *steps) Joules() (float64, error) {
	if s.readings++; s.readings == s.failsAt {
		return 0, errors.New("no reading")
	}
	s.joules += s.step
	return s.joules, nil
}

func (s *steps) Close() error { return nil }

// TestEnergy checks that joules and watts count only the measured passes, and not the load
// before them.
func TestEnergy(t *testing.T) {
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	defer dev.Close()
	stream, err := dev.NewStream()
	require.NoError(t, err)
	timer := &timer{ctx: t.Context(), dev: dev, s: stream}
	defer timer.close()
	passes := 0
	work := func() error {
		passes++
		time.Sleep(time.Millisecond)
		return nil
	}
	e, err := timer.energy(&steps{joules: 1000, step: 12}, 0, 20*time.Millisecond, work)
	require.NoError(t, err)
	require.Equal(t, passes-1, e.Passes)
	require.InDelta(t, 12/float64(e.Passes), e.Joules, 1e-9)
	require.InDelta(t, e.Joules/(e.MS/1e3), e.Watts, 1e-6)
	require.GreaterOrEqual(t, e.MS, 1.0)
	for reading := 1; reading <= 2; reading++ {
		_, err = timer.energy(&steps{failsAt: reading}, 0, 0, work)
		require.EqualError(t, err, "no reading")
	}
	_, err = timer.energy(&steps{}, 0, 0, func() error { return errors.New("no pass") })
	require.EqualError(t, err, "no pass")
}
