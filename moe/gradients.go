package moe

import (
	"sonicmoe/driver"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/bias"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/route/choose"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/training"
)

// backwardRun is one backward call on its way: what the kernels need.
type backwardRun struct {
	call     *Call
	layer    *Layer
	Backward // a copy: behind a pointer it would go to the heap
	s        driver.Stream
	work
	w backwardWorkspace
	// routed: the rows' scores are made of logits, by this layer's router or, of
	// shared experts, by their gate.
	routed bool
}

// at is an address in the workspace.
func (r *backwardRun) at(offset int64) driver.DevicePtr { return at(r.Workspace.Ptr, offset) }

// wanted says which gradients a backward pass is to make.
type wanted struct {
	dX, dW1, dW2, dB1, dB2, dRouter, dRouterBias, dExpertScale, dScores bool
	// shared are those of the shared experts' weights.
	shared bool
}

// logits says that those of the logits are needed.
func (w wanted) logits() bool { return w.dX || w.dRouter || w.dRouterBias }

func (b *Backward) wanted() wanted {
	return wanted{
		dX: !b.DX.IsZero(), dW1: !b.DW1.IsZero(), dW2: !b.DW2.IsZero(), dB1: !b.DB1.IsZero(), dB2: !b.DB2.IsZero(),
		dRouter: !b.DRouter.IsZero(), dRouterBias: !b.DRouterBias.IsZero(), dExpertScale: !b.DExpertScale.IsZero(), dScores: !b.DScores.IsZero(),
		shared: !b.DSharedW1.IsZero() || !b.DSharedW2.IsZero() || !b.DSharedGate.IsZero(),
	}
}

// hasLosses says that losses on the logits are part of the loss.
func (b *Backward) hasLosses() bool { return b.Balance != 0 || b.ZLoss != 0 }

// gradients queues the kernels, each only where its result is wanted. The
// order lets pieces of the workspace be used twice; see backwardWorkspace.
func (c *Call) gradients(s driver.Stream, n work, b *Backward, w backwardWorkspace, routed bool) error {
	r := backwardRun{call: c, layer: c.layer, Backward: *b, s: s, work: n, w: w, routed: routed}
	of := b.wanted()
	err := c.sharedGradients(s, n.tokens, b, w)
	if err == nil {
		err = r.planRows()
	}
	if err == nil {
		err = r.dH()
	}
	if err == nil && (of.dScores || routed && (of.logits() || of.dExpertScale)) {
		err = r.dScores()
	}
	if err == nil && routed && !r.dense() && (of.logits() || of.dExpertScale) {
		err = r.dLogits()
	}
	if err == nil && of.dB1 {
		err = r.dB1()
	}
	if err == nil && of.dB2 {
		err = r.dB2()
	}
	if err == nil && (of.dW1 || of.dW2) {
		err = r.planSplits()
	}
	if err == nil && of.dW2 {
		err = r.dW2()
	}
	if err == nil && of.dW1 {
		err = r.dW1()
	}
	if err == nil && of.dX {
		err = r.dXRows()
	}
	if err == nil && (b.hasLosses() || !b.RouterLosses.IsZero()) {
		err = r.losses()
	}
	if err == nil && routed && r.dense() && (of.logits() || of.dExpertScale) {
		err = r.dLogits()
	}
	if err == nil && of.dX {
		err = r.dX()
	}
	if err == nil && of.dRouter {
		err = r.dRouter()
	}
	if err == nil && of.dRouterBias {
		err = r.dRouterBias()
	}
	if err == nil && of.dExpertScale {
		err = r.expertSums(r.w.scaleByRow, 0, r.DExpertScale)
	}
	return err
}

// planRows makes the order of the rows again from the experts' ids.
func (r *backwardRun) planRows() error {
	if r.list {
		return r.call.planList(r.s, r.work, r.List, r.Workspace.Ptr, r.w.indices)
	}
	if err := r.call.count(r.s, r.tokens, r.ExpertIDs, r.Workspace.Ptr, r.w.indices); err != nil {
		return err
	}
	return r.call.plan(r.s, order.PlanPairsKernel, r.call.ranges(r.tokens), r.ExpertIDs, r.Workspace.Ptr, r.w.indices)
}

// tiles are the tiles of the which-th product.
func (r *backwardRun) tiles(which int64) gemm.TileArgs { return r.w.tiles(r.Workspace.Ptr, which) }

