//go:build linux || darwin

package cuda

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/internal/attack"
	"sonicmoe/internal/drivertest"
)

// TestCloseWhileInUse closes a device and a stream while other goroutines use them. Every call
// must succeed, or be refused before it reaches the driver library, which would use a destroyed
// object.
func TestCloseWhileInUse(t *testing.T) {
	f := newFake(t)
	rounds := attack.Rounds(40, 400)
	if testing.Short() {
		rounds = 10
	}
	for round := range rounds {
		dev, err := Open(t.Context(), 0, Options{Library: f.path})
		require.NoError(t, err)
		s, err := dev.NewStream()
		require.NoError(t, err)
		e, err := dev.NewEvent()
		require.NoError(t, err)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for {
					p, err := dev.Alloc(256)
					if err == nil {
						err = errors.Join(s.Fill32(p, 1, 1), e.Record(s), s.Synchronize(t.Context()), dev.Free(p))
					}
					if err != nil {
						assert.ErrorIs(t, err, driver.ErrInvalid)
						return
					}
				}
			})
		}
		for range 50 {
			runtime.Gosched()
		}
		time.Sleep(50 * time.Microsecond)
		if round%2 == 0 {
			require.NoError(t, s.Close())
		}
		require.NoError(t, dev.Close())
		all.Wait()
		require.NotErrorIs(t, dev.Err(), driver.ErrBroken, "being closed breaks nothing")
		require.Zero(t, f.late(), "round %d", round)
	}
}

func TestClosedFake(t *testing.T) { drivertest.RunClosed(t, newFake(t).open()) }

// TestLifetime checks that exactly one user destroys the object: the last one to leave.
func TestLifetime(t *testing.T) {
	for range 300 {
		var l lifetime
		var inside, ends atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for l.enter() {
					inside.Add(1)
					runtime.Gosched()
					assert.Zero(t, ends.Load())
					inside.Add(-1)
					l.leave()
				}
			})
		}
		runtime.Gosched()
		end := func() error {
			assert.Zero(t, inside.Load())
			ends.Add(1)
			return errors.New("the first one's")
		}
		_ = l.close(end)
		assert.NoError(t, l.close(end))
		all.Wait()
		require.EqualValues(t, 1, ends.Load())
		require.True(t, l.closed())
		require.False(t, l.enter())
	}
	var l lifetime
	require.EqualError(t, l.close(func() error { return errors.New("nobody is in") }), "nobody is in")
}
