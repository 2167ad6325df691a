package spec

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPadding compares the padded rows of some experts with values computed by hand.
func TestPadding(t *testing.T) {
	for _, tt := range []struct {
		counts []int
		tile   int
		rows   int64
		share  float64
	}{
		{nil, 64, 0, 0},
		{[]int{0, 0}, 64, 0, 0},
		{[]int{0, 1, 64, 65}, 64, 256, 1 - 130.0/256},
		{[]int{0, 1, 64, 65}, 128, 384, 1 - 130.0/384},
		{[]int{128, 256}, 128, 384, 0},
		{[]int{3, 5}, 0, 8, 0},
		{[]int{3, 5}, -64, 8, 0},
	} {
		require.Equal(t, tt.rows, PaddedRows(tt.counts, tt.tile), "%v", tt)
		require.InDelta(t, tt.share, Padding(tt.counts, tt.tile), 1e-12, "%v", tt)
	}
}
