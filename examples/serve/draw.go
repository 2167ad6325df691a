package main

import (
	"fmt"
	"image/color"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"sonicmoe/examples/internal/picture"
)

// draw draws the latencies: how many tokens in each bin, with the throughput as
// title.
func (t *traffic) draw(what, file string, gpu bool) error {
	title := fmt.Sprintf("%s: %.0f tokens/s, p50 %v, p99 %v", what, float64(t.tokens)/t.took.Seconds(), t.latency.at(0.5), t.latency.at(0.99))
	if !gpu {
		title += picture.Emulated
	}
	p := picture.New(title, "latency of a token, and of a step, µs", "% of them")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, picture.LogTicks
	for _, h := range []struct {
		name   string
		of     *histogram
		colour color.Color
	}{{"token", &t.latency, color.RGBA{0x08, 0x51, 0x9c, 255}}, {"step", &t.steps, color.RGBA{0xd9, 0x48, 0x01, 255}}} {
		line, err := plotter.NewLine(h.of.points())
		if err != nil {
			return err
		}
		line.Color, line.StepStyle = h.colour, plotter.PostStep
		p.Add(line)
		p.Legend.Add(h.name, line)
	}
	p.Y.Min = 0
	return picture.Save(p, vg.Points(520), vg.Points(320), file)
}

// points are the bins with anything in or beside them, in µs and per cent.
func (h *histogram) points() (xys plotter.XYs) {
	for bin, n := range h.bins {
		near := n > 0 || bin > 0 && h.bins[bin-1] > 0 || bin+1 < len(h.bins) && h.bins[bin+1] > 0
		if near {
			xys = append(xys, plotter.XY{X: float64(start(bin)) / float64(time.Microsecond), Y: 100 * float64(n) / float64(max(1, h.count))})
		}
	}
	return xys
}