// dH makes dH, A' and the partial sums of the scores' gradients.
func (r *backwardRun) dH() error {
	return launch(r.call, r.s, dh.Kernel, dh.Args{
		DO: r.DO.Ptr, Gather: r.at(r.w.gather), W2: r.W2.Ptr, H: r.H.Ptr, DH: r.at(r.w.dh), A: r.at(r.w.scaledA),
		Scores: r.weights().Ptr, Pairs: r.at(r.w.pairs), DScorePartials: r.at(r.w.partial), ColumnSums: r.at(r.w.biasSums), Rows: r.rows, TileArgs: r.tiles(0),
	})
}

// weights are the rows' by Pairs.
func (r *backwardRun) weights() Tensor {
	if r.list {
		return r.List.Scores
	}
	return r.Scores
}

// experts are the ids of the rows by Pairs.
func (r *backwardRun) experts() Tensor {
	if r.list {
		return r.List.ExpertIDs
	}
	return r.ExpertIDs
}

// dScores sums the scores' gradients and gives the logits'.
func (r *backwardRun) dScores() error {
	if r.layer.of.Bias {
		if err := launch(r.call, r.s, bias.DotKernel, choose.RouterArgs{
			X: r.DO.Ptr, Weights: r.B2.Ptr, Logits: r.at(r.w.biasByExpert), TokenRanges: r.call.ranges(r.tokens),
		}); err != nil {
			return err
		}
	}
	which := dh.ScoresGivenKernel
	if r.routed && training.ScoresTellLogits(r.layer.of.Config) {
		which = dh.ScoresKernel
	}
	tokens := r.tokens
	if r.list {
		which, tokens = dh.ScoresListKernel, r.rows // an entry is a token with one slot
	}
	return launch(r.call, r.s, which, dh.ScoresArgs{
		DScorePartials: r.at(r.w.partial), Inverse: r.at(r.w.inverse), DScores: r.dScoresAt(),
		BiasDots: r.at(r.w.biasByExpert), ExpertIDs: r.experts().Ptr, TokenOf: r.List.Tokens.Ptr,
		Scores: r.Scores.Ptr, DLogits: r.at(r.w.dlogits), DLogitByRow: r.at(r.w.dlogitByRow), Tokens: tokens,
	})
}

// dense says that the logits' gradients behind the scores are of all logits.
func (r *backwardRun) dense() bool { return r.list || training.Dense(r.layer.of.Config) }

// dLogits makes the logits' gradients where dScores has not: those of the chosen
// or, with the losses' and the caller's added, of all.
func (r *backwardRun) dLogits() error {
	switch {
	case r.list:
		return r.roundedDLogits()
	case training.ScoresTellLogits(r.layer.of.Config):
		return nil
	}
	args := training.DLogitsArgs{
		Logits: r.Logits.Ptr, Scores: r.Scores.Ptr, ExpertIDs: r.ExpertIDs.Ptr, Inverse: r.at(r.w.inverse), DScores: r.dScoresAt(),
		ExpertScale: r.ExpertScale.Ptr, ScaleByRow: r.at(r.w.scaleByRow), DLogits: r.at(r.w.dlogits), DLogitByRow: r.at(r.w.dlogitByRow),
		AddDense: r.DLogits.Ptr, Dense: r.at(r.w.denseDLogits), Tokens: r.tokens,
	}
	if r.hasLosses() {
		args.AddDense = args.Dense
	}
	return launch(r.call, r.s, training.DLogitsKernel, args)
}

// dB1 is Σ dH of each expert's rows.
func (r *backwardRun) dB1() error {
	return launch(r.call, r.s, bias.B1Kernels[gradientOf(r.DB1).Index()], bias.SumArgs{
		ColumnSums: r.at(r.w.biasSums), Offsets: r.at(r.w.offsets), DB: r.DB1.Ptr, DB3: r.DB3.Ptr,
	})
}

// dB2 is Σ score·dO of each expert's rows: a product of the scores by expert with
// dO, as the router's gradient.
func (r *backwardRun) dB2() error {
	ranges, perRange := bias.B2(r.layer.of).Ranges(r.tokens)
	args := drouter.Args{X: r.DO.Ptr, Partials: r.at(r.w.biasPartials), Tokens: r.tokens, PerRange: perRange}
	which := bias.B2Kernel
	if r.routed && !r.list && training.Sparse(r.layer.of.Config) { // a token's experts differ
		which, args.DLogits, args.ExpertIDs = bias.B2RoutedKernel, r.weights().Ptr, r.experts().Ptr
	} else {
		args.AddDense = r.at(r.w.biasByExpert)
		if err := r.scoresByExpert(args.AddDense); err != nil {
			return err
		}
	}
	if err := launch(r.call, r.s, which, args); err != nil {
		return err
	}
	return launch(r.call, r.s, drouter.SumKernels[gradientOf(r.DB2).Index()], drouter.SumArgs{
		Partials: r.at(r.w.biasPartials), DRouter: r.DB2.Ptr, Ranges: ranges,
	})
}

