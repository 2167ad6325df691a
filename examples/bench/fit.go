package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/kernel"
)

// Fit is the cost model's constants for measured points, and how well the
// model picks before and after.
type Fit struct {
	Points int          `json:"points"`
	Before kernel.Model `json:"before"`
	After  kernel.Model `json:"after"`
	// RMSBefore and RMSAfter are the error of estimates, relative, once each
	// row's and product's mean error is taken off: what matters for a choice.
	RMSBefore float64 `json:"rms_before"`
	RMSAfter  float64 `json:"rms_after"`
	Losses    []Loss  `json:"losses"`
}

// Loss is what the model's choice loses at one row and product: its measured
// time over the best one, less 1.
type Loss struct {
	Row     string       `json:"row"`
	Product string       `json:"product"`
	Points  int          `json:"points"`
	Best    kernel.Point `json:"best"`
	BestMS  float64      `json:"best_ms"`
	Before  float64      `json:"before"`
	After   float64      `json:"after"`
	Chosen  kernel.Point `json:"chosen"` // after
}

// problem is the measured points of one row and product.
type problem struct {
	row    string
	config moe.Config
	target driver.Target
	product
	points []Point
}

// problems collects the points of reports.
func problems(reports ...*Report) ([]problem, error) {
	var list []problem
	for _, rep := range reports {
		target := driver.H200()
		target.SMs = rep.SMs
		for _, row := range rep.Rows {
			shape, err := parseShape(row.Shape)
			if err != nil {
				return nil, err
			}
			for _, p := range products {
				q := problem{row: row.Name, config: shape.Config, target: target, product: p}
				for _, point := range row.Points {
					if point.Product == p.name && point.MS > 0 {
						q.points = append(q.points, point)
					}
				}
				if len(q.points) > 0 {
					list = append(list, q)
				}
			}
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no points to fit the model to: measure some with -points")
	}
	return list, nil
}

// constants are the model's as the search sees them: logarithms, so that all
// stay positive and count by ratio.
func constants(m kernel.Model) []float64 {
	v := []float64{m.KTileClocks, m.TileClocks, m.UpEpilogueClocks, m.DownEpilogueClocks, m.BytesPerClock, m.Hertz, m.LoadBytesPerClock}
	for i := range v {
		v[i] = math.Log(v[i])
	}
	return v
}

// model is the opposite of constants.
func model(v []float64) kernel.Model {
	e := make([]float64, len(v))
	for i := range v {
		e[i] = math.Exp(v[i])
	}
	return kernel.Model{KTileClocks: e[0], TileClocks: e[1], UpEpilogueClocks: e[2], DownEpilogueClocks: e[3], BytesPerClock: e[4], Hertz: e[5], LoadBytesPerClock: e[6]}
}

// Weights of the fit beside the errors within a row and product, which decide
// choices: the row's mean error, and how far constants go from today's, which
// only keeps those in place that the points say nothing about.
const (
	meanWeight = 0.1
	stayWeight = 1e-6
)

// misfit is the mean square of relative errors: within the problems, and of
// their means.
func misfit(m kernel.Model, list []problem) (within, means float64) {
	n := 0
	for _, q := range list {
		var sum, squares float64
		for _, p := range q.points {
			e := math.Log(milliseconds(q.estimate(m, p.Point, q.config, q.target)) / p.MS)
			sum += e
			squares += e * e
		}
		k := float64(len(q.points))
		within += squares - sum*sum/k
		means += sum * sum / k
		n += len(q.points)
	}
	return within / float64(n), means / float64(n)
}

// fit finds the constants of least squares, from a model on.
func fit(list []problem, from kernel.Model) *Fit {
	start := constants(from)
	f := &Fit{Before: from}
	best := minimize(func(v []float64) float64 {
		within, means := misfit(model(v), list)
		stay := 0.
		for i := range v {
			stay += (v[i] - start[i]) * (v[i] - start[i])
		}
		return within + meanWeight*means + stayWeight*stay
	}, start, 0.3, 1e-6)
	f.After = rounded(model(best))
	within, _ := misfit(f.Before, list)
	f.RMSBefore = math.Sqrt(within)
	within, _ = misfit(f.After, list)
	f.RMSAfter = math.Sqrt(within)
	for _, q := range list {
		f.Points += len(q.points)
		f.Losses = append(f.Losses, q.loss(f.Before, f.After))
	}
	return f
}

// rounded keeps three digits of each constant.
func rounded(m kernel.Model) kernel.Model {
	three := func(v *float64) {
		unit := math.Pow(10, math.Floor(math.Log10(*v))-2)
		*v = math.Round(*v/unit) * unit
	}
	for _, v := range []*float64{&m.KTileClocks, &m.TileClocks, &m.UpEpilogueClocks, &m.DownEpilogueClocks, &m.BytesPerClock, &m.Hertz, &m.LoadBytesPerClock} {
		three(v)
	}
	return m
}

// loss compares both models' choices with the best point.
func (q problem) loss(before, after kernel.Model) Loss {
	best := slices.MinFunc(q.points, func(a, b Point) int { return cmp.Compare(a.MS, b.MS) })
	chosen := q.of(after.Choose(q.config, q.target))
	return Loss{
		Row: q.row, Product: q.name, Points: len(q.points), Best: best.Point, BestMS: best.MS, Chosen: chosen,
		Before: q.lost(q.of(before.Choose(q.config, q.target)), best.MS), After: q.lost(chosen, best.MS),
	}
}

// lost is what a point loses against the best time; NaN has no place in JSON,
// so a point that was not measured loses 100 %.
func (q problem) lost(at kernel.Point, best float64) float64 {
	for _, p := range q.points {
		if p.Point == at {
			return p.MS/best - 1
		}
	}
	return 1
}

// printFit prints the constants as Go and the choices.
func printFit(w io.Writer, f *Fit) {
	fmt.Fprintf(w, "cost model, fitted to %d points; errors within a row and product %.1f %% before, %.1f %% after\n", f.Points, 100*f.RMSBefore, 100*f.RMSAfter)
	fmt.Fprintf(w, "var H200Model = Model{\n\tKTileClocks: %.4g, LoadBytesPerClock: %.4g, TileClocks: %.4g,\n\tUpEpilogueClocks: %.4g, DownEpilogueClocks: %.4g,\n\tBytesPerClock: %.5g, Hertz: %.3g,\n}\n",
		f.After.KTileClocks, f.After.LoadBytesPerClock, f.After.TileClocks, f.After.UpEpilogueClocks, f.After.DownEpilogueClocks, f.After.BytesPerClock, f.After.Hertz)
	g := grid{}
	g.add("choice", "product", "points", "best point", "best ms", "today's loses", "fitted", "fitted loses")
	var before, after []string
	for _, l := range f.Losses {
		g.add(l.Row, l.Product, fmt.Sprint(l.Points), l.Best.String(), number(l.BestMS, 4),
			fmt.Sprintf("%.1f %%", 100*l.Before), l.Chosen.String(), fmt.Sprintf("%.1f %%", 100*l.After))
		if l.Before > allowedLoss {
			before = append(before, l.Row+" "+l.Product)
		}
		if l.After > allowedLoss {
			after = append(after, l.Row+" "+l.Product)
		}
	}
	g.print(w)
	fmt.Fprintf(w, "more than %.0f %% lost: today's %d (%s), fitted %d (%s)\n", 100*allowedLoss, len(before), strings.Join(before, ", "), len(after), strings.Join(after, ", "))
}

// allowedLoss is what a choice without measuring may lose.
const allowedLoss = 0.05
