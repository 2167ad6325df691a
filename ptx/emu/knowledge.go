package emu

import (
	"maps"
	"slices"
)

// Knowledge is the set of accesses that a warp, a barrier or a word of memory knows to be past.
// Within a cluster it is a vector clock over components. Knowledge from other clusters, through
// global memory, is a copy of their clocks at the time of publication.

// clock is a vector clock: the latest moment of each component that is known to be past.
type clock []uint32

func (c *clock) set(component int, at uint32) {
	for len(*c) <= component {
		*c = append(*c, 0)
	}
	(*c)[component] = max((*c)[component], at)
}

func (c *clock) join(o clock) {
	for len(*c) < len(o) {
		*c = append(*c, 0)
	}
	for i, at := range o {
		(*c)[i] = max((*c)[i], at)
	}
}

// covers reports whether nothing in o is later than in c.
func (c clock) covers(o clock) bool {
	for i, at := range o {
		if at != 0 && (i >= len(c) || c[i] < at) {
			return false
		}
	}
	return true
}

func (c clock) has(a *access) bool {
	return a.at != 0 && a.component < len(c) && c[a.component] >= a.at
}

// moments is what is known about one cluster.
type moments struct {
	seen clock
	// lanes holds, for a warp's own component, the moment of each lane, if some lanes are known
	// only up to earlier moments than in seen. That happens when lanes that did not know what
	// the others did published the clock.
	lanes map[int]*[warpLanes]uint32
	// fenced and fencedGlobal are the parts that the async proxy also sees, by
	// fence.proxy.async: in shared and in global memory.
	fenced, fencedGlobal clock
	// mapsReleased and mapsAcquired are the parts that readers of tensor maps see, by
	// fence.proxy.tensormap with release and then with acquire.
	mapsReleased, mapsAcquired clock
}

func (m *moments) join(o *moments) {
	for c := range m.lanes {
		m.joinLanes(c, o)
	}
	for c := range o.lanes {
		m.joinLanes(c, o)
	}
	m.seen.join(o.seen)
	m.fenced.join(o.fenced)
	m.fencedGlobal.join(o.fencedGlobal)
	m.mapsReleased.join(o.mapsReleased)
	m.mapsAcquired.join(o.mapsAcquired)
}

// joinLanes merges what is known about the lanes of a component.
func (m *moments) joinLanes(component int, o *moments) {
	of, others := m.lanesUpTo(component), o.lanesUpTo(component)
	one, changed := true, false
	for l := range of {
		changed = changed || of[l] < others[l]
		of[l] = max(of[l], others[l])
		one = one && of[l] == of[0]
	}
	switch {
	case one:
		delete(m.lanes, component)
	case changed || m.lanes[component] == nil:
		if m.lanes == nil {
			m.lanes = map[int]*[warpLanes]uint32{}
		}
		m.lanes[component] = &of // a clone may share the old array
	}
}

// upTo returns the latest moment of a lane of a component that is known to be past.
func (m *moments) upTo(component, lane int) uint32 {
	switch of := m.lanes[component]; {
	case of != nil:
		return of[lane]
	case component < len(m.seen):
		return m.seen[component]
	}
	return 0
}

// lanesUpTo returns the latest moments of all lanes.
func (m *moments) lanesUpTo(component int) (of [warpLanes]uint32) {
	if lanes := m.lanes[component]; lanes != nil {
		return *lanes
	}
	at := m.upTo(component, 0)
	for l := range of {
		of[l] = at
	}
	return of
}

