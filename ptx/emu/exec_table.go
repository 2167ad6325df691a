package emu

import (
	"maps"

	"sonicmoe/ptx/isa"
)

// handler says how the emulator executes one form of the instruction table of ptx/isa.
type handler struct {
	exec execFunc
	// do replaces exec if the instruction never waits or jumps.
	do doFunc
	// prepare is called when an instruction is decoded. It evaluates the modifiers.
	prepare func(in *inst)
	// waits describes what a fragment waits for at the instruction. Function at returns a short
	// name for that thing. It is nil if the instruction's name is enough.
	waits func(w *warp, f *frag, in *inst) need
	at    func(w *warp, f *frag, in *inst) string
	// bulk marks instructions by which TMA copies.
	bulk bool
	// scratch requests scratch registers for each instruction of this form.
	scratch bool
	// spaces holds the execution in each state space, for a form with a generic address.
	spaces *spaceExecs
}

// handlers maps forms of the instruction table to their handlers.
type handlers map[isa.ID]handler

// same gives several forms the same handler.
func (all handlers) same(h handler, ids ...isa.ID) {
	for _, id := range ids {
		all[id] = h
	}
}

// forms holds the handlers of all forms, indexed by isa.ID.
var forms [isa.NumForms]handler

func init() {
	all := handlers{}
	for _, part := range []handlers{
		integerForms(), floatForms(), moveForms(), memoryForms(), warpForms(), barrierForms(),
		mbarrierForms(), copyForms(), bulkForms(), wgmmaForms(), controlForms(),
		integerArithmeticForms(), bitForms(), carryForms(), compareForms(),
		floatArithmeticForms(), floatFunctionForms(), halfForms(), conversionForms(), spaceForms(), mmaForms(),
	} {
		maps.Copy(all, part)
	}
	for id, h := range all {
		if h.exec == nil {
			h.exec = h.do.always
		}
		forms[id] = h
	}
}

// doFunc executes an instruction after which the fragment continues with the next one.
type doFunc func(w *warp, in *inst, mask uint32)

func (do doFunc) always(w *warp, _ *frag, in *inst, mask uint32) outcome {
	do(w, in, mask)
	return next
}

// laneKey identifies a function of zlanes.go: by form, type, and the modifier that selects an
// operation.
type laneKey struct {
	form isa.ID
	typ  isa.Type
	mod  string
}

// generated is the handler of all forms for which zlanes.go has a function.
var generated = handler{
	exec: func(w *warp, _ *frag, in *inst, mask uint32) outcome {
		return w.fault(in, IllegalInstruction, mask, "%s was not decoded", in.form.Op)
	},
	prepare: func(in *inst) {
		key := laneKey{form: in.form.ID, typ: in.typ}
		for _, place := range []string{"cmp", "d", "a"} {
			if in.form.ModIndex(place) >= 0 {
				key.mod += in.mod(place)
			}
		}
		in.exec = laneForms[key]
	},
}

// alu32 applies in.op32 to 32-bit registers.
func alu32(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a, b, c := &w.r32[in.slot[0]], &w.r32[in.slot[1]], &w.r32[in.slot[2]], &w.r32[in.slot[3]]
	op := in.op32
	for l := range lanesIn(mask) {
		d[l] = op(a[l], b[l], c[l])
	}
	return next
}

// setPred sets a predicate to value in the lanes of mask.
func (w *warp) setPred(slot int32, value, mask uint32) {
	w.p[slot] = w.p[slot]&^mask | value&mask
}

func compare32(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, b := &w.r32[in.slot[1]], &w.r32[in.slot[2]]
	var p uint32
	for l := range lanesIn(mask) {
		if in.cmp32(a[l], b[l]) {
			p |= 1 << l
		}
	}
	w.setPred(in.slot[0], p, mask)
	return next
}
