package emu

import (
	"slices"

	"sonicmoe/ptx/emu/internal/causal"
)

// If one lane waits for an mbarrier or reads a flag, only this lane learns what the signal
// publishes. The other lanes of its warp learn it at the next bar.warp.sync or barrier (see also
// race_lanes.go). While all lanes know the same, one knowledge is kept for the whole warp.

// lanesKnowledge is the knowledge of the lanes of a warp, if some lanes know more than others.
type lanesKnowledge struct {
	all  causal.Knowledge // knowledge that every lane has
	some []partKnowledge
}

// partKnowledge is what the given lanes know in addition to the knowledge of all lanes.
type partKnowledge struct {
	lanes uint32
	k     causal.Knowledge
}

// teach applies learn to the knowledge of some lanes of a warp, and to the warp's knowledge.
func (r *races) teach(w *warp, lanes uint32, learn func(k *causal.Knowledge)) {
	n, know := r.number(w), r.know(w)
	o := r.byLane[n]
	part := lanes&w.live != w.live
	if part && o == nil {
		o = &lanesKnowledge{all: know.Clone()}
		r.byLane[n] = o
	}
	learn(know)
	switch {
	case part:
		i := slices.IndexFunc(o.some, func(h partKnowledge) bool { return h.lanes == lanes })
		if i < 0 {
			i = len(o.some)
			o.some = append(o.some, partKnowledge{lanes: lanes})
		}
		learn(&o.some[i].k)
	case o != nil:
		learn(&o.all)
		r.ownTime(w, &o.all)
		if o.all.Seen.Covers(know.Seen) && o.all.Far.Join(know.Far) == o.all.Far {
			r.byLane[n] = nil
		}
	}
}

// each applies a change to the warp's knowledge and to the knowledge of all its lanes.
func (r *races) each(w *warp, change func(k *causal.Knowledge)) {
	change(r.know(w))
	if o := r.byLane[r.number(w)]; o != nil {
		r.ownTime(w, &o.all)
		change(&o.all)
		for i := range o.some {
			change(&o.some[i].k)
		}
	}
}

// ownTime adds to k the knowledge of the warp's own accesses up to now.
func (r *races) ownTime(w *warp, k *causal.Knowledge) {
	for kind := range warpComponents {
		if c := r.component(w, kind); c < len(r.know(w).Seen) {
			k.Seen.Set(c, r.know(w).Seen[c])
			delete(k.Lanes, c)
		}
	}
}

// meetKnowledge executes bar.warp.sync: each of the lanes learns what any of them knows.
func (r *races) meetKnowledge(w *warp, lanes uint32) {
	n := r.number(w)
	o := r.byLane[n]
	switch {
	case o == nil:
	case lanes&w.live == w.live:
		r.byLane[n] = nil
	default:
		k := causal.Knowledge{}
		for i := range o.some {
			if h := &o.some[i]; h.lanes&lanes != 0 {
				k.Join(&h.k)
			}
		}
		o.some = append(o.some, partKnowledge{lanes, k})
	}
}

// knownTo returns everything that at least one of the lanes knows.
func (r *races) knownTo(w *warp, lanes uint32) *causal.Knowledge {
	o := r.byLane[r.number(w)]
	if o == nil || lanes&w.live == w.live {
		return r.know(w)
	}
	k := o.all.Clone()
	for i := range o.some {
		if h := &o.some[i]; h.lanes&lanes != 0 {
			k.Join(&h.k)
		}
	}
	r.ownTime(w, &k)
	return &k
}

// uninformed returns the accessing lanes that have not synchronised with an earlier access,
// although other lanes of their warp have. For an instruction of the whole warp it is enough that
// some lane has synchronised; the result is then 0.
func (r *races) uninformed(old, a *access) (lanes uint32) {
	o := r.byLane[r.number(a.warp)]
	if o == nil || old.sameWarp(a) || a.whole() || a.each() || a.in.product != nil {
		return 0
	}
	knows := func(k *causal.Knowledge) bool { return old.knownIn(k.Of(old.site.cluster, r.cluster).Seen) }
	if knows(&o.all) {
		return 0
	}
	lanes = r.by
	for i := range o.some {
		if h := &o.some[i]; h.lanes&lanes != 0 && knows(&h.k) {
			lanes &^= h.lanes
		}
	}
	return lanes
}
