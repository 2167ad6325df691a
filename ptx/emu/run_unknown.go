package emu

import (
	"strings"

	"sonicmoe/ptx/isa"
)

// Compilers read registers that some lanes have not written, and do not use what comes of them:
// Triton's reductions shuffle a register that a guarded load wrote. An instruction that only
// computes therefore passes the lack of a value on to its result. The fault is at the first
// instruction that needs the value: a store, an address, a guard, a barrier. A register that no
// instruction writes is a fault where it is read.

// computes reports whether an instruction has no effect but its results, each of which depends on
// the sources of the same lane, or for a shuffle on the source of another lane.
func (in *inst) computes() bool {
	f := in.form
	shuffles := f.ID == isa.ShflSync || f.ID == isa.ShflSyncPred
	if f.Effects&^isa.Varies != 0 || in.meets || strings.Contains(f.Op, ".sync") && !shuffles {
		return false
	}
	for i := range f.Args {
		switch f.Args[i].Kind {
		case isa.Addr, isa.TensorAddr, isa.Label:
			return false
		}
	}
	return len(f.Args) > 0 && f.Args[0].Dir == isa.Out
}

// passes reports whether the instruction's results may lack values, when the slots in have hold
// some.
func (a *definedness) passes(in *inst, have []uint64) bool {
	lacks := false
	for b := range in.use {
		for _, s := range in.use[b] {
			if a.has(have, bank(b), s) {
				continue
			}
			if lacks = a.has(a.some, bank(b), s); !lacks {
				return false
			}
		}
	}
	return lacks && in.computes()
}

// origin is the read that made the value of a register unknown.
type origin struct {
	register string
	in       *inst
}

// unknown returns the lanes of mask whose results will lack values. It checks the instruction's
// reads and reports the lack of a value that the instruction needs.
func (w *warp) unknown(in *inst, mask uint32) (lanes uint32) {
	for _, r := range in.checks {
		bad := mask &^ w.ok[r.bank][r.slot] &^ in.unread(r)
		switch {
		case bad == 0:
		case in.passes && in.form.ID != isa.ShflSync && in.form.ID != isa.ShflSyncPred:
			lanes |= bad
			w.mark(in, r)
		case in.passes && r.bank == bank32 && r.slot == in.slot[1]:
			for l := range lanesIn(mask) {
				if j, _ := shuffleSource(in.mod("mode"), l, w.r32[in.slot[2]][l], w.r32[in.slot[3]][l]); bad>>j&1 != 0 {
					lanes |= 1 << l
				}
			}
			w.mark(in, r)
		default:
			w.lacks(in, r, bad, w.slotName(r.bank, r.slot)+" is read by "+in.form.Op)
		}
	}
	return lanes
}

// lacks reports that an instruction needs a value that some lanes lack. read is the text of the read.
func (w *warp) lacks(in *inst, r slotRef, lanes uint32, read string) {
	if o, ok := w.origins[r]; ok {
		w.fault(in, UninitializedRegister, lanes, "%s, but depends on %s, which %s (%s) read before it was written", read, o.register, o.in.form.Op, w.cta.cluster.place(o.in))
	}
	w.fault(in, UninitializedRegister, lanes, "%s but was never written", read)
}

// mark remembers where the value that the instruction's results lack was read first.
func (w *warp) mark(in *inst, r slotRef) {
	from, ok := w.origins[r]
	if !ok {
		from = origin{w.slotName(r.bank, r.slot), in}
	}
	if w.origins == nil {
		w.origins = map[slotRef]origin{}
	}
	for b := range in.def {
		for _, s := range in.def[b] {
			w.origins[slotRef{bank(b), s}] = from
		}
	}
}
