package emu

import "fmt"

// Races are found by happens-before, whatever the order in which the emulator
// happened to run: two accesses to a word of shared memory, of which one
// writes, need a chain of synchronisation between them. Clocks count for each
// warp; asynchronous operations have clocks of their own, so that what a warp
// started is not done because the warp went on. The lanes of a warp are one.
//
// An access of the async proxy (TMA, wgmma) to what ordinary stores wrote needs
// a fence.proxy.async on that chain as well.

// clock is the latest moment of each component that is known to be past.
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

func (c clock) has(a *access) bool {
	return a.at != 0 && a.component < len(c) && c[a.component] >= a.at
}

// knowledge is what a warp, or a barrier, knows to be past.
type knowledge struct {
	seen clock
	// fenced is the part that the async proxy sees too, by fence.proxy.async.
	fenced clock
}

func (k *knowledge) join(o *knowledge) {
	k.seen.join(o.seen)
	k.fenced.join(o.fenced)
}

func (k *knowledge) clear() {
	clear(k.seen)
	clear(k.fenced)
}

// access is one execution of an instruction that reads or writes memory.
type access struct {
	warp      *warp
	in        *inst
	component int
	at        uint32 // moment of the component by which it is done; 0: not yet known
	writes    bool
	// async: through the async proxy. copy: cp.async. atomic: an atomic.
	async, copy, atomic bool
	bar                 uint32 // the mbarrier that a bulk copy signals, with the CTA's rank
}

// shadowWord is what has happened to 4 bytes of shared memory.
type shadowWord struct {
	write *access
	reads *readers // since write
	// The bytes that they touched.
	written, read uint8
}

// readers are the latest reads of a word, one for each component, and the
// atomics, of which none orders another. They are shared among words and never
// change.
type readers struct {
	list    []*access
	atomics bool
}

// races is the state of a cluster.
type races struct {
	cl         *cluster
	strict     bool
	warps      []knowledge
	fences     []knowledge // at the latest fence of each warp, for relaxed operations
	components int
	inits      []*mbarrier

	// While an access goes over its words: what it has already been compared
	// with, and how the set of readers changed last.
	okWrite        *access
	okReads        *readers
	readsOld, grew *readers
}

// Components: for each warp its own time, its cp.async, its wgmma, its TMA
// stores; then one for each mbarrier.
const (
	componentOwn = iota
	componentCopies
	componentProducts
	componentStores
	warpComponents
)

func newRaces(cl *cluster) *races {
	r := &races{cl: cl, strict: cl.grid.launch.StrictProxy}
	n := len(cl.warps)
	r.warps, r.fences = make([]knowledge, n), make([]knowledge, n)
	for i := range r.warps {
		r.warps[i].seen.set(i*warpComponents+componentOwn, 1)
	}
	r.components = n * warpComponents
	for _, c := range cl.ctas {
		c.shared.shadow = make([]shadowWord, len(c.shared.bytes)/4+4)
	}
	return r
}

func (r *races) number(w *warp) int { return w.cta.rank*len(w.cta.warps) + w.id }

func (r *races) component(w *warp, kind int) int { return r.number(w)*warpComponents + kind }

func (r *races) know(w *warp) *knowledge { return &r.warps[r.number(w)] }

// ordinary is an access by the warp itself.
func (r *races) ordinary(w *warp, in *inst, writes bool) *access {
	own := r.component(w, componentOwn)
	return &access{warp: w, in: in, component: own, at: r.know(w).seen[own], writes: writes}
}

// advance makes later accesses of the warp later than what it has given away.
func (r *races) advance(w *warp) {
	own := r.component(w, componentOwn)
	r.know(w).seen[own]++
}

// release gives what the warp knows to who acquires from k.
func (r *races) release(w *warp, k *knowledge) {
	k.join(r.know(w))
	r.advance(w)
}

func (r *races) acquire(w *warp, k *knowledge) { r.know(w).join(k) }

// fenceProxy is fence.proxy.async by a warp.
func (r *races) fenceProxy(w *warp) {
	k := r.know(w)
	k.fenced.join(k.seen)
	r.advance(w)
}

