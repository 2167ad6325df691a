package main

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"sonicmoe/examples/internal/picture"
)

// These are the colours of the curves. The loss of single steps is lighter than the mean.
var (
	stepColor    = color.RGBA{0xfd, 0xbe, 0x85, 255}
	meanColor    = color.RGBA{0xd9, 0x48, 0x01, 255}
	heldOutColor = color.RGBA{0x08, 0x51, 0x9c, 255}
)

// draw draws the curve of losses to a file.
func (c *curve) draw(file, title string) error {
	p := picture.New(title, "steps", "nats a byte")
	var single, mean, held plotter.XYs
	for i, l := range c.losses {
		single = append(single, plotter.XY{X: float64(i), Y: l})
		mean = append(mean, plotter.XY{X: float64(i), Y: (&curve{losses: c.losses[:i+1]}).last()})
	}
	for _, h := range c.heldOut {
		held = append(held, plotter.XY{X: float64(h.step), Y: h.loss})
	}
	for _, line := range []struct {
		name   string
		points plotter.XYs
		color  color.Color
		width  float64
	}{{"each step", single, stepColor, 0.5}, {"mean of the last tenth so far", mean, meanColor, 1.5}, {"held out", held, heldOutColor, 1.5}} {
		l, err := plotter.NewLine(line.points)
		if err != nil {
			return fmt.Errorf("drawing %s: %w", file, err)
		}
		l.Color, l.Width = line.color, vg.Points(line.width)
		p.Add(l)
		p.Legend.Add(line.name, l)
	}
	if err := picture.Save(p, vg.Points(720), vg.Points(400), file); err != nil {
		return fmt.Errorf("drawing %s: %w", file, err)
	}
	return nil
}
