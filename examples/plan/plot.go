package main

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"sonicmoe/examples/internal/picture"
	"sonicmoe/internal/spec"
)

// colours holds the colours of the bars of a panel, in order.
var colours = []color.Color{
	color.RGBA{0xd9, 0x48, 0x01, 255}, color.RGBA{0x08, 0x51, 0x9c, 255}, color.RGBA{0x9e, 0xca, 0xe1, 255},
}

// series is the bars of one colour, with one bar for each model.
type series struct {
	name string
	of   func(p plan) float64
}

func (s series) values(plans []plan) plotter.Values {
	var v plotter.Values
	for _, p := range plans {
		v = append(v, s.of(p))
	}
	return v
}

// panel returns a chart with a row of bars for each model.
func panel(title, unit string, plans []plan, named bool, list ...series) (*plot.Plot, error) {
	p := picture.NewSideways(title, unit)
	p.X.Min = 0
	width := vg.Points(9) / vg.Length(len(list))
	for i, s := range list {
		bars, err := plotter.NewBarChart(s.values(plans), width)
		if err != nil {
			return nil, err
		}
		bars.Horizontal, bars.Color, bars.LineStyle.Width = true, colours[i], 0
		bars.Offset = width * (vg.Length(len(list)-1)/2 - vg.Length(i))
		p.Add(bars)
		p.Legend.Add(s.name, bars)
	}
	p.Legend.Top, p.Legend.YOffs = false, vg.Points(2)
	names := make([]string, len(plans))
	if named {
		for i, m := range plans {
			names[i] = m.Name
		}
	}
	p.NominalY(names...)
	p.Y.Min = -3.5 // room for a legend below the bars, which is the same in all panels
	return p, nil
}

// panels returns charts of three figures: the saved activations, the padding of tiles, and the
// times of the roofline.
func panels(plans []plan) ([]*plot.Plot, error) {
	padding := func(tile int) func(plan) float64 {
		return func(p plan) float64 { return 100 * p.Padding[tile] }
	}
	method := func(name string) func(plan) float64 {
		return func(p plan) float64 {
			for _, s := range spec.SavedByMethod(p.Config, p.Tokens) {
				if s.Method == name && p.Tokens > 0 {
					return float64(s.Activations) / float64(p.Tokens) / 1000
				}
			}
			return 0
		}
	}
	saved, err := panel("Saved for backward", "kB a token, without shared experts", plans, true,
		series{"this library", method("SonicMoE")}, series{"ScatterMoE", method("ScatterMoE")})
	if err != nil {
		return nil, err
	}
	waste, err := panel("Rows that tiles add", "% (cut at 100)", plans, false,
		series{"64 rows", padding(64)}, series{"128 rows", padding(128)}, series{"256 rows", padding(256)})
	if err != nil {
		return nil, err
	}
	waste.X.Max = min(waste.X.Max, 100)
	times, err := panel("Least time", "ms on an H200", plans, false,
		series{"forward", func(p plan) float64 { return p.Forward.Seconds() * 1e3 }},
		series{"backward", func(p plan) float64 { return p.Backward.Seconds() * 1e3 }})
	return []*plot.Plot{saved, waste, times}, err
}

// draw draws the panels next to each other.
func draw(plans []plan, tokens int, file string) error {
	plans = slices.Clone(plans)
	slices.Reverse(plans) // the first model must be at the top of the axis
	list, err := panels(plans)
	if err != nil {
		return fmt.Errorf("drawing %s: %w", file, err)
	}
	list[0].Title.Text += fmt.Sprintf(", %d tokens", tokens)
	width, height := vg.Points(960), vg.Points(110+16*float64(len(plans)))
	var to interface {
		vg.CanvasSizer
		io.WriterTo
	} = vgsvg.New(width, height)
	if filepath.Ext(file) == ".png" {
		to = vgimg.PngCanvas{Canvas: vgimg.New(width, height)}
	}
	tiles := vgdraw.Tiles{Rows: 1, Cols: len(list), PadX: vg.Points(12), PadTop: vg.Points(6), PadBottom: vg.Points(6), PadLeft: vg.Points(6), PadRight: vg.Points(16)}
	canvases := plot.Align([][]*plot.Plot{list}, tiles, vgdraw.New(to))
	for i, p := range list {
		p.Draw(canvases[0][i])
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := to.WriteTo(f); err != nil {
		f.Close()
		return fmt.Errorf("drawing %s: %w", file, err)
	}
	return f.Close()
}
