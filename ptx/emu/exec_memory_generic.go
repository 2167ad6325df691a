package emu

import (
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// Bits of generic addresses. A generic address of global or constant memory equals the plain
// address. Addresses of shared memory and of a thread's local memory have one of these bits set,
// which no other address has.
const (
	sharedWindow = 1 << 56
	localWindow  = 1 << 57
	windowMask   = sharedWindow | localWindow
)

// windowOf returns the bits that turn an address in the given state space into a generic address.
func windowOf(space string) uint64 {
	switch space {
	case ".shared", ".shared::cta", ".shared::cluster":
		return sharedWindow
	case ".local":
		return localWindow
	}
	return 0
}

// narrowing describes an address operand of an instruction: the operand is a 64-bit register, but
// the instruction's handler needs a 32-bit one, whose slot is in field to.
type narrowing struct {
	arg  int
	from operand
	to   int32 // slot
}

// narrowed wraps an instruction's execution so that it first narrows the addresses to 32 bits.
func narrowed(in *inst) {
	exec := in.exec
	for i := range in.narrow {
		n := &in.narrow[i]
		in.args[n.arg].imm = n.from.imm
	}
	in.exec = func(w *warp, f *frag, in *inst, mask uint32) outcome {
		for i := range in.narrow {
			n := &in.narrow[i]
			from, to := &w.r64[n.from.slot], &w.r32[n.to]
			for l := range lanesIn(mask) {
				if from[l]>>32 != 0 {
					return w.fault(in, OutOfBounds, 1<<l, "%s: %#x is not an address in shared memory, which has 32 bits: want cvta.to.shared for a generic address", in.form.Op, from[l])
				}
				to[l] = uint32(from[l])
			}
		}
		return exec(w, f, in, mask)
	}
}

// spaceExecs holds the functions that execute one form of an instruction in each state space.
type spaceExecs struct{ global, shared, local execFunc }

// genericForms holds the variants of an instruction with a generic address for shared and for local
// memory. The inst that points to it is the variant for global memory.
type genericForms struct {
	arg           int
	shared, local inst
	slot          int32 // slot of the register that receives the 32-bit address in shared memory
}

// chooseSpace prepares an instruction with a generic address: when it executes, each lane's address
// selects the variant for its state space.
func (d *decoder) chooseSpace(in *inst, execs *spaceExecs) {
	g := &genericForms{slot: d.newSlot(bank32)}
	for i := range in.form.Args {
		if in.form.Args[i].Kind == isa.Addr {
			g.arg = i
		}
	}
	in.space = isa.Global
	derive := func(space isa.Space, exec execFunc) inst {
		other := *in
		other.space, other.exec = space, exec
		other.args = append([]operand(nil), in.args...)
		return other
	}
	global := derive(isa.Global, execs.global)
	g.shared, g.local = derive(isa.SharedCluster, execs.shared), derive(isa.Local, execs.local)
	g.shared.args[g.arg] = operand{bank: bank32, slot: g.slot, list: []int32{g.slot}}
	for _, x := range []*inst{&global, &g.shared, &g.local} {
		d.extendLoaded(x)
	}
	in.generic = g
	in.exec = func(w *warp, f *frag, in *inst, mask uint32) outcome {
		var shared, local uint32
		for l := range lanesIn(mask) {
			switch at := w.address64(&in.args[g.arg], l); at & windowMask {
			case sharedWindow:
				shared |= 1 << l
				w.r32[g.slot][l] = uint32(at)
			case localWindow:
				local |= 1 << l
			}
		}
		out := next
		if rest := mask &^ shared &^ local; rest != 0 {
			out = global.exec(w, f, &global, rest)
		}
		if shared != 0 && out == next {
			out = g.shared.exec(w, f, &g.shared, shared)
		}
		if local != 0 && out == next {
			if g.local.exec == nil {
				return w.fault(in, OutOfBounds, local, "%s of a thread's local memory is not possible", in.form.Op)
			}
			out = g.local.exec(w, f, &g.local, local)
		}
		return out
	}
}

// extendLoaded makes a load of a signed type sign-extend the value to the width of a wider
// register.
func (d *decoder) extendLoaded(in *inst) {
	if len(in.args) == 0 || len(in.form.Args) == 0 || !in.form.Args[0].Wider || in.form.Args[0].Dir != isa.Out || !in.typ.Signed() ||
		in.form.ModIndex("type") < 0 || in.typ.Bits() >= 32 && in.args[0].bank == bank32 || in.typ.Bits() == 64 {
		return
	}
	exec, t := in.exec, arith.Int{Bits: uint(in.typ.Bits()), Signed: true}
	in.exec = func(w *warp, f *frag, in *inst, mask uint32) outcome {
		out := exec(w, f, in, mask)
		if out != next {
			return out
		}
		d := &in.args[0]
		for _, s := range d.list {
			for l := range lanesIn(mask) {
				w.setElem(d, s, l, t.Extend(w.elem(d, s, l)))
			}
		}
		return next
	}
}

// ownMemory returns n bytes of lane l's local memory. The address of operand o may be generic.
func (w *warp) ownMemory(in *inst, o *operand, l int, n uint64) []byte {
	at := w.address64(o, l) &^ localWindow
	size := uint64(w.ownBytes)
	if at > size || n > size-at {
		w.fault(in, OutOfBounds, 1<<l, "%s: %d bytes at %#x of the thread's local memory, which has %d bytes", in.form.Op, n, at, size)
	}
	if at%n != 0 {
		w.fault(in, Misaligned, 1<<l, "%d bytes at %#x of the thread's local memory, want a multiple of %d", n, at, n)
	}
	at += uint64(l) * size
	return w.local[at : at+n]
}

func loadLocal(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, size := &in.args[0], int(in.size)
	for l := range lanesIn(mask) {
		b := w.ownMemory(in, &in.args[1], l, uint64(size*len(d.list)))
		for i, s := range d.list {
			w.setElem(d, s, l, readWord(b[i*size:], size))
		}
	}
	return next
}

func storeLocal(w *warp, _ *frag, in *inst, mask uint32) outcome {
	v, size := &in.args[1], int(in.size)
	for l := range lanesIn(mask) {
		b := w.ownMemory(in, &in.args[0], l, uint64(size*len(v.list)))
		for i, s := range v.list {
			writeWord(b[i*size:], size, w.elem(v, s, l))
		}
	}
	return next
}

// inSpace returns a handler that executes the variant for the state space that the instruction's
// modifier names.
func inSpace(e *spaceExecs, polls bool) handler {
	return handler{exec: e.global, spaces: e, prepare: func(in *inst) {
		in.polls = polls
		switch {
		case inSharedSpace(in.space):
			in.exec = e.shared
		case in.space == isa.Local:
			in.exec = e.local
		}
	}}
}

func spaceForms() handlers {
	loads := &spaceExecs{loadGlobal, loadShared, loadLocal}
	stores := &spaceExecs{storeGlobal, storeShared, storeLocal}
	atomics := &spaceExecs{atomic32or64, atomicShared, nil}
	nothing := handler{exec: func(*warp, *frag, *inst, uint32) outcome { return next }}
	atomic := inSpace(atomics, false)
	choose := atomic.prepare
	atomic.prepare = func(in *inst) {
		prepareAtomic(in)
		choose(in)
	}
	forms := handlers{
		isa.Ld: inSpace(loads, false), isa.LdLocal: {exec: loadLocal}, isa.LdConst: {exec: loadGlobal, prepare: func(in *inst) { in.constant = true }}, isa.LdSharedCTA: {exec: loadShared},
		isa.LdVolatile: inSpace(loads, true), isa.LdSync: inSpace(loads, true), isa.LdPolicy: {exec: loadGlobal, prepare: prepareCached},
		isa.St: inSpace(stores, false), isa.StLocal: {exec: storeLocal}, isa.StSharedCTA: {exec: storeShared}, isa.StSharedCluster: {exec: storeShared},
		isa.StVolatile: inSpace(stores, true), isa.StSync: inSpace(stores, true), isa.StPolicy: {exec: storeGlobal},
		isa.CreatePolicy: lanewise(func(*inst) laneFunc { return func([4]uint64) uint64 { return 0 } }),
		isa.Prefetch:     nothing,
		isa.Membar:       {do: fence}, isa.FenceSC: {do: fence}, isa.FenceCluster: {do: fence},
		isa.MapaGeneric: {do: mapGeneric},
		isa.Cvta: lanewise(func(in *inst) laneFunc {
			at := windowOf(in.mod("space"))
			return func(v [4]uint64) uint64 { return v[0] | at }
		}),
		isa.CvtaTo: lanewise(func(in *inst) laneFunc {
			at := windowOf(in.mod("space"))
			return func(v [4]uint64) uint64 { return v[0] &^ at }
		}),
		isa.Isspacep: {do: isInSpace}, isa.IsspacepCluster: {do: isInSpace},
	}
	forms.same(atomic, isa.Atom, isa.AtomCas, isa.Red)
	forms.same(atomic, isa.AtomHalves, isa.AtomBrains, isa.AtomVector, isa.RedHalves, isa.RedBrains, isa.RedVector)
	return forms
}

// isInSpace executes isspacep. Addresses in other CTAs' shared memory count as .shared::cluster,
// not as .shared::cta.
func isInSpace(w *warp, in *inst, mask uint32) {
	space := in.mod("space")
	if in.form.ID == isa.IsspacepCluster {
		space = ".shared::cluster"
	}
	p, window := uint32(0), windowOf(space)
	for l := range lanesIn(mask) {
		at := w.r64[in.slot[1]][l]
		other := window == sharedWindow && space != ".shared::cluster" && int(uint32(at)>>sharedRankBit) != w.cta.rank
		if at&windowMask == window && !other {
			p |= 1 << l
		}
	}
	w.setPred(in.slot[0], p, mask)
}

// mapGeneric executes mapa on a generic address.
func mapGeneric(w *warp, in *inst, mask uint32) {
	ctas := len(w.cta.cluster.ctas)
	for l := range lanesIn(mask) {
		at, rank := w.r64[in.slot[1]][l], w.r32[in.slot[2]][l]
		if at&windowMask != sharedWindow {
			w.fault(in, OutOfBounds, 1<<l, "mapa of %#x, which is not a generic address of shared memory", at)
		}
		if rank >= uint32(ctas) {
			w.fault(in, OutOfBounds, 1<<l, "mapa to rank %d, but the cluster has %d CTAs", rank, ctas)
		}
		w.r64[in.slot[0]][l] = sharedWindow | at&sharedOffset | uint64(rank)<<sharedRankBit
	}
}
