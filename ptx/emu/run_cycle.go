package emu

import (
	"slices"

	"sonicmoe/ptx/emu/internal/mma"
)

// A cluster may run for ever without changing anything: it repeats a compare-and-swap that always
// fails, or reads a flag that no thread sets. Suppose that each warp returns to a state that it had
// before, and that neither memory nor a barrier has changed in between. Then each warp repeats its
// instructions until another cluster changes memory. If all clusters are in this state, the launch
// is deadlocked. The emulator can report the deadlock at once, without waiting for a limit.

const (
	cycleAfter   = 1 << 12 // number of idle instructions after which a cluster looks for cycles
	turnsOfFrags = 32      // within this number of turns for each fragment, every fragment of a warp runs
)

// cycle holds the states that a cluster's warps had at one moment since the cluster last changed
// memory. If all warps have these states again, and no memory has changed, the cluster runs forever.
type cycle struct {
	next, window int    // next is the round at which new states are taken; window is the number of rounds after next at which they are taken again
	changes      uint64 // changes that all clusters had made when the states were taken
	warps        []warpState
}

// warpState is everything except memory that determines what a warp does next.
type warpState struct {
	frags []frag
	turns int
	r32   mma.Registers
	r64   [][warpLanes]uint64
	p     []uint32
	local []byte
	carry uint32
	back  bool // the warp has returned to this state
}

func (s *warpState) take(w *warp) {
	*s = warpState{frags: s.frags[:0], turns: w.turns, carry: w.carry,
		r32: append(s.r32[:0], w.r32...), r64: append(s.r64[:0], w.r64...), p: append(s.p[:0], w.p...), local: append(s.local[:0], w.local...)}
	for _, f := range w.frags {
		s.frags = append(s.frags, *f)
	}
}

// is reports whether the warp is in this state again, after each of its fragments has had a turn. A
// round with a random order may give a warp no turn.
func (s *warpState) is(w *warp) bool {
	if n := len(w.frags); w.turns == s.turns || n > 1 && w.turns-s.turns < turnsOfFrags*n {
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

// hopeless reports whether all clusters that have not ended repeat what they have done before.
func (g *grid) hopeless(cl *cluster) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.repeatAt != cl.cycle.changes || g.repeating == nil {
		g.repeating, g.repeatAt = map[*cluster]bool{}, cl.cycle.changes
	}
	g.repeating[cl] = true
	return g.changes.Load()+g.progress.Load() == g.repeatAt && int64(len(g.repeating)) == g.clusters-g.finishes
}

// finishStores completes the bulk stores for which a polling loop may wait. It reports whether
// there were any.
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
