package emu

import "sonicmoe/ptx/isa"

// tmaMulticast loads one box into several CTAs of the cluster. In each CTA it writes to the same
// offset, and signals the mbarrier at the same offset.
func tmaMulticast(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, isa.Shared, w.shared32(&in.args[0], l), l)
		tensor, coords := w.box(in, &in.args[1], l, at, false)
		bar := w.shared32(&in.args[2], l) & sharedOffset
		ctas := w.r32[in.slot[3]][l] & 0xffff
		if ctas == 0 || int(ctas)>>len(c.cluster.ctas) != 0 {
			w.fault(in, OutOfBounds, 1<<l, "%s: CTA mask is %#x, want some of the %d CTAs of the cluster", in.form.Op, ctas, len(c.cluster.ctas))
		}
		for rank, to := range c.cluster.ctas {
			if ctas>>rank&1 == 0 {
				continue
			}
			to.usesBarrier(ctaLife, 0, toRead, 0, false, nil)
			if to.exited() {
				w.fault(in, OutOfBounds, 1<<l, "%s: CTA %d of the cluster has exited", in.form.Op, rank)
			}
			if r := w.cta.cluster.races; r != nil && to != w.cta {
				r.mustHaveStarted(w, in, l, to)
			}
			b := &bulkLoad{warp: w, in: in, lane: l, to: to, dst: at, size: tensor.BoxBytes(), tensor: tensor, coords: coords, again: ctas&(1<<rank-1) != 0}
			w.startLoad(b, uint32(rank)<<sharedRankBit|bar)
		}
	}
}

// bulkCopyExec copies from the CTA's own shared memory to the shared memory of a CTA of the
// cluster.
func bulkCopyExec(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		to, dst := w.sharedOf(in, isa.SharedCluster, w.shared32(&in.args[0], l), l)
		from, src := w.sharedOf(in, isa.Shared, w.shared32(&in.args[1], l), l)
		b := &bulkLoad{warp: w, in: in, lane: l, to: to, dst: dst, from: from, src: uint64(src), size: w.r32[in.slot[2]][l]}
		if b.size%16 != 0 || b.src%16 != 0 || b.dst%16 != 0 {
			w.fault(in, Misaligned, 1<<l, "bulk copy of %d bytes from shared %#x to shared %#x, want multiples of 16 in all three", b.size, b.src, b.dst)
		}
		w.deny(in, 1<<l, from.shared.checkRead(src, b.size, 16))
		w.deny(in, 1<<l, from.shared.proxy.check("reads", src, b.size, w.latestFence(1<<l)))
		w.startLoad(b, w.shared32(&in.args[3], l))
	}
}

// tmaPrefetch only checks its operands: the emulator has no cache.
func tmaPrefetch(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		w.box(in, &in.args[0], l, 0, false)
	}
}

// bulkPrefetch only checks its operands: the emulator has no cache.
func bulkPrefetch(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		if at, n := w.address64(&in.args[0], l), uint64(w.r32[in.slot[1]][l]); at%16 != 0 || n%16 != 0 {
			w.fault(in, Misaligned, 1<<l, "%s of %d bytes at %#x, want multiples of 16 in both", in.form.Op, n, at)
		} else if n > 0 && w.cta.cluster.globalBytes(at, n) == nil {
			w.fault(in, OutOfBounds, 1<<l, "%s: %s", in.form.Op, w.cta.cluster.grid.explain(at, n))
		}
	}
}

// storeAsync executes st.async and red.async: they write registers to shared memory of a CTA of the
// cluster, and complete their bytes at an mbarrier of that CTA.
func storeAsync(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		to, dst := w.sharedOf(in, isa.SharedCluster, w.shared32(&in.args[0], l), l)
		v, size := &in.args[1], int(in.size)
		b := &bulkLoad{warp: w, in: in, lane: l, to: to, dst: dst, size: uint32(size * len(v.list)), data: make([]byte, size*len(v.list))}
		for i, slot := range v.list {
			writeWord(b.data[i*size:], size, w.elem(v, slot, l))
		}
		w.startLoad(b, w.shared32(&in.args[2], l))
	}
}
