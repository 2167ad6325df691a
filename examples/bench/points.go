package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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

// product is a kernel that has tile points.
type product struct {
	// name is the kernel's, in every pass.
	name     string
	space    func(driver.Target) []kernel.Point
	of       func(*kernel.Choice) *kernel.Point
	estimate func(kernel.Model, kernel.Point, moe.Config, driver.Target) time.Duration
	// flat: its tiles have no panels.
	flat bool
}

var (
	forwardProducts = []product{
		{"up", kernel.UpSpace, func(c *kernel.Choice) *kernel.Point { return &c.Up }, kernel.Model.Up, false},
		{"down", kernel.DownSpace, func(c *kernel.Choice) *kernel.Point { return &c.Down }, kernel.Model.Down, false},
	}
	backwardProducts = []product{
		{"dh", kernel.DHSpace, func(c *kernel.Choice) *kernel.Point { return &c.DH }, kernel.Model.DH, false},
		{"dw2", kernel.DWSpace, func(c *kernel.Choice) *kernel.Point { return &c.DW2 }, kernel.Model.DW2, true},
		{"dw1", kernel.DWSpace, func(c *kernel.Choice) *kernel.Point { return &c.DW1 }, kernel.Model.DW1, true},
		{"dx", kernel.DXSpace, func(c *kernel.Choice) *kernel.Point { return &c.DX }, kernel.Model.DX, false},
	}
	products = slices.Concat(forwardProducts, backwardProducts)
)

// in is the product's point in a choice.
func (p product) in(c kernel.Choice) kernel.Point { return *p.of(&c) }

// shallowest is the least stages that a kernel can have.
const shallowest = 3

// candidates are the points of the product's space and some around it: for each
// tile width narrower and wider panels, and a ring one stage shorter, or two
// where there are no panels.
func (p product) candidates(t driver.Target) []kernel.Point {
	space := p.space(t)
	list := slices.Clone(space)
	for i, at := range space {
		if i > 0 && space[i-1].TileN == at.TileN {
			continue
		}
		shorter := 2
		if !p.flat {
			shorter = 1
			for _, panel := range []int{4, 32} {
				list = append(list, kernel.Point{TileN: at.TileN, Stages: at.Stages, Panel: panel})
			}
		}
		for less := 1; less <= shorter && at.Stages-less >= shallowest; less++ {
			list = append(list, kernel.Point{TileN: at.TileN, Stages: at.Stages - less, Panel: at.Panel})
		}
	}
	return list
}

// choices give every product each of its candidates at least once.
func choices(products []product, t driver.Target) []kernel.Choice {
	var list []kernel.Choice
	for _, p := range products {
		points := p.candidates(t)
		for len(list) < len(points) {
			list = append(list, kernel.Choice{})
		}
	}
	for _, p := range products {
		points := p.candidates(t)
		for i := range list {
			*p.of(&list[i]) = points[i%len(points)]
		}
	}
	return list
}

// pointTimes are the milliseconds of each product's points.
type pointTimes map[string]map[kernel.Point][]float64

func (t pointTimes) add(product string, at kernel.Point, ms float64) {
	if t[product] == nil {
		t[product] = map[kernel.Point][]float64{}
	}
	t[product][at] = append(t[product][at], ms)
}

// points measures tile points of the pass's products, in their places in the
// pass. All must give the same bits of its outputs.
func (b *bench) points(t *timer, u *subject, r *Row) error {
	if !b.withPoints {
		return nil
	}
	target := b.dev.Target()
	var layers []*moe.Layer
	var made []kernel.Choice
	for _, c := range choices(b.pass.products, target) {
		l, err := b.layer(t.ctx, u.row.Config, moe.WithChoice(c))
		if err != nil {
			return err
		}
		layers, made = append(layers, l), append(made, l.Choice())
	}
	t.warm = min(t.warm, pointLoad)
	times, sums, count := pointTimes{}, map[kernel.Choice]string{}, sweeps
	if !b.gpu {
		count = 1 // their times mean nothing
	}
	for range count {
		for _, l := range layers {
			if err := b.point(t, u, l, times, sums); err != nil {
				return fmt.Errorf("%s: %w", b.pass.describe(l.Choice()), err)
			}
		}
	}
	r.Points = evaluate(b.pass.products, u.row, target, kernel.Choose(u.row.Config, target), times)
	return b.pass.sameBits(made, sums)
}

// point measures the layer's products and, once, hashes its outputs.
func (b *bench) point(t *timer, u *subject, l *moe.Layer, times pointTimes, sums map[kernel.Choice]string) error {
	if err := u.use(l); err != nil {
		return err
	}
	_, known := sums[l.Choice()]
	if !known {
		if err := u.poison(); err != nil {
			return err
		}
	}
	kernels, err := t.kernels(u.call, u.queue)
	if err != nil {
		return err
	}
	for _, p := range b.pass.products {
		for _, k := range kernels {
			if strings.TrimSuffix(k.Name, "-inference") == p.name {
				times.add(p.name, p.in(l.Choice()), k.MedianMS)
			}
		}
	}
	if !known {
		sums[l.Choice()], err = u.hash(t.ctx)
	}
	return err
}

// describe names the points of the pass's products.
func (p pass) describe(c kernel.Choice) string {
	var list []string
	for _, q := range p.products {
		list = append(list, q.name+" "+q.in(c).String())
	}
	return strings.Join(list, ", ")
}

// sameBits reports two choices with different outputs.
func (p pass) sameBits(all []kernel.Choice, sums map[kernel.Choice]string) error {
	for _, c := range all {
		if sums[c] != sums[all[0]] {
			return fmt.Errorf("the outputs have other bits with %s than with %s", p.describe(c), p.describe(all[0]))
		}
	}
	return nil
}

// evaluate lists the measured points with what the model says of them, fastest first.
func evaluate(products []product, row spec.Row, target driver.Target, chosen kernel.Choice, times pointTimes) []Point {
	var list []Point
	for _, p := range products {
		var of []Point
		for at, ms := range times[p.name] {
			of = append(of, Point{Product: p.name, Point: at, MS: median(ms), Chosen: p.in(chosen) == at,
				EstimateMS: milliseconds(p.estimate(kernel.H200Model, at, row.Config, target))})
		}
		slices.SortFunc(of, func(a, b Point) int { return cmp.Compare(a.MS, b.MS) })
		list = append(list, of...)
	}
	return list
}
