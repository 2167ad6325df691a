package emu

import (
	"maps"
	"slices"

	"sonicmoe/ptx/emu/internal/causal"
	"sonicmoe/ptx/isa"
)

// Within a warp, program order alone orders only accesses of the same lane. A lane knows what
// another lane of its warp did only after bar.warp.sync of both, after a barrier, or after it has
// acquired another signal that carries knowledge about its own warp. shfl.sync, votes and similar
// instructions wait for lanes but do not order memory. When some lanes signal, they publish what
// they know of the other lanes. What a lane learns from a signal, only this lane knows
// (race_lane_knowledge.go).

// lanesKnown records, for each lane of a warp, which accesses of the warp's lanes happened before
// the lane's next access.
type lanesKnown struct {
	all uint32 // moment of the warp's clock up to which every lane knows what all lanes did
	// of[l][o] is the moment up to which lane l knows what lane o did. of is nil if no lane knows
	// more than field all says.
	of *[warpLanes][warpLanes]uint32
	// waited has a list for each kind of asynchronous operation. Entry n is the moment of the warp
	// that makes operation n known: the moment of the wait for the operation, or of the
	// cp.async.mbarrier.arrive that follows the operation.
	waited [warpComponents][]uint32
}

// unknown returns each lane o of the mask others for which some other lane, in the mask lanes, does
// not know what lane o did up to the moment `at`.
func (k *lanesKnown) unknown(lanes, others, at uint32) (some uint32) {
	if at <= k.all {
		return 0
	}
	for l := range lanesIn(lanes) {
		for o := others &^ (1 << l); o != 0; o &= o - 1 {
			if k.of == nil || k.of[l][first(o)] < at {
				some |= o & -o
			}
		}
	}
	return some
}

// learn records that the lanes in the mask lanes know what every lane did up to the moment `at`.
// live is the mask of lanes that have not exited.
func (k *lanesKnown) learn(lanes, live, at uint32) {
	switch {
	case at <= k.all:
	case lanes&live == live:
		k.all = at
	default:
		for l := range lanesIn(lanes) {
			of := k.lane(l)
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

// meet executes bar.warp.sync: each of the lanes learns what any of them did and knew.
func (r *races) meet(w *warp, lanes uint32) {
	r.meetKnowledge(w, lanes)
	k, now := &r.lanes[r.number(w)], r.now(w)
	if lanes == w.live {
		k.all = now
	} else {
		var past [warpLanes]uint32
		for l := range lanesIn(lanes) {
			for o, at := range k.lane(l) {
				past[o] = max(past[o], at)
			}
		}
		for l := range lanesIn(lanes) {
			past[l] = now
		}
		for l := range lanesIn(lanes) {
			*k.lane(l) = past
		}
	}
	r.advance(w)
}

// now returns the present moment of a warp's clock.
func (r *races) now(w *warp) uint32 { return r.know(w).Seen[r.component(w, componentOwn)] }

// learned updates what lanes know of their own warp, from the knowledge m that they acquired.
func (r *races) learned(w *warp, lanes uint32, m *causal.Moments) {
	own, k := r.component(w, componentOwn), &r.lanes[r.number(w)]
	of := m.Lanes[own]
	if of == nil {
		k.learn(lanes, w.live, m.UpTo(own, 0))
		return
	}
	k.learn(lanes, w.live, slices.Min(of[:]))
	for l := range lanesIn(lanes) {
		knows := k.lane(l)
		for o, at := range of {
			knows[o] = max(knows[o], at)
		}
	}
}

// given returns the knowledge that lanes of a warp publish when they signal: the warp's knowledge
// k, but about each other lane of the warp only what the signalling lanes know.
func (r *races) given(w *warp, lanes uint32, k *causal.Knowledge) *causal.Knowledge {
	if k == r.know(w) {
		k = r.knownTo(w, lanes)
	}
	own, of := r.component(w, componentOwn), &r.lanes[r.number(w)]
	at := k.UpTo(own, 0)
	unknown := uint32(0) // lanes whose accesses no signalling lane knows
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
	if g.Lanes = maps.Clone(k.Lanes); g.Lanes == nil {
		g.Lanes = map[int]*[warpLanes]uint32{}
	}
	g.Lanes[own] = &some
	return &g
}

// sameWarp reports whether one warp performed both accesses.
func (a *access) sameWarp(b *access) bool { return a.id == b.id && a.site == b.site }

// unmet returns those lanes of an earlier access by the same warp that nothing orders before the
// present lanes. The warp's clock cannot say this, because all lanes share it. Program order
// suffices for accesses of the warp as a whole: wgmma's reads of its operands, and stmatrix and
// ldmatrix among each other.
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

// oneForLanes reports whether every lane of the warp has the same knowledge about access old.
func (r *races) oneForLanes(old, a *access) bool {
	if !old.sameWarp(a) {
		return r.byLane[r.number(a.warp)] == nil && r.know(a.warp).Of(old.site.cluster, r.cluster).Lanes[old.component] == nil
	}
	return old.component%warpComponents == componentOwn && old.at <= r.lanes[r.number(a.warp)].all
}

// run returns the first lane of a mask and the lanes after it, until function same returns false
// for a lane. That lane is not included.
func run(mask uint32, same func(l int) bool) (lanes uint32) {
	for m := mask; m != 0 && (lanes == 0 || same(first(m))); m &= m - 1 {
		lanes |= m & -m
	}
	return lanes
}

// whole reports whether the warp performs the access as a whole (ldmatrix, stmatrix).
func (a *access) whole() bool { return a.in.matrix }

// each reports whether every lane counts as having performed the whole access.
func (a *access) each() bool { return a.in.form.ID == isa.TensormapCopy }

// done records that a warp knows that its asynchronous operations of a kind are complete, up to
// number upTo.
func (r *races) done(w *warp, kind int, upTo uint32) {
	r.know(w).Seen.Set(r.component(w, kind), upTo)
	r.follow(w, kind, upTo)
}

// follow records the warp's present moment for its asynchronous operations of a kind, up to number
// upTo: a lane that knows this moment also knows that the operations are complete.
func (r *races) follow(w *warp, kind int, upTo uint32) {
	waited := &r.lanes[r.number(w)].waited[kind]
	for len(*waited) <= int(upTo) {
		*waited = append(*waited, r.now(w))
	}
}

// lacks returns the lanes of the access of which m does not know that they have performed the
// access.
func (a *access) lacks(m *causal.Moments, lanes uint32) (some uint32) {
	of := m.Lanes[a.component]
	if of == nil || a.whole() || a.each() {
		return 0
	}
	for x := lanes; x != 0; x &= x - 1 {
		if of[first(x)] < a.at {
			some |= x & -x
		}
	}
	return some
}
