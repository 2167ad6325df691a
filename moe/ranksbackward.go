package moe

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/num"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/moe/internal/exchange"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel"
	"sonicmoe/moe/internal/kernel/bias"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/route/training"
)

// checkRanksBackward checks the tensors of a backward pass. A home layer checks the tensors of the
// tokens. A layer of experts checks the gradients of its experts' weights.
func (c *Call) checkRanksBackward(b *BackwardArgs) error {
	c.check.reset()
	if err := c.layer.trains(); err != nil {
		return err
	}
	of := &c.layer.of
	if c.layer.part == ofRank {
		grad := of.Gradients(0, of.Type)
		c.check.weights(spec.ExpertWeights, &b.Weights, &c.laid(work{}).shapes)
		c.check.gradients(spec.ExpertWeights, &b.WeightGradients, &grad)
		c.checkNoPacked(&b.WeightGradients)
		c.checkFrozen(&b.WeightGradients)
		c.checkModes(b)
		return c.check.overlaps()
	}
	t, err := c.layer.tokensOf("X", b.X, of.Type, of.Hidden)
	if err != nil {
		return err
	}
	c.checkRouting(t, &ForwardArgs{X: b.X, Routing: b.Routing}, false)
	n := c.layer.work(t)
	want, grad := &c.laid(n).shapes, &c.laidBackward(n).gradients
	c.checkLogits(t, b, want, grad)
	c.check.tensor("DO", b.DO, grad.DO, false)
	c.check.optional("DX", b.DX, grad.DX, true)
	c.check.optional("DScores", b.DScores, grad.DScores, true)
	c.check.gradients(spec.RouterWeights, &b.WeightGradients, grad)
	shared := sharedWeights()
	c.check.weights(shared, &b.Weights, want)
	c.check.gradients(shared, &b.WeightGradients, grad)
	if t > 0 && !want.SharedH.IsZero() {
		c.check.tensor("SharedH", b.SharedH, want.SharedH, false)
	}
	return c.check.overlaps()
}

// sharedWeights lists the weights of shared experts.
func sharedWeights() []TensorID {
	return slices.DeleteFunc(slices.Clone(spec.ExpertWeights), func(id TensorID) bool { return spec.Row(id).Needs&spec.HasShared == 0 })
}

// ranksRun returns the state of a backward pass of one of the rank's two layers.
func (q *queue) ranksRun(b *BackwardArgs) *backwardRun {
	n := q.layer.work(int(b.X.Shape.Dims[0]))
	if q.layer.part == ofRank {
		n = work{tokens: n.tokens, rows: int(b.List.ExpertIDs.Shape.Dims[0]), list: true}
	}
	return &backwardRun{queue: q, BackwardArgs: *b, work: n, w: q.laidBackward(n).workspace, routed: q.layer.part == home}
}

// gradientH queues dH of some rows of a rank's experts, or of all rows if the work has no table.
func (c *Call) gradientH(s driver.Stream, b BackwardArgs, of exchange.Work) error {
	return c.steps(s, func(q *queue) {
		r := q.ranksRun(&b)
		if !of.Later {
			q.planEntries(r.work, r.List, r.Workspace.Ptr, r.w.indices)
		}
		r.weightsOfRank(&r.Weights, r.Workspace.Ptr, r.w.indices, of.Later)
		r.when(r.hasLoRA(), (*backwardRun).loraDO)
		tiles := r.tiles(0)
		if of.Table != 0 {
			tiles = gemm.TileArgs{Table: of.Table, RowPairs: of.RowPairs, Tickets: of.Tickets}
		}
		r.dH(tiles)
	})
}

// gradientScores queues the gradients of the scores, and db1. It returns the address of the gradients of the
// scores, [L] f32 in the order of the list of L pairs.
func (c *Call) gradientScores(s driver.Stream, b BackwardArgs) (scores driver.DevicePtr, err error) {
	err = c.steps(s, func(q *queue) {
		r := q.ranksRun(&b)
		r.dScores()
		r.when(b.wanted().dB1, (*backwardRun).dB1)
		scores = r.dScoresAt()
	})
	return scores, err
}

