package emu

import "sync"

// Races between launches of one stream. A launch that is Programmatic begins when each
// CTA of the one before has executed griddepcontrol.launch_dependents or ended, and has
// that one's accesses behind it only where it has met griddepcontrol.wait. What a launch
// did stays in the shadow words of its own, which a later one reads and does not change.

// Stream is the launches of a stream of which the next one may begin before they have
// ended. The zero value is that of a new stream.
type Stream struct {
	mu     sync.Mutex
	before []*grid // that look for races, the latest last
	next   int64   // number of the next cluster
	number int     // and launch
}

// Clone is the stream as it is now: launches in one are none of the other.
func (s *Stream) Clone() *Stream {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Stream{before: s.before, next: s.next, number: s.number}
}

// Wait ends what is under way: other work than launches, or the host, has waited for it.
func (s *Stream) Wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = nil
}

// launches are launches of a stream, a bit for each, by their numbers.
type launches uint64

const maxBefore = 63

// bit is a launch as one of launches.
func (g *grid) bit() launches { return 1 << (g.number % (maxBefore + 1)) }

// begin puts a launch into its stream.
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

// end leaves what a launch did to those behind it.
func (s *Stream) end(g *grid) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = nil
	if g.races != nil {
		s.before = append(append(s.before, g.before...), g)
	}
	g.before = nil
}

// waited: a warp has executed griddepcontrol.wait. The launch before has ended, and with
// it those that it has waited for.
func (r *races) gridWait(w *warp) {
	g := r.cl.grid
	if n := len(g.before); n > 0 {
		last := g.before[n-1]
		r.each(w, func(k *knowledge) { k.ended |= last.bit() | last.finished })
	}
}

// trigger: a warp has executed griddepcontrol.launch_dependents, of which the first in a
// CTA counts: any of its warps may be that.
func (r *races) trigger(w *warp) {
	c, past := w.cta, r.know(w).ended
	if c.triggered {
		past &= c.atTrigger
	}
	c.triggered, c.atTrigger = true, past
}

// exits notes what the launch has behind it when a CTA ends: no launch behind it begins
// before that, or before the CTA's trigger.
func (r *races) exits(c *cta) {
	ended := launches(0)
	for _, w := range c.warps {
		ended |= r.know(w).ended
	}
	g := r.cl.grid
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.finished |= ended; c.triggered {
		ended = c.atTrigger
	}
	g.triggered |= ended
}

// touchBefore compares an access to n bytes of global memory with what launches did that
// may still run.
func (r *races) touchBefore(a *access, at, n uint64) *problem {
	ended := r.know(a.warp).ended
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

// touchLaunch compares an access to global memory with what one launch did.
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
		if old := s.write; old != nil && s.written&touched != 0 && r.unordered(old, a) {
			return r.raceOfLaunches(g, old, a, at)
		}
		if s.reads == nil || s.read&touched == 0 {
			continue
		}
		for _, old := range s.reads.list {
			if (a.writes || old.writes) && r.unordered(old.access, a) {
				return r.raceOfLaunches(g, old.access, a, at)
			}
		}
	}
	return nil
}

// unordered: nothing orders an access behind one of a launch that may still run.
func (r *races) unordered(old, a *access) bool {
	return !(old.strong && a.strong && old.scope == gpuScope && a.scope == gpuScope) && !r.know(a.warp).of(old.site.cluster, r.cluster).seen.has(old)
}

func (r *races) raceOfLaunches(g *grid, old, a *access, at uint64) *problem {
	return problemf(Race, "%s, and the launch of kernel %s before this one may still run; what would order the two: griddepcontrol.wait before, by this thread or one that it then meets at a barrier",
		r.both(old, a, spot{at: at}), g.kernel.entry.Name)
}
