package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sonicmoe/driver"
	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/peers"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe"
	"sonicmoe/moe/tools"
)

// productsOf returns the products of the backward or the forward pass that have tilings.
func productsOf(backward bool) []*tools.Product {
	return slices.DeleteFunc(tools.Products(), func(p *tools.Product) bool { return p.Backward() != backward })
}

// leastPoints is the least number of tilings that are measured for each product.
const leastPoints = 6

// measured returns the tilings of a product to measure. These are the tilings from which the cost
// model chooses and, if there are fewer than leastPoints, some other candidates. (Tuning, by
// contrast, tries every candidate.)
func measured(p *tools.Product, c moe.Config, t driver.Target) []gemm.Tiling {
	list := p.Space(t)
	for _, q := range p.Candidates(c, t) {
		if len(list) < leastPoints && !slices.Contains(list, q) {
			list = append(list, q)
		}
	}
	return list
}

// choices returns choices of one tiling for each product. Every tiling of every product is in
// at least one of the choices.
func choices(products []*tools.Product, c moe.Config, t driver.Target) []tools.Tilings {
	var list []tools.Tilings
	for _, p := range products {
		points := measured(p, c, t)
		for len(list) < len(points) {
			list = append(list, tools.Tilings{})
		}
	}
	for _, p := range products {
		points := measured(p, c, t)
		for i := range list {
			list[i][p.ID] = points[i%len(points)]
		}
	}
	return list
}

// points measures the tilings of the pass's products, in runs of the whole pass. It checks that
// all tilings give the same bits of the outputs.
func (b *bench) points(t *timer, u *subject, r *report.Row) error {
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
			return fmt.Errorf("%v: %w", p, err)
		}
		r.Points = append(r.Points, evaluate(p, u.row, target, points, times)...)
	}
	return nil
}

// race returns the time in milliseconds of one product's kernel for each of its tilings. The
// other products have the tilings that the cost model chooses.
func (b *bench) race(t *timer, u *subject, p *tools.Product, points []gemm.Tiling) ([]float64, error) {
	var calls []*moe.Call
	for _, at := range points {
		l, err := b.layer(t.ctx, u.row.Config, moe.WithTilings(tools.Tilings{}.With(p.ID, at).Text()))
		if err != nil {
			return nil, err
		}
		if err := u.use(l); err != nil {
			return nil, err
		}
		calls = append(calls, u.Call())
	}
	return t.inTurns(calls, func(kernel string) bool { return tools.ProductOf(kernel) == p }, func(c *moe.Call) error {
		u.UseCall(c)
		return u.queue()
	})
}

// bits returns an error if two tilings give different bits of the outputs.
func (b *bench) bits(t *timer, u *subject) error {
	sums := map[string]string{}
	for _, c := range choices(b.pass.products, u.row.Config, b.dev.Target()) {
		l, err := b.layer(t.ctx, u.row.Config, moe.WithTilings(c.Text()))
		if err != nil {
			return err
		}
		if err := errors.Join(u.use(l), u.poison(), u.queue()); err != nil {
			return err
		}
		made := b.pass.describe(l.Tilings())
		if sums[made], err = u.hash(t.ctx); err != nil {
			return fmt.Errorf("%s: %w", made, err)
		}
	}
	return sameBits(sums)
}

// describe returns the tilings of the pass's products as text.
func (p pass) describe(tilings map[string]string) string {
	var list []string
	for _, q := range p.products {
		list = append(list, q.String()+" "+tilings[q.String()])
	}
	return strings.Join(list, ", ")
}

// sameBits returns an error that names two tilings with different outputs, if there are any.
// sums has the hash of the outputs for each tiling.
func sameBits(sums map[string]string) error {
	first := ""
	for _, made := range slices.Sorted(maps.Keys(sums)) {
		if first == "" {
			first = made
		}
		if sums[made] != sums[first] {
			return fmt.Errorf("the outputs have different bits with %s and with %s", made, first)
		}
	}
	return nil
}

// evaluate returns a product's tilings with their measured and estimated milliseconds, the
// fastest first.
func evaluate(p *tools.Product, row peers.Row, target driver.Target, points []gemm.Tiling, times []float64) []report.Point {
	chosen := tools.Choose(row.Config, target)
	var list []report.Point
	for i, at := range points {
		list = append(list, report.Point{Product: p.String(), Point: at, MS: times[i], Chosen: chosen[p.ID] == at,
			EstimateMS: report.Milliseconds(p.Estimate(tools.H200(), at, row.Config, target))})
	}
	slices.SortFunc(list, func(a, b report.Point) int { return cmp.Compare(a.MS, b.MS) })
	return list
}
