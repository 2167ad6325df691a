package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/peers"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/tools"
)

// TestCandidates checks that at least six tilings are measured for each product, and that the
// layer can use all of them.
func TestCandidates(t *testing.T) {
	target, config := driver.H200(), peers.All()[0].Config
	for _, name := range []string{"forward", "backward"} {
		of := passes[name].products
		seen, points := map[tools.Tilings]bool{}, map[*tools.Product]map[gemm.Tiling]bool{}
		for _, p := range of {
			points[p] = map[gemm.Tiling]bool{}
		}
		for _, c := range choices(of, config, target) {
			require.NoError(t, tools.Check(c, target))
			require.False(t, seen[c], "%v twice", c)
			seen[c] = true
			for _, p := range of {
				require.Contains(t, measured(p, config, target), c[p.ID])
				points[p][c[p.ID]] = true
			}
		}
		for _, p := range of {
			require.Len(t, points[p], len(measured(p, config, target)), "%v: all points, none twice", p)
			require.GreaterOrEqual(t, len(points[p]), leastPoints, p.String())
			require.Subset(t, p.Candidates(config, target), measured(p, config, target))
		}
	}
}

// measuredBy returns a report of a chip whose times are exactly those that the cost model m
// predicts.
func measuredBy(m tools.Model) *report.Report {
	target := driver.H200()
	r := &report.Report{SMs: target.SMs}
	for _, row := range peers.All() {
		var all []report.Point
		for _, p := range tools.Products() {
			points, times := measured(p, row.Config, target), []float64{}
			for _, at := range points {
				times = append(times, report.Milliseconds(p.Estimate(m, at, row.Config, target)))
			}
			all = append(all, evaluate(p, row, target, points, times)...)
		}
		r.Rows = append(r.Rows, report.Row{Name: row.Name, Size: report.SizeOf(row), Points: all})
	}
	return r
}

// TestFitFindsConstants checks that the fit finds the constants of another chip. The fitted
// model must predict the chip's times, and its choices must lose no more time than those of the
// present model.
func TestFitFindsConstants(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	chip := tools.H200()
	chip.KTileClocks, chip.UpEpilogueClocks, chip.BytesPerClock, chip.Hertz = 200, 4200, 5000, 1.7e9
	chip.DHEpilogueClocks, chip.DWKTileClocks, chip.L2BytesPerClock = 9000, 80, 3000
	f, err := report.NewFit(tools.H200(), measuredBy(chip))
	require.NoError(t, err)
	require.Len(t, f.Losses, 16*len(tools.Products()))
	require.Greater(t, f.RMSBefore, 0.01)
	require.Less(t, f.RMSAfter, 0.002)
	require.InEpsilon(t, chip.Hertz, f.After.Hertz, 0.05)
	require.InEpsilon(t, chip.KTileClocks, f.After.KTileClocks, 0.3)
	var worstBefore float64
	for _, l := range f.Losses {
		// The best tiling may be one that the cost model cannot choose, because of its group or
		// because it has no cluster.
		require.Less(t, l.After, 0.1, "%s %s", l.Row, l.Product)
		require.Less(t, lostAmongChoosable(t, chip, l), 0.01, "%s %s", l.Row, l.Product)
		worstBefore = math.Max(worstBefore, l.Before)
	}
	require.Greater(t, worstBefore, 0.0)

	_, err = report.NewFit(tools.H200(), &report.Report{Section: report.Section{Rows: []report.Row{{Size: report.Size{Shape: "128,64,4,2", Tokens: 256}}}}})
	require.ErrorContains(t, err, "measure some with -points")
}

// lostAmongChoosable returns how much slower a choice is on the chip than the best of the
// tilings from which the cost model can choose.
func lostAmongChoosable(t *testing.T, chip tools.Model, l report.Loss) float64 {
	p, err := tools.FindProduct(l.Product)
	require.NoError(t, err)
	row, ok := peers.Find(l.Row)
	require.True(t, ok)
	target, least := driver.H200(), math.Inf(1)
	for _, at := range p.Space(target) {
		least = min(least, report.Milliseconds(p.Estimate(chip, at, row.Config, target)))
	}
	return report.Milliseconds(p.Estimate(chip, l.Chosen, row.Config, target))/least - 1
}

// TestFitKeepsWhatFits checks that fitting a model that already fits does not change the model.
func TestFitKeepsWhatFits(t *testing.T) {
	f, err := report.NewFit(tools.H200(), measuredBy(tools.H200()))
	require.NoError(t, err)
	require.Less(t, f.RMSAfter, 0.001)
	require.InEpsilon(t, tools.H200().KTileClocks, f.After.KTileClocks, 0.02)
	require.InEpsilon(t, tools.H200().Hertz, f.After.Hertz, 0.01)
}
