package emu

import (
	"sync"

	"sonicmoe/ptx/isa"
)

func memoryForms() map[isa.ID]handler {
	polling := func(exec execFunc) handler {
		return handler{exec: exec, prepare: func(in *inst) { in.polls = true }}
	}
	return map[isa.ID]handler{
		isa.LdParam:         {exec: loadParam},
		isa.LdGlobal:        {exec: loadGlobal},
		isa.LdGlobalSync:    polling(loadGlobal),
		isa.StGlobal:        {exec: storeGlobal},
		isa.StGlobalSync:    polling(storeGlobal),
		isa.LdShared:        {exec: loadShared},
		isa.LdSharedCluster: {exec: loadShared},
		isa.StShared:        {exec: storeShared},
		isa.AtomGlobal:      {exec: atomic32or64, prepare: prepareAtomic},
		isa.RedGlobal:       {exec: atomic32or64, prepare: prepareAtomic},
		isa.AtomShared:      {exec: atomicShared, prepare: prepareAtomic},
		isa.RedShared:       {exec: atomicShared, prepare: prepareAtomic},
	}
}

func loadParam(w *warp, _ *frag, in *inst, mask uint32) outcome {
	params := w.cta.cluster.grid.params
	a := &in.args[1]
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		at, size := w.address64(a, l), uint64(in.size)
		if at%size != 0 {
			return w.fault(in, Misaligned, 1<<l, "%d bytes at parameter offset %d: must be a multiple of %d", size, at, size)
		}
		if at+size > uint64(len(params)) || at+size < at {
			return w.fault(in, OutOfBounds, 1<<l, "%d bytes at parameter offset %d of %d", size, at, len(params))
		}
		w.setElem(&in.args[0], in.slot[0], l, readWord(params[at:], int(size)))
	}
	return next
}

func (w *warp) setElem(o *operand, slot int32, l int, v uint64) {
	if o.bank == bank64 {
		w.r64[slot][l] = v
	} else {
		w.r32[slot][l] = uint32(v)
	}
}

func (w *warp) elem(o *operand, slot int32, l int) uint64 {
	if o.bank == bank64 {
		return w.r64[slot][l]
	}
	return uint64(w.r32[slot][l])
}

// global gives the bytes behind a global address, checked.
func (w *warp) global(in *inst, l int, at, size uint64) []byte {
	if at%size != 0 {
		w.fault(in, Misaligned, 1<<l, "%d bytes at global address %#x: must be a multiple of %d", size, at, size)
		return nil
	}
	b := w.cta.cluster.globalBytes(at, size)
	if b == nil {
		w.fault(in, OutOfBounds, 1<<l, "%s: %s", in.form.Op, w.cta.cluster.grid.mem.explain(at, size))
	}
	return b
}

// globalBytes is Memory.bytes with a memory of the latest allocation.
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

// locked is the lock for an access that synchronises CTAs, or nil.
func (w *warp) locked(in *inst, at uint64) *sync.Mutex {
	if !in.polls {
		return nil
	}
	w.cta.cluster.polled = true
	return w.cta.cluster.grid.mem.lock(at)
}

func loadGlobal(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a := &in.args[0], &in.args[1]
	list := d.list
	size := int(in.size)
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		at := w.address64(a, l)
		b := w.global(in, l, at, uint64(size*len(list)))
		if b == nil {
			return failed
		}
		if mu := w.locked(in, at); mu != nil {
			mu.Lock()
			w.setElem(d, list[0], l, readWord(b, size))
			mu.Unlock()
			continue
		}
		for i, s := range list {
			w.setElem(d, s, l, readWord(b[i*size:], size))
		}
	}
	return next
}

func storeGlobal(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, v := &in.args[0], &in.args[1]
	list := v.list
	size := int(in.size)
	w.cta.cluster.progress()
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		at := w.address64(a, l)
		b := w.global(in, l, at, uint64(size*len(list)))
		if b == nil {
			return failed
		}
		if mu := w.locked(in, at); mu != nil {
			mu.Lock()
			writeWord(b, size, w.elem(v, list[0], l))
			mu.Unlock()
			continue
		}
		for i, s := range list {
			writeWord(b[i*size:], size, w.elem(v, s, l))
		}
	}
	return next
}

