package moe

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/route/order"
)

// checkList checks x and an input list, and returns the size of the pass.
func (c *Call) checkList(t int, x Tensor, l RoutingList) work {
	c.check.tensor("X", x, c.layer.of.Shapes(t).X, false)
	if !c.layer.of.HasLists() {
		c.check.fail(errNoLists.Field, errNoLists.Got, errNoLists.Want)
	}
	entries := l.ExpertIDs.Shape.Dims[0]
	if entries < 1 || entries > spec.MaxRows {
		c.check.fail("List.ExpertIDs", l.ExpertIDs.Shape.String(), fmt.Sprintf("i32 [L], L 1 to %d", spec.MaxRows))
		entries = 1
	}
	want := c.layer.of.ListShapes(t, int(entries))
	c.check.tensor("List.ExpertIDs", l.ExpertIDs, want.ExpertIDs, false)
	c.check.tensor("List.Tokens", l.Tokens, want.ExpertIDs, false)
	c.check.tensor("List.Scores", l.Scores, want.Scores, false)
	return work{tokens: t, rows: int(entries), list: true}
}

// checkNoList refuses a list in a pass in which the layer itself chooses the experts.
func (c *Call) checkNoList(l RoutingList) {
	if !l.IsZero() {
		c.check.fail("List", "given", "none: this pass routes by itself; ForwardExperts and BackwardExperts take lists")
	}
}

// aggregateList queues the weighted sum over each token's entries of a list.
func (q *queue) aggregateList(n work, f *ForwardArgs, w workspace) {
	p := f.Workspace.Ptr
	launch(q, kernel.AggregateListKernel, kernel.AggregateArgs{
		Y: at(p, w.y), O: f.O.Ptr, TokenRows: at(p, w.tokenRows), Scores: at(p, w.weights), Starts: at(p, w.starts), Tokens: n.tokens,
		SharedRows: at(p, w.shared.y), SharedScores: at(p, w.shared.weights),
	})
}

// planList queues the kernels that order the entries of a list by expert, and
// the rows by token.
func (q *queue) planList(n work, l RoutingList, p driver.DevicePtr, w indices) {
	regrouped := order.Regrouped{
		Scores: l.Scores.Ptr, Starts: at(p, w.starts), TokenRows: at(p, w.tokenRows), Weights: at(p, w.weights), Unordered: at(p, w.unordered),
	}
	if n.sorted {
		launch(q, order.PlanSortedKernel, order.PlanSortedArgs{
			PlanTensors: w.plan(p, l.ExpertIDs), TokenOf: l.Tokens.Ptr, Entries: n.rows, Regrouped: regrouped, TokenRanges: order.SortedRanges(n.tokens, q.layer.sms),
		})
		return
	}
	q.planEntries(n, l, p, w)
	launch(q, order.ByTokenKernel, order.ByTokenArgs{
		Offsets: at(p, w.offsets), Gather: at(p, w.gather), Pairs: at(p, w.pairs), Regrouped: regrouped, TokenRanges: order.ByTokenRanges(n.tokens, q.layer.sms),
	})
}

// planEntries queues the kernels that order the entries of a list by expert.
func (q *queue) planEntries(n work, l RoutingList, p driver.DevicePtr, w indices) {
	ranges := q.ranges(n.rows) // ranges of entries
	of := order.Entries{TokenOf: l.Tokens.Ptr, NumTokens: n.tokens}
	launch(q, order.CountListKernel, order.CountArgs{
		ExpertIDs: l.ExpertIDs.Ptr, Counts: at(p, w.counts), TokenRanges: ranges, Entries: of,
	})
	launch(q, order.PlanListKernel, order.PlanArgs{
		PlanTensors: w.plan(p, l.ExpertIDs), Counts: at(p, w.counts), TokenRanges: ranges, Entries: of,
	})
}
