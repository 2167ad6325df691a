package emu

import (
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/emu/internal/lanes"
	"sonicmoe/ptx/isa"
)

func floatForms() handlers {
	two := func(op func(a, b uint32, ftz bool) uint32, all func(d, a, b *lanes.Vector, ftz bool) bool) handler {
		return handler{exec: alu32, prepare: func(in *inst) {
			ftz := in.has(".ftz")
			in.op32 = func(a, b, _ uint32) uint32 { return op(a, b, ftz) }
			in.exec = wholeWarp(func(d, a, b, _ *lanes.Vector) bool { return all(d, a, b, ftz) })
		}}
	}
	extreme := func(op func(a, b uint32, ftz, keepNaN bool) uint32) handler {
		return handler{exec: alu32, prepare: func(in *inst) {
			ftz, nan := in.has(".ftz"), in.has(".NaN")
			in.op32 = func(a, b, _ uint32) uint32 { return op(a, b, ftz, nan) }
		}}
	}
	approx := func(name string) handler {
		op := arith.Approx[name]
		return handler{exec: alu32, prepare: func(in *inst) {
			ftz := in.has(".ftz")
			in.op32 = func(a, _, _ uint32) uint32 { return op(a, ftz) }
		}}
	}
	return handlers{
		isa.AddF32: two(arith.AddF32, func(d, a, b *lanes.Vector, ftz bool) bool { return lanes.Add(d, a, b, false, ftz) }),
		isa.SubF32: two(arith.SubF32, func(d, a, b *lanes.Vector, ftz bool) bool { return lanes.Add(d, a, b, true, ftz) }),
		isa.MulF32: two(arith.MulF32, lanes.Multiply),
		isa.FmaF32: {exec: alu32, prepare: func(in *inst) {
			ftz := in.has(".ftz")
			in.op32 = func(a, b, c uint32) uint32 { return arith.FmaF32(a, b, c, ftz) }
			in.exec = wholeWarp(func(d, a, b, c *lanes.Vector) bool { return lanes.MultiplyAdd(d, a, b, c, ftz) })
		}},
		isa.MinF32: extreme(arith.MinF32),
		isa.MaxF32: extreme(arith.MaxF32),
		isa.NegF32: generated,
		isa.Ex2:    approx("ex2"),
		isa.Lg2:    approx("lg2"),
		isa.Rcp:    approx("rcp"),
		isa.Tanh:   approx("tanh"),
		isa.SetpF32: {exec: compare32, prepare: func(in *inst) {
			cmp, ftz := arith.Compares[in.mod("cmp")[1:]], in.has(".ftz")
			in.cmp32 = func(a, b uint32) bool { return cmp.F32(a, b, ftz) }
		}},
	}
}

// wholeWarp returns an execution that computes all 32 lanes with vector instructions, if the CPU
// has them and all lanes execute. Otherwise it computes lane by lane.
func wholeWarp(all func(d, a, b, c *lanes.Vector) bool) execFunc {
	return func(w *warp, f *frag, in *inst, mask uint32) outcome {
		if mask == fullMask && all(&w.r32[in.slot[0]], &w.r32[in.slot[1]], &w.r32[in.slot[2]], &w.r32[in.slot[3]]) {
			return next
		}
		return alu32(w, f, in, mask)
	}
}
