package emu

import (
	"fmt"

	"sonicmoe/ptx/emu/internal/causal"
	"sonicmoe/ptx/isa"
)

// phases is the part of an mbarrier's state that the race checks need. Arriving threads add their
// knowledge to now, and waiting threads learn what is in done.
type phases struct {
	component int // component of the clock that counts the completed phases
	now, done causal.Knowledge
	init      *access
	fenced    bool // a fence.mbarrier_init has followed the init, so that other proxies and CTAs see it
	users     []user
}

// user is the latest arrival or wait of a warp at an mbarrier, and the lanes that executed it.
type user struct {
	*access
	lanes uint32
}

// made records that mbarrier.init has initialised mbarrier b.
func (r *races) made(w *warp, in *inst, b *mbarrier) {
	b.sync = &phases{component: r.components, init: r.ordinary(w, in, true), users: make([]user, len(r.warps))}
	r.components++
	r.inits = append(r.inits, b)
}

// fenceInits executes fence.mbarrier_init by a warp.
func (r *races) fenceInits(w *warp, lanes uint32) {
	for _, b := range r.inits {
		b.sync.fenced = b.sync.fenced || b.sync.init.warp == w
	}
	r.fence(w, lanes, clusterScope)
}

// uses records that lanes of a warp use mbarrier b of CTA c, and checks that its mbarrier.init
// happened before. A bulk copy uses its mbarrier later, when it writes its data.
func (r *races) uses(w *warp, in *inst, lanes uint32, c *cta, b *mbarrier, at uint32) *problem {
	k, init := r.know(w), b.sync.init
	if id := in.form.ID; !forms[id].bulk && id != isa.StAsync && id != isa.RedAsync {
		a, u := r.ordinary(w, in, false), &b.sync.users[r.number(w)]
		if u.access == nil || u.at != a.at {
			*u = user{access: a}
		}
		u.lanes |= lanes
		r.visits(a, c)
	}
	what := func() string {
		return fmt.Sprintf("mbarrier %s, which %s initialised with mbarrier.init (%s)", w.cta.symbolic(at), r.cl.actor(init.warp, init.in), r.cl.place(init.in))
	}
	switch {
	case !init.knownIn(k.Seen):
		return problemf(Race, "%s, and nothing orders the two; to order them: fence.mbarrier_init, then a barrier that both warps reach, a cluster barrier if they are in different CTAs", what())
	case forms[in.form.ID].bulk && !b.sync.fenced && !init.knownIn(k.Fenced):
		return problemf(ProxyRace, "%s, without a fence in between; want fence.mbarrier_init after mbarrier.init", what())
	}
	return nil
}

// unmade checks that all uses of mbarrier b happened before a lane executes mbarrier.inval.
func (r *races) unmade(w *warp, in *inst, lane int, b *mbarrier, at uint32) *problem {
	a := r.ordinary(w, in, true)
	r.start(1 << lane)
	for _, u := range b.sync.users {
		if u.access != nil && !r.past(u.access, u.lanes, a) {
			return problemf(Race, "ends mbarrier %s, at which %s may still arrive or wait with %s (%s) in %s; to order them: a barrier that both reach after the last use",
				w.cta.symbolic(at), r.cl.actor(u.warp, u.in), u.in.form.Op, r.cl.place(u.in), laneList(u.lanes))
		}
	}
	return nil
}

// end is called when a phase completes: waiting threads may now learn what its arrivals know.
func (p *phases) end() {
	p.done.Join(&p.now)
	p.now.Clear()
}

// waited records that lanes of a warp have waited for a phase, and so learn what its arrivals knew.
func (r *races) waited(w *warp, lanes uint32, b *mbarrier) {
	r.learned(w, lanes, &b.sync.done.Moments)
	r.teach(w, lanes, func(to *causal.Knowledge) {
		to.Join(&b.sync.done)
		to.Seen.Set(b.sync.component, uint32(b.phase))
	})
}
