package causal

import (
	"maps"
	"slices"
)

// The knowledge of a warp, a barrier or a word of memory is the set of accesses that it knows to
// have happened. Within a cluster this is a vector clock over components (a warp's own accesses,
// its asynchronous operations, mbarriers). Knowledge about other clusters arrives through global
// memory. It is a copy of their clocks at the time of publication.

const lanesOfWarp = 32

// Clock is a vector clock. It has, for each component, the latest moment that is known to have
// happened.
type Clock []uint32

// Set raises a component's moment to at, unless it is later already.
func (c *Clock) Set(component int, at uint32) {
	for len(*c) <= component {
		*c = append(*c, 0)
	}
	(*c)[component] = max((*c)[component], at)
}

// Join raises each component's moment to its moment in o.
func (c *Clock) Join(o Clock) {
	for len(*c) < len(o) {
		*c = append(*c, 0)
	}
	for i, at := range o {
		(*c)[i] = max((*c)[i], at)
	}
}

// At returns the moment of a component.
func (c Clock) At(component int) int {
	if component >= len(c) {
		return 0
	}
	return int(c[component])
}

// Covers reports whether no component of o has a later moment than in c.
func (c Clock) Covers(o Clock) bool {
	for i, at := range o {
		if at != 0 && (i >= len(c) || c[i] < at) {
			return false
		}
	}
	return true
}

// Moments is the knowledge about one cluster.
type Moments struct {
	Seen Clock
	// Lanes holds, for the component of a warp's own accesses, the moment of each lane. It has an
	// entry only if some lanes are known up to an earlier moment than Seen says. This happens if
	// the lanes that published the clock did not know what the other lanes had done.
	Lanes map[int]*[lanesOfWarp]uint32
	// Fenced and FencedGlobal are clocks of the accesses to shared and to global memory that
	// fence.proxy.async has made visible to the async proxy.
	Fenced, FencedGlobal Clock
	// mapsReleased is the part of Seen that a fence.proxy.tensormap has released. MapsAcquired is
	// the part that such a fence has acquired; readers of tensor maps see the writes in this part.
	mapsReleased, MapsAcquired Clock
}

func (m *Moments) join(o *Moments) {
	for c := range m.Lanes {
		m.joinLanes(c, o)
	}
	for c := range o.Lanes {
		m.joinLanes(c, o)
	}
	m.Seen.Join(o.Seen)
	m.Fenced.Join(o.Fenced)
	m.FencedGlobal.Join(o.FencedGlobal)
	m.mapsReleased.Join(o.mapsReleased)
	m.MapsAcquired.Join(o.MapsAcquired)
}

// joinLanes merges what o knows about the lanes of a component into m.
func (m *Moments) joinLanes(component int, o *Moments) {
	if lanes := m.Lanes[component]; lanes != nil && lanes == o.Lanes[component] {
		return
	}
	of, others := m.lanesUpTo(component), o.lanesUpTo(component)
	one, changed := true, false
	for l := range of {
		changed = changed || of[l] < others[l]
		of[l] = max(of[l], others[l])
		one = one && of[l] == of[0]
	}
	switch {
	case one:
		delete(m.Lanes, component)
	case changed || m.Lanes[component] == nil:
		if m.Lanes == nil {
			m.Lanes = map[int]*[lanesOfWarp]uint32{}
		}
		lanes := of // a new array, because a clone may share the old one
		m.Lanes[component] = &lanes
	}
}

// UpTo returns the latest moment of a component that is known to have happened in the given lane.
func (m *Moments) UpTo(component, lane int) uint32 {
	switch of := m.Lanes[component]; {
	case of != nil:
		return of[lane]
	case component < len(m.Seen):
		return m.Seen[component]
	}
	return 0
}

// lanesUpTo returns the latest known moment of a component for each lane.
func (m *Moments) lanesUpTo(component int) (of [lanesOfWarp]uint32) {
	if lanes := m.Lanes[component]; lanes != nil {
		return *lanes
	}
	at := m.UpTo(component, 0)
	for l := range of {
		of[l] = at
	}
	return of
}

func (m *Moments) covers(o *Moments) bool {
	for c, lanes := range m.Lanes {
		for l, at := range o.lanesUpTo(c) {
			if lanes[l] < at {
				return false
			}
		}
	}
	return m.Seen.Covers(o.Seen) && m.Fenced.Covers(o.Fenced) && m.FencedGlobal.Covers(o.FencedGlobal) &&
		m.mapsReleased.Covers(o.mapsReleased) && m.MapsAcquired.Covers(o.MapsAcquired)
}