// gradientRows queues the rows of dX of a rank's experts, which go to the address dx. Before these it
// queues the gradients of an adapter's factors for W2, whose inputs use the same memory. dlogits [L]
// f32, unless 0, has the gradients of the logits in the order of the list. router is the address of the
// router's weights for the rank's first expert. The result has the row of each entry of the list, [L] u32.
func (c *Call) gradientRows(s driver.Stream, b BackwardArgs, dlogits, router, dx driver.DevicePtr) (inverse driver.DevicePtr, err error) {
	err = c.steps(s, func(q *queue) {
		r, want := q.ranksRun(&b), b.wanted()
		r.weightsOfRank(&r.Weights, r.Workspace.Ptr, r.w.indices, true)
		r.when(want.lora2, (*backwardRun).dLora2)
		r.when(r.hasLoRA(), (*backwardRun).loraDH)
		which := kernel.DXGivenKernel
		if dlogits != 0 {
			which = kernel.DXKernel
			r.byRow(dlogits)
		}
		launch(q, which, kernel.DXArgs{
			DH: r.at(r.w.dh), W1: r.W1.Ptr, W3: r.W3.Ptr, U: r.at(r.w.v), LoraA1: r.LoraA1.Ptr, DX: dx, DLogitByRow: r.at(r.w.dlogitByRow), RouterWeights: router,
			Rows: r.rows, TileArgs: r.tiles(1),
		})
		inverse = r.at(r.w.inverse)
	})
	return inverse, err
}

// expertSums queues sums for each expert of a rank. values [L] f32, unless 0, is in the order of the list.
// of has the other fields.
func (c *Call) expertSums(s driver.Stream, b BackwardArgs, values driver.DevicePtr, of training.ExpertSumsArgs) error {
	return c.steps(s, func(q *queue) {
		if values != 0 {
			r := q.ranksRun(&b)
			of.Rows, of.Offsets = r.byRow(values), r.at(r.w.offsets)
		}
		launch(q, exchange.SumsKernel, of)
	})
}

// byRow brings values [L] f32 from the order of the list to the order of the packed rows, and returns
// their new address.
func (r *backwardRun) byRow(values driver.DevicePtr) driver.DevicePtr {
	to := r.at(r.w.dlogitByRow)
	launch(r.queue, exchange.WordsKernel, exchange.WordsArgs{From: values, Index: r.at(r.w.pairs), To: to, Count: r.rows})
	return to
}

// gradientWeights queues dW2 and dW1 of a rank's experts, or the gradients of the adapter's factors for W1. It
// comes after gradientRows, so that the rows of dX travel at the same time.
func (c *Call) gradientWeights(s driver.Stream, b BackwardArgs) error {
	return c.steps(s, func(q *queue) {
		r, want := q.ranksRun(&b), b.wanted()
		r.when(want.dW1 || want.dW2, (*backwardRun).planSplits)
		r.when(want.dW2, (*backwardRun).dW2)
		r.when(want.dW1, (*backwardRun).dW1)
		r.weightsOfRank(&r.Weights, r.Workspace.Ptr, r.w.indices, true)
		r.when(want.lora1, (*backwardRun).dLora1)
	})
}

// noWeights sets the gradients of the experts' weights to 0, for a rank that received no rows.
func (c *Call) noWeights(s driver.Stream, b BackwardArgs) error {
	return c.steps(s, func(q *queue) { q.zero(&b) })
}

// gradientsReturned returns two addresses, where the results of other ranks arrive: the gradients
// of the scores, and the rows of dX.
func (c *Call) gradientsReturned(b BackwardArgs) (scores, rows driver.DevicePtr) {
	w := c.laidBackward(c.layer.work(int(b.X.Shape.Dims[0]))).workspace
	return at(b.Workspace.Ptr, w.partial), at(b.Workspace.Ptr, w.dxRows)
}

