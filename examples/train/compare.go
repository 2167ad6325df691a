package main

import (
	"context"
	"errors"
	"fmt"
	"image/color"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"sonicmoe/examples/internal/picture"
	"sonicmoe/moe"
)

// This file has the comparison of -rounding: one training with each rule of routing.

// rules are the rules of rounding.
var rules = []moe.RoundingRule{"nearest", "stochastic", "mass", "balanced", "up", "down", "expert-choice", "capacity-drop"}

// parseWays reads the rules of -rounding. Plain top-K is always first.
func parseWays(list string) ([]moe.Rounding, error) {
	ways := []moe.Rounding{{}}
	if list == "all" {
		for _, rule := range rules {
			ways = append(ways, moe.Rounding{Rule: rule})
		}
		return ways, nil
	}
	for name := range strings.SplitSeq(list, ",") {
		switch rule := moe.RoundingRule(strings.TrimSpace(name)); {
		case slices.Contains(rules, rule):
			ways = append(ways, moe.Rounding{Rule: rule})
		case rule != "none":
			return nil, fmt.Errorf("rounding is %q, must be none or one of %v", rule, rules)
		}
	}
	return ways, nil
}

// roundingOf returns a rule with its parameters for a size. Counts are rounded to
// multiples of at most 128 and at most half of an even share, as the method demands. With
// expert choice an expert takes an even share; with a capacity an expert drops the rows
// above 1.25 of an even share.
func roundingOf(way moe.Rounding, s size) moe.Rounding {
	switch way.Rule {
	case "":
	case "expert-choice":
		way.Capacity = 1
	case "capacity-drop":
		way.Capacity = 1.25
	default:
		way.Tile = 1
		for 4*way.Tile*s.layer.NumExperts <= s.tokens*s.layer.TopK && way.Tile < 128 {
			way.Tile *= 2
		}
	}
	return way
}

// trained has the mean results of all trainings with one rule.
type trained struct {
	name string
	mean curve
	last []float64 // for each seed, the held-out loss at the end
}

// compare trains with each rule and each seed, prints and draws.
func compare(ctx context.Context, o options, stdout, stderr io.Writer) error {
	var all []trained
	title := ""
	for i, way := range o.ways {
		o.rounding = way
		var of trained
		for seed := range o.seeds {
			c, p, err := trainOnce(ctx, o, o.seed+uint64(seed), stdout, stderr, i+seed == 0)
			if err != nil {
				return fmt.Errorf("%v: %w", way, err)
			}
			of.name, title = roundingOf(way, p.size).String(), p.size.name+", "+p.name
			of.add(c)
		}
		of.scale(1 / float64(o.seeds))
		all = append(all, of)
		fmt.Fprintf(stdout, "%s: held out %.4f (%+.2f %% of plain top-K), by seed %.4f\n",
			of.name, of.end(), 100*(of.end()/all[0].end()-1), of.last)
	}
	if err := printWays(stdout, all); err != nil || o.plot == "" {
		return err
	}
	return drawWays(all, o.plot, title)
}

// trainOnce trains a model once. The first training also prints the model's size.
func trainOnce(ctx context.Context, o options, seed uint64, stdout, stderr io.Writer, first bool) (c *curve, p *place, err error) {
	o.seed = seed
	if p, err = openPlace(ctx, o, stderr); err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	t, err := newTraining(p.size, o, p.create, stdout)
	if err != nil {
		return nil, nil, err
	}
	if first {
		t.describe(p.name)
	}
	t.out = io.Discard
	c, err = t.run(ctx)
	return c, p, err
}

// add adds the losses of a training.
func (t *trained) add(c *curve) {
	if t.last == nil {
		t.mean.losses, t.mean.heldOut = make([]float64, len(c.losses)), make([]point, len(c.heldOut))
	}
	for i, l := range c.losses {
		t.mean.losses[i] += l
	}
	for i, h := range c.heldOut {
		t.mean.heldOut[i].step = h.step
		t.mean.heldOut[i].loss += h.loss
	}
	t.last = append(t.last, c.heldOut[len(c.heldOut)-1].loss)
}

func (t *trained) scale(by float64) {
	for i := range t.mean.losses {
		t.mean.losses[i] *= by
	}
	for i := range t.mean.heldOut {
		t.mean.heldOut[i].loss *= by
	}
}

// end returns the held-out loss after all steps.
func (t *trained) end() float64 { return t.mean.heldOut[len(t.mean.heldOut)-1].loss }

// printWays prints a table of the held-out losses of all rules.
func printWays(out io.Writer, all []trained) error {
	fmt.Fprintln(out, "\nheld-out loss with plain top-K, nats a byte")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "step\t")
	for _, t := range all {
		fmt.Fprintf(w, "%s\t", t.name)
	}
	fmt.Fprintln(w)
	for i, h := range all[0].mean.heldOut {
		fmt.Fprintf(w, "%d\t", h.step)
		for _, t := range all {
			fmt.Fprintf(w, "%.4f\t", t.mean.heldOut[i].loss)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// drawWays draws the held-out losses and, with narrow lines, the training losses.
func drawWays(all []trained, file, title string) error {
	p := picture.New(title+": held out (wide) and learned (narrow)", "steps", "nats a byte")
	for i, t := range all {
		var held, learned plotter.XYs
		for _, h := range t.mean.heldOut {
			held = append(held, plotter.XY{X: float64(h.step), Y: h.loss})
		}
		for step := range t.mean.losses {
			learned = append(learned, plotter.XY{X: float64(step), Y: (&curve{losses: t.mean.losses[:step+1]}).last()})
		}
		var shade color.Color = color.Black
		if i > 0 {
			shade = plotutil.Color(i - 1)
		}
		for j, points := range []plotter.XYs{learned, held} {
			l, err := plotter.NewLine(points)
			if err != nil {
				return fmt.Errorf("drawing %s: %w", file, err)
			}
			l.Color, l.Width = shade, vg.Points(0.5+float64(j))
			p.Add(l)
			if j == 1 {
				p.Legend.Add(t.name, l)
			}
		}
	}
	if err := picture.Save(p, vg.Points(720), vg.Points(420), file); err != nil {
		return fmt.Errorf("drawing %s: %w", file, err)
	}
	return nil
}
