package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"sonicmoe/examples/bench/report"
	"sonicmoe/internal/num"
	"sonicmoe/internal/peers"
	"sonicmoe/internal/spec"
	"sonicmoe/moe"
)

// This file measures -rounding: token rounding and plain top-K on the same tensors, including
// the routing. The two run in turns, pass by pass, after a sustained load. The load is needed
// because a chip that has just reached its power limit is slow for some tenths of a second.

// roundingRows returns layers with different numbers of experts.
func roundingRows(gpu bool) (rows []peers.Row) {
	c, experts, tokens := spec.Config{Hidden: 4096, Intermediate: 1024, TopK: 4}, []int{64, 128, 256, 512}, 16384
	if !gpu {
		c, experts, tokens = spec.Config{Hidden: 128, Intermediate: 64, TopK: 2}, []int{2, 4}, 150
	}
	for _, e := range experts {
		c.NumExperts, c.TokensHint = e, tokens
		r := peers.Row{Tokens: tokens, Config: c}
		r.Name = report.SizeOf(r).String()
		rows = append(rows, r)
	}
	return rows
}

// rounding measures the rows of -rounding, and prints, writes and draws the results.
func (b *bench) rounding() error {
	rows := b.rows
	if len(rows) == 0 {
		for _, r := range roundingRows(b.gpu) {
			rows = append(rows, b.call(r))
		}
	}
	b.pass = passes["backward"] // a layer for backward also has the forward kernels
	var points []report.RoundingPoint
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	report.PrintRoundingHead(w, b.round.String())
	for _, row := range rows {
		p, err := b.roundingRow(row)
		if err != nil {
			_ = w.Flush()
			return fmt.Errorf("%v: %w", report.SizeOf(row), err)
		}
		points = append(points, p)
		report.PrintRoundingPoint(w, p)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if err := b.writeJSON(points); err != nil {
		return err
	}
	if b.plot == "" {
		return nil
	}
	return report.DrawRounding(points, b.plot)
}

// roundingRow measures one layer.
func (b *bench) roundingRow(row peers.Row) (p report.RoundingPoint, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.timeout)
	defer cancel()
	row.Config.Rounding = b.round
	l, err := b.layer(ctx, row.Config)
	if err != nil {
		return p, err
	}
	u, err := newSubject(ctx, b.dev, l, row, b.pass)
	if err != nil {
		return p, err
	}
	defer release(ctx, &err, u.Close)
	s := u.Stream()
	t, err := b.timer(ctx, s)
	if err != nil {
		return p, err
	}
	defer release(ctx, &err, t.close)

	p = report.RoundingPoint{Size: report.SizeOf(row), Rounding: b.round.String()}
	rounded, back, err := u.rounded()
	if err != nil {
		return p, err
	}
	load := b.warm
	if b.gpu {
		load = max(load, sustained)
	}
	for _, pass := range []struct {
		plain, rounded *float64
		works          [2]func() error
	}{
		{&p.Plain.ForwardMS, &p.Rounded.ForwardMS, [2]func() error{
			func() error { return u.Call().Forward(s, u.Args) }, func() error { return u.Call().Forward(s, rounded) },
		}},
		{&p.Plain.BackwardMS, &p.Rounded.BackwardMS, [2]func() error{
			func() error { return u.Call().Backward(s, u.Back) }, func() error { return u.Call().Backward(s, back) },
		}},
	} {
		samples, err := t.turns(load, pass.works[:]...)
		if err != nil {
			return p, l.Explain(err)
		}
		*pass.plain, *pass.rounded = samples[0].MedianMS, samples[1].MedianMS
	}
	if p.Plain.Counts, err = u.counts(u.Args.ExpertIDs); err != nil {
		return p, err
	}
	p.Rounded.Counts, err = u.counts(rounded.List.ExpertIDs)
	return p, err
}

// rounded returns the arguments of passes with rounding. These passes have a list and an H of
// their own.
func (u *subject) rounded() (f moe.ForwardArgs, b moe.BackwardArgs, err error) {
	l, tokens := u.Layer, u.row.Tokens
	rows := l.RoundedRows(tokens)
	sizes, err := l.ListSizes(tokens, rows)
	if err != nil {
		return f, b, err
	}
	f = u.Args
	shapes := l.Config().ListShapes(tokens, rows)
	f.List, f.Logits, f.Seed = u.Memory().RoutingList(l, rows), u.Memory().Tensor(shapes.Logits), 1
	f.H, f.Workspace = u.Memory().Tensor(shapes.H), u.Memory().Buffer(sizes.BackwardWorkspace)
	b = f.BackwardArgs()
	b.DO, b.DX, b.WeightGradients = u.Back.DO, u.Back.DX, u.Back.WeightGradients
	return f, b, u.Memory().Err()
}

// counts returns the number of rows of each expert, given a tensor of expert ids.
func (u *subject) counts(of moe.Tensor) ([]int, error) {
	ids := make([]int32, of.Shape.Elements())
	if err := u.Stream().CopyToHost(num.Bytes(ids), of.Ptr); err != nil {
		return nil, err
	}
	n := make([]int, u.row.Config.NumExperts)
	for _, id := range ids {
		if id >= 0 {
			n[id]++
		}
	}
	return n, nil
}
