package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/moe"
	"sonicmoe/moe/kernel"
	"sonicmoe/moe/spec"
)

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

// points measures tile points of the pass's products, in their places in the
// pass. All must give the same bits of its outputs.
func (b *bench) points(t *timer, u *subject, r *Row) error {
	if !b.withPoints {
		return nil
	}
	if err := b.bits(t, u); err != nil {
		return err
	}
	target := b.dev.Target()
	for _, p := range b.pass.products {
		points := measured(p, u.row.Config, target)
		times, err := b.race(t, u, p, points)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		r.Points = append(r.Points, evaluate(p, u.row, target, points, times)...)
	}
	return nil
}

// race gives the milliseconds of a product's kernel with each point, the other
// products as the cost model has them.
func (b *bench) race(t *timer, u *subject, p kernel.Product, points []kernel.Point) ([]float64, error) {
	var calls []*moe.Call
	for _, at := range points {
		var c kernel.Choice
		*p.At(&c) = at
		l, err := b.layer(t.ctx, u.row.Config, moe.WithChoice(c))
		if err != nil {
			return nil, err
		}
		if err := u.use(l); err != nil {
			return nil, err
		}
		calls = append(calls, u.call)
	}
	return t.inTurns(calls, func(kernel string) bool { return strings.TrimSuffix(kernel, "-inference") == p.Name }, func(c *moe.Call) error {
		u.call = c
		return u.queue()
	})
}

// bits reports points that give other bits of the outputs.
func (b *bench) bits(t *timer, u *subject) error {
	var made []kernel.Choice
	sums := map[kernel.Choice]string{}
	for _, c := range choices(b.pass.products, u.row.Config, b.dev.Target()) {
		l, err := b.layer(t.ctx, u.row.Config, moe.WithChoice(c))
		if err != nil {
			return err
		}
		if err := errors.Join(u.use(l), u.poison(), u.queue()); err != nil {
			return err
		}
		made = append(made, l.Choice())
		if sums[l.Choice()], err = u.hash(t.ctx); err != nil {
			return fmt.Errorf("%s: %w", b.pass.describe(l.Choice()), err)
		}
	}
	return b.pass.sameBits(made, sums)
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

// evaluate lists a product's points with their milliseconds and what the model
// says of them, fastest first.
func evaluate(p kernel.Product, row spec.Row, target driver.Target, points []kernel.Point, times []float64) []Point {
	chosen := kernel.Choose(row.Config, target)
	var list []Point
	for i, at := range points {
		list = append(list, Point{Product: p.Name, Point: at, MS: times[i], Chosen: p.In(chosen) == at,
			EstimateMS: milliseconds(p.Estimate(kernel.H200Model, at, row.Config, target))})
	}
	slices.SortFunc(list, func(a, b Point) int { return cmp.Compare(a.MS, b.MS) })
	return list
}
