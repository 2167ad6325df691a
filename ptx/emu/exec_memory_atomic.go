package emu

import (
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// prepareAtomic selects the operation; both widths compute in 64 bits.
func prepareAtomic(in *inst) {
	in.atomic = true
	cut := arith.Int{Bits: uint(in.typ.Bits())}
	if in.has(".cas") {
		in.op64 = func(old, v, swap uint64) uint64 {
			if old == cut.Extend(v) {
				return cut.Extend(swap)
			}
			return old
		}
		return
	}
	if t := in.typ; in.has(".add") && t.Float() {
		in.op64 = func(old, v, _ uint64) uint64 {
			f := arith.FormatOf(t)
			return f.Encode(f.Compute(arith.OpAdd, arith.RoundNearest, arith.FloatOf(t, old), arith.FloatOf(t, v), 0))
		}
		return
	}
	less := arith.IntOf(in.typ).Less
	op := map[string]func(old, v uint64) uint64{
		".add": func(old, v uint64) uint64 { return old + v }, ".min": func(old, v uint64) uint64 {
			if less(v, old) {
				return v
			}
			return old
		},
		".max": func(old, v uint64) uint64 {
			if less(old, v) {
				return v
			}
			return old
		}, ".and": func(old, v uint64) uint64 { return old & v },
		".or": func(old, v uint64) uint64 { return old | v }, ".xor": func(old, v uint64) uint64 { return old ^ v },
		".exch": func(_, v uint64) uint64 { return v },
		".inc": func(old, v uint64) uint64 {
			if old >= v {
				return 0
			}
			return old + 1
		},
		".dec": func(old, v uint64) uint64 {
			if old == 0 || old > v {
				return v
			}
			return old - 1
		},
	}[in.mod("op")]
	in.op64 = func(old, v, _ uint64) uint64 { return cut.Extend(op(old, v)) }
}

// atomicArgs returns the address, the value and, for atom, the result. swap is the new value of
// cas, otherwise the value.
func atomicArgs(in *inst) (a, v, swap, d *operand) {
	args := in.args
	if in.form.Args[0].Dir == isa.Out {
		d, args = &args[0], args[1:]
	}
	return &args[0], &args[1], &args[len(args)-1], d
}

func atomic32or64(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, v, swap, d := atomicArgs(in)
	size := int(in.size)
	w.cta.cluster.polled = true
	w.observeGlobal(in, a, mask, uint64(size), readsAndWrites)
	for l := range lanesIn(mask) {
		at := w.address64(a, l)
		b := w.global(in, l, at, uint64(size))
		mu := w.cta.cluster.grid.mem.lock(at)
		mu.Lock()
		old := readWord(b, size)
		now := in.op64(old, w.elem(v, v.slot, l), w.elem(swap, swap.slot, l))
		writeWord(b, size, now)
		w.cta.cluster.changedWord(at, old, now)
		w.synchronise(in, l, at, true, true)
		mu.Unlock()
		if d != nil {
			w.setElem(d, d.slot, l, old)
		}
	}
	return next
}

func atomicShared(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, v, swap, d := atomicArgs(in)
	size := uint32(in.size)
	w.observeShared(in, a, mask, size, readsAndWrites)
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, in.space, w.shared32(a, l), l)
		w.deny(in, 1<<l, c.shared.checkRead(at, size, size))
		b := c.shared.bytes[at:]
		old := readWord(b, int(size))
		now := in.op64(old, w.elem(v, v.slot, l), w.elem(swap, swap.slot, l))
		writeWord(b, int(size), now)
		w.cta.cluster.changedWord(uint64(c.rank)<<sharedRankBit|uint64(at), old, now)
		c.shared.proxy.wrote(at, size, w.id*warpLanes+l)
		if d != nil {
			w.setElem(d, d.slot, l, old)
		}
	}
	return next
}
