package emu

import (
	"sync"
)

// global returns the size bytes at a global address. It is a fault if they are misaligned or not
// allocated.
func (w *warp) global(in *inst, l int, at, size uint64) []byte {
	if at%size != 0 {
		w.fault(in, Misaligned, 1<<l, "%d bytes at global address %#x, want a multiple of %d", size, at, size)
	}
	b := w.cta.cluster.globalBytes(at, size)
	if b == nil {
		w.fault(in, OutOfBounds, 1<<l, "%s: %s", in.form.Op, w.cta.cluster.grid.explain(at, size))
	}
	return b
}

// globalBytes returns the same as Memory.bytes. It remembers the allocation, so that the next call
// finds an address in it faster.
func (cl *cluster) globalBytes(at, n uint64) []byte {
	a := cl.last
	if a == nil || at < a.base || at >= a.end() {
		if a = cl.grid.mem.find(at); a == nil || at >= a.end() {
			return nil
		}
		cl.last = a
	}
	if n > a.end()-at {
		return nil
	}
	off := at - a.base
	return a.bytes[off : off+n : off+n]
}

// polls records that the warp executes an instruction with which a kernel may poll memory.
func (w *warp) polls(in *inst) { w.cta.cluster.polled, w.polled = true, in }

// locked returns the lock that the access must hold if the instruction synchronises CTAs, else nil.
func (w *warp) locked(in *inst, at uint64) *sync.Mutex {
	if !in.polls {
		return nil
	}
	w.polls(in)
	return w.cta.cluster.grid.mem.lock(at)
}

// whole returns the bytes of the one allocation that holds the addresses of all lanes of mask, and
// sets w.offsets to the lanes' offsets in it. It returns nil if the addresses lie in several
// allocations, if one lies outside every allocation, or if one is misaligned. The caller must then
// check lane by lane.
func (w *warp) whole(o *operand, mask uint32, size uint64) []byte {
	base := &w.r64[o.slot]
	a := w.cta.cluster.last
	if at := base[first(mask)] + uint64(o.imm); a == nil || at < a.base || at >= a.end() {
		if a = w.cta.cluster.grid.mem.find(at); a == nil {
			return nil
		}
	}
	bytes := a.bytes
	if uint64(len(bytes)) < size {
		return nil
	}
	last, by := uint64(len(bytes))-size, uint64(o.imm)-a.base
	bad := uint64(0)
	for l, at := range base {
		at += by
		w.offsets[l] = at
		if mask>>l&1 == 1 {
			if at > last {
				return nil
			}
			bad |= at // allocations are aligned to any access size, so the offset shows the address's alignment
		}
	}
	if bad&(size-1) != 0 {
		return nil
	}
	w.cta.cluster.last = a
	return bytes
}

// observeGlobal reports the lanes' accesses of n bytes to the race checks and to the counter of
// Launch.Report, if they are on.
func (w *warp) observeGlobal(in *inst, o *operand, mask uint32, n uint64, d direction) {
	if r := w.cta.cluster.races; r != nil {
		w.touchGlobals(in, o, mask, n, r.ordinary(w, in, d != reads))
	}
	if c := w.cta.cluster.counter; c != nil {
		c.global(w, in, o, mask, n, d)
	}
}

func loadGlobal(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a := &in.args[0], &in.args[1]
	list, size := d.list, int(in.size)
	n := uint64(size * len(list))
	if !in.constant {
		w.observeGlobal(in, a, mask, n, reads)
	}
	if !in.polls {
		w.cta.cluster.looked = true
		if mem := w.whole(a, mask, n); mem != nil {
			w.loadLanes(mem, d, size, mask)
			return next
		}
	}
	return w.eachGlobal(in, a, mask, n, true, func(l int, b []byte) {
		for i, s := range list {
			w.setElem(d, s, l, readWord(b[i*size:], size))
		}
	})
}

func storeGlobal(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, v := &in.args[0], &in.args[1]
	list, size := v.list, int(in.size)
	n := uint64(size * len(list))
	w.cta.cluster.progress()
	w.observeGlobal(in, a, mask, n, writes)
	if !in.polls {
		if mem := w.whole(a, mask, n); mem != nil {
			w.storeLanes(mem, v, size, mask)
			return next
		}
	}
	return w.eachGlobal(in, a, mask, n, false, func(l int, b []byte) {
		for i, s := range list {
			writeWord(b[i*size:], size, w.elem(v, s, l))
		}
	})
}

// eachGlobal checks and performs a load or store of n bytes, lane by lane. It holds a lock during
// each access if the instruction synchronises CTAs.
func (w *warp) eachGlobal(in *inst, o *operand, mask uint32, n uint64, loads bool, access func(l int, b []byte)) outcome {
	for l := range lanesIn(mask) {
		at := w.address64(o, l)
		b := w.global(in, l, at, n)
		mu := w.locked(in, at)
		if mu != nil {
			mu.Lock()
		}
		access(l, b)
		w.synchronise(in, l, at, loads, !loads)
		if mu != nil {
			mu.Unlock()
		}
	}
	return next
}

// synchronise records, for the race checks, a lane's access to global memory that may order others.
func (w *warp) synchronise(in *inst, l int, at uint64, loads, stores bool) {
	if r := w.cta.cluster.races; r != nil && in.strong() {
		g := r.cl.grid.races
		g.Lock()
		defer g.Unlock()
		r.synchronise(w, l, in, g.signals, at, loads, stores)
	}
}
