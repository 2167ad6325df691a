package emu

import (
	"math"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// onHalves returns the handler of a function of 16-bit floats. For a packed type, it applies the
// function to each half.
func onHalves(op func(in *inst) func(t isa.Type, a, b, c uint64) uint64) handler {
	return lanewise(func(in *inst) laneFunc {
		t, f := in.typ, op(in)
		switch t {
		case isa.F16x2, isa.BF16x2:
			t = map[isa.Type]isa.Type{isa.F16x2: isa.F16, isa.BF16x2: isa.BF16}[t]
			return func(v [4]uint64) uint64 {
				return f(t, v[0]&0xffff, v[1]&0xffff, v[2]&0xffff) | f(t, v[0]>>16&0xffff, v[1]>>16&0xffff, v[2]>>16&0xffff)<<16
			}
		}
		return func(v [4]uint64) uint64 { return f(t, v[0]&0xffff, v[1]&0xffff, v[2]&0xffff) }
	})
}

func halfArithmetic(op arith.Op) handler {
	return onHalves(func(in *inst) func(t isa.Type, a, b, c uint64) uint64 {
		ftz, sat, relu := in.has(".ftz"), in.has(".sat"), in.has(".relu")
		return func(t isa.Type, a, b, c uint64) uint64 {
			f := arith.FormatOf(t)
			r := f.Compute(op, arith.RoundNearest, arith.FloatOf(t, arith.FlushHalf(a, ftz)), arith.FloatOf(t, arith.FlushHalf(b, ftz)), arith.FloatOf(t, arith.FlushHalf(c, ftz)))
			if sat {
				r = arith.Saturate(r)
			}
			if relu && !(r > 0) && r == r {
				r = 0
			}
			return arith.FlushHalf(f.Encode(r), ftz)
		}
	})
}

// halfFunction returns the handler of an approximate function of 16-bit floats.
func halfFunction(op func(float64) float64) handler {
	return onHalves(func(*inst) func(t isa.Type, a, b, c uint64) uint64 {
		return func(t isa.Type, a, _, _ uint64) uint64 {
			f := arith.FormatOf(t)
			r := op(arith.FloatOf(t, a))
			if math.IsInf(r, 0) || r != r {
				return f.Encode(r)
			}
			return f.Encode(f.Compute(arith.OpMul, arith.RoundNearest, r, 1, 0))
		}
	})
}

// halfExtreme returns the handler of min or max of 16-bit floats. op is the same function of FP32
// numbers.
func halfExtreme(op func(a, b uint32, ftz, keepNaN bool) uint32) handler {
	return onHalves(func(in *inst) func(t isa.Type, a, b, c uint64) uint64 {
		ftz, nan := in.has(".ftz"), in.has(".NaN")
		return func(t isa.Type, a, b, _ uint64) uint64 {
			wide := func(x uint64) uint32 { return math.Float32bits(float32(arith.FloatOf(t, arith.FlushHalf(x, ftz)))) }
			return arith.FormatOf(t).Encode(float64(arith.ToF32(op(wide(a), wide(b), false, nan))))
		}
	})
}

// halfSign returns the handler of an instruction that changes the sign bit of 16-bit floats.
func halfSign(change func(a uint64) uint64) handler {
	return onHalves(func(in *inst) func(t isa.Type, a, b, c uint64) uint64 {
		ftz := in.has(".ftz")
		return func(_ isa.Type, a, _, _ uint64) uint64 { return change(arith.FlushHalf(a, ftz)) }
	})
}

// halfForms handles arithmetic and functions of FP16 and BF16.
func halfForms() handlers {
	add, sub, mul, fma := halfArithmetic(arith.OpAdd), halfArithmetic(arith.OpSub), halfArithmetic(arith.OpMul), halfArithmetic(arith.OpFma)
	least, most := halfExtreme(arith.MinF32), halfExtreme(arith.MaxF32)
	neg := halfSign(func(a uint64) uint64 { return a ^ 0x8000 })
	abs := halfSign(func(a uint64) uint64 { return a &^ 0x8000 })
	ex2, tanh := halfFunction(math.Exp2), halfFunction(math.Tanh)
	return handlers{
		isa.AddF16: add, isa.AddBF16: add, isa.SubF16: sub, isa.SubBF16: sub, isa.MulF16: mul, isa.MulBF16: mul, isa.FmaF16: fma, isa.FmaBF16: fma,
		isa.MinF16: least, isa.MinBF16: least, isa.MaxF16: most, isa.MaxBF16: most,
		isa.NegF16: neg, isa.NegBF16: neg, isa.AbsF16: abs, isa.AbsBF16: abs,
		isa.Ex2F16: ex2, isa.Ex2BF16: ex2, isa.TanhF16: tanh, isa.TanhBF16: tanh,
	}
}
