package emu

import (
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// prepareAtomic selects the operation. It computes in 64 bits for both widths.
func prepareAtomic(in *inst) {
	in.atomic = true
	if !in.has(".cas") {
		change := reduction(in.mod("op"), in.typ)
		in.op64 = func(old, v, _ uint64) uint64 { return change(old, v) }
		return
	}
	cut := arith.Int{Bits: uint(in.typ.Bits())}
	in.op64 = func(old, v, swap uint64) uint64 {
		if old == cut.Extend(v) {
			return cut.Extend(swap)
		}
		return old
	}
}

// reduction returns the operation that an atomic applies to memory. It returns nil if the emulator
// does not know it; floats have only sums.
func reduction(op string, t isa.Type) func(old, v uint64) uint64 {
	if pair, ok := map[isa.Type]isa.Type{isa.F16x2: isa.F16, isa.BF16x2: isa.BF16}[t]; ok {
		add := reduction(op, pair)
		return func(old, v uint64) uint64 { return add(old&0xffff, v&0xffff) | add(old>>16, v>>16)<<16 }
	}
	if t.Float() {
		if op == ".min" || op == ".max" {
			return nil
		}
		f := arith.FormatOf(t)
		return func(old, v uint64) uint64 {
			return f.Encode(f.Compute(arith.OpAdd, arith.RoundNearest, arith.FloatOf(t, old), arith.FloatOf(t, v), 0))
		}
	}
	cut, less := arith.Int{Bits: uint(t.Bits())}, arith.IntOf(t).Less
	of := map[string]func(old, v uint64) uint64{
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
	}[op]
	return func(old, v uint64) uint64 { return cut.Extend(of(old, v)) }
}

// atomicArgs returns the operands of an atomic: the address, the value and, for atom, the result d.
// swap is the new value of cas; for other operations it is the value again.
func atomicArgs(in *inst) (a, v, swap, d *operand) {
	args := in.args
	if in.form.Args[0].Dir == isa.Out {
		d, args = &args[0], args[1:]
	}
	return &args[0], &args[1], &args[len(args)-1], d
}

func atomic32or64(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, v, swap, d := atomicArgs(in)
	size := uint64(in.size)
	n := size * uint64(len(v.list))
	w.polls(in)
	w.observeGlobal(in, a, mask, n, readsAndWrites)
	for l := range lanesIn(mask) {
		at := w.address64(a, l)
		b := w.global(in, l, at, n)
		mu := w.cta.cluster.grid.mem.lock(at)
		mu.Lock()
		for i := range v.list {
			w.changeWord(in, l, i, b, at, v, swap, d)
			w.synchronise(in, l, at+uint64(i)*size, true, true)
		}
		mu.Unlock()
	}
	return next
}

func atomicShared(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, v, swap, d := atomicArgs(in)
	n := uint32(in.size) * uint32(len(v.list))
	w.observeShared(in, a, mask, n, readsAndWrites)
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, in.space, w.shared32(a, l), l)
		w.deny(in, 1<<l, c.shared.checkRead(at, n, n))
		for i := range v.list {
			w.changeWord(in, l, i, c.shared.bytes[at:], uint64(c.rank)<<sharedRankBit|uint64(at), v, swap, d)
		}
		c.shared.proxy.wrote(at, n, w.id*warpLanes+l)
	}
	return next
}

// changeWord performs one lane's atomic operation on element i of a vector. memory begins with
// element 0.
func (w *warp) changeWord(in *inst, l, i int, memory []byte, at uint64, v, swap, d *operand) {
	size := int(in.size)
	b := memory[i*size:]
	old := readWord(b, size)
	now := in.op64(old, w.elem(v, v.list[i], l), w.elem(swap, swap.list[i], l))
	writeWord(b, size, now)
	w.cta.cluster.changedWord(at+uint64(i*size), old, now)
	if d != nil {
		w.setElem(d, d.list[i], l, old)
	}
}
