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

// backwardRun has the state that the kernels of one backward pass need.
type backwardRun struct {
	*queue
	BackwardArgs // a copy: a pointer would move it to the heap
	work
	w backwardWorkspace
	// routed reports whether scores come from logits: the logits of the router, or of the shared
	// experts' gate.
	routed bool
}

// at returns an address in the workspace.
func (r *backwardRun) at(offset int64) driver.DevicePtr { return at(r.Workspace.Ptr, offset) }

// wanted lists the gradients that a backward pass computes.
type wanted struct {
	dX, dW1, dW2, dB1, dB2, dRouter, dRouterBias, dExpertScale, dScores bool
	// lora1 and lora2 report whether a gradient of the adapter's factors for W1 or for W2 is wanted.
	lora1, lora2 bool
	// shared reports whether any gradient of the shared experts' weights is wanted.
	shared bool
}

func (b *BackwardArgs) wanted() wanted {
	return wanted{
		dX: !b.DX.IsZero(), dW1: !b.DW1.IsZero(), dW2: !b.DW2.IsZero(), dB1: !b.DB1.IsZero(), dB2: !b.DB2.IsZero(),
		dRouter: !b.DRouter.IsZero(), dRouterBias: !b.DRouterBias.IsZero(), dExpertScale: !b.DExpertScale.IsZero(), dScores: !b.DScores.IsZero(),
		lora1: !b.DLoraA1.IsZero() || !b.DLoraB1.IsZero(), lora2: !b.DLoraA2.IsZero() || !b.DLoraB2.IsZero(),
		shared: !b.DSharedW1.IsZero() || !b.DSharedW2.IsZero() || !b.DSharedGate.IsZero(),
	}
}

// gradients queues the kernels whose results are wanted. In this order, pieces of the workspace can
// hold several data in turn; see backwardWorkspace.
func (q *queue) gradients(n work, b *BackwardArgs, w backwardWorkspace, routed bool) {
	q.sharedGradients(n.tokens, b, w)
	r := backwardRun{queue: q, BackwardArgs: *b, work: n, w: w, routed: routed}
	of := b.wanted()
	throughRouter := routed && (of.dX || of.dRouter || of.dRouterBias || of.dExpertScale)
	r.planRows()
	r.unpack(&r.Weights, r.Workspace.Ptr, r.w.indices, false)
	r.padLoRA(&r.Weights, r.Workspace.Ptr, r.w.indices)
	lora := r.hasLoRA()
	r.when(lora, (*backwardRun).loraDO)
	r.dH(r.tiles(0))
	r.when(of.dScores || throughRouter, (*backwardRun).dScores)
	r.when(throughRouter && !r.dense(), (*backwardRun).dLogits)
	r.when(of.dB1, (*backwardRun).dB1)
	r.when(of.dB2, (*backwardRun).dB2)
	r.when(of.dW1 || of.dW2, (*backwardRun).planSplits)
	r.when(of.dW2, (*backwardRun).dW2)
	r.when(of.dW1, (*backwardRun).dW1)
	r.when(of.lora2, (*backwardRun).dLora2)
	r.when(lora && (of.dX || of.lora1), (*backwardRun).loraDH)
	r.when(of.lora1, (*backwardRun).dLora1)
	r.when(of.dX, (*backwardRun).dXRows)
	r.when(b.hasLosses() || !b.RouterLosses.IsZero(), (*backwardRun).losses)
	r.when(throughRouter && r.dense(), (*backwardRun).dLogits)
	r.when(of.dX, (*backwardRun).dX)
	r.when(of.dRouter, (*backwardRun).dRouter)
	r.when(of.dRouterBias, (*backwardRun).dRouterBias)
	r.when(of.dExpertScale, (*backwardRun).dExpertScale)
}

// when queues the kernels of a step if its result is wanted.
func (r *backwardRun) when(wanted bool, step func(*backwardRun)) {
	if wanted {
		step(r)
	}
}

// planRows recomputes the order of the rows from the experts' ids.
func (r *backwardRun) planRows() {
	if r.list {
		r.planList(r.work, r.List, r.Workspace.Ptr, r.w.indices)
		return
	}
	r.count(r.tokens, r.ExpertIDs, r.Workspace.Ptr, r.w.indices)
	r.plan(order.PlanPairsKernel, r.ranges(r.tokens), r.ExpertIDs, r.Workspace.Ptr, r.w.indices)
}

