package emu

import (
	"strings"

	"sonicmoe/ptx/emu/internal/causal"
)

// The race checks use happens-before, so they do not depend on the order in which the emulator ran.
// Two accesses to a word of shared or global memory race if at least one of them writes, no chain
// of synchronisation leads from one to the other (internal/causal), and they are not both strong. A
// strong access is atomic, volatile, or relaxed or stronger; the scope of each access must include
// the CTA of the other. Each warp has a clock. Its asynchronous operations have clocks of their
// own, because an operation may still be in flight when the warp has gone on. race_lanes.go
// distinguishes the lanes within one warp.
//
// If the async proxy (TMA, wgmma) accesses bytes that ordinary stores wrote, the chain must also
// contain a fence.proxy.async.

// access is one execution of an instruction that reads or writes memory. component is the clock
// that orders it.
type access struct {
	warp      *warp
	in        *inst
	component int
	at        uint32 // moment of component at which the access is done; 0 if not yet known
	writes    bool
	// async marks an access by the async proxy, copy an access by cp.async, and strong an access
	// with a scope.
	async, copy, strong bool
	asMap               bool // the access reads a tensor map
	scope               scope
	bar                 uint32 // the mbarrier that a bulk copy signals, as its address with the CTA's rank
	site                site
	id                  int       // number of the warp in its CTA
	load                *bulkLoad // the bulk load to which the access belongs, or nil
}

// shadowWord records the accesses to 4 bytes of memory that later accesses may race with.
type shadowWord struct {
	write *access
	reads *readers // reads since the write
	lanes uint32   // lanes that performed the write
	// Two masks of bytes: written has those that access write wrote, read those that the accesses
	// in reads touched.
	written, read uint8
}

// races is the state of the race checks of one cluster.
type races struct {
	cl         *cluster
	cluster    int64 // number of the cluster among all clusters of the stream
	strict     bool
	warps      []causal.Knowledge
	fences     []fences          // one for each warp
	lanes      []lanesKnown      // one for each warp
	byLane     []*lanesKnowledge // for each warp whose lanes know different things; nil for the others
	reads      []recentReads     // one for each warp
	components int
	inits      []*mbarrier
	signals    signals // signals that strong accesses left at words of shared memory

	// These fields are valid while one access is compared with the earlier accesses to its words.
	// okWrite, okOwn and okReads are earlier accesses that are known to be ordered before it.
	by             uint32  // lanes that access the present word
	repeated       bool    // another warp stored the same value to the word before
	okWrite, okOwn *access // okWrite happened before all lanes of the access; okOwn is by the same single lane as the access
	okReads        *readers

	grown    map[growth]*readers // sets of readers that an access has enlarged
	latest   [warpLanes]growth   // latest enlargement by each lane
	latestTo [warpLanes]*readers // result of the latest enlargement by each lane
	room     []readers           // storage for further sets of readers
	kept     []*readers          // storage for the part of a set that grow copies
	page     *shadowPage         // page of global memory that the latest access touched
	pageAt   uint64              // number of this page
}

// Components of a cluster's clock. Each warp has five: its own time, its cp.async, its wgmma, and
// the reads and the writes of its TMA stores. Each mbarrier has one, after the warps' components.
const (
	componentOwn = iota
	componentCopies
	componentProducts
	componentStores
	componentWrites
	warpComponents
)

func newRaces(cl *cluster) *races {
	r := &races{cl: cl, cluster: cl.grid.base + cl.number, strict: cl.grid.launch.StrictProxy, signals: signals{}}
	n := len(cl.warps)
	r.warps, r.fences, r.lanes, r.byLane = make([]causal.Knowledge, n), make([]fences, n), make([]lanesKnown, n), make([]*lanesKnowledge, n)
	r.reads, r.grown = make([]recentReads, n), map[growth]*readers{}
	for i := range r.warps {
		r.warps[i].Seen.Set(i*warpComponents+componentOwn, startMoment+1)
	}
	r.components = n * warpComponents
	for _, c := range cl.ctas {
		c.shared.shadow = sized(c.shared.shadow, len(c.shared.bytes)/pageBytes+1)
	}
	return r
}

func (r *races) number(w *warp) int { return w.cta.rank*len(w.cta.warps) + w.id }

func (r *races) component(w *warp, kind int) int { return r.number(w)*warpComponents + kind }

func (r *races) site(w *warp) site { return site{r.cluster, w.cta.rank} }

func (r *races) know(w *warp) *causal.Knowledge { return &r.warps[r.number(w)] }

// ordinary returns an access by the warp itself, not by an asynchronous operation. Executions of
// one read instruction share an access until the warp's clock advances.
func (r *races) ordinary(w *warp, in *inst, writes bool) *access {
	if !writes {
		recent := &r.reads[r.number(w)][in.number%len(recentReads{})]
		if a := *recent; a == nil || a.in != in || a.at != r.now(w) {
			*recent = r.own(w, in, false)
		}
		return *recent
	}
	return r.own(w, in, writes)
}