// clone returns an independent copy of m.
func (m *Moments) clone() *Moments {
	return &Moments{slices.Clone(m.Seen), maps.Clone(m.Lanes), slices.Clone(m.Fenced), slices.Clone(m.FencedGlobal),
		slices.Clone(m.mapsReleased), slices.Clone(m.MapsAcquired)}
}

// Launches is a set of launches of a stream. Each launch has one bit.
type Launches uint64

// Horizon is the knowledge about other clusters, by their number. It is immutable, so the warps of
// all clusters can share it. nil is empty knowledge.
type Horizon struct {
	Of    map[int64]*Moments
	ended Launches
}

// Join returns the combined knowledge of h and o. It returns h itself if o adds nothing.
func (h *Horizon) Join(o *Horizon) *Horizon {
	switch {
	case o == nil || h == o:
		return h
	case h == nil:
		return o
	}
	out := h
	if h.ended|o.ended != h.ended {
		out = &Horizon{maps.Clone(h.Of), h.ended | o.ended}
	}
	for number, m := range o.Of {
		have := out.Of[number]
		if have == m || have != nil && have.covers(m) {
			continue
		}
		if out == h {
			out = &Horizon{maps.Clone(h.Of), h.ended}
		}
		if have != nil && !m.covers(have) {
			m = m.clone()
			m.join(have)
		}
		out.Of[number] = m
	}
	return out
}

// Knowledge is everything that a warp, or a barrier of its cluster, knows to have happened.
type Knowledge struct {
	Moments
	Far *Horizon
	// Ended is the set of earlier launches that are known to have ended because of
	// griddepcontrol.wait.
	Ended Launches
}

// Join adds the knowledge of o.
func (k *Knowledge) Join(o *Knowledge) {
	k.Moments.join(&o.Moments)
	k.Far = k.Far.Join(o.Far)
	k.Ended |= o.Ended
}

// Clone returns an independent copy of k.
func (k *Knowledge) Clone() Knowledge {
	return Knowledge{*k.Moments.clone(), k.Far, k.Ended}
}

// Clear removes all knowledge.
func (k *Knowledge) Clear() {
	clear(k.Seen)
	clear(k.Lanes)
	clear(k.Fenced)
	clear(k.FencedGlobal)
	clear(k.mapsReleased)
	clear(k.MapsAcquired)
	k.Far, k.Ended = nil, 0
}

// Published returns the knowledge of a warp in the form in which other clusters learn it. cluster
// is the number of the warp's cluster.
func (k *Knowledge) Published(cluster int64) *Horizon {
	out := &Horizon{map[int64]*Moments{}, k.Ended}
	if k.Far != nil {
		maps.Copy(out.Of, k.Far.Of)
	}
	out.Of[cluster] = k.Moments.clone()
	return out
}

// Learn adds the knowledge h that other clusters published. cluster is the number of the own
// cluster.
func (k *Knowledge) Learn(h *Horizon, cluster int64) {
	if h == nil {
		return
	}
	k.Far = k.Far.Join(h)
	k.Ended |= h.ended
	if own := h.Of[cluster]; own != nil {
		k.Moments.join(own)
	}
}

// Of returns what a warp of cluster own knows about the given cluster.
func (k *Knowledge) Of(cluster, own int64) *Moments {
	if cluster == own {
		return &k.Moments
	}
	if k.Far != nil {
		if m := k.Far.Of[cluster]; m != nil {
			return m
		}
	}
	return &Moments{}
}

// Fence makes the accesses known so far visible to the async proxy: accesses to shared memory, to
// global memory, or both.
func (k *Knowledge) Fence(shared, global bool) {
	if shared {
		k.Fenced.Join(k.Seen)
	}
	if !global {
		return
	}
	k.FencedGlobal.Join(k.Seen)
	k.eachFar(func(m *Moments) { m.FencedGlobal = m.Seen })
}

// ReleaseMaps executes the release half of fence.proxy.tensormap.
func (k *Knowledge) ReleaseMaps() {
	k.mapsReleased.Join(k.Seen)
	k.eachFar(func(m *Moments) { m.mapsReleased = m.Seen })
}

// AcquireMaps executes the acquire half of fence.proxy.tensormap.
func (k *Knowledge) AcquireMaps() {
	k.MapsAcquired.Join(k.mapsReleased)
	k.eachFar(func(m *Moments) { m.MapsAcquired = m.mapsReleased })
}

// eachFar applies a change to the knowledge about each other cluster.
func (k *Knowledge) eachFar(change func(m *Moments)) {
	if k.Far == nil {
		return
	}
	far := &Horizon{map[int64]*Moments{}, k.Far.ended}
	for number, m := range k.Far.Of {
		changed := *m
		change(&changed)
		far.Of[number] = &changed
	}
	k.Far = far
}
