package moe

import (
	"sonicmoe/driver"
	"sonicmoe/moe/kernel"
)

// backwardRun is one backward call on its way: what the kernels need.
type backwardRun struct {
	call     *Call
	layer    *Layer
	Backward // a copy: behind a pointer it would go to the heap
	s        driver.Stream
	tokens   int
	rows     int
	w        backwardWorkspace
	routed   bool
}

// at is an address in the workspace.
func (r *backwardRun) at(offset int64) driver.DevicePtr { return at(r.Workspace.Ptr, offset) }

// gradients queues the kernels, each only where its result is wanted. The
// order lets pieces of the workspace be used twice; see backwardWorkspace.
func (c *Call) gradients(s driver.Stream, t int, b *Backward, w backwardWorkspace, routed bool) error {
	r := backwardRun{call: c, layer: c.layer, Backward: *b, s: s, tokens: t, rows: t * c.layer.config.TopK, w: w, routed: routed}
	hasDX, hasDW1, hasDW2 := !b.DX.IsZero(), !b.DW1.IsZero(), !b.DW2.IsZero()
	hasDRouter, hasDScores := routed && !b.DRouter.IsZero(), !b.DScores.IsZero()
	if !(hasDX || hasDW1 || hasDW2 || hasDRouter || hasDScores) {
		return nil
	}
	err := r.planRows()
	if err == nil {
		err = r.dH()
	}
	if err == nil && (hasDScores || routed && (hasDX || hasDRouter)) {
		err = r.dScores()
	}
	if err == nil && (hasDW1 || hasDW2) {
		err = r.planSplits()
	}
	if err == nil && hasDW2 {
		err = r.dW2()
	}
	if err == nil && hasDW1 {
		err = r.dW1()
	}
	if err == nil && hasDX {
		err = r.dX()
	}
	if err == nil && hasDRouter {
		err = r.dRouter()
	}
	return err
}

// planRows makes the order of the rows anew from the experts' ids.
func (r *backwardRun) planRows() error {
	if err := r.call.count(r.s, r.tokens, r.Experts, r.Workspace.Ptr, r.w.indices); err != nil {
		return err
	}
	return r.call.plan(r.s, planPairs, r.tokens, r.Experts, r.Workspace.Ptr, r.w.indices)
}

// blocks sets the row blocks and the tile counter of a product.
func (r *backwardRun) blocks(b *binding, ticket int64) {
	b.ptr("table", r.at(r.w.table))
	b.ptr("blocks", r.at(r.w.blocks))
	b.ptr("tickets", r.at(r.w.tickets+ticket*ticketBytes))
}

// namedMap is a tensor map for a parameter.
type namedMap struct {
	name string
	m    driver.TensorMap
}

// tensorMaps encodes several maps.
func (b *binding) tensorMaps(maps ...namedMap) error {
	for i := range maps {
		if err := b.tensorMap(maps[i].name, maps[i].m); err != nil {
			return err
		}
	}
	return nil
}

// dH makes dH, A' and the partial sums of the scores' gradients.
func (r *backwardRun) dH() error {
	shape, b := r.layer.dh(), &r.call.bindings[dh]
	r.blocks(b, 0)
	b.ptr("do", r.DO.Ptr)
	b.ptr("gather", r.at(r.w.gather))
	b.ptr("scores", r.Scores.Ptr)
	b.ptr("pairs", r.at(r.w.pairs))
	b.ptr("dspart", r.at(r.w.partial))
	b.ptr("dh", r.at(r.w.dh))
	b.ptr("a", r.at(r.w.scaledA))
	if err := b.tensorMaps(
		namedMap{"w2", shape.W2Map(r.W2.Ptr, r.layer.config.Experts)},
		namedMap{"h", shape.HMap(r.H.Ptr, r.rows)},
	); err != nil {
		return err
	}
	return b.persist(r.s, r.layer.sms)
}

// dScores sums the scores' gradients and gives the logits'.
func (r *backwardRun) dScores() error {
	b := &r.call.bindings[dscoresGiven]
	if r.routed {
		b = &r.call.bindings[dscores]
		b.ptr("scores", r.Scores.Ptr)
		b.ptr("dlogits", r.at(r.w.dlogits))
		b.ptr("dlrow", r.at(r.w.dlrow))
	}
	to := r.DScores.Ptr
	if r.DScores.IsZero() {
		to = r.at(r.w.dscores)
	}
	b.ptr("dscores", to)
	b.ptr("dspart", r.at(r.w.partial))
	b.ptr("inverse", r.at(r.w.inverse))
	b.u32("tokens", r.tokens)
	return b.run(r.s, r.layer.dscores(r.routed).CTAs(r.tokens))
}

// planSplits lists the work of the weights' gradients.
func (r *backwardRun) planSplits() error {
	b := &r.call.bindings[planSplits]
	b.ptr("offsets", r.at(r.w.offsets))
	b.ptr("splits", r.at(r.w.splits))
	b.ptr("counts", r.at(r.w.splitCounts))
	b.ptr("tickets", r.at(r.w.splitTickets))
	b.ptr("state", r.at(r.w.states))
	b.u32("words", 2*slotStateBytes/4*r.w.slots)
	return b.run(r.s, r.layer.splits().CTAs())
}

