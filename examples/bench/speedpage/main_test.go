package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPage checks that the page is the program's output, without changes by hand.
func TestPage(t *testing.T) {
	data, err := os.ReadFile("../h200/speed.json")
	require.NoError(t, err)
	want, err := render(data)
	require.NoError(t, err)
	page, err := os.ReadFile("../h200/speed.md")
	require.NoError(t, err)
	require.Equal(t, want, string(page), "go run ./examples/bench/speedpage writes it anew")
}

func TestFigures(t *testing.T) {
	for v, want := range map[float64]string{0.83238: "0.832", 9.7672: "9.77", 22.297: "22.3", 795: "795"} {
		require.Equal(t, want, threeDigits(v))
	}
	require.Equal(t, 2.0, Pair{1, 2}.Ratio())
	one := Pass{Rested: Pair{1, 4}, Load: Pair{1, 1}, Steady: Pair{1, 9}, Joules: Pair{2, 1}}
	equal := Pair{1, 1}
	f := Figures{Rows: []Row{{Forward: one, Backward: one}, {Forward: Pass{equal, equal, equal, Pair{1, 2}}, Backward: one}}}
	require.InDeltaSlice(t, []float64{2, 1, 3, 1}, f.means("Forward"), 1e-12)
	require.InDeltaSlice(t, []float64{4, 1, 9, .5}, f.means("Backward"), 1e-12)
	require.InDelta(t, 2, Product{MS: []Pair{{1, 1}, {1, 4}}}.Ratio(), 1e-12)
	_, err := render([]byte(`{"rows": [], "speeds": 1}`))
	require.ErrorContains(t, err, "speeds")
}
