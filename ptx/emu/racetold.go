package emu

import "slices"

// What one lane hears by an mbarrier or a flag the others of its warp know behind
// bar.warp.sync or a barrier only, as what one lane does (racelanes.go). As long as all
// have heard the same, the knowledge of the warp says it all.

// told is what the lanes of a warp know where some know more than others.
type told struct {
	all  knowledge // each lane
	some []hearsay
}

// hearsay is what some lanes have heard beside.
type hearsay struct {
	lanes uint32
	k     knowledge
}

// hears has lanes of a warp, and so the warp, learn something.
func (r *races) hears(w *warp, lanes uint32, learn func(k *knowledge)) {
	n, know := r.number(w), r.know(w)
	o := r.told[n]
	part := lanes&w.live != w.live
	if part && o == nil {
		o = &told{all: know.clone()}
		r.told[n] = o
	}
	learn(know)
	switch {
	case part:
		i := slices.IndexFunc(o.some, func(h hearsay) bool { return h.lanes == lanes })
		if i < 0 {
			i = len(o.some)
			o.some = append(o.some, hearsay{lanes: lanes})
		}
		learn(&o.some[i].k)
	case o != nil:
		learn(&o.all)
		r.ownTime(w, &o.all)
		if o.all.seen.covers(know.seen) && o.all.far.join(know.far) == o.all.far {
			r.told[n] = nil
		}
	}
}

// each changes what a warp knows, and what its lanes do.
func (r *races) each(w *warp, change func(k *knowledge)) {
	change(r.know(w))
	if o := r.told[r.number(w)]; o != nil {
		r.ownTime(w, &o.all)
		change(&o.all)
		for i := range o.some {
			change(&o.some[i].k)
		}
	}
}

// ownTime gives k what a warp knows of itself.
func (r *races) ownTime(w *warp, k *knowledge) {
	for kind := range warpComponents {
		if c := r.component(w, kind); c < len(r.know(w).seen) {
			k.seen.set(c, r.know(w).seen[c])
			delete(k.lanes, c)
		}
	}
}

// meetTold is bar.warp.sync of lanes: each knows what any of them does.
func (r *races) meetTold(w *warp, lanes uint32) {
	n := r.number(w)
	o := r.told[n]
	switch {
	case o == nil:
	case lanes&w.live == w.live:
		r.told[n] = nil
	default:
		k := knowledge{}
		for i := range o.some {
			if h := &o.some[i]; h.lanes&lanes != 0 {
				k.join(&h.k)
			}
		}
		o.some = append(o.some, hearsay{lanes, k})
	}
}

// knownTo is what lanes of a warp know between them.
func (r *races) knownTo(w *warp, lanes uint32) *knowledge {
	o := r.told[r.number(w)]
	if o == nil || lanes&w.live == w.live {
		return r.know(w)
	}
	k := o.all.clone()
	for i := range o.some {
		if h := &o.some[i]; h.lanes&lanes != 0 {
			k.join(&h.k)
		}
	}
	r.ownTime(w, &k)
	return &k
}

// untold are those of the present lanes to which an earlier access is not past, though
// it is to others of their warp. What the warp does as one waits for whom it needs.
func (r *races) untold(old, a *access) (lanes uint32) {
	o := r.told[r.number(a.warp)]
	if o == nil || old.sameWarp(a) || a.whole() || a.each() || a.in.product != nil {
		return 0
	}
	knows := func(k *knowledge) bool { return k.of(old.site.cluster, r.cluster).seen.has(old) }
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
