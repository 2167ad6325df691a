package emu

import (
	"math"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// arithmetic handles an operation on float32 or float64.
func arithmetic(t isa.Type, op arith.Op) handler {
	f := arith.FormatOf(t)
	return lanewise(func(in *inst) laneFunc {
		mode, ftz, sat := in.roundMode(), in.has(".ftz"), in.has(".sat")
		read := func(x uint64) float64 {
			if t == isa.F32 {
				x = uint64(arith.FlushIf(ftz, uint32(x)))
			}
			return arith.FloatOf(t, x)
		}
		return func(v [4]uint64) uint64 {
			a, b, c := read(v[0]), read(v[1]), read(v[2])
			var r float64
			if t == isa.F64 && mode == arith.RoundNearest {
				r = op.Float(a, b, c)
			} else if t == isa.F32 && mode == arith.RoundNearest && op != arith.OpFma {
				r = float64(float32(op.Float(a, b, c))) // rounding twice is exact: 53 bits are at least 2*24+2
			} else {
				r = f.Compute(op, mode, a, b, c)
			}
			if sat {
				r = arith.Saturate(r)
			}
			x := f.Encode(r)
			if t == isa.F32 {
				x = uint64(arith.FlushIf(ftz, uint32(x)))
			}
			return x
		}
	})
}

// onHalves handles a function of 16-bit floats, also on pairs.
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

// halfFunction handles an approximate function of 16-bit floats.
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

// halfExtreme handles min or max of 16-bit floats with the FP32 function.
func halfExtreme(op func(a, b uint32, ftz, keepNaN bool) uint32) handler {
	return onHalves(func(in *inst) func(t isa.Type, a, b, c uint64) uint64 {
		ftz, nan := in.has(".ftz"), in.has(".NaN")
		return func(t isa.Type, a, b, _ uint64) uint64 {
			wide := func(x uint64) uint32 { return math.Float32bits(float32(arith.FloatOf(t, arith.FlushHalf(x, ftz)))) }
			return arith.FormatOf(t).Encode(float64(arith.ToF32(op(wide(a), wide(b), false, nan))))
		}
	})
}

func floatMoreForms() map[isa.ID]handler {
	approx32 := func(op arith.Unary) handler {
		return lanewise(func(in *inst) laneFunc {
			ftz := in.has(".ftz")
			return func(v [4]uint64) uint64 { return uint64(op(uint32(v[0]), ftz)) }
		})
	}
	double := func(op func(x, y float64) float64) handler {
		return lanewise(func(*inst) laneFunc {
			return func(v [4]uint64) uint64 {
				return arith.Format64.Encode(op(math.Float64frombits(v[0]), math.Float64frombits(v[1])))
			}
		})
	}
	bitwise := func(op laneFunc) handler { return lanewise(func(*inst) laneFunc { return op }) }
	inverse := func(t isa.Type) handler { // rcp is 1/a
		div, one := arithmetic(t, arith.OpDiv), arith.FormatOf(t).Encode(1)
		return lanewise(func(in *inst) laneFunc {
			div.prepare(in)
			quotient := in.lane
			return func(v [4]uint64) uint64 { return quotient([4]uint64{one, v[0]}) }
		})
	}
	flushed := func(change func(x uint32) uint32) handler {
		return lanewise(func(in *inst) laneFunc {
			ftz := in.has(".ftz") || in.form.ID == isa.NegF32Ftz
			return func(v [4]uint64) uint64 { return uint64(arith.FlushIf(ftz, change(uint32(v[0])))) }
		})
	}
	forms := map[isa.ID]handler{
		isa.AddF32Any: arithmetic(isa.F32, arith.OpAdd), isa.SubF32Any: arithmetic(isa.F32, arith.OpSub), isa.MulF32Any: arithmetic(isa.F32, arith.OpMul),
		isa.FmaF32Any: arithmetic(isa.F32, arith.OpFma), isa.MadF32: arithmetic(isa.F32, arith.OpFma), isa.DivF32: arithmetic(isa.F32, arith.OpDiv),
		isa.SqrtF32: arithmetic(isa.F32, arith.OpSqrt), isa.RcpF32: inverse(isa.F32), isa.DivF32Approx: arithmetic(isa.F32, arith.OpDiv),
		isa.AddF64: arithmetic(isa.F64, arith.OpAdd), isa.SubF64: arithmetic(isa.F64, arith.OpSub), isa.MulF64: arithmetic(isa.F64, arith.OpMul),
		isa.FmaF64: arithmetic(isa.F64, arith.OpFma), isa.MadF64: arithmetic(isa.F64, arith.OpFma), isa.DivF64: arithmetic(isa.F64, arith.OpDiv),
		isa.SqrtF64: arithmetic(isa.F64, arith.OpSqrt), isa.RcpF64: inverse(isa.F64),
		// The chip approximates doubles in the upper half of the bits; the lower half is zero.
		isa.RcpF64Approx: double(func(x, _ float64) float64 { return upperHalf(1 / x) }),
		isa.RsqrtF64:     double(func(x, _ float64) float64 { return 1 / math.Sqrt(x) }),
		isa.SqrtApprox:   approx32(arith.SqrtApprox), isa.Rsqrt: approx32(arith.RsqrtApprox),
		isa.Sin: approx32(arith.Approx["sin"]), isa.Cos: approx32(arith.Approx["cos"]),
		isa.AbsF32:    flushed(func(x uint32) uint32 { return x &^ arith.F32Sign }),
		isa.NegF32Ftz: flushed(func(x uint32) uint32 { return x ^ arith.F32Sign }),
		isa.AbsF64:    bitwise(func(v [4]uint64) uint64 { return v[0] &^ (1 << 63) }),
		isa.NegF64:    bitwise(func(v [4]uint64) uint64 { return v[0] ^ 1<<63 }),
		isa.MinF64:    double(func(x, y float64) float64 { return arith.Extreme64(x, y, math.Min) }),
		isa.MaxF64:    double(func(x, y float64) float64 { return arith.Extreme64(x, y, math.Max) }),
		isa.Copysign: lanewise(func(in *inst) laneFunc {
			sign := uint64(1) << (in.typ.Bits() - 1)
			return func(v [4]uint64) uint64 { return v[1]&^sign | v[0]&sign }
		}),
		isa.Ex2F16: halfFunction(math.Exp2), isa.Ex2BF16: halfFunction(math.Exp2),
		isa.TanhF16: halfFunction(math.Tanh), isa.TanhBF16: halfFunction(math.Tanh),
	}
	neg := onHalves(func(in *inst) func(t isa.Type, a, b, c uint64) uint64 {
		ftz := in.has(".ftz")
		return func(_ isa.Type, a, _, _ uint64) uint64 { return arith.FlushHalf(a, ftz) ^ 0x8000 }
	})
	abs := onHalves(func(in *inst) func(t isa.Type, a, b, c uint64) uint64 {
		ftz := in.has(".ftz")
		return func(_ isa.Type, a, _, _ uint64) uint64 { return arith.FlushHalf(a, ftz) &^ 0x8000 }
	})
	for h, ids := range map[*handler][]isa.ID{
		{exec: eachLane, prepare: halfArithmetic(arith.OpAdd).prepare}: {isa.AddF16, isa.AddBF16},
		{exec: eachLane, prepare: halfArithmetic(arith.OpSub).prepare}: {isa.SubF16, isa.SubBF16},
		{exec: eachLane, prepare: halfArithmetic(arith.OpMul).prepare}: {isa.MulF16, isa.MulBF16},
		{exec: eachLane, prepare: halfArithmetic(arith.OpFma).prepare}: {isa.FmaF16, isa.FmaBF16},
		{exec: eachLane, prepare: halfExtreme(arith.MinF32).prepare}:   {isa.MinF16, isa.MinBF16},
		{exec: eachLane, prepare: halfExtreme(arith.MaxF32).prepare}:   {isa.MaxF16, isa.MaxBF16},
		&neg: {isa.NegF16, isa.NegBF16}, &abs: {isa.AbsF16, isa.AbsBF16},
	} {
		for _, id := range ids {
			forms[id] = *h
		}
	}
	return forms
}

func upperHalf(x float64) float64 {
	return math.Float64frombits(math.Float64bits(x) &^ 0xffffffff)
}

// roundMode returns the rounding mode of an instruction; to nearest if it has none.
func (in *inst) roundMode() arith.Rounding {
	return map[string]arith.Rounding{".rz": arith.RoundZero, ".rm": arith.RoundDown, ".rp": arith.RoundUp, ".rzi": arith.RoundZero, ".rmi": arith.RoundDown, ".rpi": arith.RoundUp}[in.mod("rnd")]
}
