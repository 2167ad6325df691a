package emu

import (
	"slices"

	"sonicmoe/ptx/emu/internal/causal"
)

// What one lane learns from an mbarrier or a flag, the other lanes of its warp know only after
// bar.warp.sync or a barrier (see also race_lanes.go). As long as all lanes have learned the
// same, the warp has one common knowledge.

// lanesKnowledge is what the lanes of a warp know, if some lanes know more than others.
type lanesKnowledge struct {
	all  causal.Knowledge // knowledge that each lane has
	some []partKnowledge
}

// partKnowledge is what some lanes know in addition.
type partKnowledge struct {
	lanes uint32
	k     causal.Knowledge
}

// teach applies learn to what lanes of a warp know, and so to what the warp knows.
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

// each applies a change to what a warp and its lanes know.
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

// ownTime adds to k the warp's knowledge of its own accesses.
func (r *races) ownTime(w *warp, k *causal.Knowledge) {
	for kind := range warpComponents {
		if c := r.component(w, kind); c < len(r.know(w).Seen) {
			k.Seen.Set(c, r.know(w).Seen[c])
			delete(k.Lanes, c)
		}
	}
}

// meetKnowledge is bar.warp.sync of lanes: each learns what any of them knows.
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

// knownTo returns the knowledge that lanes of a warp have together.
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

// uninformed returns the present lanes that have not synchronised with an earlier access,
// although other lanes of their warp have. For an instruction of the whole warp it is enough
// that some lane has.
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