// own returns a new access by the warp itself, at the warp's present moment.
func (r *races) own(w *warp, in *inst, writes bool) *access {
	a := r.access(w, in, componentOwn, writes)
	a.at = r.now(w)
	if a.strong = in.strong(); a.strong {
		a.scope = scopeOf(in)
	}
	return a
}

// access returns an access whose clock is the given kind of component of the warp.
func (r *races) access(w *warp, in *inst, kind int, writes bool) *access {
	return &access{warp: w, in: in, component: r.component(w, kind), writes: writes, site: r.site(w), id: w.id}
}

// knownIn reports whether clock c includes the access: whether the access happened before.
func (a *access) knownIn(c causal.Clock) bool { return a.at != 0 && c.At(a.component) >= int(a.at) }

// advance starts a new moment of the warp's clock. Knowledge that the warp has published does not
// include the new moment.
func (r *races) advance(w *warp) {
	own := r.component(w, componentOwn)
	r.know(w).Seen[own]++
}

// release publishes to k what the lanes of the warp know. A warp that acquires from k learns it.
func (r *races) release(w *warp, lanes uint32, k *causal.Knowledge) {
	k.Join(r.given(w, lanes, r.know(w)))
	r.advance(w)
}

// acquire adds k to the knowledge of lanes of a warp, and to the warp's knowledge.
func (r *races) acquire(w *warp, lanes uint32, k *causal.Knowledge) {
	r.learned(w, lanes, &k.Moments)
	r.teach(w, lanes, func(to *causal.Knowledge) { to.Join(k) })
}

// acquireFar adds what other clusters published in h to the knowledge of lanes of a warp.
func (r *races) acquireFar(w *warp, lanes uint32, h *causal.Horizon) {
	if h != nil {
		if own := h.Of[r.cluster]; own != nil {
			r.learned(w, lanes, own)
		}
	}
	r.teach(w, lanes, func(to *causal.Knowledge) { to.Learn(h, r.cluster) })
}

// fenceProxy executes fence.proxy.async by a warp.
func (r *races) fenceProxy(w *warp, shared, global bool) {
	r.each(w, func(k *causal.Knowledge) { k.Fence(shared, global) })
	r.advance(w)
}

// repeats reports whether an ordinary store writes the value that is already there. This is legal,
// and compilers use it: several warps store the same value with one instruction.
func (r *races) repeats(a *access, at spot) bool {
	in, w := a.in, a.warp
	if op := in.form.Op; a.strong || op != "st" && !strings.HasPrefix(op, "st.") {
		return false
	}
	v, size := &in.args[1], int(in.size)
	for l := range lanesIn(r.by) {
		var b []byte
		if at.c != nil {
			b = at.c.shared.bytes[w.shared32(&in.args[0], l)&sharedOffset:]
		} else if b = r.cl.globalBytes(w.address64(&in.args[0], l), uint64(size*len(v.list))); b == nil {
			return false
		}
		for i, slot := range v.list {
			if bits := 8 * size; readWord(b[i*size:], size) != w.elem(v, slot, l)&(1<<bits-1) {
				return false
			}
		}
	}
	return true
}

// start begins the comparison of one access by some lanes. The access may touch several words.
func (r *races) start(by uint32) {
	r.okWrite, r.okOwn, r.okReads, r.by = nil, nil, nil, by
}

// touch records an access to n bytes of c's shared memory, or returns its race with an earlier
// access. The caller has called start for the access.
func (r *races) touch(a *access, c *cta, offset, n uint32) *problem {
	if int(offset+n-1)/pageBytes >= len(c.shared.shadow) {
		return nil // another check reports addresses out of bounds
	}
	r.visits(a, c)
	for n > 0 {
		page := &c.shared.shadow[offset/pageBytes]
		if *page == nil {
			*page = new(shadowPage)
		}
		k := min(n, pageBytes-offset%pageBytes)
		if p := r.words(a, (*page)[offset%pageBytes/4:], spot{c, uint64(offset)}, k); p != nil {
			return p
		}
		offset, n = offset+k, n-k
	}
	return nil
}

// spot is an address in the shared memory of c, or in global memory if c is nil.
type spot struct {
	c  *cta
	at uint64
}

// words records an access to n bytes, starting at s. shadow begins with the word of s.
func (r *races) words(a *access, shadow []shadowWord, s spot, n uint32) *problem {
	from := uint32(s.at & 3)
	end := from + n
	var before, after shadowWord // the latest whole word, before and after the access
	for i := uint32(0); 4*i < end; i++ {
		mask := uint8(0xf)
		if i == 0 {
			mask &= 0xf << from
		}
		if 4*i+4 > end {
			mask &= 0xf >> (4*i + 4 - end)
		}
		w := &shadow[i]
		whole := mask == 0xf
		if whole && *w == before && after != before { // comparing it gives the same result
			*w = after
			continue
		}
		was := *w
		if p := r.word(a, w, mask, spot{s.c, s.at&^3 + uint64(4*i)}); p != nil {
			return p
		}
		if whole && !r.repeated {
			before, after = was, *w
		}
	}
	return nil
}

