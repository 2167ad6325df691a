package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/moe/internal/route/rounding"
	"sonicmoe/moe/internal/route/training"
)

// checkRounded checks the list of a pass that rounds, and the logits that this
// needs, and gives the work.
func (c *Call) checkRounded(t int, l List, logits Tensor, written bool) work {
	if !c.layer.of.Rounds() {
		c.check.fail("List", "given", "none: this layer routes without Config.Rounding; ForwardExperts and BackwardExperts take lists")
	}
	n := work{tokens: t, rows: c.layer.RoundedRows(t), list: true, sorted: true}
	want := c.layer.of.ListShapes(n.rows)
	c.check.tensor("List.ExpertIDs", l.ExpertIDs, want.ExpertIDs, written)
	c.check.tensor("List.Tokens", l.Tokens, want.Tokens, written)
	c.check.tensor("List.Scores", l.Scores, want.Scores, written)
	if logits.IsZero() {
		c.check.fail("Logits", missing, fmt.Sprintf("%v: rounding needs them", c.layer.of.Shapes(t).Logits))
	}
	return n
}

// roundedExperts queues rounding and a pass over the list that it makes.
func (c *Call) roundedExperts(s driver.Stream, n work, f *Forward) error {
	w, p, of := c.laid(n).workspace, f.Workspace.Ptr, c.layer.of
	if err := launch(c, s, rounding.KeysKernel, rounding.KeysArgs{
		Logits: f.Logits.Ptr, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Keys: at(p, w.keys), Raw: at(p, w.raw), Tokens: n.tokens,
	}); err != nil {
		return err
	}
	ranges := c.ranges(n.tokens)
	cutoff := rounding.CutoffArgs{
		Keys: at(p, w.keys), Counts: at(p, w.counts), Choices: at(p, w.choices), Tokens: n.tokens, Ranges: ranges.Count(),
		Capacity: of.Rounding.CapacityOf(of.Config, n.tokens),
	}
	cutoff.Seed(f.Seed)
	if err := launch(c, s, rounding.CutoffKernel, cutoff); err != nil {
		return err
	}
	if err := launch(c, s, rounding.ListKernel, rounding.ListArgs{
		Keys: at(p, w.keys), Raw: at(p, w.raw), Choices: at(p, w.choices),
		TokenOf: f.List.Tokens.Ptr, ExpertIDs: f.List.ExpertIDs.Ptr, Scores: f.List.Scores.Ptr, Tokens: n.tokens, Entries: n.rows,
	}); err != nil {
		return err
	}
	return c.listExperts(s, n, f)
}

// roundedDLogits makes the dense gradients of the logits behind rounding, with
// those of losses and the caller's added.
func (r *backwardRun) roundedDLogits() error {
	args := training.RoundedDLogitsArgs{
		Logits: r.Logits.Ptr, Scores: r.Scores.Ptr, ExpertIDs: r.ExpertIDs.Ptr,
		Starts: r.at(r.w.starts), Rows: r.at(r.w.tokenRows), Pairs: r.at(r.w.pairs), ListIDs: r.List.ExpertIDs.Ptr, DScores: r.dScoresAt(),
		AddDense: r.DLogits.Ptr, Dense: r.at(r.w.denseDLogits), Tokens: r.tokens,
	}
	if r.hasLosses() {
		args.AddDense = args.Dense
	}
	return launch(r.call, r.s, training.RoundedDLogitsKernel, args)
}
