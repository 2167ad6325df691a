package emu

import (
	"math"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// arithmetic returns the handler of operation op on FP32 or FP64 numbers.
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
				r = float64(float32(op.Float(a, b, c))) // float64 has 53 bits, at least 2*24+2, so the second rounding to FP32 is exact
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

// floatArithmeticForms handles FP32 arithmetic with a rounding mode or .sat, and FP64 arithmetic.
func floatArithmeticForms() handlers {
	inverse := func(t isa.Type) handler { // rcp is 1/a
		div, one := arithmetic(t, arith.OpDiv), arith.FormatOf(t).Encode(1)
		return lanewise(func(in *inst) laneFunc {
			div.prepare(in)
			quotient := in.lane
			return func(v [4]uint64) uint64 { return quotient([4]uint64{one, v[0]}) }
		})
	}
	return handlers{
		isa.AddF32Any: arithmetic(isa.F32, arith.OpAdd), isa.SubF32Any: arithmetic(isa.F32, arith.OpSub), isa.MulF32Any: arithmetic(isa.F32, arith.OpMul),
		isa.FmaF32Any: arithmetic(isa.F32, arith.OpFma), isa.MadF32: arithmetic(isa.F32, arith.OpFma), isa.DivF32: arithmetic(isa.F32, arith.OpDiv),
		isa.SqrtF32: arithmetic(isa.F32, arith.OpSqrt), isa.RcpF32: inverse(isa.F32), isa.DivF32Approx: arithmetic(isa.F32, arith.OpDiv),
		isa.AddF64: arithmetic(isa.F64, arith.OpAdd), isa.SubF64: arithmetic(isa.F64, arith.OpSub), isa.MulF64: arithmetic(isa.F64, arith.OpMul),
		isa.FmaF64: arithmetic(isa.F64, arith.OpFma), isa.MadF64: arithmetic(isa.F64, arith.OpFma), isa.DivF64: arithmetic(isa.F64, arith.OpDiv),
		isa.SqrtF64: arithmetic(isa.F64, arith.OpSqrt), isa.RcpF64: inverse(isa.F64),
	}
}

// floatFunctionForms handles approximate functions, sign changes, min and max of FP32 and FP64.
func floatFunctionForms() handlers {
	approx32 := func(op arith.Unary) handler {
		return lanewise(func(in *inst) laneFunc {
			ftz := in.has(".ftz")
			return func(v [4]uint64) uint64 { return uint64(op(uint32(v[0]), ftz)) }
		})
	}
	double := func(op func(x, y float64) float64) handler {
		return plain(func(v [4]uint64) uint64 {
			return arith.Format64.Encode(op(math.Float64frombits(v[0]), math.Float64frombits(v[1])))
		})
	}
	flushed := func(change func(x uint32) uint32) handler {
		return lanewise(func(in *inst) laneFunc {
			ftz := in.has(".ftz") || in.form.ID == isa.NegF32Ftz
			return func(v [4]uint64) uint64 { return uint64(arith.FlushIf(ftz, change(uint32(v[0])))) }
		})
	}
	return handlers{
		// The chip's rcp.approx.ftz.f64 sets only the upper 32 bits of the result; the lower 32
		// bits are zero.
		isa.RcpF64Approx: double(func(x, _ float64) float64 { return upperHalf(1 / x) }),
		isa.RsqrtF64:     double(func(x, _ float64) float64 { return 1 / math.Sqrt(x) }),
		isa.SqrtApprox:   approx32(arith.SqrtApprox), isa.Rsqrt: approx32(arith.RsqrtApprox),
		isa.Sin: approx32(arith.Approx["sin"]), isa.Cos: approx32(arith.Approx["cos"]),
		isa.AbsF32:    flushed(func(x uint32) uint32 { return x &^ arith.F32Sign }),
		isa.NegF32Ftz: flushed(func(x uint32) uint32 { return x ^ arith.F32Sign }),
		isa.AbsF64:    plain(func(v [4]uint64) uint64 { return v[0] &^ (1 << 63) }),
		isa.NegF64:    plain(func(v [4]uint64) uint64 { return v[0] ^ 1<<63 }),
		isa.MinF64:    double(func(x, y float64) float64 { return arith.Extreme64(x, y, math.Min) }),
		isa.MaxF64:    double(func(x, y float64) float64 { return arith.Extreme64(x, y, math.Max) }),
		isa.Copysign: lanewise(func(in *inst) laneFunc {
			sign := uint64(1) << (in.typ.Bits() - 1)
			return func(v [4]uint64) uint64 { return v[1]&^sign | v[0]&sign }
		}),
	}
}

func upperHalf(x float64) float64 {
	return math.Float64frombits(math.Float64bits(x) &^ 0xffffffff)
}

// roundMode returns the rounding mode of an instruction. An instruction without a mode rounds to
// nearest.
func (in *inst) roundMode() arith.Rounding {
	if in.has(".rz") || in.has(".rzi") { // the mode may be part of the form's name instead of a modifier
		return arith.RoundZero
	}
	return map[string]arith.Rounding{".rm": arith.RoundDown, ".rp": arith.RoundUp, ".rmi": arith.RoundDown, ".rpi": arith.RoundUp}[in.mod("rnd")]
}
