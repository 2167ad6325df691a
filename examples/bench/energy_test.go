package main

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/emulated"
)

// counter is a meter of a device that uses a power of 500 W. It advances in steps, and fails at one
// of the readings.
type counter struct {
	step     time.Duration
	start    time.Time
	readings int
	failsAt  int
}

const counterWatts = 500

func (c *counter) Joules() (float64, error) {
	if c.readings++; c.readings == c.failsAt {
		return 0, errors.New("no reading")
	}
	if c.start.IsZero() {
		c.start = time.Now()
	}
	return counterWatts * time.Since(c.start).Truncate(c.step).Seconds(), nil
}

func (c *counter) Close() error { return nil }

// TestGauge checks that the power is exact for a counter with large steps, wherever the readings
// begin and end between two steps.
func TestGauge(t *testing.T) {
	const step = 100 // milliseconds, in which the counter advances by 50 J
	for begin := range 2 * step {
		var g gauge
		for ms := begin; ms < begin+450; ms++ {
			g.note(time.Unix(0, 0).Add(time.Duration(ms)*time.Millisecond), float64(ms/step*50))
		}
		watts, err := g.watts()
		require.NoError(t, err)
		require.InDelta(t, counterWatts, watts, 1e-6, "from %d ms", begin)
	}
}

// slow is a meter whose readings take a long time.
type slow struct{ counter }

func (s *slow) Joules() (float64, error) {
	time.Sleep(20 * time.Millisecond)
	return s.counter.Joules()
}

// TestSlowMeter checks that slow readings do not slow down the measured work.
func TestSlowMeter(t *testing.T) {
	timer := emulatedTimer(t)
	work := func() error { time.Sleep(time.Millisecond); return nil }
	e, err := timer.energy(&slow{counter{step: time.Nanosecond}}, 0, 200*time.Millisecond, work)
	require.NoError(t, err)
	require.Greater(t, e.Passes, 3*200/20, "a pass must not wait for a reading")
}

// TestEnergy checks that joules and watts count only the measured passes, and not the load before
// them.
func TestEnergy(t *testing.T) {
	timer := emulatedTimer(t)
	passes := 0
	work := func() error {
		passes++
		time.Sleep(time.Millisecond)
		return nil
	}
	e, err := timer.energy(&counter{step: 30 * time.Millisecond}, 0, 200*time.Millisecond, work)
	require.NoError(t, err)
	require.Equal(t, passes-1, e.Passes)
	require.InEpsilon(t, counterWatts, e.Watts, 0.5)
	require.InDelta(t, e.Joules/(e.MS/1e3), e.Watts, 1e-6)
	require.GreaterOrEqual(t, e.MS, 1.0)
	for reading := 1; reading <= 2; reading++ {
		_, err = timer.energy(&counter{failsAt: reading}, 0, 50*time.Millisecond, work)
		require.ErrorContains(t, err, "no reading")
	}
	_, err = timer.energy(&counter{step: time.Hour}, 0, 20*time.Millisecond, work)
	require.ErrorContains(t, err, "has not advanced twice")
	_, err = timer.energy(&counter{}, 0, 0, func() error { return errors.New("no pass") })
	require.ErrorContains(t, err, "no pass")
}

// emulatedTimer returns a timer on an emulated device. Both are closed when the test ends.
func emulatedTimer(t *testing.T) *timer {
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { dev.Close() })
	stream, err := dev.NewStream()
	require.NoError(t, err)
	of := &timer{ctx: t.Context(), dev: dev, s: stream}
	t.Cleanup(func() { of.close() })
	return of
}
