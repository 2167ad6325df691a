package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/examples/bench/report"
	"sonicmoe/examples/internal/noise"
	"sonicmoe/examples/internal/setup"
	"sonicmoe/internal/num"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/reference"
	"sonicmoe/internal/spec"
	"sonicmoe/internal/trial"
	"sonicmoe/moe"
)

// decodeRows lists the layers that -decode measures by default.
var decodeRows = []string{"Qwen3-30B-A3B", "Qwen3-Next-80B", "gpt-oss-20b", "Mixtral 8x7B", "DeepSeek-V3 EP-8"}

const (
	// decodeLayers is the number of layers that run one after another. Together their weights
	// are far larger than the L2 cache, so that no layer finds its weights in the cache.
	decodeLayers = 4
	// decodePasses is the number of layer passes in the graph that is timed.
	decodePasses = 2 * decodeLayers
)

// decode measures small batches of each row. It prints the times and writes them to the file of
// -json.
func (b *bench) decode() error {
	if len(b.rows) == 0 {
		if !b.gpu {
			b.rows = []peers.Row{{Name: "tiny", Config: moe.Config{Hidden: 256, Intermediate: 128, NumExperts: 16, TopK: 2}}}
		} else {
			for _, name := range decodeRows {
				row, err := setup.Row(name)
				if err != nil {
					return err
				}
				b.rows = append(b.rows, row)
			}
		}
	}
	var points []report.DecodePoint
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	report.PrintDecodeHead(w)
	for _, row := range b.typed(b.rows...) {
		err := b.decodeRow(row.Name, row.Config, func(p report.DecodePoint) {
			points = append(points, p)
			report.PrintDecodePoint(w, p)
		})
		_ = w.Flush()
		if err != nil {
			return fmt.Errorf("%s: %w", row.Name, err)
		}
	}
	if b.plot != "" {
		if err := report.DrawDecode(points, "on "+b.dev.Target().Name, b.plot); err != nil {
			return err
		}
	}
	return b.writeJSON(points)
}

// decodeRow measures one layer at each batch size, and calls found with each result.
func (b *bench) decodeRow(name string, c moe.Config, found func(report.DecodePoint)) error {
	ctx, cancel := context.WithTimeout(b.ctx, b.timeout)
	defer cancel()
	s, err := b.dev.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	d := decodeBench{ctx: ctx, dev: b.dev, s: s, c: c, memory: moe.NewArena(b.dev)}
	defer d.memory.Free()
	most := slices.Max(b.batches)
	kept := moe.WithCache(cache.Open(cache.Options{Dir: b.cache, Logger: b.log}))
	for i, options := range [][]moe.Option{nil, {moe.WithDecode(most)}, {moe.WithoutDecode()}} {
		if d.layers[i], err = moe.New(ctx, b.dev, c, append(options, kept, moe.WithoutBackward())...); err != nil {
			return err
		}
	}
	if err := d.fill(most); err != nil {
		return err
	}
	for _, tokens := range b.batches {
		p, err := d.point(tokens, b.repeats)
		if err != nil {
			return err
		}
		p.Name = name
		found(p)
	}
	return nil
}

// decodeBench holds the layers and tensors of one configuration.
type decodeBench struct {
	ctx    context.Context
	dev    driver.Device
	s      driver.Stream
	c      moe.Config
	layers [3]*moe.Layer // the default layer, one with only small-batch kernels, one with only large-batch kernels (which unpack packed weights)
	memory *moe.Arena
	passes [decodeLayers]moe.ForwardArgs
}

// fill gives each layer weights and tokens of its own. Tokens and routers are N(0,1), so that
// tokens choose the experts evenly.
func (d *decodeBench) fill(tokens int) error {
	l := d.layers[0]
	work := d.memory.Workspace(tokens, d.layers[:]...)
	for i := range d.passes {
		d.passes[i] = d.memory.ForwardArgs(l, tokens)
		d.passes[i].Weights, d.passes[i].Workspace = d.memory.Weights(l), work
	}
	if err := d.memory.Err(); err != nil {
		return err
	}
	random := noise.New(l.Config().Type)
	for i, f := range d.passes {
		for j, t := range []moe.Tensor{f.X, f.Router} {
			if err := moe.Write(d.s, t, reference.NewNormalOf(t.Shape.Type, uint64(10*i+j), 1).Values(t.Shape.Elements())); err != nil {
				return err
			}
		}
		if spec.IsPlain(l.Config()) {
			if err := random.Fill(d.s, f.W1, f.W2); err != nil {
				return err
			}
			continue
		}
		err := trial.FillExperts(d.s, l.Config(), &f.Weights)
		if err == nil {
			d.passes[i].Units, err = trial.ArrangeUnits(d.s, l, d.memory, f.Weights)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// point measures the layers at one batch size.
func (d *decodeBench) point(tokens, repeats int) (p report.DecodePoint, err error) {
	p.Tokens = tokens
	for i, us := range []*float64{&p.US, &p.FewUS, &p.PrefillUS} {
		if *us, err = d.time(d.layers[i], tokens, repeats); err != nil {
			return p, err
		}
	}
	for _, f := range d.passes {
		ids := make([]int32, tokens*d.c.TopK)
		if err := d.s.CopyToHost(num.Bytes(ids), f.ExpertIDs.Ptr); err != nil {
			return p, err
		}
		slices.Sort(ids)
		p.Experts += float64(len(slices.Compact(ids))) / decodeLayers
	}
	p.MB = p.Experts * float64(spec.MatrixBytes(d.layers[0].Config())) / float64(d.c.NumExperts) / 1e6
	p.RoofUS = p.MB / report.PeakTBps
	p.Share = p.RoofUS / p.US
	return p, nil
}

// time returns the median time of inference in one layer. It times a graph that runs all layers
// twice, because the start of a replay then counts less for each pass.
func (d *decodeBench) time(l *moe.Layer, tokens, repeats int) (us float64, err error) {
	call := l.NewCall()
	all := func() error {
		for i := range decodePasses {
			f, err := d.passes[i%decodeLayers].Tokens(tokens)
			if err != nil {
				return err
			}
			f.H = moe.Tensor{}
			if err := call.Forward(d.s, f); err != nil {
				return err
			}
		}
		return nil
	}
	if err := all(); err != nil { // outside of a graph, an error names the kernel and its line
		return 0, err
	}
	if err := l.Explain(d.s.Synchronize(d.ctx)); err != nil {
		return 0, err
	}
	if err := d.s.BeginCapture(); err != nil {
		return 0, err
	}
	err = all()
	g, end := d.s.EndCapture()
	if err = errors.Join(err, end); err != nil {
		return 0, err
	}
	defer g.Close()
	t := timer{ctx: d.ctx, dev: d.dev, s: d.s, repeats: repeats}
	defer t.close()
	sample, err := t.measure(20*time.Millisecond, func() error { return g.Launch(d.s) })
	if err != nil {
		return 0, err
	}
	return 1e3 * sample.MedianMS / decodePasses, nil
}
