package emu

import "sonicmoe/ptx/isa"

func controlForms() handlers {
	gridDepends := func(note func(r *races, w *warp)) handler {
		return handler{do: func(w *warp, _ *inst, _ uint32) {
			if r := w.cta.cluster.races; r != nil {
				note(r, w)
			}
		}}
	}
	exit := handler{exec: func(w *warp, f *frag, in *inst, mask uint32) outcome {
		w.exit(f, mask)
		return jumped
	}}
	return handlers{
		isa.Bra: {exec: func(w *warp, f *frag, in *inst, mask uint32) outcome {
			if mask != f.mask && in.has(".uni") {
				w.fault(in, DivergentAligned, mask, "bra.uni, but %s of the active lanes does not branch: want bra without .uni", laneList(f.mask&^mask))
			}
			w.split(f, mask, in.target)
			return jumped
		}},
		isa.BrxIdx: {exec: branchIndexed},
		isa.Call:   {exec: callFunction},
		isa.Ret: {exec: func(w *warp, f *frag, in *inst, mask uint32) outcome {
			if len(f.calls) > 0 {
				return w.comeBack(f, mask)
			}
			w.exit(f, mask)
			return jumped
		}},
		isa.Exit:      exit,
		isa.Nanosleep: {exec: func(*warp, *frag, *inst, uint32) outcome { return yielded }},
		isa.Brkpt: {do: func(w *warp, in *inst, mask uint32) {
			w.fault(in, Trap, mask, "the kernel executed brkpt")
		}}, isa.Trap: {exec: func(w *warp, _ *frag, in *inst, mask uint32) outcome {
			return w.fault(in, Trap, mask, "the kernel executed trap")
		}},
		// griddepcontrol orders only accesses of different launches. The emulator runs one launch
		// after the other, so only the race checks act on griddepcontrol.
		isa.GridDepLaunch: gridDepends((*races).trigger),
		isa.GridDepWait:   gridDepends((*races).gridWait),
		isa.FenceAcqRel:   {do: fence},
		isa.FenceMbarrierInit: {do: func(w *warp, _ *inst, mask uint32) {
			if r := w.cta.cluster.races; r != nil {
				r.fenceInits(w, mask)
			}
		}},
	}
}

// fence executes fence.acq_rel and stronger fences.
func fence(w *warp, in *inst, mask uint32) {
	if r := w.cta.cluster.races; r != nil {
		r.fence(w, mask, scopeOf(in))
	}
}
