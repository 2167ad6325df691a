package emu

import "sonicmoe/ptx/isa"

func integerForms() handlers {
	return handlers{
		isa.Add: generated, isa.Sub: generated, isa.MulLo: generated, isa.MulHi: generated, isa.MulWide: generated,
		isa.MadLo: generated, isa.MadWide: generated, isa.Div: generated, isa.Rem: generated, isa.Min: generated, isa.Max: generated,
		isa.And:  logic(func(a, b uint32) uint32 { return a & b }),
		isa.Or:   logic(func(a, b uint32) uint32 { return a | b }),
		isa.Xor:  logic(func(a, b uint32) uint32 { return a ^ b }),
		isa.Not:  logic(func(a, _ uint32) uint32 { return ^a }),
		isa.Shl:  generated,
		isa.Shr:  generated,
		isa.Popc: generated,
		isa.Clz:  generated,
		isa.Prmt: generated,
		isa.Setp: generated,
		isa.Selp: {do: selectPred},
	}
}

// logic returns the handler of a bitwise operation on registers or predicates.
func logic(op func(a, b uint32) uint32) handler {
	return handler{exec: generated.exec, prepare: func(in *inst) {
		if in.typ != isa.Pred {
			generated.prepare(in)
			return
		}
		in.exec = func(w *warp, _ *frag, in *inst, mask uint32) outcome {
			b := uint32(0)
			if len(in.args) > 2 {
				b = w.pred(&in.args[2])
			}
			w.setPred(in.slot[0], op(w.pred(&in.args[1]), b), mask)
			return next
		}
	}}
}

func selectPred(w *warp, in *inst, mask uint32) {
	p := w.pred(&in.args[3])
	if in.args[0].bank == bank64 {
		selectLanes(&w.r64[in.slot[0]], &w.r64[in.slot[1]], &w.r64[in.slot[2]], p, mask)
	} else {
		selectLanes(&w.r32[in.slot[0]], &w.r32[in.slot[1]], &w.r32[in.slot[2]], p, mask)
	}
}

// selectLanes sets d to a in the lanes of mask where p is set, and to b in the other lanes of mask.
func selectLanes[T uint32 | uint64](d, a, b *[warpLanes]T, p, mask uint32) {
	for l := range lanesIn(mask) {
		if p>>l&1 == 1 {
			d[l] = a[l]
		} else {
			d[l] = b[l]
		}
	}
}
