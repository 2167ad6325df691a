package moe

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/registry"
)

// This file has the shared experts of a layer. They are a layer with one expert and the same
// kernels. Its packed rows are the tokens. Its router, if it has one, is the shared experts' gate.

// withShared adds the layer of the shared experts, if there are any, with the cost
// model's tilings.
func (l *Layer) withShared(t driver.Target, o options) {
	if c, ok := l.of.Shared(); ok {
		l.shared = &Layer{dev: l.dev, sms: t.SMs, smallBatch: o.smallBatch(c),
			of: registry.Layer{Config: c, Tiles: kernel.Choose(c, t), IsShared: true}}
	}
}

// sharedIndices lays out the indices of a pass over shared experts. In such a pass a row, its token
// and its index in Scores have the same number.
func (l *Layer) sharedIndices(s *space, tokens int) (w indices) {
	w.offsets = s.take(8)
	w.rowPairs = s.take(4)
	w.tickets = s.take(schedule.TicketsBytes)
	w.table = s.take(kernel.EveryToken{}.TableBytes(tokens))
	w.gather = s.take(4 * int64(tokens))
	w.inverse, w.pairs = w.gather, w.gather
	w.weights, w.ids = s.take(4*int64(tokens)), s.take(4*int64(tokens))
	return w
}

// checkSharedH checks the shared experts' H. A pass saves both H and SharedH, or neither.
func (c *Call) checkSharedH(h, shared Tensor, want spec.Shape, written bool) {
	switch {
	case want.IsZero() && !shared.IsZero():
		c.check.fail("SharedH", shared.Shape.String(), "none: the layer has no shared experts")
	case want.IsZero() || h.IsZero() && shared.IsZero():
	case h.IsZero():
		c.check.fail("SharedH", shared.Shape.String(), "none without H: a pass keeps both or neither")
	default:
		c.check.tensor("SharedH", shared, want, written)
	}
}

// ofShared returns a queue of the shared experts' call, with this queue's error.
func (q *queue) ofShared() *queue { return &queue{q.shared, q.stream, q.err} }

// everyToken queues the plan of shared experts, and their scores.
func (q *queue) everyToken(x, gate Tensor, t int, p driver.DevicePtr, w indices) {
	launch(q, kernel.EveryTokenKernel, kernel.EveryTokenArgs{
		X: x.Ptr, Gate: gate.Ptr, Rows: at(p, w.gather), ExpertIDs: at(p, w.ids), Scores: at(p, w.weights),
		Offsets: at(p, w.offsets), Table: at(p, w.table), RowPairs: at(p, w.rowPairs), Tickets: at(p, w.tickets), Tokens: t,
	})
}

// sharedProducts queues the products of the shared experts, if there are any.
func (q *queue) sharedProducts(tokens int, f *ForwardArgs, w pieces) {
	if q.shared == nil {
		return
	}
	shared := q.ofShared()
	of := ForwardArgs{X: f.X, H: f.SharedH, Workspace: f.Workspace}
	of.W1, of.W3, of.W2 = f.SharedW1, f.SharedW3, f.SharedW2
	shared.everyToken(f.X, f.SharedGate, tokens, f.Workspace.Ptr, w.indices)
	shared.products(shared.layer.work(tokens), &of, w)
	q.err = shared.err
}

// sharedGradients queues the backward pass of the shared experts, if one of its gradients is
// wanted. Later kernels of the layer's pass use the same scratch memory, except the rows of dX.
func (q *queue) sharedGradients(tokens int, b *BackwardArgs, w backwardWorkspace) {
	if want := b.wanted(); q.shared == nil || !want.shared && !want.dX {
		return
	}
	r := q.sharedRun(tokens, b, w)
	of := r.wanted()
	r.sharedRows()
	r.when(of.dW1 || of.dW2, (*backwardRun).planSplits)
	r.when(of.dW2, (*backwardRun).dW2)
	r.when(of.dW1, (*backwardRun).dW1)
	r.when(of.dX, (*backwardRun).dXRows)
	r.when(of.dRouter, (*backwardRun).dRouter)
	q.err = r.err
}

// sharedRun returns the state of the backward pass of the shared experts. Their gate is the router,
// if there is a gate.
func (q *queue) sharedRun(tokens int, b *BackwardArgs, w backwardWorkspace) backwardRun {
	shared := q.ofShared()
	n := shared.layer.work(tokens)
	r := backwardRun{queue: shared, work: n, w: shared.layer.backwardWorkspaceFrom(space{w.dh}, n), routed: shared.layer.of.SharedGate}
	r.w.dxRows = w.sharedRows
	r.X, r.DO, r.DX, r.H, r.Workspace = b.X, b.DO, b.DX, b.SharedH, b.Workspace
	r.Weights = Weights{Router: b.SharedGate, W1: b.SharedW1, W3: b.SharedW3, W2: b.SharedW2}
	r.WeightGradients = WeightGradients{DRouter: b.DSharedGate, DW1: b.DSharedW1, DW3: b.DSharedW3, DW2: b.DSharedW2}
	r.Scores.Ptr, r.ExpertIDs.Ptr = r.at(r.w.weights), r.at(r.w.ids)
	return r
}

// sharedRows queues dH and A' of the shared experts, and the gradients of the gate's logits.
func (r *backwardRun) sharedRows() {
	of := r.wanted()
	r.everyToken(r.X, r.Router, r.tokens, r.Workspace.Ptr, r.w.indices)
	r.dH(r.tiles(0))
	r.when(r.routed && (of.dX || of.dRouter), (*backwardRun).dScores)
}
