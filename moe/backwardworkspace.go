package moe

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/schedule"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/kernel/bias"
	"sonicmoe/moe/internal/kernel/dh"
	"sonicmoe/moe/internal/kernel/drouter"
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/route/training"
	"sonicmoe/moe/internal/weights"
)

// backwardWorkspace is the layout of a backward call's scratch memory. Its fields are offsets in
// bytes. Two large pieces hold several data in turn, which are never needed at the same time. The
// order of the kernels in gradients ensures this:
//
//	first:  dH, until dX~ and dW1 have read it; then the dense gradients
//	        of the logits and their rows, until dX is summed
//	second: A' and the partial sums of the scores' gradients, until dW2 and
//	        DScores have read them; then the partial sums of the biases'
//	        gradients, then of split weight gradients; then dX~
//
// The layer of a rank's experts computes dX~ before dW2, in memory of the caller. The
// partial sums of the router's gradient use both pieces at the end of the pass, except the part
// with the dense gradients of the logits. The backward pass of shared experts runs first and has
// its own scratch memory in the two pieces.
type backwardWorkspace struct {
	indices
	// dlogits [T, K] has the gradients of the chosen logits. dscores [T, K] has the gradients of
	// the scores, if the caller has no tensor for them. dlogitByRow has dlogits in the order of the
	// packed rows. scaleByRow has each row's part of the gradient of its expert's scale.
	dlogits, dscores, dlogitByRow, scaleByRow int64
	// splits, splitCounts and splitTickets are the plan of the weight gradients. states has the
	// states of the slots for partial sums, first those of dW1, then those of dW2.
	splits, splitCounts, splitTickets, states int64
	slots                                     int
	lossPartials                              int64
	// biasByExpert [T, E] is for layers with biases. It has first dO·b2, then the scores.
	biasByExpert                         int64
	sharedRows                           int64 // dX of the shared experts
	dh, denseDLogits, extra              int64 // these three are in the first piece
	scaledA, partial, dwPartials, dxRows int64 // these four are in the second piece
	biasSums, biasPartials               int64 // partial sums of db1 and db2, at the offset of dwPartials
	router                               int64 // uses both pieces
	// u and v have the rows of an adapter's products. factor has the gradient of a factor with the
	// padded rank, in FP32.
	u, v, factor int64
	// loraSums has the sums of the product of dH with LoraB1, in the place of A'.
	loraSums int64
	bytes    int64
}

// backwardWorkspace lays out the scratch memory of a backward call.
func (l *Layer) backwardWorkspace(n work) backwardWorkspace {
	return l.backwardWorkspaceFrom(space{}, n)
}

// backwardWorkspaceFrom lays out the scratch memory after the pieces that s has already handed out.
func (l *Layer) backwardWorkspaceFrom(s space, n work) backwardWorkspace {
	tokens, rows := n.tokens, n.rows
	c, g, r := l.of.Config, l.of.Gradients(tokens, l.of.Type), l.of.ListShapes(tokens, rows)
	plan := dw.Plan{NumExperts: c.NumExperts}
	w := backwardWorkspace{indices: l.indices(&s, n), slots: max(1, plan.Slots(rows, l.sms))}
	if w.pairs == 0 {
		w.pairs = s.take(4 * int64(rows))
	}
	w.dlogits = s.take(max(r.Scores.Bytes(), g.DScores.Bytes()))
	w.dscores = s.take(r.Scores.Bytes())
	w.dlogitByRow = s.take(4 * int64(rows))
	if c.ExpertScale {
		w.scaleByRow = s.take(4 * int64(rows))
	}
	w.splits = s.take(plan.TableBytes(rows))
	w.splitCounts = s.take(8)
	w.splitTickets = s.take(schedule.TicketsBytes)
	w.states = s.take(2 * dw.SlotStateBytes * int64(w.slots))

	w.lossPartials = s.take(training.Losses{}.PartialBytes(l.sms))

	if c.Bias {
		w.biasByExpert = s.take(g.DLogits.Bytes())
	}

	if spec.HasLoRA(c) && l.part != home {
		w.u, w.v = s.take(weights.U(c).Bytes(rows)), s.take(weights.U(c).Bytes(rows))
		if spec.PadsRank(c) || dw.ReadsOnce(c) {
			w.factor = s.take(paddedFactorBytes(c))
		}
	}

	if l.shared != nil {
		w.sharedRows = s.take(g.DX.Bytes())
	}

	first := l.backwardFirst(&w, &s, n, &g)
	second := l.backwardSecond(&w, &s, n, r.Y.Bytes())
	w.bytes = max(s.bytes, first, second, l.workspace(n).bytes)
	if l.shared != nil {
		w.bytes = max(w.bytes, l.shared.backwardWorkspaceFrom(space{w.dh}, l.shared.work(tokens)).bytes)
	}
	return w
}

// backwardFirst lays out the first piece at the end of s. It returns the end of the memory for the
// router's gradient, which may use the second piece, too.
func (l *Layer) backwardFirst(w *backwardWorkspace, s *space, n work, g *spec.GradientShapes) (end int64) {
	w.dh = s.bytes
	router := *s
	w.denseDLogits = router.take(g.DLogits.Bytes())
	w.extra, w.router = router.bytes, router.bytes
	extra := router
	extra.take(g.DX.Bytes())
	router.take(drouter.Of(l.of, false).PartialBytes(n.tokens))
	if l.part != home {
		s.take(weights.DH(l.of.Config).Bytes(n.rows))
	}
	s.bytes = max(s.bytes, extra.bytes)
	return router.bytes
}

// backwardSecond lays out the second piece at the end of s. It returns the end of the memory for
// dX~, which has yBytes, and for the biases' gradients.
func (l *Layer) backwardSecond(w *backwardWorkspace, s *space, n work, yBytes int64) (end int64) {
	c, rows := l.of.Config, n.rows
	w.dxRows = s.bytes
	dxRows := *s
	if l.part != ofRank { // a rank's dX~ has its own memory, because it goes to other ranks
		dxRows.take(yBytes)
	}
	if l.part != home {
		w.scaledA = s.take(max(weights.A(c).Bytes(rows), loraSumsBytes(c, rows)))
		w.loraSums = w.scaledA
	}
	w.partial = s.take(dh.DH{Config: c}.PartialBytes(rows))
	w.dwPartials = s.bytes
	biases := *s
	if c.Bias {
		w.biasSums = biases.take(dh.ColumnSumBytes(c, rows))
		w.biasPartials = biases.take(bias.B2(l.of).PartialBytes(n.tokens))
	}
	plan := dw.Plan{NumExperts: c.NumExperts}
	if plan.Slots(rows, l.sms) > 0 && spec.IsPlain(c) && l.part != home {
		each := max(dw.Of(l.of, dw.W1, gradient.Mode{}).PartialBytes(), dw.Of(l.of, dw.W2, gradient.Mode{}).PartialBytes())
		s.take(int64(w.slots) * int64(each))
	}
	if spec.HasLoRA(c) && l.part != home {
		s.take(int64(w.slots) * int64(dw.FactorPartialBytes(c)))
	}
	return max(dxRows.bytes, biases.bytes)
}

// loraSumsBytes returns the size of the sums of an adapter's products.
func loraSumsBytes(c Config, rows int) int64 {
	if !dw.ReadsOnce(c) {
		return 0
	}
	return max(dw.BothB1(c, gradient.Mode{}).SumsBytes(rows), dw.BothB2(c, gradient.Mode{}).SumsBytes(rows))
}
