package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/kernel"
	"sonicmoe/moe/spec"
)

// sweeps over all points: each is measured at different times, so that a chip
// that slows down does not favour the first.
const sweeps = 2

// productsOf are the kernels with tile points of the backward pass or of the
// forward one.
func productsOf(backward bool) []kernel.Product {
	return slices.DeleteFunc(kernel.Products(), func(p kernel.Product) bool { return p.Backward != backward })
}

// leastPoints is how many points of a product are measured at least.
const leastPoints = 6

// measured are the points of a product to measure: those that the cost model
// chooses among and, where they are few, other candidates. A tuner tries them all.
func measured(p kernel.Product, c moe.Config, t driver.Target) []kernel.Point {
	list := p.Space(t)
	for _, q := range p.Candidates(c, t) {
		if len(list) < leastPoints && !slices.Contains(list, q) {
			list = append(list, q)
		}
	}
	return list
}

// choices give every product each of its points at least once.
func choices(products []kernel.Product, c moe.Config, t driver.Target) []kernel.Choice {
	var list []kernel.Choice
	for _, p := range products {
		points := measured(p, c, t)
		for len(list) < len(points) {
			list = append(list, kernel.Choice{})
		}
	}
	for _, p := range products {
		points := measured(p, c, t)
		for i := range list {
			*p.At(&list[i]) = points[i%len(points)]
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
	for _, c := range choices(b.pass.products, u.row.Config, target) {
		l, err := b.layer(t.ctx, u.row.Config, moe.WithChoice(c))
		if err != nil {
			return err
		}
		layers, made = append(layers, l), append(made, l.Choice())
	}
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
			if strings.TrimSuffix(k.Name, "-inference") == p.Name {
				times.add(p.Name, p.In(l.Choice()), k.MedianMS)
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
		list = append(list, q.Name+" "+q.In(c).String())
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
func evaluate(products []kernel.Product, row spec.Row, target driver.Target, chosen kernel.Choice, times pointTimes) []Point {
	var list []Point
	for _, p := range products {
		var of []Point
		for at, ms := range times[p.Name] {
			of = append(of, Point{Product: p.Name, Point: at, MS: median(ms), Chosen: p.In(chosen) == at,
				EstimateMS: milliseconds(p.Estimate(kernel.H200Model, at, row.Config, target))})
		}
		slices.SortFunc(of, func(a, b Point) int { return cmp.Compare(a.MS, b.MS) })
		list = append(list, of...)
	}
	return list
}
