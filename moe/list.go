package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/route/order"
)

// checkList checks x and a list, which is read, and gives the work.
func (c *Call) checkList(t int, x Tensor, l List) work {
	c.check.tensor("X", x, c.layer.of.Shapes(t).X, false)
	if !c.layer.of.HasLists() {
		c.check.fail(errNoLists.Field, errNoLists.Got, errNoLists.Want)
	}
	entries := l.ExpertIDs.Shape.Dims[0]
	if entries < 1 || entries > spec.MaxRows {
		c.check.fail("List.ExpertIDs", l.ExpertIDs.Shape.String(), fmt.Sprintf("i32 [L], L 1 to %d", spec.MaxRows))
		entries = 1
	}
	want := c.layer.of.ListShapes(int(entries))
	c.check.tensor("List.ExpertIDs", l.ExpertIDs, want.ExpertIDs, false)
	c.check.tensor("List.Tokens", l.Tokens, want.Tokens, false)
	c.check.tensor("List.Scores", l.Scores, want.Scores, false)
	return work{tokens: t, rows: int(entries), list: true}
}

// checkNoList refuses a list where the layer routes.
func (c *Call) checkNoList(l List) {
	if !l.IsZero() {
		c.check.fail("List", "given", "none: this pass routes by itself; ForwardExperts and BackwardExperts take lists")
	}
}

// listExperts queues a pass over a list.
func (c *Call) listExperts(s driver.Stream, n work, f *Forward) error {
	w, p := c.laid(n).workspace, f.Workspace.Ptr
	if err := c.planList(s, n, f.List, p, w.indices); err != nil {
		return err
	}
	if err := c.sharedProducts(s, n.tokens, f, w.shared); err != nil {
		return err
	}
	if err := c.products(s, n, f, w.pieces); err != nil {
		return err
	}
	return launch(c, s, kernel.AggregateListKernel, kernel.AggregateArgs{
		Y: at(p, w.y), O: f.O.Ptr, Inverse: at(p, w.tokenRows), Scores: at(p, w.weights), Starts: at(p, w.starts), Tokens: n.tokens,
		SharedRows: at(p, w.shared.y), SharedScores: at(p, w.shared.weights),
	})
}

// planList queues what orders the entries of a list by expert, and its rows by
// token.
func (c *Call) planList(s driver.Stream, n work, l List, p driver.DevicePtr, w indices) error {
	regrouped := order.Regrouped{
		Scores: l.Scores.Ptr, Starts: at(p, w.starts), Rows: at(p, w.tokenRows), Weights: at(p, w.weights), Unordered: at(p, w.unordered),
	}
	if n.sorted {
		return launch(c, s, order.PlanSortedKernel, order.PlanSortedArgs{
			PlanTensors: w.plan(p, l.ExpertIDs), TokenOf: l.Tokens.Ptr, Entries: n.rows, Regrouped: regrouped, TokenRanges: order.SortedRanges(n.tokens, c.layer.sms),
		})
	}
	ranges := c.ranges(n.rows) // of entries
	of := order.Entries{TokenOf: l.Tokens.Ptr, NumTokens: n.tokens}
	if err := launch(c, s, order.CountListKernel, order.CountArgs{
		ExpertIDs: l.ExpertIDs.Ptr, Counts: at(p, w.counts), TokenRanges: ranges, Entries: of,
	}); err != nil {
		return err
	}
	if err := launch(c, s, order.PlanListKernel, order.PlanArgs{
		PlanTensors: w.plan(p, l.ExpertIDs), Counts: at(p, w.counts), TokenRanges: ranges, Entries: of,
	}); err != nil {
		return err
	}
	return launch(c, s, order.ByTokenKernel, order.ByTokenArgs{
		Offsets: at(p, w.offsets), Gather: at(p, w.gather), Pairs: at(p, w.pairs), Regrouped: regrouped, TokenRanges: order.ByTokenRanges(n.tokens, c.layer.sms),
	})
}
