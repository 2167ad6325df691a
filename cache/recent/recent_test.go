package recent_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/cache/recent"
)

// What was used last stays, within the cost; what failed is tried again.
func TestCache(t *testing.T) {
	c := recent.New[string, int](10)
	for i, step := range []struct {
		key  string
		cost int
		fail bool
		made bool
	}{
		{key: "a", cost: 4, made: true},
		{key: "b", cost: 6, made: true},
		{key: "a"},
		{key: "c", cost: 5, fail: true, made: true},
		{key: "b"}, {key: "a"},
		{key: "c", cost: 5, made: true}, // b goes
		{key: "a"},
		{key: "b", cost: 1, made: true},
		{key: "c"}, {key: "a"},
		{key: "d", cost: 11, made: true}, // all go, the last stays
		{key: "d"},
		{key: "a", cost: 4, made: true},
		{key: "d", cost: 11, made: true},
	} {
		made := false
		v, err := c.Get(step.key, func() (int, int, error) {
			made = true
			if step.fail {
				return 0, step.cost, errors.New("planted")
			}
			return int(step.key[0]), step.cost, nil
		})
		assert.Equal(t, step.made, made, "step %d", i)
		if step.fail {
			require.EqualError(t, err, "planted")
			continue
		}
		require.NoError(t, err)
		assert.EqualValues(t, step.key[0], v)
	}
}
