package main

import (
	"fmt"
	"slices"
	"time"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/kernel"
	"sonicmoe/moe/spec"
)

const (
	// sweeps over all points: each is measured at different times, so that a
	// chip that slows down does not favour the first.
	sweeps = 2
	// pointLoad before a point; all of them run one after the other, hot.
	pointLoad = 60 * time.Millisecond
)

// candidates are the points of a space and some around it: for each tile width
// narrower and wider panels, and a ring one stage shorter.
func candidates(space []kernel.Point) []kernel.Point {
	list := slices.Clone(space)
	add := func(p kernel.Point) {
		if !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	for i, p := range space {
		if i > 0 && space[i-1].TileN == p.TileN {
			continue
		}
		for _, panel := range []int{4, 32} {
			add(kernel.Point{TileN: p.TileN, Stages: p.Stages, Panel: panel})
		}
		if p.Stages > 3 { // the least that a kernel can have
			add(kernel.Point{TileN: p.TileN, Stages: p.Stages - 1, Panel: p.Panel})
		}
	}
	return list
}

// product is one of the two kernels that have tile points.
type product struct {
	name     string
	space    func(driver.Target) []kernel.Point
	of       func(kernel.Choice) kernel.Point
	estimate func(kernel.Model, kernel.Point, moe.Config, driver.Target) time.Duration
}

var products = []product{
	{"up", kernel.UpSpace, func(c kernel.Choice) kernel.Point { return c.Up }, kernel.Model.Up},
	{"down", kernel.DownSpace, func(c kernel.Choice) kernel.Point { return c.Down }, kernel.Model.Down},
}

// points measures tile points of both products, in their places in the pass.
// All must give the same bits of O.
func (b *bench) points(t *timer, u *subject, r *Row) error {
	if !b.withPoints {
		return nil
	}
	target := b.dev.Target()
	up, down := candidates(kernel.UpSpace(target)), candidates(kernel.DownSpace(target))
	layers := make([]*moe.Layer, max(len(up), len(down)))
	for i := range layers {
		var err error
		if layers[i], err = b.layer(t.ctx, u.row.Config, moe.WithChoice(kernel.Choice{Up: up[i%len(up)], Down: down[i%len(down)]})); err != nil {
			return err
		}
	}
	times := map[string]map[kernel.Point][]float64{"up": {}, "down": {}}
	sums := map[kernel.Choice]string{}
	t.warm = min(t.warm, pointLoad)
	for range sweeps {
		for _, l := range layers {
			if err := b.point(t, u, l, times, sums); err != nil {
				return fmt.Errorf("up %v, down %v: %w", l.Choice().Up, l.Choice().Down, err)
			}
		}
	}
	r.Points = evaluate(u.row, target, kernel.Choose(u.row.Config, target), times)
	return sameBits(layers, sums)
}

// point measures the layer's products and, once, hashes its O.
func (b *bench) point(t *timer, u *subject, l *moe.Layer, times map[string]map[kernel.Point][]float64, sums map[kernel.Choice]string) error {
	if need := l.Sizes(u.row.Tokens).Workspace; need > u.args.Workspace.Bytes {
		return fmt.Errorf("it needs %d bytes of workspace, the default choice only %d", need, u.args.Workspace.Bytes)
	}
	u.use(l)
	kernels, err := t.kernels(u.call, u.queue(b.pass))
	if err != nil {
		return err
	}
	for _, p := range products {
		for _, k := range kernels {
			if covered(k.Name)[0] == p.name {
				at := p.of(l.Choice())
				times[p.name][at] = append(times[p.name][at], k.MedianMS)
			}
		}
	}
	if _, ok := sums[l.Choice()]; !ok {
		sums[l.Choice()], err = u.hashO(t.ctx)
	}
	return err
}

// sameBits reports two choices with different O.
func sameBits(layers []*moe.Layer, sums map[kernel.Choice]string) error {
	first := layers[0].Choice()
	for _, l := range layers {
		if c := l.Choice(); sums[c] != sums[first] {
			return fmt.Errorf("O has other bits with up %v, down %v than with up %v, down %v", c.Up, c.Down, first.Up, first.Down)
		}
	}
	return nil
}

// evaluate lists the measured points with what the model says of them, fastest first.
func evaluate(row spec.Row, target driver.Target, chosen kernel.Choice, times map[string]map[kernel.Point][]float64) []Point {
	var list []Point
	for _, p := range products {
		var of []Point
		for at, ms := range times[p.name] {
			of = append(of, Point{Product: p.name, Point: at, MS: median(ms), Chosen: p.of(chosen) == at,
				EstimateMS: milliseconds(p.estimate(kernel.H200Model, at, row.Config, target))})
		}
		slices.SortFunc(of, func(a, b Point) int {
			if a.MS < b.MS {
				return -1
			}
			return 1
		})
		list = append(list, of...)
	}
	return list
}
