package emu

import (
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

func moveForms() handlers {
	return handlers{
		isa.Mov: {exec: generated.exec, prepare: func(in *inst) {
			if generated.prepare(in); in.typ == isa.Pred {
				in.exec = movePred
			}
		}},
		isa.Pack64:       {do: pack},
		isa.Pack32:       {do: pack},
		isa.Unpack64:     {do: unpack},
		isa.Unpack32:     {do: unpack},
		isa.CvtaToGlobal: generated,
		isa.CvtaParam:    generated,
		isa.CvtInt: {exec: generated.exec, prepare: func(in *inst) {
			to, from := convertTypes(in)
			if generated.prepare(in); in.args[0].bank != bankOf(to.Class()) || in.args[1].bank != bankOf(from.Class()) {
				in.exec, in.lane = eachLane, convert(in) // sign- or zero-extends the value to a wider register
			}
		}},
		isa.CvtIntToF32: generated,
		isa.CvtF32ToInt: {exec: alu32, prepare: func(in *inst) {
			to := arith.Int{Bits: 32, Signed: in.typ.Signed()}
			in.op32 = func(a, _, _ uint32) uint32 { return uint32(to.FromFloat(float64(arith.ToF32(a)), arith.RoundZero)) }
		}},
		isa.CvtF32ToBF16:   generated,
		isa.CvtF32ToBF16x2: generated,
		isa.CvtBF16ToF32:   generated,
		isa.CvtF32ToF16:    generated,
		isa.CvtF32ToF16x2:  generated,
		isa.CvtF16ToF32:    generated,
		isa.Mapa:           {do: mapShared},
	}
}

func movePred(w *warp, _ *frag, in *inst, mask uint32) outcome {
	w.setPred(in.slot[0], w.pred(&in.args[1]), mask)
	return next
}

// pack joins two 16-bit halves, the lower first, into one 32-bit register.
func pack(w *warp, in *inst, mask uint32) {
	lo, hi := &w.r32[in.args[1].list[0]], &w.r32[in.args[1].list[1]]
	for l := range lanesIn(mask) {
		if in.args[0].bank == bank64 {
			w.r64[in.slot[0]][l] = uint64(hi[l])<<32 | uint64(lo[l])
		} else {
			w.r32[in.slot[0]][l] = hi[l]<<16 | lo[l]&0xffff
		}
	}
}

// unpack splits a 32-bit register into two 16-bit halves, the lower first.
func unpack(w *warp, in *inst, mask uint32) {
	lo, hi := &w.r32[in.args[0].list[0]], &w.r32[in.args[0].list[1]]
	for l := range lanesIn(mask) {
		if in.args[1].bank == bank64 {
			v := w.r64[in.slot[1]][l]
			lo[l], hi[l] = uint32(v), uint32(v>>32)
		} else {
			v := w.r32[in.slot[1]][l]
			lo[l], hi[l] = v&0xffff, v>>16
		}
	}
}

// mapShared executes mapa: it returns the address of the same offset in another CTA of the cluster.
func mapShared(w *warp, in *inst, mask uint32) {
	d, a, rank := &w.r32[in.slot[0]], &w.r32[in.slot[1]], &w.r32[in.slot[2]]
	ctas := len(w.cta.cluster.ctas)
	for l := range lanesIn(mask) {
		if rank[l] >= uint32(ctas) {
			w.fault(in, OutOfBounds, 1<<l, "mapa to rank %d, but the cluster has %d CTAs", rank[l], ctas)
		}
		d[l] = a[l]&sharedOffset | rank[l]<<sharedRankBit
	}
}
