package emu

import "sonicmoe/ptx/isa"

func integerForms() map[isa.ID]handler {
	return map[isa.ID]handler{
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
		isa.Selp: {exec: selectPred},
	}
}

// logic handles a bitwise operation on registers or predicates.
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

type integer interface {
	uint32 | int32 | uint64 | int64
}

// Division by zero gives all ones, and its remainder is the dividend, as with the hardware's
// instruction sequence for unsigned numbers. PTX leaves it undefined.

func divide[T integer](a, b T) T {
	if b == 0 {
		return ^T(0)
	}
	return a / b
}

func remainder[T integer](a, b T) T {
	if b == 0 {
		return a
	}
	return a % b
}

// permute is prmt in its default mode: each nibble of the selector picks one of eight bytes or,
// with its top bit set, eight copies of that byte's sign.
func permute(a, b, selector uint32) uint32 {
	all := uint64(b)<<32 | uint64(a)
	var d uint32
	for i := range 4 {
		n := selector >> (4 * i) & 15
		v := byte(all >> (8 * (n & 7)))
		if n&8 != 0 {
			v = byte(int8(v) >> 7)
		}
		d |= uint32(v) << (8 * i)
	}
	return d
}

func selectPred(w *warp, _ *frag, in *inst, mask uint32) outcome {
	p := w.pred(&in.args[3])
	if in.args[0].bank == bank64 {
		selectLanes(&w.r64[in.slot[0]], &w.r64[in.slot[1]], &w.r64[in.slot[2]], p, mask)
	} else {
		selectLanes(&w.r32[in.slot[0]], &w.r32[in.slot[1]], &w.r32[in.slot[2]], p, mask)
	}
	return next
}

// selectLanes sets the lanes of mask to a's value where p holds, and to b's elsewhere.
func selectLanes[T uint32 | uint64](d, a, b *[warpLanes]T, p, mask uint32) {
	for m := mask; m != 0; m &= m - 1 {
		if l := first(m); p>>l&1 == 1 {
			d[l] = a[l]
		} else {
			d[l] = b[l]
		}
	}
}
