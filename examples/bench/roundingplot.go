package main

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"sonicmoe/moe/spec"
)

// drawRounding draws what rounding saves of each pass beside what padding
// predicts, over the shapes.
func drawRounding(points []RoundingPoint, file string) error {
	if len(points) == 0 {
		return fmt.Errorf("no row was measured")
	}
	var labels []string
	series := []struct {
		name   string
		of     func(p RoundingPoint) float64
		fill   color.Color
		values plotter.Values
	}{
		{"rows of 128 that pad", func(p RoundingPoint) float64 { return spec.Padding(p.Plain.Counts, 128) }, backdrop, nil},
		{"predicted by rows of 64", func(p RoundingPoint) float64 { return p.predicted(64) }, peerShade["torch"], nil},
		{"predicted by rows of 128", func(p RoundingPoint) float64 { return p.predicted(128) }, peerShade["ScatterMoE"], nil},
		{"forward", func(p RoundingPoint) float64 { return faster(p.Plain.ForwardMS, p.Rounded.ForwardMS) }, ours, nil},
		{"backward", func(p RoundingPoint) float64 { return faster(p.Plain.BackwardMS, p.Rounded.BackwardMS) }, peerShade["cuBLAS"], nil},
	}
	least := 0.0
	for _, p := range points {
		labels = append(labels, p.Shape)
		for i := range series {
			v := 100 * series[i].of(p)
			series[i].values, least = append(series[i].values, v), min(least, v)
		}
	}
	c := newChart("Time that "+points[0].Rounding+" saves of plain top-K, by T,d,n,E,K", "%", labels, len(series))
	for i, s := range series {
		c.bars(s.name, s.values, s.fill, vg.Points(barWidth), float64(i)-float64(len(series)-1)/2, nil)
	}
	c.Y.Min = least
	return c.save(file)
}