// dW2 is Σ dO·A' of each expert's rows.
func (r *backwardRun) dW2() error {
	store := gradientStore(r.DW2, r.AccumulateDW2)
	return r.dW(&r.call.bindings[gradientKernel(dw2, store)], r.layer.dw2(store), r.DO, r.w.scaledA, r.DW2, 1)
}

// dW1 is Σ dH·X of each expert's rows.
func (r *backwardRun) dW1() error {
	store := gradientStore(r.DW1, r.AccumulateDW1)
	return r.dW(&r.call.bindings[gradientKernel(dw1, store)], r.layer.dw1(store), r.X, r.w.dh, r.DW1, 0)
}

// dW queues one of the two, the which-th: tokens' rows of x times packed rows.
func (r *backwardRun) dW(b *binding, shape kernel.DW, x Tensor, rows int64, to Tensor, which int64) error {
	b.ptr("x", x.Ptr)
	b.ptr("gather", r.at(r.w.gather))
	b.ptr("rows", r.at(rows))
	b.ptr("splits", r.at(r.w.splits))
	b.ptr("counts", r.at(r.w.splitCounts))
	b.ptr("tickets", r.at(r.w.splitTickets+which*ticketBytes))
	b.ptr("partials", r.at(r.w.dwPartials))
	b.ptr("state", r.at(r.w.states+which*slotStateBytes*int64(r.w.slots)))
	b.u32("slots", r.w.slots)
	if err := b.tensorMap("rowsmap", shape.RowsMap(r.at(rows), r.rows)); err != nil {
		return err
	}
	if shape.Store != (kernel.Gradient{}) {
		b.ptr("dw", to.Ptr)
	} else if err := b.tensorMap("dw", shape.OutMap(to.Ptr, r.layer.config.Experts)); err != nil {
		return err
	}
	return b.persist(r.s, r.layer.sms)
}

// hasExtra says that the caller has gradients of the logits.
func (r *backwardRun) hasExtra() bool { return r.routed && !r.DLogits.IsZero() }

// dX is the sum of the rows of each token and, last, of what the caller's
// gradients of the logits add.
func (r *backwardRun) dX() error {
	if err := r.dXRows(); err != nil {
		return err
	}
	b := &r.call.bindings[sum]
	if r.hasExtra() {
		if err := r.extraRows(); err != nil {
			return err
		}
		b = &r.call.bindings[sumExtra]
		b.ptr("extra", r.at(r.w.extra))
	}
	b.ptr("y", r.at(r.w.dxRows))
	b.ptr("o", r.DX.Ptr)
	b.ptr("inverse", r.at(r.w.inverse))
	b.u32("tokens", r.tokens)
	return b.run(r.s, r.layer.sum(false).CTAs(r.tokens))
}

// dXRows is dH·W1 of each row, with the chosen logits' part.
func (r *backwardRun) dXRows() error {
	shape, cfg := r.layer.dx(r.routed), r.layer.config
	b := &r.call.bindings[dxGiven]
	if r.routed {
		b = &r.call.bindings[dx]
		b.ptr("dlrow", r.at(r.w.dlrow))
		b.ptr("wr", r.Router.Ptr)
	}
	r.blocks(b, 1)
	if err := b.tensorMaps(
		namedMap{"dh", shape.DHMap(r.at(r.w.dh), r.rows)},
		namedMap{"w1", shape.W1Map(r.W1.Ptr, cfg.Experts, cfg.GateUp)},
		namedMap{"dx", shape.DXMap(r.at(r.w.dxRows), r.rows)},
	); err != nil {
		return err
	}
	return b.persist(r.s, r.layer.sms)
}

// extraRows is DLogits·W_r.
func (r *backwardRun) extraRows() error {
	shape, b := r.layer.extraRows(), &r.call.bindings[extraRows]
	b.ptr("extra", r.DLogits.Ptr)
	b.ptr("rows", r.at(r.w.extra))
	b.u32("tokens", r.tokens)
	if err := b.tensorMap("w", shape.WMap(r.Router.Ptr)); err != nil {
		return err
	}
	return b.run(r.s, shape.CTAs(r.tokens))
}

// dRouter is Σ dlogit·X over the tokens: partial sums of ranges of tokens, then
// their sum.
func (r *backwardRun) dRouter() error {
	shape := r.layer.drouter(r.hasExtra())
	ranges, perRange := shape.Ranges(r.tokens)
	b := &r.call.bindings[drouter]
	if shape.Extra {
		b = &r.call.bindings[drouterExtra]
		b.ptr("extra", r.DLogits.Ptr)
	}
	b.ptr("dlogits", r.at(r.w.dlogits))
	b.ptr("experts", r.Experts.Ptr)
	b.ptr("partials", r.at(r.w.router))
	b.u32("tokens", r.tokens)
	b.u32("perRange", perRange)
	if err := b.tensorMap("x", shape.XMap(r.X.Ptr, r.tokens)); err != nil {
		return err
	}
	if err := b.run(r.s, shape.CTAs(r.tokens)); err != nil {
		return err
	}
	store := gradientStore(r.DRouter, r.AccumulateDRouter)
	b = &r.call.bindings[gradientKernel(drouterSum, store)]
	b.ptr("partials", r.at(r.w.router))
	b.ptr("dwr", r.DRouter.Ptr)
	b.u32("ranges", ranges)
	return b.run(r.s, r.layer.drouterSum(store).CTAs())
}
