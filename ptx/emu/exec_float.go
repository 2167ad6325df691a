package emu

import "sonicmoe/ptx/isa"

func floatForms() map[isa.ID]handler {
	two := func(op func(a, b uint32, ftz bool) uint32) handler {
		return handler{exec: alu32, prepare: func(in *inst) {
			ftz := in.has(".ftz")
			in.op32 = func(a, b, _ uint32) uint32 { return op(a, b, ftz) }
		}}
	}
	extreme := func(op func(a, b uint32, ftz, keepNaN bool) uint32) handler {
		return handler{exec: alu32, prepare: func(in *inst) {
			ftz, nan := in.has(".ftz"), in.has(".NaN")
			in.op32 = func(a, b, _ uint32) uint32 { return op(a, b, ftz, nan) }
		}}
	}
	approx := func(name string) handler {
		op := approxFunctions[name]
		return handler{exec: alu32, prepare: func(in *inst) {
			ftz := in.has(".ftz")
			in.op32 = func(a, _, _ uint32) uint32 { return op(a, ftz) }
		}}
	}
	return map[isa.ID]handler{
		isa.AddF32: two(addF32),
		isa.SubF32: two(subF32),
		isa.MulF32: two(mulF32),
		isa.FmaF32: {exec: alu32, prepare: func(in *inst) {
			ftz := in.has(".ftz")
			in.op32 = func(a, b, c uint32) uint32 { return fmaF32(a, b, c, ftz) }
		}},
		isa.MinF32: extreme(minF32),
		isa.MaxF32: extreme(maxF32),
		isa.NegF32: {exec: alu32, prepare: func(in *inst) { in.op32 = func(a, _, _ uint32) uint32 { return a ^ f32Sign } }},
		isa.Ex2:    approx("ex2"),
		isa.Rcp:    approx("rcp"),
		isa.Tanh:   approx("tanh"),
		isa.SetpF32: {exec: compare32, prepare: func(in *inst) {
			cmp, ftz := floatCompares[in.mod("cmp")[1:]], in.has(".ftz")
			in.cmp32 = func(a, b uint32) bool { return cmp.f32(a, b, ftz) }
		}},
	}
}
