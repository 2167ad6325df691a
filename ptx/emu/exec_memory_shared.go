package emu

import "sonicmoe/ptx/isa"

// sharedOf returns the CTA whose shared memory an address names, and the offset in it. The CTA may
// be another one of the cluster only for an operand in .shared::cluster.
func (w *warp) sharedOf(in *inst, space isa.Space, address uint32, l int) (*cta, uint32) {
	rank, c := int(address>>sharedRankBit), w.cta
	if rank == c.rank {
		return c, address & sharedOffset
	}
	if rank >= len(c.cluster.ctas) {
		w.fault(in, OutOfBounds, 1<<l, "shared address %#x names CTA %d, but the cluster has %d CTAs", address, rank, len(c.cluster.ctas))
	}
	if space != isa.SharedCluster {
		w.fault(in, OutOfBounds, 1<<l, "shared address %#x is in CTA %d of the cluster, but this is CTA %d: %s only accepts addresses of its own CTA",
			address, rank, c.rank, in.form.Op)
	}
	c = c.cluster.ctas[rank]
	c.usesBarrier(ctaLife, 0, toRead, 0, false, nil)
	if c.exited() {
		w.fault(in, OutOfBounds, 1<<l, "shared address %#x: CTA %d of the cluster has exited", address, rank)
	}
	if r := c.cluster.races; r != nil {
		r.mustHaveStarted(w, in, l, c)
	}
	return c, address & sharedOffset
}

func (c *cta) exited() bool {
	for _, w := range c.warps {
		if w.live != 0 {
			return false
		}
	}
	return true
}

// own reports whether all lanes of mask access only their own CTA's shared memory, aligned, in
// bounds and outside mbarriers. If so, it sets w.offsets. Otherwise the caller must check lane by
// lane. reads also demands that the bytes have been written before.
func (w *warp) own(o *operand, mask, size uint32, reads bool) bool {
	s := w.cta.shared
	base := &w.r32[o.slot]
	by := uint32(o.imm) - uint32(w.cta.rank)<<sharedRankBit
	last := uint32(len(s.bytes)) - size
	bits := uint64(1)<<size - 1
	guard, live := uint64(1)<<((size+7)/8)-1, len(s.mbar) > 0
	for m := mask; m != 0; m &= m - 1 { // a loop over lanesIn is slower in a function that returns from the loop
		l := first(m)
		at := base[l] + by
		if at < s.start || at > last || at&(size-1) != 0 {
			return false
		}
		if reads && s.written[at>>6]>>(at&63)&bits != bits {
			return false
		}
		if live && s.barriers[at>>9]>>(at>>3&63)&guard != 0 {
			return false
		}
		w.offsets[l] = uint64(at)
	}
	return true
}

// touchLanes looks for races of the lanes' accesses of n bytes. It also records what strong
// accesses order.
func (w *warp) touchLanes(in *inst, o *operand, mask, n uint32, a *access) {
	r := w.cta.cluster.races
	r.start(mask)
	for m := mask; m != 0; m &^= r.by {
		l := first(m)
		address := w.shared32(o, l)
		c, at := w.sharedOf(in, in.space, address, l)
		r.by = 1 << l
		if !a.strong {
			r.by = run(m, func(l int) bool { return w.shared32(o, l) == address })
		}
		w.deny(in, r.by, r.touch(a, c, at, n))
		if a.strong {
			r.synchronise(w, l, in, r.signals, uint64(c.rank)<<sharedRankBit|uint64(at), !a.writes || in.atomic, a.writes)
		}
	}
}

// observeShared reports the lanes' accesses of n bytes to the race checks and to the counter of
// Launch.Report, if they are on.
func (w *warp) observeShared(in *inst, o *operand, mask, n uint32, d direction) {
	if r := w.cta.cluster.races; r != nil {
		w.touchLanes(in, o, mask, n, r.ordinary(w, in, d != reads))
	}
	if c := w.cta.cluster.counter; c != nil {
		c.shared(w, in, o, mask, n, d)
	}
}

func loadShared(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a := &in.args[0], &in.args[1]
	list := d.list
	size := uint32(in.size)
	n := size * uint32(len(list))
	w.observeShared(in, a, mask, n, reads)
	if w.own(a, mask, n, true) {
		w.loadLanes(w.cta.shared.bytes, d, int(size), mask)
		return next
	}
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, in.space, w.shared32(a, l), l)
		w.deny(in, 1<<l, c.shared.checkRead(at, n, n))
		for i, s := range list {
			w.setElem(d, s, l, readWord(c.shared.bytes[at+uint32(i)*size:], int(size)))
		}
	}
	return next
}

func storeShared(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, v := &in.args[0], &in.args[1]
	list := v.list
	size := uint32(in.size)
	n := size * uint32(len(list))
	w.cta.cluster.progress()
	w.observeShared(in, a, mask, n, writes)
	if w.own(a, mask, n, false) {
		s := w.cta.shared
		w.storeLanes(s.bytes, v, int(size), mask)
		bits := uint64(1)<<n - 1
		for l := range lanesIn(mask) {
			at := w.offsets[l]
			s.written[at>>6] |= bits << (at & 63)
		}
		if s.proxy.on {
			for l := range lanesIn(mask) {
				s.proxy.wrote(uint32(w.offsets[l]), n, w.id*warpLanes+l)
			}
		}
		return next
	}
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, in.space, w.shared32(a, l), l)
		w.deny(in, 1<<l, c.shared.check(at, n, n))
		for i, s := range list {
			writeWord(c.shared.bytes[at+uint32(i)*size:], int(size), w.elem(v, s, l))
		}
		c.shared.markWritten(at, n)
		c.shared.proxy.wrote(at, n, w.id*warpLanes+l)
	}
	return next
}
