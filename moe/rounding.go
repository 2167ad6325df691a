package moe

import (
	"fmt"

	"sonicmoe/moe/internal/route/rounding"
	"sonicmoe/moe/internal/route/training"
)

// checkRounded checks the list and the logits of a pass that rounds, and returns
// the size of the pass.
func (c *Call) checkRounded(t int, l RoutingList, logits Tensor, written bool) work {
	if !c.layer.of.Rounds() {
		c.check.fail("List", "given", "none: this layer routes without Config.Rounding; ForwardExperts and BackwardExperts take lists")
	}
	n := work{tokens: t, rows: c.layer.RoundedRows(t), list: true, sorted: true}
	want := c.layer.of.ListShapes(n.tokens, n.rows)
	c.check.tensor("List.ExpertIDs", l.ExpertIDs, want.ExpertIDs, written)
	c.check.tensor("List.Tokens", l.Tokens, want.ExpertIDs, written)
	c.check.tensor("List.Scores", l.Scores, want.Scores, written)
	if logits.IsZero() {
		c.check.fail("Logits", missing, fmt.Sprintf("%v: rounding needs them", c.layer.of.Shapes(t).Logits))
	}
	return n
}

// round queues the kernels that round the number of each expert's tokens and write the list.
func (q *queue) round(n work, f *ForwardArgs) {
	w, p, of := q.laid(n).workspace, f.Workspace.Ptr, q.layer.of
	launch(q, rounding.KeysKernel, rounding.KeysArgs{
		Logits: f.Logits.Ptr, Scores: f.Scores.Ptr, ExpertIDs: f.ExpertIDs.Ptr, Keys: at(p, w.keys), Raw: at(p, w.raw), Tokens: n.tokens,
	})
	ranges := q.ranges(n.tokens)
	cutoff := rounding.CutoffArgs{
		Keys: at(p, w.keys), Counts: at(p, w.counts), Cutoffs: at(p, w.choices), Tokens: n.tokens, Ranges: ranges.Count(),
		Capacity: of.Rounding.CapacityOf(of.Config, n.tokens),
	}
	cutoff.Seed(f.Seed)
	launch(q, rounding.CutoffKernel, cutoff)
	launch(q, rounding.ListKernel, rounding.ListArgs{
		Keys: at(p, w.keys), Raw: at(p, w.raw), Cutoffs: at(p, w.choices),
		TokenOf: f.List.Tokens.Ptr, ExpertIDs: f.List.ExpertIDs.Ptr, Scores: f.List.Scores.Ptr, Tokens: n.tokens, Entries: n.rows,
	})
}

// roundedDLogits queues the gradients of all logits through rounding. It adds
// the gradients of the losses and of the caller.
func (r *backwardRun) roundedDLogits() {
	args := training.RoundedDLogitsArgs{
		Logits: r.Logits.Ptr, Scores: r.Scores.Ptr, ExpertIDs: r.ExpertIDs.Ptr,
		Starts: r.at(r.w.starts), TokenRows: r.at(r.w.tokenRows), Pairs: r.at(r.w.pairs), ListIDs: r.List.ExpertIDs.Ptr, DScores: r.dScoresAt(),
		AddDense: r.DLogits.Ptr, Dense: r.at(r.w.denseDLogits), Tokens: r.tokens,
	}
	if r.hasLosses() {
		args.AddDense = args.Dense
	}
	launch(r.queue, training.RoundedDLogitsKernel, args)
}
