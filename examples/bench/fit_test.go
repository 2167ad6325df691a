package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/moe/kernel"
	"sonicmoe/moe/spec"
)

// At least six points of each product, all of which a layer can have.
func TestCandidates(t *testing.T) {
	target := driver.H200()
	for _, name := range []string{"forward", "backward"} {
		of := passes[name].products
		seen, points := map[kernel.Choice]bool{}, pointTimes{}
		for _, c := range choices(of, target) {
			require.NoError(t, c.Check(target))
			require.False(t, seen[c], "%v twice", c)
			seen[c] = true
			for _, p := range of {
				require.Contains(t, p.candidates(target), p.in(c))
				points.add(p.name, p.in(c), 1)
			}
		}
		for _, p := range of {
			require.Len(t, points[p.name], len(p.candidates(target)), "%s: all candidates, none twice", p.name)
			require.GreaterOrEqual(t, len(points[p.name]), 6, p.name)
			require.Subset(t, p.candidates(target), p.space(target))
		}
	}
}

// measuredBy is a report of a chip that behaves as the model says.
func measuredBy(m kernel.Model) *Report {
	target := driver.H200()
	r := &Report{SMs: target.SMs}
	for _, row := range spec.Rows() {
		times := pointTimes{}
		for _, p := range products {
			for _, at := range p.candidates(target) {
				times.add(p.name, at, milliseconds(p.estimate(m, at, row.Config, target)))
			}
		}
		r.Rows = append(r.Rows, Row{Name: row.Name, Shape: shapeOf(row), Points: evaluate(products, row, target, kernel.Choose(row.Config, target), times)})
	}
	return r
}

// A chip with other constants is recognised: its times are met and its choices
// lose nothing, as today's do.
func TestFitFindsConstants(t *testing.T) {
	chip := kernel.H200Model
	chip.KTileClocks, chip.UpEpilogueClocks, chip.BytesPerClock, chip.Hertz = 90, 4200, 900, 1.7e9
	chip.DHEpilogueClocks, chip.DWKTileClocks, chip.L2BytesPerClock = 9000, 80, 3000
	list, err := problems(measuredBy(chip))
	require.NoError(t, err)
	require.Len(t, list, 16*len(products))
	f := fit(list, kernel.H200Model)
	require.Greater(t, f.RMSBefore, 0.01)
	require.Less(t, f.RMSAfter, 0.002)
	require.InEpsilon(t, chip.Hertz, f.After.Hertz, 0.02)
	require.InEpsilon(t, chip.KTileClocks, f.After.KTileClocks, 0.1)
	var worstBefore float64
	for _, l := range f.Losses {
		require.Less(t, l.After, 0.03, "%s %s", l.Row, l.Product)
		worstBefore = math.Max(worstBefore, l.Before)
	}
	require.Greater(t, worstBefore, 0.0)

	_, err = problems(&Report{Section: Section{Rows: []Row{{Shape: "256,128,64,4,2"}}}})
	require.ErrorContains(t, err, "measure some with -points")
}

// The model that already fits stays as it is.
func TestFitKeepsWhatFits(t *testing.T) {
	list, err := problems(measuredBy(kernel.H200Model))
	require.NoError(t, err)
	f := fit(list, kernel.H200Model)
	require.Less(t, f.RMSAfter, 0.001)
	require.InEpsilon(t, kernel.H200Model.KTileClocks, f.After.KTileClocks, 0.02)
	require.InEpsilon(t, kernel.H200Model.Hertz, f.After.Hertz, 0.01)
}

// The search goes down a bent valley.
func TestMinimize(t *testing.T) {
	at := minimize(func(v []float64) float64 {
		return 100*math.Pow(v[1]-v[0]*v[0], 2) + math.Pow(1-v[0], 2)
	}, []float64{-1.2, 1}, 0.3, 1e-7)
	require.InDeltaSlice(t, []float64{1, 1}, at, 1e-3)
}

// A choice that was not measured counts as a loss, not as the best.
func TestLost(t *testing.T) {
	q := problem{points: []Point{{Point: kernel.Point{TileN: 256}, MS: 1.1}}}
	require.InDelta(t, 0.1, q.lost(kernel.Point{TileN: 256}, 1), 1e-9)
	require.EqualValues(t, 1, q.lost(kernel.Point{TileN: 128}, 1))
}
