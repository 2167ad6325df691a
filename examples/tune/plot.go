package main

import (
	"errors"
	"image/color"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"sonicmoe/autotune"
	"sonicmoe/examples/internal/picture"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/tools"
	"sonicmoe/moe/tune"
)

// These are the colours of the points.
var (
	chosenColour  = color.RGBA{0xd9, 0x48, 0x01, 255}
	defaultColour = color.RGBA{0x08, 0x51, 0x9c, 255}
	otherColour   = color.RGBA{0x9e, 0xca, 0xe1, 255}
)

// drawPlan draws each measured candidate at its speed, as a fraction of the roofline of its
// product. 100 % is the limit of the chip.
func drawPlan(plan *tune.Plan, file string, gpu bool) error {
	tokens := tools.RowsPerExpert(plan.Config) * plan.Config.NumExperts / plan.Config.TopK
	var chosen, defaults, others plotter.XYs
	var labels []string
	for _, c := range plan.Candidates() {
		if len(labels) == 0 || labels[len(labels)-1] != c.Product {
			labels = append(labels, c.Product)
		}
		if c.Status != autotune.Measured.String() {
			continue
		}
		product, err := tools.FindProduct(c.Product)
		if err != nil {
			return err
		}
		limit := spec.H200.Time(product.ID.Work(plan.Config, tokens))
		xy := plotter.XY{X: float64(len(labels) - 1), Y: 100 * limit.Seconds() / c.Time.Seconds()}
		switch {
		case c.Chosen:
			chosen = append(chosen, xy)
		case c.Default:
			defaults = append(defaults, xy)
		default:
			others = append(others, xy)
		}
	}
	if len(chosen) == 0 {
		return errors.New("nothing was measured; -again tunes products that were tuned before")
	}
	title := plan.Config.String() + " on " + plan.Target.Name
	if !gpu {
		title += picture.Emulated
	}
	p := picture.New(title, "", "% of the H200's roofline")
	for _, group := range []struct {
		name   string
		xys    plotter.XYs
		colour color.Color
	}{{"candidate", others, otherColour}, {"cost model's choice", defaults, defaultColour}, {"chosen", chosen, chosenColour}} {
		if len(group.xys) == 0 {
			continue
		}
		s, err := plotter.NewScatter(group.xys)
		if err != nil {
			return err
		}
		s.Color, s.Shape, s.Radius = group.colour, draw.CircleGlyph{}, vg.Points(4)
		p.Add(s)
		p.Legend.Add(group.name, s)
	}
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.7, float64(len(labels))-0.3
	p.Y.Min = 0
	if gpu { // on the emulated device all points are near 0
		p.Y.Max = 100
	}
	return picture.Save(p, vg.Points(330+80*float64(len(labels))), vg.Points(380), file)
}
