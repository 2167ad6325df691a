package moe

import "sonicmoe/moe/kernel"

// backwardWorkspace is the layout of a backward call's scratch memory: offsets
// in bytes. Two large pieces are used twice, by what is never alive at once;
// the kernels' order, see gradients, makes it so:
//
//	first:  dH, until dX~ and dW1 have read it; then the dense logit
//	        gradients' rows, until dX is summed
//	second: A' and the score's partial sums, until dW2 has read the one and
//	        DScores the other, and the partial sums of split weight gradients;
//	        then dX~
//
// The partial sums of the router's gradient, the last of all, take both.
type backwardWorkspace struct {
	indices
	// dlogits [T, K] and dscores [T, K], where the caller does not want it;
	// dlrow is dlogits by packed row.
	dlogits, dscores, dlrow int64
	// splits, splitCounts and splitTickets are the plan of the weight
	// gradients, states their slots' states: dW1's, then dW2's.
	splits, splitCounts, splitTickets, states int64
	slots                                     int
	dh, extra                                 int64 // the first piece
	scaledA, partial, dwPartials, dxRows      int64 // the second
	router                                    int64 // both
	bytes                                     int64
}

// neuronGroup is the neurons of one partial sum of a score's gradient.
const neuronGroup = 64

// slotStateBytes is the state of a slot of partial weight gradients.
const slotStateBytes = 8

// backwardWorkspace lays out the scratch memory of a backward call with so
// many tokens.
func (l *Layer) backwardWorkspace(tokens int) backwardWorkspace {
	var s space
	c, g := l.config, l.config.Gradients(tokens, BF16)
	rows := tokens * c.TopK
	w := backwardWorkspace{indices: l.indices(&s, tokens), slots: 1}
	if rows > kernel.SplitRows {
		w.slots = l.sms
	}
	w.pairs = s.take(4 * int64(rows))
	w.dlogits = s.take(g.DScores.Bytes())
	w.dscores = s.take(g.DScores.Bytes())
	w.dlrow = s.take(4 * int64(rows))
	w.splits = s.take(kernel.SplitBytes * int64(l.splits().Splits(rows)))
	w.splitCounts = s.take(8)
	w.splitTickets = s.take(8)
	w.states = s.take(2 * slotStateBytes * int64(w.slots))

	w.dh, w.extra, w.router = s.bytes, s.bytes, s.bytes
	last := s
	last.take(l.drouter(false).PartialBytes(tokens))
	s.take(max(g.DH.Bytes(), g.DX.Bytes()))

	w.dxRows = s.bytes
	end := s
	end.take(g.DXRows.Bytes())
	w.scaledA = s.take(g.ScaledA.Bytes())
	w.partial = s.take(4 * int64(rows) * int64(c.Intermediate/neuronGroup))
	w.dwPartials = s.bytes
	if rows > kernel.SplitRows { // a shorter one is never split
		each := max(l.dw1(kernel.Gradient{}).PartialBytes(), l.dw2(kernel.Gradient{}).PartialBytes())
		s.take(int64(w.slots) * int64(each))
	}
	w.bytes = max(s.bytes, end.bytes, last.bytes, l.workspace(tokens).bytes)
	return w
}
