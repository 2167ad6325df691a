package emu

import (
	"fmt"
	"maps"
	"slices"

	"sonicmoe/ptx/emu/internal/causal"
)

// Accesses to the shared memory of a CTA must lie within the CTA's life. The CTA must have started
// before another CTA of the cluster accesses its memory. It must not end before the accesses of
// other CTAs and of bulk loads are done. At its end, the CTA knows everything that any of
// its warps knows.

// startMoment is a warp's first moment. If the accessing warp knows this moment of a CTA's warp,
// the CTA had started before the access.
const startMoment = 1

// visits records an access to the shared memory of CTA c by another CTA or by an asynchronous load.
// CTA c must not end before the access is complete.
func (r *races) visits(a *access, c *cta) {
	if c == a.warp.cta && a.load == nil {
		return
	}
	if c.visits == nil {
		c.visits = map[int]*access{}
	}
	c.visits[a.component] = a // a is later than the component's earlier accesses, so checking a is enough
}

// mustHaveStarted checks that warp w knows that CTA c has started.
func (r *races) mustHaveStarted(w *warp, in *inst, lane int, c *cta) {
	seen := r.know(w).Seen
	if !slices.ContainsFunc(c.warps, func(x *warp) bool { return seen.At(r.component(x, componentOwn)) >= startMoment }) {
		w.find(in, Error, CTALifetime, 1<<lane, fmt.Sprintf("%s: accesses shared memory of CTA %d, which may not have started; to order them: barrier.cluster.arrive and wait by all threads of the cluster before the first such access", in.form.Op, c.rank))
	}
}

// ends checks that all accesses to the shared memory of c happened before the end of c.
func (r *races) ends(c *cta) {
	var known causal.Clock
	for _, w := range c.warps {
		known.Join(r.know(w).Seen)
	}
	for _, component := range slices.Sorted(maps.Keys(c.visits)) {
		switch a := c.visits[component]; {
		case a.knownIn(known):
		case a.warp.cta == c:
			a.warp.find(a.in, Error, AsyncPending, 1<<a.load.lane, fmt.Sprintf("the CTA may end while a load of %d bytes to shared address %s is in flight: wait for its mbarrier first", a.load.size, c.symbolic(a.load.dst)))
		default:
			a.warp.find(a.in, Error, CTALifetime, fullMask, fmt.Sprintf("%s: accesses shared memory of CTA %d, and nothing orders the end of that CTA after the access; to order them: barrier.cluster.arrive after the access and barrier.cluster.wait before the CTA ends", a.in.form.Op, c.rank))
		}
	}
	c.visits = nil
	if r.cl.grid.launch.Unread {
		r.unread(c)
	}
}
