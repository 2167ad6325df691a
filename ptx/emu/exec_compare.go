package emu

import (
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// prepareCompare sets in.lane to a function that returns 1 if the comparison holds, else 0.
func prepareCompare(in *inst) {
	cmp, form := in.mod("cmp")[1:], in.form.ID
	name := map[string]string{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}[cmp]
	if name == "" {
		name = cmp
	}
	rel, ftz := arith.Compares[name], in.has(".ftz")
	number := func(x uint64) float64 { return arith.FloatOf(in.typ, x) }
	switch {
	case form == isa.SetpF16:
		number = func(x uint64) float64 { return arith.FloatOf(isa.F16, arith.FlushHalf(x, ftz)) }
	case form == isa.SetpBF16:
		number = func(x uint64) float64 { return arith.FloatOf(isa.BF16, x) }
	case form == isa.SetpF64:
		number = func(x uint64) float64 { return arith.FloatOf(isa.F64, x) }
	case !in.typ.Float():
		t := intOf(in)
		in.lane = func(v [4]uint64) uint64 {
			a, b := 0.0, 0.0 // comparing the floats a and b has the same result as comparing v[0] and v[1]
			if t.Less(v[0], v[1]) {
				b = 1
			} else if t.Less(v[1], v[0]) {
				a = 1
			}
			return uint64(choose(rel.F64(a, b)))
		}
		return
	}
	in.lane = func(v [4]uint64) uint64 { return uint64(choose(rel.F64(number(v[0]), number(v[1])))) }
}

// setPredicates executes setp with all its options: a second predicate, which is the opposite of
// the first, and a predicate operand that is combined with both.
func setPredicates(w *warp, in *inst, mask uint32) {
	holds := uint32(0)
	for l := range lanesIn(mask) {
		holds |= uint32(in.lane(w.inputs(in, l))) << l
	}
	p, q := holds, ^holds
	if len(in.args) > 3 {
		c := w.pred(&in.args[3])
		switch in.mod("bool") {
		case ".and":
			p, q = p&c, q&c
		case ".or":
			p, q = p|c, q|c
		default:
			p, q = p^c, q^c
		}
	}
	d := &in.args[0]
	w.setPred(d.slot, p, mask)
	if in.form.Args[0].Kind == isa.Pair {
		w.setPred(d.pair, q, mask)
	}
}

// compareForms handles the comparisons for which zlanes.go has no function: of other types, with a
// second predicate, and set.
func compareForms() handlers {
	forms := handlers{}
	forms.same(handler{do: setPredicates, prepare: prepareCompare}, isa.SetpBits, isa.Setp16, isa.SetpUnsigned, isa.SetpF64, isa.SetpF16, isa.SetpBF16,
		isa.SetpPair, isa.SetpBool, isa.SetpBoolPair)
	forms[isa.Set] = lanewise(func(in *inst) laneFunc {
		prepareCompare(in)
		holds, yes := in.lane, uint64(0xffffffff)
		if in.mod("d") == ".f32" {
			yes = 0x3f800000
		}
		return func(v [4]uint64) uint64 { return yes * holds(v) }
	})
	return forms
}
