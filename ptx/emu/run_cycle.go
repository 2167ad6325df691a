package emu

import (
	"slices"

	"sonicmoe/ptx/emu/internal/mma"
)

// A cluster that changes nothing may run for ever: a compare-and-swap that always fails, a flag
// that no thread sets. If each warp comes back to a state that it had before, and neither memory
// nor a barrier has changed in between, each warp repeats its instructions until another cluster
// changes memory. If all clusters do so, that is a deadlock. No limit of time is needed.

const (
	cycleAfter   = 1 << 12 // idle instructions after which a cluster looks for cycles
	turnsOfFrags = 32      // turns for each fragment within which each fragment runs
)

// cycle holds the states of a cluster's warps at some time after its latest change.
type cycle struct {
	next, window int    // round at which new states are taken, and rounds from then to the next time
	changes      uint64 // changes by all clusters at that time
	warps        []warpState
}

// warpState is everything that decides what a warp does next, except memory.
type warpState struct {
	frags []frag
	turns int
	r32   mma.Registers
	r64   [][warpLanes]uint64
	p     []uint32
	local []byte
	carry uint32
	back  bool // the warp has come back to this state
}

func (s *warpState) take(w *warp) {
	*s = warpState{frags: s.frags[:0], turns: w.turns, carry: w.carry,
		r32: append(s.r32[:0], w.r32...), r64: append(s.r64[:0], w.r64...), p: append(s.p[:0], w.p...), local: append(s.local[:0], w.local...)}
	for _, f := range w.frags {
		s.frags = append(s.frags, *f)
	}
}

// is reports whether the warp is in this state again, after each fragment has had a turn.
func (s *warpState) is(w *warp) bool {
	if n := len(w.frags); n > 1 && w.turns-s.turns < turnsOfFrags*n {
		return false
	}
	same := func(a frag, b *frag) bool {
		return a.pc == b.pc && a.mask == b.mask && a.tried == b.tried && a.begun == b.begun && len(a.calls) == 0 && len(b.calls) == 0
	}
	return slices.EqualFunc(s.frags, w.frags, same) && s.carry == w.carry && slices.Equal(s.p, w.p) &&
		slices.Equal(s.r32, w.r32) && slices.Equal(s.r64, w.r64) && slices.Equal(s.local, w.local)
}

// repeats reports whether each warp of an idle cluster repeats what it has done before.
func (cl *cluster) repeats(round int) bool {
	c, changes := &cl.cycle, cl.grid.changes.Load()+cl.grid.progress.Load()
	if cl.fresh || c.changes != changes || round >= c.next {
		if cl.fresh || c.changes != changes {
			c.window = 1
		}
		cl.fresh, c.changes, c.next, c.window = false, changes, round+c.window, 2*c.window
		c.warps = slices.Grow(c.warps[:0], len(cl.warps))[:len(cl.warps)]
		for i, w := range cl.warps {
			c.warps[i].take(w)
		}
		return false
	}
	all := true
	for i, w := range cl.warps {
		s := &c.warps[i]
		s.back = s.back || w.live == 0 || s.is(w)
		all = all && s.back
	}
	return all
}

// hopeless reports whether all other clusters that have not ended repeat what they do, too.
func (g *grid) hopeless(cl *cluster) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.repeatAt != cl.cycle.changes || g.repeating == nil {
		g.repeating, g.repeatAt = map[*cluster]bool{}, cl.cycle.changes
	}
	g.repeating[cl] = true
	return g.changes.Load()+g.progress.Load() == g.repeatAt && int64(len(g.repeating)) == g.clusters-g.finishes
}

// finishStores writes the bulk stores that a poll may wait for. It reports whether there was one.
func (cl *cluster) finishStores() (some bool) {
	for _, w := range cl.warps {
		for _, st := range w.bulk.stores {
			if !st.done {
				w.finishStore(st, false)
				some = true
			}
		}
	}
	return some
}