// tiles returns the tile arguments of one product of the pass. The parameter which is the product's
// number.
func (r *backwardRun) tiles(which int64) gemm.TileArgs { return r.w.tiles(r.Workspace.Ptr, which) }

// dH computes dH, A' and the partial sums of the scores' gradients for the rows of a table.
func (r *backwardRun) dH(tiles gemm.TileArgs) {
	launch(r.queue, dh.Kernel, dh.Args{
		DO: r.DO.Ptr, Gather: r.at(r.w.gather), W2: r.W2.Ptr, U: r.at(r.w.v), LoraA2: r.LoraA2.Ptr, H: r.H.Ptr, DH: r.at(r.w.dh), A: r.at(r.w.scaledA),
		Scores: r.weights().Ptr, Pairs: r.at(r.w.pairs), DScorePartials: r.at(r.w.partial), ColumnSums: r.at(r.w.biasSums), Rows: r.rows, TileArgs: tiles,
	})
}

// weights returns the scores that Pairs indexes.
func (r *backwardRun) weights() Tensor {
	if r.list {
		return r.List.Scores
	}
	return r.Scores
}

// experts returns the expert ids that Pairs indexes.
func (r *backwardRun) experts() Tensor {
	if r.list {
		return r.List.ExpertIDs
	}
	return r.ExpertIDs
}

// dScores computes the gradients of the scores: dO·b2 if there are biases, and the partial sums of
// DH. It also computes the logits' gradients if the scores determine them.
func (r *backwardRun) dScores() {
	if r.layer.of.Bias {
		launch(r.queue, bias.DotKernel, choose.RouterArgs{
			X: r.DO.Ptr, Weights: r.B2.Ptr, Logits: r.at(r.w.biasByExpert), TokenRanges: r.ranges(r.tokens),
		})
	}
	which := dh.ScoresGivenKernel
	if r.routed && training.ScoresTellLogits(r.layer.of.Config) {
		which = dh.ScoresKernel
	}
	tokens := r.tokens
	if r.list {
		which, tokens = dh.ScoresListKernel, r.rows // the kernel takes each entry as a token with one slot
	}
	launch(r.queue, which, dh.ScoresArgs{
		DScorePartials: r.at(r.w.partial), Inverse: r.at(r.w.inverse), DScores: r.dScoresAt(),
		BiasDots: r.at(r.w.biasByExpert), ExpertIDs: r.experts().Ptr, TokenOf: r.List.Tokens.Ptr,
		Scores: r.Scores.Ptr, DLogits: r.at(r.w.dlogits), DLogitByRow: r.at(r.w.dlogitByRow), Tokens: tokens,
	})
}

// dense reports whether every logit has a gradient, not only the chosen K.
func (r *backwardRun) dense() bool { return r.list || training.Dense(r.layer.of.Config) }

// dLogits computes the logits' gradients that dScores does not compute. If only the chosen logits
// have gradients, it computes these. If all logits have gradients, it also adds the gradients of
// the losses and of the caller.
func (r *backwardRun) dLogits() {
	if r.list {
		r.roundedDLogits()
		return
	}
	if training.ScoresTellLogits(r.layer.of.Config) {
		return // dScores has written them
	}
	args := training.DLogitsArgs{
		Logits: r.Logits.Ptr, Scores: r.Scores.Ptr, ExpertIDs: r.ExpertIDs.Ptr, Inverse: r.at(r.w.inverse), DScores: r.dScoresAt(),
		ExpertScale: r.ExpertScale.Ptr, ScaleByRow: r.at(r.w.scaleByRow), DLogits: r.at(r.w.dlogits), DLogitByRow: r.at(r.w.dlogitByRow),
		AddDense: r.DLogits.Ptr, Dense: r.at(r.w.denseDLogits), Tokens: r.tokens,
	}
	if r.hasLosses() {
		args.AddDense = args.Dense
	}
	launch(r.queue, training.DLogitsKernel, args)
}

// dB1 sums dH over each expert's rows.
func (r *backwardRun) dB1() {
	launch(r.queue, bias.B1Kernels.In(gradientOf(r.DB1)), bias.SumArgs{
		ColumnSums: r.at(r.w.biasSums), Offsets: r.at(r.w.offsets), DB: r.DB1.Ptr, DB3: r.DB3.Ptr,
	})
}

