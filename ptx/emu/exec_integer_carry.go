package emu

import (
	"math/bits"

	"sonicmoe/ptx/isa"
)

// carryKind describes an extended-precision instruction: whether it sets the carry flag, takes it
// as input, subtracts, and multiplies.
type carryKind struct{ sets, takes, minus, product bool }

func (k carryKind) exec(w *warp, _ *frag, in *inst, mask uint32) outcome {
	t := intOf(in)
	all := ^uint64(0) >> (64 - t.Bits)
	sets := k.sets || in.has(".cc")
	for l := range lanesIn(mask) {
		v := w.inputs(in, l)
		a, b := v[0], v[1]
		if k.product {
			_, a = t.Product(v[0], v[1])
			if b = v[2]; in.has(".hi") {
				a = t.High(v[0], v[1])
			}
		}
		carry := uint64(0)
		if k.takes {
			carry = uint64(w.carry >> l & 1)
		}
		a, b = a&all, b&all
		var sum, out uint64
		if k.minus {
			sum, out = bits.Sub64(a, b, carry)
			out &= 1
		} else if sum, out = bits.Add64(a, b, carry); t.Bits < 64 {
			out = sum >> t.Bits & 1
		}
		if sets {
			w.carry = w.carry&^(1<<l) | uint32(out)<<l
		}
		w.setElem(&in.args[0], in.args[0].slot, l, sum&all)
	}
	return next
}

// carryForms handles extended-precision arithmetic: the instructions with a carry flag.
func carryForms() handlers {
	forms := handlers{}
	for id, kind := range map[isa.ID]carryKind{isa.AddCC: {sets: true}, isa.Addc: {takes: true}, isa.SubCC: {sets: true, minus: true},
		isa.Subc: {takes: true, minus: true}, isa.MadCC: {sets: true, product: true}, isa.Madc: {takes: true, product: true}} {
		forms[id] = handler{exec: kind.exec}
	}
	return forms
}
