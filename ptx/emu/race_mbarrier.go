package emu

import (
	"fmt"

	"sonicmoe/ptx/emu/internal/causal"
)

// phases is what an mbarrier passes from arriving to waiting threads.
type phases struct {
	component int // component of the clock that counts the completed phases
	now, done causal.Knowledge
	init      *access
	fenced    bool // the init is fenced, so that other proxies and CTAs see it
}

// made records an mbarrier.init.
func (r *races) made(w *warp, in *inst, b *mbarrier) {
	b.sync = &phases{component: r.components, init: r.ordinary(w, in, true)}
	r.components++
	r.inits = append(r.inits, b)
}

// fenceInits is fence.mbarrier_init by a warp.
func (r *races) fenceInits(w *warp, lanes uint32) {
	for _, b := range r.inits {
		b.sync.fenced = b.sync.fenced || b.sync.init.warp == w
	}
	r.fence(w, lanes, clusterScope)
}

// uses checks that the init of an mbarrier is ordered before a warp's use.
func (r *races) uses(w *warp, in *inst, b *mbarrier, at uint32) *problem {
	k, init := r.know(w), b.sync.init
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

// end passes on what the arrivals of a completed phase know.
func (p *phases) end() {
	p.done.Join(&p.now)
	p.now.Clear()
}

// waited records that lanes of a warp have seen a phase complete.
func (r *races) waited(w *warp, lanes uint32, b *mbarrier) {
	r.learned(w, lanes, &b.sync.done.Moments)
	r.teach(w, lanes, func(to *causal.Knowledge) {
		to.Join(&b.sync.done)
		to.Seen.Set(b.sync.component, uint32(b.phase))
	})
}
