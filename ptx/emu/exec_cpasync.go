package emu

import (
	"slices"

	"sonicmoe/ptx/emu/internal/causal"
	"sonicmoe/ptx/isa"
)

// copyQueue holds the cp.async operations of a warp's threads, in program order.
type copyQueue struct {
	recs    []*copyRecord
	free    []*copyRecord     // records for reuse
	commits [warpLanes]uint32 // number of groups that each lane has committed
	// issued counts the warp's cp.async operations. open lists the operations for which some lane
	// has not waited yet; it is filled only if races are looked for.
	issued uint32
	open   []openCopy
}

// openCopy is one cp.async operation for which the given lanes have not waited yet.
type openCopy struct {
	number, lanes uint32
	group         [warpLanes]uint32
}

// copyRecord is one cp.async operation of a warp, or one cp.async.mbarrier.arrive, which takes
// effect after the copies before it.
type copyRecord struct {
	in     *inst
	order  uint64
	arrive bool
	lanes  uint32            // lanes whose copy or arrival is not complete
	group  [warpLanes]uint32 // number of each lane's cp.async group
	dst    [warpLanes]uint32 // offset in the CTA's shared memory: of the destination, or of the mbarrier of an arrival
	src    [warpLanes]uint64
	bytes  [warpLanes]uint32 // bytes read from src; zeros fill the destination up to size
	size   uint32            // bytes written to dst
	gives  *causal.Knowledge // knowledge that an arrival publishes, if races are looked for
	past   causal.Clock      // under a schedule of Explore, for an arrival on an mbarrier: the steps before it
}

// record returns an empty record, which may be a reused one.
func (q *copyQueue) record() *copyRecord {
	n := len(q.free)
	if n == 0 {
		return new(copyRecord)
	}
	r := q.free[n-1]
	q.free = q.free[:n-1]
	return r
}

func copyForms() handlers {
	return handlers{
		isa.CpAsyncCG: {do: cpAsync},
		isa.CpAsyncCA: {do: cpAsync},
		isa.CpAsyncWaitAll: {do: func(w *warp, in *inst, mask uint32) {
			cpAsyncCommit(w, in, mask)
			w.waitCopies(mask, 0)
		}},
		isa.CpAsyncCommit:              {do: cpAsyncCommit},
		isa.CpAsyncWait:                {do: cpAsyncWait},
		isa.CpAsyncMbarrierArriveNoInc: {do: cpAsyncArrive}, isa.CpAsyncMbarrierArriveNoIncShared: {do: cpAsyncArrive},
		isa.CpAsyncMbarrierArrive: {do: cpAsyncArrive},
	}
}

func cpAsync(w *warp, in *inst, mask uint32) {
	copyBytes := uint32(in.args[2].imm)
	r := w.copies.record()
	r.in, r.lanes, r.group, r.size = in, mask, w.copies.commits, copyBytes
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, isa.Shared, w.shared32(&in.args[0], l), l)
		w.deny(in, 1<<l, c.shared.check(at, copyBytes, copyBytes))
		n := copyBytes
		if len(in.args) > 3 {
			if n = w.r32[in.slot[3]][l]; n > copyBytes {
				w.fault(in, IllegalInstruction, 1<<l, "cp.async of %d bytes has src-size %d, want at most the size", copyBytes, n)
			}
		}
		r.dst[l], r.src[l], r.bytes[l] = at, w.address64(&in.args[1], l), n
		if n > 0 {
			if r.src[l]%uint64(copyBytes) != 0 {
				w.fault(in, Misaligned, 1<<l, "cp.async from global address %#x, want a multiple of %d", r.src[l], copyBytes)
			}
			if w.cta.cluster.globalBytes(r.src[l], uint64(n)) == nil {
				w.fault(in, OutOfBounds, 1<<l, "cp.async: %s", w.cta.cluster.grid.explain(r.src[l], uint64(n)))
			}
		}
	}
	if races := w.cta.cluster.races; races != nil {
		w.copies.issued++
		w.copies.open = append(w.copies.open, openCopy{w.copies.issued, mask, w.copies.commits})
		to := races.access(w, in, componentCopies, true)
		to.at, to.copy = w.copies.issued, true
		from := *to
		from.writes = false
		w.touchLanes(in, &in.args[0], mask, copyBytes, to)
		w.touchCopied(in, r, &from)
	}
	if c := w.cta.cluster.counter; c != nil {
		c.copied(w, in, r)
	}
	w.queueCopy(r)
}

func (w *warp) queueCopy(r *copyRecord) {
	cl := w.cta.cluster
	cl.order++
	r.order = cl.order
	w.copies.recs = append(w.copies.recs, r)
	if cl.grid.launch.Timing == Early {
		w.completeCopy(r, r.lanes)
	}
	w.sweepCopies()
}

func cpAsyncCommit(w *warp, _ *inst, mask uint32) {
	for l := range lanesIn(mask) {
		w.copies.commits[l]++
	}
}

