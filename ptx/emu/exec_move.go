package emu

import "sonicmoe/ptx/isa"

func moveForms() map[isa.ID]handler {
	same64 := func(a, _, _ uint64) uint64 { return a }
	return map[isa.ID]handler{
		isa.Mov: {exec: move32, prepare: func(in *inst) {
			switch in.typ {
			case isa.B64, isa.U64:
				in.exec = move64
			case isa.Pred:
				in.exec = movePred
			}
		}},
		isa.Pack64:       {exec: pack},
		isa.Pack32:       {exec: pack},
		isa.Unpack64:     {exec: unpack},
		isa.Unpack32:     {exec: unpack},
		isa.CvtaToGlobal: {exec: alu64, prepare: func(in *inst) { in.op64 = same64 }},
		isa.CvtaParam: {exec: alu64, prepare: func(in *inst) {
			in.op64 = func(a, _, _ uint64) uint64 { return a + paramWindow }
		}},
		isa.CvtInt: {exec: aluMixed, prepare: func(in *inst) {
			to, from := integerOf(in.mod("d")), integerOf(in.mod("a"))
			// A 16-bit result is kept in the lower half of its register.
			cut := intType{bits: to.bits}
			in.op64 = func(a, _, _ uint64) uint64 { return cut.extend(to.convert(a, from, false)) }
		}},
		isa.CvtIntToF32: {exec: alu32, prepare: func(in *inst) {
			from := intType{32, in.typ.Signed()}
			in.op32 = func(a, _, _ uint32) uint32 { return from.toF32(uint64(a)) }
		}},
		isa.CvtF32ToInt: {exec: alu32, prepare: func(in *inst) {
			to := intType{32, in.typ.Signed()}
			in.op32 = func(a, _, _ uint32) uint32 { return uint32(to.fromFloat(float64(toF32(a)), roundZero)) }
		}},
		isa.CvtF32ToBF16: {exec: alu32, prepare: func(in *inst) {
			in.op32 = func(a, _, _ uint32) uint32 { return uint32(bf16FromF32(a)) }
		}},
		isa.CvtF32ToBF16x2: {exec: alu32, prepare: func(in *inst) {
			in.op32 = func(hi, lo, _ uint32) uint32 { return uint32(bf16FromF32(hi))<<16 | uint32(bf16FromF32(lo)) }
		}},
		isa.CvtBF16ToF32: {exec: alu32, prepare: func(in *inst) {
			in.op32 = func(a, _, _ uint32) uint32 { return f32FromBF16(uint16(a)) }
		}},
		isa.Mapa: {exec: mapShared},
	}
}

func integerOf(mod string) intType {
	t, _ := isa.TypeNamed(mod[1:])
	return intType{uint(t.Bits()), t.Signed()}
}

func move32(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a := &w.r32[in.slot[0]], &w.r32[in.slot[1]]
	if mask == fullMask {
		*d = *a
		return next
	}
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		d[l] = a[l]
	}
	return next
}

func move64(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a := &w.r64[in.slot[0]], &w.r64[in.slot[1]]
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		d[l] = a[l]
	}
	return next
}

func movePred(w *warp, _ *frag, in *inst, mask uint32) outcome {
	w.setPred(in.slot[0], w.pred(&in.args[1]), mask)
	return next
}

// pack puts two halves, lower first, into one register.
func pack(w *warp, _ *frag, in *inst, mask uint32) outcome {
	lo, hi := &w.r32[in.args[1].list[0]], &w.r32[in.args[1].list[1]]
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		if in.args[0].bank == bank64 {
			w.r64[in.slot[0]][l] = uint64(hi[l])<<32 | uint64(lo[l])
		} else {
			w.r32[in.slot[0]][l] = hi[l]<<16 | lo[l]&0xffff
		}
	}
	return next
}

// unpack is the reverse.
func unpack(w *warp, _ *frag, in *inst, mask uint32) outcome {
	lo, hi := &w.r32[in.args[0].list[0]], &w.r32[in.args[0].list[1]]
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		if in.args[1].bank == bank64 {
			v := w.r64[in.slot[1]][l]
			lo[l], hi[l] = uint32(v), uint32(v>>32)
		} else {
			v := w.r32[in.slot[1]][l]
			lo[l], hi[l] = v&0xffff, v>>16
		}
	}
	return next
}

// mapShared is mapa: the same offset in another CTA of the cluster.
func mapShared(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d, a, rank := &w.r32[in.slot[0]], &w.r32[in.slot[1]], &w.r32[in.slot[2]]
	ctas := len(w.cta.cluster.ctas)
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		if rank[l] >= uint32(ctas) {
			return w.fault(in, OutOfBounds, 1<<l, "mapa to rank %d of a cluster of %d CTAs", rank[l], ctas)
		}
		d[l] = a[l]&sharedOffset | rank[l]<<sharedRankBit
	}
	return next
}
