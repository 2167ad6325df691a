package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/examples/bench/report"
)

// TestPage checks that the page is exactly what the program writes, without changes by hand.
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
	for v, want := range map[float64]string{0.83238: "0.832", 9.7672: "9.77", 22.297: "22.3", 795: "795", 0: ""} {
		require.Equal(t, want, threeDigits(v))
	}
	require.Equal(t, 2.0, report.Pair{1, 2}.Ratio())
	one := report.Regimes{Rested: report.Pair{1, 4}, Load: report.Pair{1, 1}, Steady: report.Pair{1, 9}, Joules: report.Pair{2, 1}, Eager: 4}
	equal := report.Pair{1, 1}
	f := report.Comparison{Rows: []report.ComparedRow{{Forward: one, Backward: one}, {Forward: report.Regimes{Rested: equal, Load: equal, Steady: equal, Joules: report.Pair{1, 2}, Eager: 9}, Backward: one}}}
	require.InDeltaSlice(t, []float64{2, 1, 3, 1, 6}, f.Means("Forward"), 1e-12)
	require.InDeltaSlice(t, []float64{4, 1, 9, .5, 4}, f.Means("Backward"), 1e-12)
	require.InDelta(t, 2, report.ComparedProduct{MS: []report.Pair{{1, 1}, {1, 4}}}.Ratio(), 1e-12)
	_, err := render([]byte(`{"rows": [], "speeds": 1}`))
	require.ErrorContains(t, err, "speeds")
}