// gradientLogits queues the gradients of the logits. Their input is the gradients of the scores,
// which the other ranks have sent back. byPlace [P] f32, unless 0, has the gradients of the chosen
// logits in the order of the P pairs that this rank has sent. scales [P] f32 has the parts of the
// gradients of the experts' scales in the same order, if the layer has such scales.
func (c *Call) gradientLogits(s driver.Stream, b BackwardArgs, inverse driver.DevicePtr) (byPlace, scales driver.DevicePtr, err error) {
	err = c.steps(s, func(q *queue) {
		r := q.homeRun(&b, inverse)
		which := exchange.ScoresGivenKernel
		if training.ScoresTellLogits(q.layer.of.Config) {
			which = exchange.ScoresKernel
		}
		launch(q, which, dh.ScoresArgs{
			DScorePartials: r.at(r.w.partial), Inverse: inverse, DScores: r.dScoresAt(),
			Scores: r.Scores.Ptr, DLogits: r.at(r.w.dlogits), DLogitByRow: r.at(r.w.dlogitByRow), Tokens: r.tokens,
		})
		r.dLogits()
		if !r.dense() {
			byPlace = r.at(r.w.dlogitByRow)
		}
		scales = r.at(r.w.scaleByRow)
	})
	return byPlace, scales, err
}

// homeRun returns the state of a backward pass of a home layer. The rows that other ranks send back
// are in the order of the sent pairs. The tensor inverse, which has the index of each pair's row,
// therefore replaces the plan's.
func (q *queue) homeRun(b *BackwardArgs, inverse driver.DevicePtr) *backwardRun {
	r := q.ranksRun(b)
	r.w.inverse = int64(inverse - b.Workspace.Ptr)
	return r
}

// gradientTokens queues the sum of the rows of dX, which have come home.
func (c *Call) gradientTokens(s driver.Stream, b BackwardArgs, inverse driver.DevicePtr) error {
	return c.steps(s, func(q *queue) { q.homeRun(&b, inverse).dX() })
}

// routerInputs returns the inputs of gradientRouter. If the gradients of all logits already include
// the gradients of the chosen logits, it sets DLogits to 0.
func (c *Call) routerInputs(s driver.Stream, b BackwardArgs) (of exchange.RouterInputs, err error) {
	err = c.steps(s, func(q *queue) {
		r := q.ranksRun(&b)
		of = exchange.RouterInputs{X: b.X.Ptr, DLogits: r.at(r.w.dlogits), ExpertIDs: b.ExpertIDs.Ptr}
		if r.hasDense() {
			of.Dense = r.denseDLogits()
		}
		if r.dense() {
			q.fill(of.DLogits, 0, int64(r.tokens)*int64(q.layer.of.TopK))
		}
	})
	return of, err
}

// biasInputs queues the kernel that completes the inputs of the gradient of b2, and returns them.
func (c *Call) biasInputs(s driver.Stream, b BackwardArgs) (of exchange.RouterInputs, err error) {
	err = c.steps(s, func(q *queue) {
		r := q.ranksRun(&b)
		of = exchange.RouterInputs{X: b.DO.Ptr, DLogits: b.Scores.Ptr, ExpertIDs: b.ExpertIDs.Ptr, Bias: true}
		if r.dense() {
			of.Dense = r.at(r.w.biasByExpert)
			r.scoresByExpert(of.Dense)
		}
	})
	return of, err
}

// gradientRouter queues partial sums of the gradient of the router's weights, or of b2, over ranges
// of tokens.
func (c *Call) gradientRouter(s driver.Stream, of exchange.RouterInputs, tokens, perRange int, partials driver.DevicePtr) error {
	return c.steps(s, func(q *queue) {
		which := drouter.Kernel
		if of.Gate {
			q = q.ofShared()
		}
		switch {
		case of.Bias && of.Dense != 0:
			which = bias.B2Kernel
		case of.Bias:
			which = bias.B2RoutedKernel
		case of.Dense != 0:
			which = drouter.ExtraKernel
		}
		launch(q, which, drouter.Args{
			X: of.X, DLogits: of.DLogits, ExpertIDs: of.ExpertIDs, AddDense: of.Dense, Partials: partials, Tokens: tokens, PerRange: perRange,
		})
	})
}

// sumRouter queues the sum over the ranges, which goes to the tensor `to`. gate reports whether it is the
// gradient of the shared experts' gate.
func (c *Call) sumRouter(s driver.Stream, to Gradient, gate bool, partials driver.DevicePtr, ranges int) error {
	return c.steps(s, func(q *queue) {
		if gate {
			q = q.ofShared()
		}
		launch(q, drouter.SumKernels.In(gradientOf(to)), drouter.SumArgs{Partials: partials, DRouter: to.Ptr, Ranges: ranges})
	})
}

