package recent_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/recent"
)

// TestCache checks that the most recently used values stay, within the total cost.
func TestCache(t *testing.T) {
	c := recent.New[string, int](10)
	for i, step := range []struct {
		key   string
		cost  int
		found bool
	}{
		{key: "a", cost: 4},
		{key: "b", cost: 6},
		{key: "a", found: true},
		{key: "c", cost: 5}, // removes b
		{key: "a", found: true},
		{key: "b", cost: 1},
		{key: "c", found: true},
		{key: "a", found: true},
		{key: "d", cost: 11}, // removes all others
		{key: "d", found: true},
		{key: "a", cost: 4},
		{key: "d", cost: 11},
	} {
		found := true
		v, err := c.Get(step.key, func() (int, int, error) {
			found = false
			return int(step.key[0]), step.cost, nil
		})
		require.NoError(t, err)
		assert.Equal(t, step.found, found, "step %d", i)
		assert.EqualValues(t, step.key[0], v)
	}
}

// TestConcurrentCalls checks that concurrent calls for one key compute the value once, and that a
// call after an error or a panic computes the value again.
func TestConcurrentCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, failed := recent.New[string, int](10), errors.New("failed")
		for _, want := range []error{failed, nil} {
			calls, release := 0, make(chan struct{})
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					v, err := c.Get("a", func() (int, int, error) {
						calls++
						<-release
						return 7, 1, want
					})
					assert.Equal(t, want, err)
					assert.Equal(t, 7, v)
				})
			}
			synctest.Wait()
			close(release)
			all.Wait()
			require.Equal(t, 1, calls, "%v", want)
		}
		require.Panics(t, func() { _, _ = c.Get("b", func() (int, int, error) { panic("at b") }) })
		v, err := c.Get("b", func() (int, int, error) { return 8, 1, nil })
		require.NoError(t, err)
		require.Equal(t, 8, v)
	})
}
