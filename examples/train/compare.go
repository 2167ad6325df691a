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
	"gonum.org/v1/plot/vg"

	"sonicmoe/examples/internal/picture"
	"sonicmoe/moe"
)

// This file compares rules of rounding for -rounding. It trains once with each rule.

// rules lists the rules of rounding.
var rules = []moe.RoundingRule{"nearest", "stochastic", "mass", "balanced", "up", "down", "expert-choice", "capacity-drop"}

// parseWays reads the rules of -rounding. The first result is always plain top-K, without
// rounding.
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

// roundingOf returns a rule with its parameters for a size. The tile, to whose multiples counts
// are rounded, is at most 128 and at most half of an even share of the rows, as the method
// demands. With expert choice, each expert takes an even share. With a capacity, an expert
// drops the rows beyond 1.25 times an even share.
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

// trained holds the mean results of all trainings with one rule.
type trained struct {
	name string
	mean curve
	last []float64 // the held-out loss at the end, for each seed
}

// compare trains with each rule and each seed. It prints and draws the results.
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

// trainOnce trains one model. If first is true, it also prints the model's size.
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

// add adds the losses of one training to the means.
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

// printWays prints a table of the held-out losses for all rules.
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

// wayColours holds two colours for each rule, in the order of the rules: one for the held-out
// losses, and a lighter one for the training losses.
var wayColours = [][2]color.RGBA{
	{{0x08, 0x51, 0x9c, 255}, {0x9e, 0xca, 0xe1, 255}}, {{0xd9, 0x48, 0x01, 255}, {0xfd, 0xbe, 0x85, 255}},
	{{0x00, 0x6d, 0x2c, 255}, {0xa1, 0xd9, 0x9b, 255}}, {{0x54, 0x27, 0x8f, 255}, {0xbc, 0xbd, 0xdc, 255}},
	{{0xce, 0x12, 0x56, 255}, {0xf4, 0xb6, 0xd2, 255}}, {{0x01, 0x85, 0x71, 255}, {0x80, 0xcd, 0xc1, 255}},
	{{0x8c, 0x51, 0x0a, 255}, {0xdf, 0xc2, 0x7d, 255}}, {{0x52, 0x52, 0x52, 255}, {0xbd, 0xbd, 0xbd, 255}},
}

// differences returns by how many percent the losses exceed those of plain top-K. The result held
// is for the held-out losses, and learned is for means of the training losses.
func (t trained) differences(plain trained) (held, learned plotter.XYs) {
	for i, h := range t.mean.heldOut {
		held = append(held, plotter.XY{X: float64(h.step), Y: 100 * (h.loss/plain.mean.heldOut[i].loss - 1)})
	}
	for step := range t.mean.losses {
		of := func(t trained) float64 { return (&curve{losses: t.mean.losses[:step+1]}).last() }
		learned = append(learned, plotter.XY{X: float64(step), Y: 100 * (of(t)/of(plain) - 1)})
	}
	return held, learned
}

// drawWays draws by how many percent the losses exceed those of plain top-K. Wide lines are
// held-out losses. Narrow, lighter lines are training losses. The first element of the parameter
// all is plain top-K, which is the zero line.
func drawWays(all []trained, file, title string) error {
	p := picture.New(title+": loss next to plain top-K, held out (wide) and learned (narrow)", "steps", "% more than plain top-K")
	var wide []*plotter.Line
	for i, t := range all {
		shades := [2]color.RGBA{{A: 255}, {A: 255}}
		if i > 0 {
			shades = wayColours[(i-1)%len(wayColours)]
		}
		held, learned := t.differences(all[0])
		for j, points := range []plotter.XYs{held, learned} {
			l, err := plotter.NewLine(points)
			if err != nil {
				return fmt.Errorf("drawing %s: %w", file, err)
			}
			l.Color, l.Width = shades[j], vg.Points([]float64{1.75, 0.5}[j])
			if j == 0 {
				wide = append(wide, l)
				name := t.name
				if i == 0 {
					name = "plain top-K"
				}
				p.Legend.Add(name, l)
			} else if i > 0 {
				p.Add(l)
			}
		}
	}
	for _, l := range wide { // drawn after the narrow lines, so that they are on top
		p.Add(l)
	}
	if err := picture.Save(p, vg.Points(720), vg.Points(420), file); err != nil {
		return fmt.Errorf("drawing %s: %w", file, err)
	}
	return nil
}
