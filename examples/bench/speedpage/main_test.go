package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The page is the output of the program, without changes by hand.
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
	one := Pass{Rested: Pair{1, 4}, Load: Pair{1, 1}}
	f := Figures{Rows: []Row{{Forward: one, Backward: one}, {Forward: Pass{Rested: Pair{1, 1}, Load: Pair{1, 1}}, Backward: one}}}
	require.InDelta(t, 2, f.mean("Forward", "rested"), 1e-12)
	require.InDelta(t, 4, f.mean("Backward", "rested"), 1e-12)
	require.InDelta(t, 1, f.mean("Forward", "load"), 1e-12)
	_, err := render([]byte(`{"rows": [], "speeds": 1}`))
	require.ErrorContains(t, err, "speeds")
}