// cpAsyncWait executes cp.async.wait_group n: it completes all cp.async groups of each lane except
// the latest n.
func cpAsyncWait(w *warp, in *inst, mask uint32) {
	w.waitCopies(mask, uint32(in.args[0].imm))
}

func (w *warp) waitCopies(mask, keep uint32) {
	for _, r := range w.copies.recs {
		if r.arrive {
			continue
		}
		due := uint32(0)
		for l := range lanesIn(mask & r.lanes) {
			if uint64(r.group[l])+uint64(keep) < uint64(w.copies.commits[l]) {
				due |= 1 << l
			}
		}
		w.completeCopy(r, due)
	}
	if r := w.cta.cluster.races; r != nil {
		r.done(w, componentCopies, w.copies.waited(mask, keep))
	}
	w.sweepCopies()
}

// waited records that each lane of mask has waited for its groups, except for the latest ones: as
// many as parameter keep says. It returns the largest n such that the lanes have waited for the
// first n copies that the warp issued.
func (q *copyQueue) waited(mask, keep uint32) uint32 {
	open := q.open[:0]
	for _, o := range q.open {
		for l := range lanesIn(mask & o.lanes) {
			if uint64(o.group[l])+uint64(keep) < uint64(q.commits[l]) {
				o.lanes &^= 1 << l
			}
		}
		if o.lanes != 0 {
			open = append(open, o)
		}
	}
	if q.open = open; len(open) > 0 {
		return open[0].number - 1
	}
	return q.issued
}

func cpAsyncArrive(w *warp, in *inst, mask uint32) {
	r := w.copies.record()
	r.in, r.lanes, r.arrive = in, mask, true
	for l := range lanesIn(mask) {
		at := w.shared32(&in.args[0], l)
		if b := w.mbarrierAt(in, isa.Shared, at, 1<<l); in.form.ID == isa.CpAsyncMbarrierArrive { // the form without .noinc increments the pending count
			b.pending++
		}
		r.dst[l] = at & sharedOffset
	}
	if races := w.cta.cluster.races; races != nil {
		r.gives = &causal.Knowledge{}
		if s := w.cta.cluster.schedule; s != nil {
			r.past = slices.Clone(s.actors[s.acting].past)
		}
		races.follow(w, componentCopies, w.copies.issued)
		races.release(w, mask, r.gives)
		r.gives.Seen.Set(races.component(w, componentCopies), w.copies.issued)
	}
	w.queueCopy(r)
}

// completeCopy performs the copy of the given lanes. It ignores a record of an arrival.
func (w *warp) completeCopy(r *copyRecord, lanes uint32) {
	if r.arrive {
		return
	}
	cl, s := w.cta.cluster, w.cta.shared
	for l := range lanesIn(r.lanes & lanes) {
		dst := s.bytes[r.dst[l] : r.dst[l]+r.size]
		clear(dst)
		if n := r.bytes[l]; n > 0 {
			copy(dst, cl.globalBytes(r.src[l], uint64(n)))
		}
		s.markWritten(r.dst[l], r.size)
		if cl.grid.launch.StrictProxy {
			s.proxy.wrote(r.dst[l], r.size, w.id*warpLanes+l)
		} else {
			s.proxy.replaced(r.dst[l], r.size)
		}
	}
	if r.lanes&lanes != 0 {
		cl.progress()
	}
	r.lanes &^= lanes
}

// sweepCopies performs the deferred arrivals of lanes whose earlier copies are all complete, and
// removes finished records.
func (w *warp) sweepCopies() {
	before := uint32(0) // lanes whose copies in earlier records are still in flight
	kept := w.copies.recs[:0]
	for _, r := range w.copies.recs {
		if r.arrive {
			ready := r.lanes &^ before
			r.lanes &^= ready
			for l := range lanesIn(ready) {
				w.deferredArrive(r, l)
			}
		} else {
			before |= r.lanes
		}
		if r.lanes != 0 {
			kept = append(kept, r)
		} else {
			*r = copyRecord{}
			w.copies.free = append(w.copies.free, r)
		}
	}
	clear(w.copies.recs[len(kept):])
	w.copies.recs = kept
}

func (w *warp) deferredArrive(r *copyRecord, l int) {
	b, err := w.cta.shared.mbar.at(r.dst[l])
	if err == nil {
		phase := b.phase
		b.now = note(b.now, arrival{w, r.in})
		if r.gives != nil {
			b.sync.now.Join(r.gives)
		}
		_, err = b.arrive(1)
		w.cta.usesBarrier(mbarrierObject, uint64(r.dst[l]), toArrive, phase, b.phase != phase, nil)
		if b.phase != phase {
			w.cta.cluster.event()
		}
	}
	if err != nil {
		w.barrierError(r.in, l, r.dst[l], err)
	}
}

// copiesAtExit completes the warp's copies when its CTA has finished.
func (w *warp) copiesAtExit() {
	for _, r := range w.copies.recs {
		w.completeCopy(r, fullMask)
	}
	w.sweepCopies()
}
