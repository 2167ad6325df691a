package causal

import (
	"maps"
	"slices"
)

// Knowledge is the set of accesses that a warp, a barrier or a word of memory knows to be past.
// Within a cluster it is a vector clock over components. Knowledge from other clusters, through
// global memory, is a copy of their clocks at the time of publication.

const lanesOfWarp = 32

// Clock is a vector clock: the latest moment of each component that is known to be past.
type Clock []uint32

// Set raises a component to a moment.
func (c *Clock) Set(component int, at uint32) {
	for len(*c) <= component {
		*c = append(*c, 0)
	}
	(*c)[component] = max((*c)[component], at)
}

// Join raises each component to its moment in o.
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

// Covers reports whether nothing in o is later than in c.
func (c Clock) Covers(o Clock) bool {
	for i, at := range o {
		if at != 0 && (i >= len(c) || c[i] < at) {
			return false
		}
	}
	return true
}

// Moments is what is known about one cluster.
type Moments struct {
	Seen Clock
	// Lanes holds, for a warp's own component, the moment of each lane. It is set only if
	// some lanes are known up to an earlier moment than Seen has for the component: the
	// clock was published by lanes that did not know what the other lanes did.
	Lanes map[int]*[lanesOfWarp]uint32
	// Fenced and FencedGlobal are the accesses, to shared and to global memory, that
	// fence.proxy.async has also made visible to the async proxy.
	Fenced, FencedGlobal Clock
	// mapsReleased is the part of Seen that fence.proxy.tensormap has released,
	// MapsAcquired the part that it has acquired: readers of tensor maps see MapsAcquired.
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

// joinLanes merges what is known about the lanes of a component.
func (m *Moments) joinLanes(component int, o *Moments) {
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
		m.Lanes[component] = &of // a new array, because a clone may share the old one
	}
}

// UpTo returns the latest moment of a lane of a component that is known to be past.
func (m *Moments) UpTo(component, lane int) uint32 {
	switch of := m.Lanes[component]; {
	case of != nil:
		return of[lane]
	case component < len(m.Seen):
		return m.Seen[component]
	}
	return 0
}

// lanesUpTo returns the latest moments of all lanes.
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

// clone returns an independent copy.
func (m *Moments) clone() *Moments {
	return &Moments{slices.Clone(m.Seen), maps.Clone(m.Lanes), slices.Clone(m.Fenced), slices.Clone(m.FencedGlobal),
		slices.Clone(m.mapsReleased), slices.Clone(m.MapsAcquired)}
}

// Launches is a set of launches of a stream, one bit for each number.
type Launches uint64

// Horizon is what is known about other clusters, by number. It is immutable, so warps of all
// clusters may share it; nil knows nothing.
type Horizon struct {
	Of    map[int64]*Moments
	ended Launches
}

// Join returns the combined knowledge: one of the two if it covers the other.
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

// Knowledge is what a warp, or a barrier of its cluster, knows to be past.
type Knowledge struct {
	Moments
	Far *Horizon
	// Ended is the set of earlier launches that have ended, by griddepcontrol.wait.
	Ended Launches
}

// Join adds what o knows.
func (k *Knowledge) Join(o *Knowledge) {
	k.Moments.join(&o.Moments)
	k.Far = k.Far.Join(o.Far)
	k.Ended |= o.Ended
}

// Clone returns an independent copy.
func (k *Knowledge) Clone() Knowledge {
	return Knowledge{*k.Moments.clone(), k.Far, k.Ended}
}

// Clear removes everything.
func (k *Knowledge) Clear() {
	clear(k.Seen)
	clear(k.Lanes)
	clear(k.Fenced)
	clear(k.FencedGlobal)
	clear(k.mapsReleased)
	clear(k.MapsAcquired)
	k.Far, k.Ended = nil, 0
}

// Published returns the knowledge of a warp of the numbered cluster, for other clusters.
func (k *Knowledge) Published(cluster int64) *Horizon {
	out := &Horizon{map[int64]*Moments{}, k.Ended}
	if k.Far != nil {
		maps.Copy(out.Of, k.Far.Of)
	}
	out.Of[cluster] = k.Moments.clone()
	return out
}

// Learn adds the knowledge that other clusters published.
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

// Of returns what a warp of the cluster numbered own knows about a cluster.
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

// Fence makes the known accesses visible to the async proxy: those in shared memory, in global
// memory, or both.
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

// ReleaseMaps is fence.proxy.tensormap with release.
func (k *Knowledge) ReleaseMaps() {
	k.mapsReleased.Join(k.Seen)
	k.eachFar(func(m *Moments) { m.mapsReleased = m.Seen })
}

// AcquireMaps is fence.proxy.tensormap with acquire.
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
