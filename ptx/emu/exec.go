package emu

import (
	"maps"

	"sonicmoe/ptx/isa"
)

// handler is how one row of the instruction table is emulated.
type handler struct {
	exec execFunc
	// prepare fixes, when decoding, what depends on modifiers.
	prepare func(in *inst)
	// waits says in words what a fragment that waits here waits for.
	waits func(w *warp, f *frag, in *inst) string
}

// forms has a handler for each row of the table.
var forms [isa.NumForms]handler

func init() {
	all := map[isa.ID]handler{}
	for _, part := range []map[isa.ID]handler{
		integerForms(), floatForms(), moveForms(), memoryForms(), warpForms(), barrierForms(),
		mbarrierForms(), copyForms(), bulkForms(), wgmmaForms(), controlForms(),
	} {
		maps.Copy(all, part)
	}
	for id, h := range all {
		forms[id] = h
	}
}

// alu32 applies op32 to 32-bit registers.
func alu32(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a, b, c := &w.r32[in.slot[0]], &w.r32[in.slot[1]], &w.r32[in.slot[2]], &w.r32[in.slot[3]]
	op := in.op32
	if mask == fullMask {
		for l := range d {
			d[l] = op(a[l], b[l], c[l])
		}
		return next
	}
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		d[l] = op(a[l], b[l], c[l])
	}
	return next
}

// alu64 applies op64 to 64-bit registers.
func alu64(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a, b, c := &w.r64[in.slot[0]], &w.r64[in.slot[1]], &w.r64[in.slot[2]], &w.r64[in.slot[3]]
	op := in.op64
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		d[l] = op(a[l], b[l], c[l])
	}
	return next
}

// aluMixed applies op64 to registers of any widths.
func aluMixed(w *warp, _ *frag, in *inst, mask uint32) outcome {
	var v [4]uint64
	d := &in.args[0]
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		for i := 1; i < len(in.args); i++ {
			v[i] = w.get(&in.args[i], l)
		}
		r := in.op64(v[1], v[2], v[3])
		if d.bank == bank64 {
			w.r64[d.slot][l] = r
		} else {
			w.r32[d.slot][l] = uint32(r)
		}
	}
	return next
}

// setPred gives a predicate a new value in the lanes of mask.
func (w *warp) setPred(slot int32, value, mask uint32) {
	w.p[slot] = w.p[slot]&^mask | value&mask
}

func compare32(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, b := &w.r32[in.slot[1]], &w.r32[in.slot[2]]
	var p uint32
	for m := mask; m != 0; m &= m - 1 {
		if l := first(m); in.cmp32(a[l], b[l]) {
			p |= 1 << l
		}
	}
	w.setPred(in.slot[0], p, mask)
	return next
}

func compare64(w *warp, _ *frag, in *inst, mask uint32) outcome {
	a, b := &w.r64[in.slot[1]], &w.r64[in.slot[2]]
	var p uint32
	for m := mask; m != 0; m &= m - 1 {
		if l := first(m); in.cmp64(a[l], b[l]) {
			p |= 1 << l
		}
	}
	w.setPred(in.slot[0], p, mask)
	return next
}

// byWidth chooses the execution by the instruction's type.
func byWidth(op32 map[isa.Type]func(a, b, c uint32) uint32, op64 map[isa.Type]func(a, b, c uint64) uint64) handler {
	return handler{
		exec: alu32,
		prepare: func(in *inst) {
			if in.op32 = op32[in.typ]; in.op32 == nil {
				in.op64, in.exec = op64[in.typ], alu64
			}
		},
	}
}