// lacks returns the lanes that made an access and for which it is not known to be past.
func (m *moments) lacks(a *access, lanes uint32) (some uint32) {
	of := m.lanes[a.component]
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

func (m *moments) covers(o *moments) bool {
	for c, lanes := range m.lanes {
		for l, at := range o.lanesUpTo(c) {
			if lanes[l] < at {
				return false
			}
		}
	}
	return m.seen.covers(o.seen) && m.fenced.covers(o.fenced) && m.fencedGlobal.covers(o.fencedGlobal) &&
		m.mapsReleased.covers(o.mapsReleased) && m.mapsAcquired.covers(o.mapsAcquired)
}

func (m *moments) clone() *moments {
	return &moments{slices.Clone(m.seen), maps.Clone(m.lanes), slices.Clone(m.fenced), slices.Clone(m.fencedGlobal),
		slices.Clone(m.mapsReleased), slices.Clone(m.mapsAcquired)}
}

// horizon is what is known about other clusters, by number. It is immutable, so warps of all
// clusters may share it; nil knows nothing.
type horizon struct {
	of    map[int64]*moments
	ended launches
}

// join returns the combined knowledge: one of the two if it covers the other.
func (h *horizon) join(o *horizon) *horizon {
	switch {
	case o == nil || h == o:
		return h
	case h == nil:
		return o
	}
	out := h
	if h.ended|o.ended != h.ended {
		out = &horizon{maps.Clone(h.of), h.ended | o.ended}
	}
	for number, m := range o.of {
		have := out.of[number]
		if have == m || have != nil && have.covers(m) {
			continue
		}
		if out == h {
			out = &horizon{maps.Clone(h.of), h.ended}
		}
		if have != nil && !m.covers(have) {
			m = m.clone()
			m.join(have)
		}
		out.of[number] = m
	}
	return out
}

// knowledge is what a warp, or a barrier of its cluster, knows to be past.
type knowledge struct {
	moments
	far *horizon
	// ended is the set of earlier launches that have ended, by griddepcontrol.wait.
	ended launches
}

func (k *knowledge) join(o *knowledge) {
	k.moments.join(&o.moments)
	k.far = k.far.join(o.far)
	k.ended |= o.ended
}

func (k *knowledge) clone() knowledge {
	return knowledge{*k.moments.clone(), k.far, k.ended}
}

func (k *knowledge) clear() {
	clear(k.seen)
	clear(k.lanes)
	clear(k.fenced)
	clear(k.fencedGlobal)
	clear(k.mapsReleased)
	clear(k.mapsAcquired)
	k.far, k.ended = nil, 0
}

// published returns the knowledge of a warp of the numbered cluster, for other clusters.
func (k *knowledge) published(cluster int64) *horizon {
	out := &horizon{map[int64]*moments{}, k.ended}
	if k.far != nil {
		maps.Copy(out.of, k.far.of)
	}
	out.of[cluster] = k.moments.clone()
	return out
}

// learn adds what others published.
func (k *knowledge) learn(h *horizon, cluster int64) {
	if h == nil {
		return
	}
	k.far = k.far.join(h)
	k.ended |= h.ended
	if own := h.of[cluster]; own != nil {
		k.moments.join(own)
	}
}

// of returns what a warp of the cluster numbered own knows about a cluster.
func (k *knowledge) of(cluster, own int64) *moments {
	if cluster == own {
		return &k.moments
	}
	if k.far != nil {
		if m := k.far.of[cluster]; m != nil {
			return m
		}
	}
	return &moments{}
}

// fence makes the known accesses visible to the async proxy: those in shared memory, in global
// memory, or both.
func (k *knowledge) fence(shared, global bool) {
	if shared {
		k.fenced.join(k.seen)
	}
	if !global {
		return
	}
	k.fencedGlobal.join(k.seen)
	k.eachFar(func(m *moments) { m.fencedGlobal = m.seen })
}

// releaseMaps is fence.proxy.tensormap with release.
func (k *knowledge) releaseMaps() {
	k.mapsReleased.join(k.seen)
	k.eachFar(func(m *moments) { m.mapsReleased = m.seen })
}

func (k *knowledge) acquireMaps() {
	k.mapsAcquired.join(k.mapsReleased)
	k.eachFar(func(m *moments) { m.mapsAcquired = m.mapsReleased })
}

// eachFar changes what is known about other clusters.
func (k *knowledge) eachFar(change func(m *moments)) {
	if k.far == nil {
		return
	}
	far := &horizon{map[int64]*moments{}, k.far.ended}
	for number, m := range k.far.of {
		changed := *m
		change(&changed)
		far.of[number] = &changed
	}
	k.far = far
}
