package recent_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

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
		v, found := c.Find(step.key)
		assert.Equal(t, step.found, found, "step %d", i)
		if found {
			assert.EqualValues(t, step.key[0], v)
		} else {
			c.Add(step.key, int(step.key[0]), step.cost)
		}
	}
}