// scoresByExpert writes the scores [T, E], each where its expert is.
func (r *backwardRun) scoresByExpert(to driver.DevicePtr) error {
	which := bias.ScoresKernel
	if r.list {
		which = bias.ScoresListKernel
	}
	return launch(r.call, r.s, which, bias.ScoresArgs{
		Scores: r.weights().Ptr, ExpertIDs: r.experts().Ptr, Starts: r.at(r.w.starts), TokenRows: r.at(r.w.tokenRows), Pairs: r.at(r.w.pairs),
		ByExpert: to, Tokens: r.tokens,
	})
}

// dScoresAt is where the scores' gradients are, wanted or not.
func (r *backwardRun) dScoresAt() driver.DevicePtr {
	if r.DScores.IsZero() {
		return r.at(r.w.dscores)
	}
	return r.DScores.Ptr
}

// planSplits lists the work of the weights' gradients.
func (r *backwardRun) planSplits() error {
	return launch(r.call, r.s, dw.PlanKernel, dw.PlanArgs{
		Offsets: r.at(r.w.offsets), Splits: r.at(r.w.splits), Counts: r.at(r.w.splitCounts), Tickets: r.at(r.w.splitTickets),
		State: r.at(r.w.states), StateWords: 2 * dw.SlotStateBytes / 4 * r.w.slots,
	})
}

// gradientOf is how a gradient is to be written.
func gradientOf(g Gradient) gradient.Mode {
	return gradient.Mode{F32: g.Shape.Type == F32, Accumulate: g.Accumulate}
}

// dW2 is Σ dO·A' of each expert's rows.
func (r *backwardRun) dW2() error {
	args := r.dW(1, r.DO, r.w.scaledA, r.DW2.Tensor)
	return launch(r.call, r.s, dw.W2Kernels[gradientOf(r.DW2).Index()], args)
}

// dW1 is Σ dH·X of each expert's rows.
func (r *backwardRun) dW1() error {
	args := r.dW(0, r.X, r.w.dh, r.DW1.Tensor)
	args.DW3 = r.DW3.Ptr
	return launch(r.call, r.s, dw.W1Kernels[gradientOf(r.DW1).Index()], args)
}

// dW are the arguments of dW1 (0) or dW2 (1): tokens' rows of x times packed
// rows.
func (r *backwardRun) dW(which int64, x Tensor, rows int64, to Tensor) dw.Args {
	return dw.Args{
		X: x.Ptr, Gather: r.at(r.w.gather), PackedRows: r.at(rows), DW: to.Ptr,
		Splits: r.at(r.w.splits), Counts: r.at(r.w.splitCounts), Tickets: r.at(r.w.splitTickets + which*schedule.TicketBytes),
		Partials: r.at(r.w.dwPartials), State: r.at(r.w.states + which*dw.SlotStateBytes*int64(r.w.slots)), Slots: r.w.slots, Rows: r.rows,
	}
}

// losses makes the gradients of the losses on the logits, with the caller's
// added, and the losses.
func (r *backwardRun) losses() error {
	if r.list && r.Sequence == 0 {
		// Loads are those of the choice, before rounding. Its pairs are not the list's,
		// by which logits get their gradients after this.
		choice := r.w.indices
		choice.pairs = choice.unordered
		if err := r.call.count(r.s, r.tokens, r.ExpertIDs, r.Workspace.Ptr, choice); err != nil {
			return err
		}
		if err := r.call.plan(r.s, order.PlanKernel, r.call.ranges(r.tokens), r.ExpertIDs, r.Workspace.Ptr, choice); err != nil {
			return err
		}
	}
	of, t, length := r.layer.of.Config, float64(r.tokens), r.tokens
	args := training.LossesArgs{Logits: r.Logits.Ptr, Offsets: r.at(r.w.offsets), AddDLogits: r.DLogits.Ptr, Partials: r.at(r.w.lossPartials)}
	if r.Sequence > 0 {
		length, args.ExpertIDs = r.Sequence, r.ExpertIDs.Ptr
	}
	balance := float64(of.NumExperts) / (float64(of.TopK) * float64(length) * t)
	args.Balance, args.ZLoss = float32(float64(r.Balance)*balance), float32(float64(r.ZLoss)*2/t)
	args.Sequences = training.SequencesOf(length, r.tokens, r.layer.sms)
	if r.hasLosses() {
		args.DLogits = r.at(r.w.denseDLogits)
	}
	if err := launch(r.call, r.s, training.LossesKernel, args); err != nil || r.RouterLosses.IsZero() {
		return err
	}
	return launch(r.call, r.s, training.LossSumKernel, training.LossSumArgs{
		Partials: args.Partials, Losses: r.RouterLosses.Ptr, Ranges: args.CTAs(r.layer.sms), Balance: float32(balance), ZLoss: float32(1 / t),
	})
}