// dB2 sums score·dO over each expert's rows. It is a matrix product like the router's gradient,
// with scores [T, E] in place of dLogits and dO in place of X.
func (r *backwardRun) dB2() {
	ranges, perRange := bias.B2(r.layer.of).Ranges(r.tokens)
	args := drouter.Args{X: r.DO.Ptr, Partials: r.at(r.w.biasPartials), Tokens: r.tokens, PerRange: perRange}
	which := bias.B2Kernel
	if r.routed && !r.list && training.Sparse(r.layer.of.Config) { // the experts of a token differ
		which, args.DLogits, args.ExpertIDs = bias.B2RoutedKernel, r.weights().Ptr, r.experts().Ptr
	} else {
		args.AddDense = r.at(r.w.biasByExpert)
		r.scoresByExpert(args.AddDense)
	}
	launch(r.queue, which, args)
	launch(r.queue, drouter.SumKernels.In(gradientOf(r.DB2)), drouter.SumArgs{
		Partials: r.at(r.w.biasPartials), DRouter: r.DB2.Ptr, Ranges: ranges,
	})
}

// scoresByExpert writes the scores to [T, E], each to the column of its expert.
func (r *backwardRun) scoresByExpert(to driver.DevicePtr) {
	which := bias.ScoresKernel
	if r.list {
		which = bias.ScoresListKernel
	}
	launch(r.queue, which, bias.ScoresArgs{
		Scores: r.weights().Ptr, ExpertIDs: r.experts().Ptr, Starts: r.at(r.w.starts), TokenRows: r.at(r.w.tokenRows), Pairs: r.at(r.w.pairs),
		ByExpert: to, Tokens: r.tokens,
	})
}

// dScoresAt returns the address of the scores' gradients: the caller's tensor, or
// scratch memory.
func (r *backwardRun) dScoresAt() driver.DevicePtr {
	if r.DScores.IsZero() {
		return r.at(r.w.dscores)
	}
	return r.DScores.Ptr
}

// planSplits lists the tiles of the weights' gradients. Heavy experts have several tiles for the
// same part of the gradient.
func (r *backwardRun) planSplits() {
	launch(r.queue, dw.PlanKernel, dw.PlanArgs{
		Offsets: r.at(r.w.offsets), Splits: r.at(r.w.splits), Counts: r.at(r.w.splitCounts), Tickets: r.at(r.w.splitTickets),
		State: r.at(r.w.states), StateWords: 2 * dw.SlotStateBytes / 4 * r.w.slots,
	})
}

// gradientOf returns the mode in which a kernel writes a gradient.
func gradientOf(g Gradient) gradient.Mode {
	return gradient.Mode{F32: g.Shape.Type == F32, Accumulate: g.Accumulate}
}

// dW2 sums dO·A' over each expert's rows.
func (r *backwardRun) dW2() {
	args := r.dW(1, r.DO, r.w.scaledA, r.DW2.Tensor)
	launch(r.queue, dw.W2Kernels.In(gradientOf(r.DW2)), args)
}

// dW1 sums dH·X over each expert's rows.
func (r *backwardRun) dW1() {
	args := r.dW(0, r.X, r.w.dh, r.DW1.Tensor)
	args.DW3 = r.DW3.Ptr
	launch(r.queue, dw.W1Kernels.In(gradientOf(r.DW1)), args)
}

// dW returns the arguments of the kernel for dW1 or dW2. The parameter which is 0 for dW1 and 1 for
// dW2. Both are the product of gathered rows of x and packed rows.
func (r *backwardRun) dW(which int64, x Tensor, rows int64, to Tensor) dw.Args {
	return dw.Args{
		X: x.Ptr, Gather: r.at(r.w.gather), PackedRows: r.at(rows), DW: to.Ptr,
		Splits: r.at(r.w.splits), Counts: r.at(r.w.splitCounts), Tickets: r.at(r.w.splitTickets + which*schedule.TicketBytes),
		Partials: r.at(r.w.dwPartials), State: r.at(r.w.states + which*dw.SlotStateBytes*int64(r.w.slots)), Slots: r.w.slots, Rows: r.rows,
	}
}

// hasDense reports whether the pass has gradients [T, E] of the logits. If dense reports true,
// these include the gradients of the chosen logits. Otherwise the gradients of the chosen logits
// are separate.
func (r *backwardRun) hasDense() bool {
	return r.routed && (r.dense() || r.hasLosses() || !r.DLogits.IsZero())
}