// sharedOfRank returns the state of the backward pass of the shared experts for a rank's tokens.
func (q *queue) sharedOfRank(b *BackwardArgs) backwardRun {
	tokens := int(b.X.Shape.Dims[0])
	return q.sharedRun(tokens, b, q.laidBackward(q.layer.work(tokens)).workspace)
}

// sharedGradientRows queues dX of the shared experts, and returns the tensors from which the other
// gradients are made.
func (c *Call) sharedGradientRows(s driver.Stream, b BackwardArgs) (of exchange.SharedRows, err error) {
	err = c.stepsOfShared(s, &b, func(r *backwardRun) {
		r.sharedRows()
		r.when(r.wanted().dX, (*backwardRun).dXRows)
		of = exchange.SharedRows{
			X: r.X.Ptr, DO: r.DO.Ptr, DH: r.at(r.w.dh), A: r.at(r.w.scaledA), DLogits: r.at(r.w.dlogits), ExpertIDs: r.ExpertIDs.Ptr, Tokens: r.at(r.w.gather),
		}
	})
	return of, err
}

// stepsOfShared queues launches of the shared experts' call.
func (c *Call) stepsOfShared(s driver.Stream, b *BackwardArgs, body func(r *backwardRun)) error {
	return c.steps(s, func(q *queue) {
		r := q.sharedOfRank(b)
		body(&r)
		q.err = r.err
	})
}

// sharedPart queues sums of the shared experts' gradients over some tokens, at most dw.SplitRows. The
// sums of W1, W3 and W2 go to the addresses in to, unless these are 0.
func (c *Call) sharedPart(s driver.Stream, b BackwardArgs, of exchange.SharedRows, tokens int, to [3]driver.DevicePtr) error {
	return c.stepsOfShared(s, &b, func(r *backwardRun) {
		if r.err = s.CopyToDevice(r.at(r.w.offsets), num.Bytes([]uint32{0, uint32(tokens)})); r.err != nil {
			return
		}
		r.planSplits()
		f32 := gradient.Mode{F32: true}
		args := func(which int64, x, rows driver.DevicePtr, to driver.DevicePtr) dw.Args {
			a := r.dW(which, Tensor{Ptr: x}, 0, Tensor{Ptr: to})
			a.PackedRows, a.Gather, a.Rows = rows, of.Tokens, tokens
			return a
		}
		if to[2] != 0 {
			launch(r.queue, dw.W2Kernels.In(f32), args(1, of.DO, of.A, to[2]))
		}
		if to[0] != 0 {
			a := args(0, of.X, of.DH, to[0])
			a.DW3 = to[1]
			launch(r.queue, dw.W1Kernels.In(f32), a)
		}
	})
}

// addParts queues the sum of partial sums of a gradient.
func (c *Call) addParts(s driver.Stream, mode gradient.Mode, of exchange.PartsArgs) error {
	return c.steps(s, func(q *queue) { launch(q, exchange.PartsKernels.In(mode), of) })
}

// tokenLosses queues the losses of a rank's tokens and their gradients.
func (c *Call) tokenLosses(s driver.Stream, b BackwardArgs, of exchange.LossTokens) error {
	return c.steps(s, func(q *queue) {
		r := q.ranksRun(&b)
		args := r.lossesArgs(of.Length, of.Total)
		args.Offsets, args.ExpertIDs, args.Values, args.First, args.Count = of.Offsets, of.ExpertIDs, of.Values, of.First, r.tokens
		length := of.Length
		if of.ExpertIDs == 0 { // the counts do not depend on the token
			length = of.Listed
		}
		args.Sequences = training.SequencesOf(length, of.Listed, r.layer.sms)
		launch(q, exchange.TokenLossesKernel, args)
	})
}

// sumTokenLosses queues the sum of the losses of the tokens of all ranks.
func (c *Call) sumTokenLosses(s driver.Stream, b BackwardArgs, of exchange.LossTokens) error {
	return c.steps(s, func(q *queue) {
		r := q.ranksRun(&b)
		args := r.lossesArgs(of.Length, of.Total)
		args.Values = of.Values
		launch(q, exchange.SumLossesKernel, args)
		r.sumLosses(args)
	})
}