// sharedOf finds the CTA of a shared address. Only operands of the cluster's
// window may name another one.
func (w *warp) sharedOf(in *inst, space isa.Space, address uint32, l int) (*cta, uint32, bool) {
	rank, c := int(address>>sharedRankBit), w.cta
	if rank == c.rank {
		return c, address & sharedOffset, true
	}
	if rank >= len(c.cluster.ctas) {
		w.fault(in, OutOfBounds, 1<<l, "shared address %#x names CTA %d of a cluster of %d", address, rank, len(c.cluster.ctas))
		return nil, 0, false
	}
	if space != isa.SharedCluster {
		w.fault(in, OutOfBounds, 1<<l, "shared address %#x is in CTA %d of the cluster, this one is CTA %d: %s takes its own CTA's only",
			address, rank, c.rank, in.form.Op)
		return nil, 0, false
	}
	c = c.cluster.ctas[rank]
	if c.exited() {
		w.fault(in, OutOfBounds, 1<<l, "shared address %#x: CTA %d of the cluster has exited", address, rank)
		return nil, 0, false
	}
	return c, address & sharedOffset, true
}

func (c *cta) exited() bool {
	for _, w := range c.warps {
		if w.live != 0 {
			return false
		}
	}
	return true
}

func loadShared(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a := &in.args[0], &in.args[1]
	list := d.list
	size := uint32(in.size)
	n := size * uint32(len(list))
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		c, at, ok := w.sharedOf(in, in.form.Args[1].Space, w.shared32(a, l), l)
		if !ok {
			return failed
		}
		if p := c.shared.checkRead(at, n, n); p != nil {
			return w.deny(in, 1<<l, p)
		}
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
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		c, at, ok := w.sharedOf(in, in.form.Args[0].Space, w.shared32(a, l), l)
		if !ok {
			return failed
		}
		if p := c.shared.check(at, n, n); p != nil {
			return w.deny(in, 1<<l, p)
		}
		for i, s := range list {
			writeWord(c.shared.bytes[at+uint32(i)*size:], int(size), w.elem(v, s, l))
		}
		c.shared.markWritten(at, n)
		c.shared.proxy.wrote(at, n, w.id*warpLanes+l)
	}
	return next
}

// prepareAtomic chooses the operation; both widths compute in 64 bits.
func prepareAtomic(in *inst) {
	cut := intType{bits: uint(in.typ.Bits())}
	op := map[string]func(old, v uint64) uint64{
		".add": func(old, v uint64) uint64 { return old + v }, ".min": func(old, v uint64) uint64 { return min(old, v) },
		".max": func(old, v uint64) uint64 { return max(old, v) }, ".and": func(old, v uint64) uint64 { return old & v },
		".or": func(old, v uint64) uint64 { return old | v }, ".xor": func(old, v uint64) uint64 { return old ^ v },
		".exch": func(_, v uint64) uint64 { return v },
		".inc": func(old, v uint64) uint64 {
			if old >= v {
				return 0
			}
			return old + 1
		},
	}[in.mod("op")]
	in.op64 = func(old, v, _ uint64) uint64 { return cut.extend(op(old, v)) }
}

// atomicArgs are the address, the value and, for atom, the result.
func atomicArgs(in *inst) (a, v, d *operand) {
	if len(in.args) == 3 {
		return &in.args[1], &in.args[2], &in.args[0]
	}
	return &in.args[0], &in.args[1], nil
}

func atomic32or64(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, v, d := atomicArgs(in)
	size := int(in.size)
	w.cta.cluster.polled = true
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		at := w.address64(a, l)
		b := w.global(in, l, at, uint64(size))
		if b == nil {
			return failed
		}
		mu := w.cta.cluster.grid.mem.lock(at)
		mu.Lock()
		old := readWord(b, size)
		writeWord(b, size, in.op64(old, w.elem(v, v.slot, l), 0))
		mu.Unlock()
		if d != nil {
			w.setElem(d, d.slot, l, old)
		}
	}
	return next
}

func atomicShared(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, v, d := atomicArgs(in)
	size := uint32(in.size)
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		c, at, ok := w.sharedOf(in, isa.Shared, w.shared32(a, l), l)
		if !ok {
			return failed
		}
		if p := c.shared.checkRead(at, size, size); p != nil {
			return w.deny(in, 1<<l, p)
		}
		b := c.shared.bytes[at:]
		old := readWord(b, int(size))
		writeWord(b, int(size), in.op64(old, w.elem(v, v.slot, l), 0))
		c.shared.proxy.wrote(at, size, w.id*warpLanes+l)
		if d != nil {
			w.setElem(d, d.slot, l, old)
		}
	}
	return next
}
