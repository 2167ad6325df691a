package emu

import (
	"sync"

	"sonicmoe/ptx/emu/internal/causal"
)

// This file checks races between launches of one stream. A programmatic launch starts when each CTA
// of its predecessor has executed griddepcontrol.launch_dependents or ended. Only
// griddepcontrol.wait orders the accesses of the predecessor before those of the programmatic
// launch. Each launch records its accesses in shadow words of its own, which later launches only
// read.

// Stream holds the launches of a stream that may still run when the next launch starts. The zero
// value is a new stream.
type Stream struct {
	mu     sync.Mutex
	before []*grid // launches with race checks that may still run, the latest last
	next   int64   // number of the next cluster
	number int     // number of the next launch
}

// Clone returns a copy of the stream. Later launches in one stream are not part of the other.
func (s *Stream) Clone() *Stream {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Stream{before: s.before, next: s.next, number: s.number}
}

// Wait marks all launches as ended. Call it after the host, or work that is not a kernel, has
// waited for them.
func (s *Stream) Wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = nil
}

const maxBefore = 63

// bit returns the set that contains only this launch.
func (g *grid) bit() causal.Launches { return 1 << (g.number % (maxBefore + 1)) }

// begin numbers a launch and its clusters, and finds the earlier launches of the stream that may
// still run.
func (s *Stream) begin(g *grid) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g.number, g.base, g.triggered = s.number, s.next, 0
	s.number++
	s.next += g.clusters
	if !g.launch.Programmatic || len(s.before) == 0 || g.races == nil {
		return
	}
	last := s.before[len(s.before)-1]
	for _, b := range s.before[max(0, len(s.before)-maxBefore):] {
		if last.triggered&b.bit() == 0 {
			g.before = append(g.before, b)
		}
	}
}

// end keeps a launch and its predecessors in the stream, for the launches after it.
func (s *Stream) end(g *grid) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = nil
	if g.races != nil {
		s.before = append(append(s.before, g.before...), g)
	}
	g.before = nil
}

// gridWait executes griddepcontrol.wait by a warp. Afterwards the predecessor has ended, and with
// it all launches for which the predecessor has waited.
func (r *races) gridWait(w *warp) {
	g := r.cl.grid
	if n := len(g.before); n > 0 {
		last := g.before[n-1]
		r.each(w, func(k *causal.Knowledge) { k.Ended |= last.bit() | last.finished })
	}
}

// trigger executes griddepcontrol.launch_dependents by a warp. A CTA has triggered when the first of
// its warps executes it. Timing decides which warp is the first, so atTrigger keeps only the launches
// whose end every executing warp knows.
func (r *races) trigger(w *warp) {
	c, past := w.cta, r.know(w).Ended
	if c.triggered {
		past &= c.atTrigger
	}
	c.triggered, c.atTrigger = true, past
}

// exits records which earlier launches are known to have ended when a CTA ends, and when it has
// triggered. No later launch starts before each CTA has either triggered or ended.
func (r *races) exits(c *cta) {
	ended := causal.Launches(0)
	for _, w := range c.warps {
		ended |= r.know(w).Ended
	}
	g := r.cl.grid
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.finished |= ended; c.triggered {
		ended = c.atTrigger
	}
	g.triggered |= ended
}

// touchBefore compares an access to n bytes of global memory with the accesses of launches that may
// still run.
func (r *races) touchBefore(a *access, at, n uint64) *problem {
	ended := r.know(a.warp).Ended
	for _, g := range r.cl.grid.before {
		if ended&g.bit() != 0 {
			continue
		}
		if p := r.touchLaunch(g, a, at, at+n); p != nil {
			return p
		}
	}
	return nil
}

// touchLaunch compares an access to global memory with the accesses of launch g.
func (r *races) touchLaunch(g *grid, a *access, at, end uint64) *problem {
	for ; at < end; at = at&^3 + 4 {
		page := g.races.pages[at/pageBytes]
		if page == nil {
			continue
		}
		s := &page[at%pageBytes/4]
		touched := uint8(0xf) << (at & 3) & 0xf
		if left := end - at&^3; left < 4 {
			touched &= 1<<left - 1
		}
		if old := s.write; old != nil && s.written&touched != 0 && r.unordered(old, s.lanes, a) {
			return r.raceOfLaunches(g, old, a, at)
		}
		if old := s.write; old != nil && s.written&touched != 0 && r.unfenced(old, a) {
			return problemf(ProxyRace, "%s, without fence.proxy.async in between; want it in this thread after the load that acquires the write", r.both(old, a, spot{at: at}))
		}
		if s.reads == nil || s.read&touched == 0 {
			continue
		}
		for old := s.reads; old != nil; old = old.next {
			if old.bytes&touched != 0 && (a.writes || old.writes) && r.unordered(old.access, old.lanes, a) {
				return r.raceOfLaunches(g, old.access, a, at)
			}
		}
	}
	return nil
}

// unordered reports whether nothing orders access a after access old. The given lanes of a launch
// that may still run performed access old.
func (r *races) unordered(old *access, lanes uint32, a *access) bool {
	return !(old.strong && a.strong && old.scope == gpuScope && a.scope == gpuScope) && !r.past(old, lanes, a)
}

// unfenced reports whether access a, through the async proxy, has no proxy fence after the ordinary
// write old of a launch that may still run.
func (r *races) unfenced(old, a *access) bool {
	known := r.know(a.warp).Of(old.site.cluster, r.cluster)
	return a.async && !old.async && !old.copy && !old.knownIn(known.FencedGlobal)
}

func (r *races) raceOfLaunches(g *grid, old, a *access, at uint64) *problem {
	return problemf(Race, "%s, and the earlier launch of kernel %s may still run; to order them: griddepcontrol.wait before this access, by this thread or by one that it then meets at a barrier",
		r.both(old, a, spot{at: at}), g.kernel.entry.Name)
}
