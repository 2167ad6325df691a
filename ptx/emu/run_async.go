package emu

// completeOldest completes the oldest asynchronous copy that may let a waiting thread continue. It
// reports whether there was one.
func (cl *cluster) completeOldest() bool {
	var from *warp
	oldest := ^uint64(0)
	for _, w := range cl.warps {
		if recs := w.copies.recs; len(recs) > 0 && !recs[0].arrive && recs[0].order < oldest {
			from, oldest = w, recs[0].order
		}
	}
	if len(cl.loads) > 0 && cl.loads[0].order < oldest {
		cl.completeLoad(0)
		return true
	}
	if from == nil {
		return false
	}
	from.completeCopy(from.copies.recs[0], fullMask)
	from.sweepCopies()
	cl.event()
	return true
}

func (cl *cluster) completeLoad(i int) {
	l := cl.loads[i]
	cl.loads = append(cl.loads[:i], cl.loads[i+1:]...)
	l.complete()
}

// completeRandom completes a random piece of asynchronous work.
func (cl *cluster) completeRandom() {
	switch cl.rng.IntN(4) {
	case 0:
		if n := len(cl.loads); n > 0 {
			cl.completeLoad(cl.rng.IntN(n))
		}
	case 1:
		w := cl.warps[cl.rng.IntN(len(cl.warps))]
		if len(w.copies.recs) > 0 {
			// The copies of different threads may complete in any order, so a random set of lanes
			// completes.
			w.completeCopy(w.copies.recs[cl.rng.IntN(len(w.copies.recs))], cl.rng.Uint32())
			w.sweepCopies()
		}
	case 2:
		w := cl.warps[cl.rng.IntN(len(cl.warps))]
		if n := len(w.bulk.stores); n > 0 {
			w.finishStore(w.bulk.stores[cl.rng.IntN(n)], cl.rng.IntN(2) == 0)
		}
	case 3:
		c := cl.ctas[cl.rng.IntN(len(cl.ctas))]
		if len(c.groups) > 0 {
			if g := c.groups[cl.rng.IntN(len(c.groups))]; len(g.ops) > 0 && g.ops[0].issued == allWarps {
				g.completeTo(g.base + 1)
			}
		}
	}
}
