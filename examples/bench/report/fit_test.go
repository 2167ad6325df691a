package report

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/jit/gemm"
)

// TestMinimize checks that the search follows a curved valley to its minimum.
func TestMinimize(t *testing.T) {
	at := minimize(func(v []float64) float64 {
		return 100*math.Pow(v[1]-v[0]*v[0], 2) + math.Pow(1-v[0], 2)
	}, []float64{-1.2, 1}, 0.3, 1e-7)
	require.InDeltaSlice(t, []float64{1, 1}, at, 1e-3)
}

// TestLost checks that a choice that was not measured counts as a loss, and not as the best
// tiling.
func TestLost(t *testing.T) {
	q := problem{points: []Point{{Point: gemm.Tiling{TileN: 256}, MS: 1.1}}}
	require.InDelta(t, 0.1, q.lost(gemm.Tiling{TileN: 256}, 1), 1e-9)
	require.EqualValues(t, 1, q.lost(gemm.Tiling{TileN: 128}, 1))
}
