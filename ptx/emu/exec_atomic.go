package emu

import "sonicmoe/ptx/isa"

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
	if r := w.cta.cluster.races; r != nil {
		x := r.ordinary(w, in, true)
		x.atomic = true
		if w.touchLanes(in, a, mask, size, x) == failed {
			return failed
		}
	}
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		c, at, ok := w.sharedOf(in, isa.Shared, w.shared32(a, l), l)
		if !ok {
			return failed
		}
		if p := c.shared.checkRead(at, size, size); p != nil && w.deny(in, 1<<l, p) == failed {
			return failed
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