// fence is fence.acq_rel: what relaxed operations behind it release.
func (r *races) fence(w *warp) {
	r.fences[r.number(w)].join(r.know(w))
	r.advance(w)
}

// releaseFenced is a release by a relaxed operation.
func (r *races) releaseFenced(w *warp, k *knowledge) { k.join(&r.fences[r.number(w)]) }

// done notes that a warp's asynchronous work of a kind is past, up to a number.
func (r *races) done(w *warp, kind int, upTo uint32) {
	r.know(w).seen.set(r.component(w, kind), upTo)
}

// start begins the comparison of an access with the words it touches.
func (r *races) start() { r.okWrite, r.okReads, r.readsOld, r.grew = nil, nil, nil, nil }

// touch notes an access to bytes of c's shared memory, or says with what it
// races. The access's start must have been called.
func (r *races) touch(a *access, c *cta, offset, n uint32) *problem {
	first, last := offset/4, (offset+n-1)/4
	if int(last) >= len(c.shared.shadow) {
		return nil // out of bounds: a fault of its own
	}
	for i := first; i <= last; i++ {
		s := &c.shared.shadow[i]
		mask := uint8(0xf)
		if i == first {
			mask &= 0xf << (offset & 3)
		}
		if end := offset + n; i == last && end&3 != 0 {
			mask &= 0xf >> (4 - end&3)
		}
		if w := s.write; w != nil && w != r.okWrite && s.written&mask != 0 {
			if p := r.compare(w, a, c, i*4); p != nil {
				return p
			}
			r.okWrite = w
		}
		if s.reads != nil && (a.writes || s.reads.atomics) && s.reads != r.okReads && s.read&mask != 0 {
			for _, old := range s.reads.list {
				if !a.writes && !old.writes {
					continue
				}
				if p := r.compare(old, a, c, i*4); p != nil {
					return p
				}
			}
			r.okReads = s.reads
		}
		if !a.writes || a.atomic {
			s.reads = r.add(s.reads, a)
			s.read |= mask
			continue
		}
		s.write, s.written, s.reads, s.read = a, mask, nil, 0
	}
	return nil
}

// add is a set of readers with one more.
func (r *races) add(old *readers, a *access) *readers {
	if r.grew != nil && old == r.readsOld {
		return r.grew
	}
	grew := &readers{}
	if old != nil {
		if old.list[len(old.list)-1] == a {
			return old
		}
		for _, x := range old.list {
			if x.component != a.component || x.atomic != a.atomic {
				grew.list = append(grew.list, x)
			}
		}
	}
	grew.list = append(grew.list, a)
	grew.atomics = a.atomic || old != nil && old.atomics
	r.readsOld, r.grew = old, grew
	return grew
}

// compare says whether an earlier access (in the emulator's order) is past for
// the later one.
func (r *races) compare(old, a *access, c *cta, at uint32) *problem {
	k := r.know(a.warp)
	switch {
	case old == a, old.atomic && a.atomic:
		return nil
	case !k.seen.has(old):
		return problemf(Race, "%s, and nothing orders the two; what would: %s", r.both(old, a, c, at), r.remedy(old, a))
	case a.async && old.writes && !old.async && (!old.copy || r.strict) && !k.fenced.has(old):
		return problemf(ProxyRace, "%s, without a fence.proxy.async between: the writer executes it before the barrier that the two meet at, or this side behind it",
			r.both(old, a, c, at))
	}
	return nil
}

// both names the two sides.
func (r *races) both(old, a *access, c *cta, at uint32) string {
	does, did := "reads", "read"
	if a.writes {
		does = "writes"
	}
	if old.writes {
		did = "wrote"
	}
	where := c.symbolic(at)
	if len(r.cl.ctas) > 1 {
		where += fmt.Sprintf(" of CTA %d", c.rank)
	}
	return fmt.Sprintf("%s shared memory %s, which %s %s by %s (%s)", does, where, r.cl.actor(old.warp, old.in), did, old.in.form.Op, r.cl.place(old.in))
}

