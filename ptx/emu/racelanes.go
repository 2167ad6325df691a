package emu

import (
	"maps"
	"slices"

	"sonicmoe/ptx/isa"
)

// The lanes of one warp are ordered by their program only with themselves. What
// one does another knows behind bar.warp.sync of both, or behind a barrier, or
// whatever else brings the warp's own past back to it; shfl.sync, votes and the
// like wait for lanes but order no memory. What some lanes give to others is what
// these know of the rest; what one lane hears, it alone knows (racetold.go).

// lanesKnown is what the lanes of a warp know of each other.
type lanesKnown struct {
	all uint32 // what the warp did up to this moment is past for each lane
	// of, where some lanes know more, is what each knows of each other.
	of *[warpLanes][warpLanes]uint32
	// waited are moments of the warp that let know of its asynchronous work of a
	// kind, by the work's number: of the wait, or of the arrival that follows it.
	waited [warpComponents][]uint32
}

// unknown are those of others of which some of lanes does not know what they did
// by a moment.
func (k *lanesKnown) unknown(lanes, others, at uint32) (some uint32) {
	if at <= k.all {
		return 0
	}
	for m := lanes; m != 0; m &= m - 1 {
		l := first(m)
		for o := others &^ (1 << l); o != 0; o &= o - 1 {
			if k.of == nil || k.of[l][first(o)] < at {
				some |= o & -o
			}
		}
	}
	return some
}

// learn lets lanes know what all others did by a moment.
func (k *lanesKnown) learn(lanes, live, at uint32) {
	switch {
	case at <= k.all:
	case lanes&live == live:
		k.all = at
	default:
		for m := lanes; m != 0; m &= m - 1 {
			of := k.lane(first(m))
			for o := range of {
				of[o] = max(of[o], at)
			}
		}
	}
}

func (k *lanesKnown) lane(l int) *[warpLanes]uint32 {
	if k.of == nil {
		k.of = new([warpLanes][warpLanes]uint32)
	}
	return &k.of[l]
}

// meet is bar.warp.sync of lanes: each knows what any did, and knew.
func (r *races) meet(w *warp, lanes uint32) {
	r.meetTold(w, lanes)
	k, now := &r.lanes[r.number(w)], r.now(w)
	if lanes == w.live {
		k.all = now
	} else {
		var past [warpLanes]uint32
		for m := lanes; m != 0; m &= m - 1 {
			for o, at := range k.lane(first(m)) {
				past[o] = max(past[o], at)
			}
		}
		for m := lanes; m != 0; m &= m - 1 {
			past[first(m)] = now
		}
		for m := lanes; m != 0; m &= m - 1 {
			*k.lane(first(m)) = past
		}
	}
	r.advance(w)
}

// now is the moment of a warp.
func (r *races) now(w *warp) uint32 { return r.know(w).seen[r.component(w, componentOwn)] }

// learned: lanes have acquired knowledge, with what it holds of their own warp.
func (r *races) learned(w *warp, lanes uint32, m *moments) {
	own, k := r.component(w, componentOwn), &r.lanes[r.number(w)]
	of := m.lanes[own]
	if of == nil {
		k.learn(lanes, w.live, m.upTo(own, 0))
		return
	}
	k.learn(lanes, w.live, slices.Min(of[:]))
	for x := lanes; x != 0; x &= x - 1 {
		knows := k.lane(first(x))
		for o, at := range of {
			knows[o] = max(knows[o], at)
		}
	}
}

// given is what lanes of a warp give away of what it knows, or knew: of the other
// lanes' past only what these know.
func (r *races) given(w *warp, lanes uint32, k *knowledge) *knowledge {
	if k == r.know(w) {
		k = r.knownTo(w, lanes)
	}
	own, of := r.component(w, componentOwn), &r.lanes[r.number(w)]
	at := k.upTo(own, 0)
	unknown := uint32(0) // to each of lanes
	if lanes&w.live != w.live {
		unknown = w.live
	}
	for x := lanes; x != 0 && unknown != 0; x &= x - 1 {
		unknown &= of.unknown(x&-x, unknown, at)
	}
	if unknown == 0 {
		return k
	}
	some := [warpLanes]uint32{}
	for o := range some {
		if some[o] = at; unknown>>o&1 == 0 {
			continue
		}
		some[o] = of.all
		for x := lanes; x != 0 && of.of != nil; x &= x - 1 {
			some[o] = max(some[o], of.of[first(x)][o])
		}
	}
	g := *k
	if g.lanes = maps.Clone(k.lanes); g.lanes == nil {
		g.lanes = map[int]*[warpLanes]uint32{}
	}
	g.lanes[own] = &some
	return &g
}

// sameWarp: both are of one warp.
func (a *access) sameWarp(b *access) bool { return a.id == b.id && a.site == b.site }

// unmet are the lanes of an earlier access by the present one's warp that are
// not past for its lanes, which no clock of components tells. What the warp does as one (wgmma
// reads its operands, stmatrix and ldmatrix follow each other) its program orders.
func (r *races) unmet(old *access, lanes uint32, a *access) uint32 {
	if !old.sameWarp(a) || old.bar != 0 || old.in.product != nil || a.in.product != nil || old.each() || old.whole() && (a.whole() || !old.writes) {
		return 0
	}
	k := &r.lanes[r.number(a.warp)]
	at := old.at
	if kind := old.component % warpComponents; kind != componentOwn {
		waited := k.waited[kind]
		if int(at) >= len(waited) {
			return 0
		}
		at = waited[at]
	}
	return k.unknown(r.by, lanes, at)
}

// oneForLanes: whether an earlier access is past does not depend on the lane.
func (r *races) oneForLanes(old, a *access) bool {
	if !old.sameWarp(a) {
		return r.told[r.number(a.warp)] == nil && r.know(a.warp).of(old.site.cluster, r.cluster).lanes[old.component] == nil
	}
	return old.component%warpComponents == componentOwn && old.at <= r.lanes[r.number(a.warp)].all
}

// run is the first lanes of a mask, up to one for which same does not hold.
func run(mask uint32, same func(l int) bool) (lanes uint32) {
	for m := mask; m != 0 && (lanes == 0 || same(first(m))); m &= m - 1 {
		lanes |= m & -m
	}
	return lanes
}

// whole: the instruction accesses memory for the warp as one.
func (a *access) whole() bool { return a.in.matrix }

// each: every lane does what the instruction does, as one.
func (a *access) each() bool { return a.in.form.ID == isa.TensormapCopy }

// done notes that a warp's asynchronous work of a kind is past, up to a number.
func (r *races) done(w *warp, kind int, upTo uint32) {
	r.know(w).seen.set(r.component(w, kind), upTo)
	r.follow(w, kind, upTo)
}

// follow notes that who knows of this moment of the warp may know its asynchronous
// work of a kind, up to a number.
func (r *races) follow(w *warp, kind int, upTo uint32) {
	waited := &r.lanes[r.number(w)].waited[kind]
	for len(*waited) <= int(upTo) {
		*waited = append(*waited, r.now(w))
	}
}