// word compares an access to some bytes of one word with the earlier accesses to them, and records
// it.
func (r *races) word(a *access, s *shadowWord, mask uint8, at spot) *problem {
	r.repeated = false
	if w := s.write; w != nil && w != r.okWrite && (w != r.okOwn || s.lanes != r.by) && s.written&mask != 0 {
		if p := r.compare(w, s.lanes, a, at); p != nil {
			return p
		}
		switch {
		case r.repeated:
		case r.oneForLanes(w, a):
			r.okWrite = w
		case s.lanes == r.by && s.lanes&(s.lanes-1) == 0 && w.sameWarp(a):
			r.okOwn = w
		}
	}
	if s.reads != nil && (a.writes || s.reads.some) && s.reads != r.okReads && s.read&mask != 0 {
		one := true
		for old := s.reads; old != nil; old = old.next {
			if !a.writes && !old.writes {
				continue
			}
			if old.bytes&mask == 0 {
				one = false
				continue
			}
			if p := r.compare(old.access, old.lanes, a, at); p != nil {
				return p
			}
			one = one && r.oneForLanes(old.access, a)
		}
		if !r.repeated && one {
			r.okReads = s.reads
		}
	}
	if !a.writes || a.strong || r.repeated {
		s.reads = r.add(s.reads, a, mask)
		s.read |= mask
		return nil
	}
	r.keep(s, mask)
	s.write, s.lanes, s.written = a, r.by, mask
	return nil
}

// compare returns the race of access a with an earlier access, or nil. lanes are the lanes that
// performed the earlier access; "earlier" means earlier in the emulator's order.
func (r *races) compare(old *access, lanes uint32, a *access, at spot) *problem {
	known := r.know(a.warp).Of(old.site.cluster, r.cluster)
	fenced := &known.Fenced
	if at.c == nil {
		fenced = &known.FencedGlobal
	}
	apart := old.site.apart(a.site)
	uninformed := r.uninformed(old, a)
	past := old.knownIn(known.Seen) && uninformed == 0 && r.unmet(old, lanes, a) == 0 && old.lacks(known, lanes) == 0
	switch {
	case old == a, old.strong && a.strong && old.scope >= apart && a.scope >= apart, past && !a.async && !a.asMap && !a.in.uncached:
		return nil
	case a.in.uncached && old.writes && at.c == nil:
		return problemf(Race,
			"%s: ld.global.nc may only read memory that no thread of the kernel writes, because its cache sees no writes; want ld.global without .nc",
			r.both(old, a, at))
	case old.in == a.in && old.writes && a.writes && r.repeats(a, at):
		r.repeated = r.repeated || !past
		return nil
	case !old.knownIn(known.Seen):
		return problemf(Race, "%s, and nothing orders the two accesses; to order them: %s", r.both(old, a, at), r.remedy(old, a, at))
	case uninformed != 0:
		return problemf(Race,
			"%s; other lanes of this warp have synchronised with that access, but %s has not; to order them: bar.warp.sync (__syncwarp) of the warp after the wait, or a wait by each lane%s",
			r.both(old, a, at), laneList(uninformed), r.orStrong(old, a))
	case !past && !old.sameWarp(a):
		return problemf(Race,
			"%s in %s, and the lane that signalled this warp had not synchronised with those lanes; to order them: bar.warp.sync (__syncwarp) of the warp before one of its lanes signals%s",
			r.both(old, a, at), laneList(old.lacks(known, lanes)), r.orStrong(old, a))
	case !past:
		return problemf(Race,
			"%s in %s, and nothing orders these lanes of the warp; to order them: bar.warp.sync (__syncwarp) of the lanes of both accesses, or a barrier%s",
			r.both(old, a, at), laneList(r.unmet(old, lanes, a)), r.orStrong(old, a))
	case a.asMap && old.writes && !old.knownIn(known.MapsAcquired):
		return problemf(ProxyRace,
			"%s, without fence.proxy.tensormap in between; want fence.proxy.tensormap….release after the writes, and ….acquire of the map's 128 bytes by the reader after the barrier at which the two meet",
			r.both(old, a, at))
	case a.async && old.writes && !old.async && (!old.copy || r.strict) && !old.knownIn(*fenced):
		p := problemf(ProxyRace,
			"%s, without fence.proxy.async in between; want it in the writer before the barrier at which the two meet, or in this thread after that barrier",
			r.both(old, a, at))
		if old.copy {
			p.severity = Strict
		}
		return p
	}
	return nil
}
