package spec_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/spec"
)

func TestRoundingCheck(t *testing.T) {
	for _, tt := range []struct {
		r    spec.Rounding
		want string // part of the error, or "" if the Rounding is accepted
	}{
		{spec.Rounding{}, ""},
		{spec.Rounding{Rule: spec.RoundNearest}, ""},
		{spec.Rounding{Rule: spec.RoundDown, Tile: 4096, RawScores: true}, ""},
		{spec.Rounding{Rule: spec.ExpertChoice}, ""},
		{spec.Rounding{Rule: spec.CapacityDrop, Capacity: 1.25}, ""},
		{spec.Rounding{Rule: "nearly"}, `Rounding.Rule is "nearly", must be one of none, nearest, stochastic, mass, balanced, up, down, expert-choice, capacity-drop`},
		{spec.Rounding{Tile: 64}, "Rounding.Tile is 64, must be 0: none has none"},
		{spec.Rounding{Rule: spec.ExpertChoice, Tile: 64}, "Rounding.Tile is 64, must be 0: expert-choice has none"},
		{spec.Rounding{Rule: spec.RoundUp, Tile: -1}, "Rounding.Tile is -1, must be 1 to 4096, or 0, which means 128"},
		{spec.Rounding{Rule: spec.RoundUp, Tile: 4097}, "Rounding.Tile is 4097, must be 1 to 4096, or 0, which means 128"},
		{spec.Rounding{Rule: spec.RoundUp, Capacity: 1}, "Rounding.Capacity is 1, must be 0: up has none"},
		{spec.Rounding{Rule: spec.CapacityDrop}, "Rounding.Capacity is 0, must be a number above 0 with capacity-drop"},
		{spec.Rounding{Rule: spec.ExpertChoice, Capacity: -1}, "Rounding.Capacity is -1, must be 0 or a number above 0"},
		{spec.Rounding{RawScores: true}, "Rounding.RawScores is true, must be false without a Rule"},
	} {
		if tt.want == "" {
			require.NoError(t, tt.r.Check())
			continue
		}
		require.EqualError(t, tt.r.Check(), tt.want)
	}
}

func TestRoundingRows(t *testing.T) {
	assert.Equal(t, 128, spec.Rounding{}.Rows())
	assert.Equal(t, 64, spec.Rounding{Tile: 64}.Rows())
}

// TestRoundingMaxRows checks the bounds on rows for 100 tokens, 8 experts and K = 2.
func TestRoundingMaxRows(t *testing.T) {
	c := spec.Config{NumExperts: 8, TopK: 2}
	for _, tt := range []struct {
		r    spec.Rounding
		want int64
	}{
		{spec.Rounding{}, 200},
		{spec.Rounding{Rule: spec.RoundNearest, Tile: 16}, 200 + 8*7},
		{spec.Rounding{Rule: spec.RoundBalanced, Tile: 16}, 200 + 8*15},
		{spec.Rounding{Rule: spec.RoundUp}, 800},
		{spec.Rounding{Rule: spec.RoundDown}, 200},
		{spec.Rounding{Rule: spec.ExpertChoice}, 200},
		{spec.Rounding{Rule: spec.ExpertChoice, Capacity: 1.25}, 8 * 32},
		{spec.Rounding{Rule: spec.ExpertChoice, Capacity: 100}, 800},
		{spec.Rounding{Rule: spec.CapacityDrop, Capacity: 1.25}, 200},
		{spec.Rounding{Rule: spec.CapacityDrop, Capacity: 0.5}, 8 * 13},
	} {
		assert.Equal(t, tt.want, tt.r.MaxRows(c, 100), "%+v", tt.r)
	}
}