// hasDense says that logits have gradients which don't come through the scores.
func (r *backwardRun) hasDense() bool {
	return r.routed && (r.dense() || r.hasLosses() || !r.DLogits.IsZero())
}

// denseDLogits are these gradients [T, E].
func (r *backwardRun) denseDLogits() driver.DevicePtr {
	if r.dense() || r.hasLosses() {
		return r.at(r.w.denseDLogits)
	}
	return r.DLogits.Ptr
}

// dXRows makes the gradient of each row's input.
func (r *backwardRun) dXRows() error {
	which := kernel.DXGivenKernel
	if r.routed && !r.dense() {
		which = kernel.DXKernel
	}
	return launch(r.call, r.s, which, kernel.DXArgs{
		DH: r.at(r.w.dh), W1: r.W1.Ptr, W3: r.W3.Ptr, DX: r.at(r.w.dxRows), DLogitByRow: r.at(r.w.dlogitByRow), RouterWeights: r.Router.Ptr,
		Rows: r.rows, TileArgs: r.tiles(1),
	})
}

// dX is the sum of the rows of each token and, last, of what dense gradients of
// the logits add.
func (r *backwardRun) dX() error {
	sum, extra, inverse := kernel.SumKernel, kernel.SumExtraKernel, r.w.inverse
	if r.list {
		sum, extra, inverse = kernel.SumListKernel, kernel.SumExtraListKernel, r.w.tokenRows
	}
	if r.hasDense() {
		if err := r.call.splitRouter(r.s, r.Router, r.Workspace.Ptr, r.w.indices); err != nil {
			return err
		}
		if err := launch(r.call, r.s, drouter.ExtraRowsKernel, drouter.ExtraRowsArgs{
			DLogits: r.denseDLogits(), RouterWeights: r.layer.routerTerms(r.Router, r.Workspace.Ptr, r.w.indices), Rows: r.at(r.w.extra), Tokens: r.tokens,
		}); err != nil {
			return err
		}
		sum = extra
	}
	return launch(r.call, r.s, sum, kernel.AggregateArgs{
		Y: r.at(r.w.dxRows), O: r.DX.Ptr, Inverse: r.at(inverse), Starts: r.at(r.w.starts), AddRows: r.at(r.w.extra), Tokens: r.tokens,
		SharedRows: r.at(r.w.sharedRows),
	})
}

// dRouter is Σ dlogit·X over the tokens: partial sums of ranges of tokens, then
// their sum.
func (r *backwardRun) dRouter() error {
	which := drouter.Kernel
	if r.hasDense() {
		which = drouter.ExtraKernel
	}
	if r.dense() { // all are in the dense ones
		if err := r.s.Fill32(r.at(r.w.dlogits), 0, int64(r.tokens)*int64(r.layer.of.TopK)); err != nil {
			return err
		}
	}
	ranges, perRange := drouter.Of(r.layer.of, r.hasDense()).Ranges(r.tokens)
	if err := launch(r.call, r.s, which, drouter.Args{
		X: r.X.Ptr, DLogits: r.at(r.w.dlogits), ExpertIDs: r.ExpertIDs.Ptr, AddDense: r.denseDLogits(), Partials: r.at(r.w.router),
		Tokens: r.tokens, PerRange: perRange,
	}); err != nil {
		return err
	}
	store := gradientOf(r.DRouter)
	return launch(r.call, r.s, drouter.SumKernels[store.Index()], drouter.SumArgs{
		Partials: r.at(r.w.router), DRouter: r.DRouter.Ptr, Ranges: ranges,
	})
}

// dRouterBias is Σ dlogit over the tokens.
func (r *backwardRun) dRouterBias() error {
	rows, dense := r.w.dlogitByRow, driver.DevicePtr(0)
	if r.dense() {
		rows = 0
	}
	if r.hasDense() {
		dense = r.denseDLogits()
	}
	return r.expertSums(rows, dense, r.DRouterBias)
}

// expertSums adds up values of each expert's rows, which lie there in the
// workspace unless that is 0, and a column of dense ones.
func (r *backwardRun) expertSums(rows int64, dense driver.DevicePtr, to Gradient) error {
	args := training.ExpertSumsArgs{Offsets: r.at(r.w.offsets), Dense: dense, Sums: to.Ptr, Tokens: r.tokens}
	if rows != 0 {
		args.Rows = r.at(rows)
	}
	if to.Accumulate {
		args.Add = to.Ptr
	}
	return launch(r.call, r.s, training.ExpertSumsKernel, args)
}