// remedy says what would order a behind old.
func (r *races) remedy(old, a *access) string {
	if u := r.cl.unwritten; u != nil && u.Line == old.in.line {
		old, a = a, old // it read what a should have written before
	}
	meet := "a barrier that both come to, or an mbarrier that the one arrives at and the other waits for"
	if old.warp == a.warp {
		meet = ""
	}
	then := func(wait string) string {
		if meet == "" {
			return wait + " before"
		}
		return wait + ", then " + meet
	}
	switch {
	case old.bar != 0:
		c := r.cl.ctas[old.bar>>sharedRankBit]
		return fmt.Sprintf("wait for mbarrier %s, which the copy completes", c.symbolic(old.bar))
	case old.copy:
		return then("cp.async.wait_group by the warp that copied")
	case old.in.product != nil:
		return then("wgmma.wait_group by the warps that multiply")
	case old.async:
		return then("cp.async.bulk.wait_group by the thread that stored")
	}
	return meet
}

// phases is what an mbarrier carries from those who arrive to those who wait.
type phases struct {
	component int // its phases completed
	now, done knowledge
	init      *access
	fenced    bool // the init, for other proxies and CTAs
}

// made notes an mbarrier.init.
func (r *races) made(w *warp, in *inst, b *mbarrier) {
	b.sync = &phases{component: r.components, init: r.ordinary(w, in, true)}
	r.components++
	r.inits = append(r.inits, b)
}

// fenceInits is fence.mbarrier_init by a warp.
func (r *races) fenceInits(w *warp) {
	for _, b := range r.inits {
		b.sync.fenced = b.sync.fenced || b.sync.init.warp == w
	}
	r.fence(w)
}

// uses checks that a warp may use an mbarrier: behind its init.
func (r *races) uses(w *warp, in *inst, b *mbarrier, at uint32) *problem {
	k, init := r.know(w), b.sync.init
	what := func() string {
		return fmt.Sprintf("mbarrier %s, which %s made by mbarrier.init (%s)", w.cta.symbolic(at), r.cl.actor(init.warp, init.in), r.cl.place(init.in))
	}
	switch {
	case !k.seen.has(init):
		return problemf(Race, "%s, and nothing orders the two; what would: fence.mbarrier_init, then a barrier that both come to, of the cluster if they are of two CTAs", what())
	case (arrival{w, in}).copies() && !b.sync.fenced && !k.fenced.has(init):
		return problemf(ProxyRace, "%s, without a fence between: fence.mbarrier_init behind mbarrier.init", what())
	}
	return nil
}

// end: the phase is complete.
func (p *phases) end() {
	p.done.join(&p.now)
	p.now.clear()
}

// waited notes that a warp has seen a phase complete.
func (r *races) waited(w *warp, b *mbarrier) {
	r.acquire(w, &b.sync.done)
	r.know(w).seen.set(b.sync.component, uint32(b.phase))
}

// bulkLoad notes the shared memory that a load writes, and reads if it copies
// from there: until a phase of the mbarrier completes.
func (r *races) bulkLoad(b *bulkLoad, bar *mbarrier, at uint32) *problem {
	a := &access{warp: b.warp, in: b.in, component: bar.sync.component, writes: true, async: true, bar: at}
	b.accesses = append(b.accesses, a)
	r.start()
	if p := r.touch(a, b.to, b.dst, b.size); p != nil || b.from == nil {
		return p
	}
	from := *a
	from.writes = false
	b.accesses = append(b.accesses, &from)
	r.start()
	return r.touch(&from, b.from, uint32(b.src), b.size)
}

// bulkStore notes the shared memory that a store reads.
func (r *races) bulkStore(w *warp, st *bulkStore) *problem {
	a := &access{warp: w, in: st.in, component: r.component(w, componentStores), at: st.number, async: true}
	r.start()
	for run := range st.runs() {
		if run.InBounds {
			if p := r.touch(a, w.cta, run.Shared, run.Bytes); p != nil {
				return p
			}
		}
	}
	return nil
}

// actor is a warp with its role at an instruction.
func (cl *cluster) actor(w *warp, in *inst) string {
	name := cl.warpNames([]*warp{w})
	if role := in.role; role != "" {
		return role + " " + name
	}
	return name
}