// denseDLogits returns the address of the gradients [T, E] of hasDense.
func (r *backwardRun) denseDLogits() driver.DevicePtr {
	if r.dense() || r.hasLosses() {
		return r.at(r.w.denseDLogits)
	}
	return r.DLogits.Ptr
}

// dXRows computes the gradient of each row's input.
func (r *backwardRun) dXRows() {
	which := kernel.DXGivenKernel
	if r.routed && !r.dense() {
		which = kernel.DXKernel
	}
	launch(r.queue, which, kernel.DXArgs{
		DH: r.at(r.w.dh), W1: r.W1.Ptr, W3: r.W3.Ptr, U: r.at(r.w.v), LoraA1: r.LoraA1.Ptr, DX: r.at(r.w.dxRows), DLogitByRow: r.at(r.w.dlogitByRow), RouterWeights: r.Router.Ptr,
		Rows: r.rows, TileArgs: r.tiles(1),
	})
}

// dX sums the rows of each token. The product of the dense gradients of the logits
// with the router's weights is added last.
func (r *backwardRun) dX() {
	sum, extra := kernel.SumKernel, kernel.SumExtraKernel
	if r.list {
		sum, extra = kernel.SumListKernel, kernel.SumExtraListKernel
	}
	if r.hasDense() {
		r.splitRouter(r.Router, r.Workspace.Ptr, r.w.indices)
		launch(r.queue, drouter.ExtraRowsKernel, drouter.ExtraRowsArgs{
			DLogits: r.denseDLogits(), RouterWeights: r.layer.routerTerms(r.Router, r.Workspace.Ptr, r.w.indices), Rows: r.at(r.w.extra), Tokens: r.tokens,
		})
		sum = extra
	}
	launch(r.queue, sum, kernel.AggregateArgs{
		Y: r.at(r.w.dxRows), O: r.DX.Ptr, Inverse: r.at(r.w.inverse), TokenRows: r.at(r.w.tokenRows), Starts: r.at(r.w.starts), AddRows: r.at(r.w.extra), Tokens: r.tokens,
		SharedRows: r.at(r.w.sharedRows),
	})
}

// dRouter sums dlogit·X over the tokens: first over ranges of tokens, then over the
// ranges.
func (r *backwardRun) dRouter() {
	which := drouter.Kernel
	if r.hasDense() {
		which = drouter.ExtraKernel
	}
	if r.dense() { // the dense gradients include those of the chosen logits
		r.fill(r.at(r.w.dlogits), 0, int64(r.tokens)*int64(r.layer.of.TopK))
	}
	ranges, perRange := drouter.Of(r.layer.of, r.hasDense()).Ranges(r.tokens)
	launch(r.queue, which, drouter.Args{
		X: r.X.Ptr, DLogits: r.at(r.w.dlogits), ExpertIDs: r.ExpertIDs.Ptr, AddDense: r.denseDLogits(), Partials: r.at(r.w.router),
		Tokens: r.tokens, PerRange: perRange,
	})
	launch(r.queue, drouter.SumKernels.In(gradientOf(r.DRouter)), drouter.SumArgs{
		Partials: r.at(r.w.router), DRouter: r.DRouter.Ptr, Ranges: ranges,
	})
}

// dRouterBias sums the logits' gradients over the tokens.
func (r *backwardRun) dRouterBias() {
	rows, dense := r.w.dlogitByRow, driver.DevicePtr(0)
	if r.dense() {
		rows = 0
	}
	if r.hasDense() {
		dense = r.denseDLogits()
	}
	r.expertSums(rows, dense, r.DRouterBias)
}

// dExpertScale sums the scales' gradients over each expert's rows.
func (r *backwardRun) dExpertScale() { r.expertSums(r.w.scaleByRow, 0, r.DExpertScale) }

// expertSums sums values for each expert: one value for each of its rows, and the expert's column
// of dense. The parameter rows is the offset of the rows' values in the workspace, or 0 if there
// are none.
func (r *backwardRun) expertSums(rows int64, dense driver.DevicePtr, to Gradient) {
	args := training.ExpertSumsArgs{Offsets: r.at(r.w.offsets), Dense: dense, Sums: to.Ptr, Tokens: r.tokens}
	if rows != 0 {
		args.Rows = r.at(rows)
	}
	if to.Accumulate {
		args.Add = to.Ptr
	}
	launch(r.queue, training.ExpertSumsKernel, args)
}
