package emu

import (
	"math"
	"math/big"

	"sonicmoe/ptx/isa"
)

// convertTypes returns the types of cvt's modifiers d and a.
func convertTypes(in *inst) (to, from isa.Type) {
	to, _ = isa.TypeNamed(in.mod("d")[1:])
	from, _ = isa.TypeNamed(in.mod("a")[1:])
	return to, from
}

// convert returns cvt between any two types. The result is extended for a wider register.
func convert(in *inst) laneFunc {
	to, from := convertTypes(in)
	ftz, sat, relu, mode := in.has(".ftz"), in.has(".sat"), in.has(".relu"), in.roundMode()
	fromInt, toInt := intType{uint(from.Bits()), from.Signed()}, intType{uint(to.Bits()), to.Signed()}
	toFormat := formatOf(to)
	if !from.Float() && !to.Float() {
		return func(v [4]uint64) uint64 { return toInt.convert(v[0], fromInt, sat) }
	}
	if !from.Float() {
		return func(v [4]uint64) uint64 {
			x := new(big.Float).SetPrec(64)
			if n := fromInt.extend(v[0]); from.Signed() {
				x.SetInt64(int64(n))
			} else {
				x.SetUint64(n)
			}
			r := toFormat.round(x, mode)
			if sat {
				r = saturate(r)
			}
			return toFormat.encode(r)
		}
	}
	integral := len(in.mod("rnd")) == len(".rni")
	return func(v [4]uint64) uint64 {
		if from == isa.F32 {
			v[0] = uint64(flushIf(ftz, uint32(v[0])))
		}
		x := floatOf(from, v[0])
		if !to.Float() {
			return toInt.fromFloat(x, mode)
		}
		if integral {
			x = roundIntegral(x, mode)
		} else if x == x && !math.IsInf(x, 0) {
			x = toFormat.compute(opMul, mode, x, 1, 0)
		}
		switch {
		case sat:
			x = saturate(x)
		case relu && !(x > 0) && x == x:
			x = 0
		}
		if r := toFormat.encode(x); to == isa.F32 {
			return uint64(flushIf(ftz, uint32(r)))
		} else {
			return r
		}
	}
}

// intoPair returns a conversion of two FP32 numbers to one register, with the first in the
// upper half.
func intoPair(f floatFormat, mode roundMode, relu, finite bool) laneFunc {
	one := func(x float64) uint64 {
		r := x
		if x == x && !math.IsInf(x, 0) {
			r = f.compute(opMul, mode, x, 1, 0)
		}
		if relu && !(r > 0) && r == r {
			r = 0
		}
		if finite && math.Abs(r) > f.largest() {
			r = math.Copysign(f.largest(), r)
		}
		return f.encode(r)
	}
	return func(v [4]uint64) uint64 {
		return one(floatOf(isa.F32, v[0]))<<f.bits | one(floatOf(isa.F32, v[1]))
	}
}

var formatFP8 = map[string]floatFormat{".e4m3x2": formatE4M3, ".e5m2x2": formatE5M2}

// fromFP8 returns the value of an FP8 number.
func fromFP8(f floatFormat, x uint64) float64 {
	fraction := f.precision - 1
	exponent, m := int(x>>fraction)&(1<<(7-fraction)-1), x&(1<<fraction-1)
	r := 0.0
	switch {
	case f == formatE4M3 && x&0x7f == 0x7f, f == formatE5M2 && exponent == 31 && m != 0:
		return math.NaN()
	case f == formatE5M2 && exponent == 31:
		r = math.Inf(1)
	case exponent == 0:
		r = math.Ldexp(float64(m), f.least-fraction)
	default:
		r = math.Ldexp(float64(m|1<<fraction), exponent-1+f.least-fraction)
	}
	if x&0x80 != 0 {
		r = -r
	}
	return r
}

func conversionForms() map[isa.ID]handler {
	forms := map[isa.ID]handler{
		isa.CvtF32ToBF16Zero: lanewise(func(*inst) laneFunc {
			return func(v [4]uint64) uint64 { return uint64(bf16Format.fromF32(uint32(v[0]), roundZero, false)) }
		}),
		isa.CvtF32ToPair: lanewise(func(in *inst) laneFunc {
			to, _ := isa.TypeNamed(in.mod("d")[1:])
			return intoPair(formatOf(to), in.roundMode(), true, false)
		}),
		isa.CvtF32ToPairZero: lanewise(func(in *inst) laneFunc {
			to, _ := isa.TypeNamed(in.mod("d")[1:])
			return intoPair(formatOf(to), roundZero, false, false)
		}),
		// Rounds to nearest, ties away from zero, by dropping the lower 13 bits.
		isa.CvtTF32: lanewise(func(*inst) laneFunc {
			return func(v [4]uint64) uint64 {
				if x := uint32(v[0]); x&f32Inf == f32Inf {
					return uint64(fromF32(toF32(x)))
				} else {
					return uint64((x + 0x1000) &^ 0x1fff)
				}
			}
		}),
		isa.CvtFP8: lanewise(func(in *inst) laneFunc {
			return intoPair(formatFP8[in.mod("fp8")], roundNearest, in.has(".relu"), true)
		}),
		isa.CvtFP8FromF16: lanewise(func(in *inst) laneFunc {
			pair := intoPair(formatFP8[in.mod("fp8")], roundNearest, in.has(".relu"), true)
			return func(v [4]uint64) uint64 {
				return pair([4]uint64{uint64(f32FromF16(uint16(v[0] >> 16))), uint64(f32FromF16(uint16(v[0])))})
			}
		}),
		isa.CvtFP8ToF16: lanewise(func(in *inst) laneFunc {
			f := formatFP8[in.mod("fp8")]
			return func(v [4]uint64) uint64 {
				return format16.encode(fromFP8(f, v[0]>>8&0xff))<<16 | format16.encode(fromFP8(f, v[0]&0xff))
			}
		}),
		isa.Pack64x4:   {exec: packFour},
		isa.Unpack64x4: {exec: unpackFour},
	}
	for _, id := range []isa.ID{isa.CvtIntSat, isa.CvtInt64Sat, isa.CvtInt8, isa.CvtIntFrom8, isa.CvtIntToF32Any, isa.CvtIntToF32More, isa.CvtIntToF64, isa.CvtIntToF16,
		isa.CvtF32ToIntAny, isa.CvtF32ToIntMore, isa.CvtF32ToWide, isa.CvtF64ToInt, isa.CvtF16ToInt, isa.CvtF32ToF64, isa.CvtF64ToF32,
		isa.CvtF16ToF64, isa.CvtF64ToF16, isa.CvtRoundF32, isa.CvtSatF32, isa.CvtRoundF64, isa.CvtRoundF16, isa.CvtF32ToF16Zero, isa.CvtF32ToHalf} {
		forms[id] = lanewise(convertMore)
	}
	return forms
}

// convertMore is convert, also for forms whose rounding mode is part of the form.
func convertMore(in *inst) laneFunc {
	f := convert(in)
	if in.has(".rz") && in.mod("rnd") == "" || in.has(".rzi") && in.mod("rnd") == "" {
		return convertToward(in)
	}
	return f
}

// convertToward is convert toward zero.
func convertToward(in *inst) laneFunc {
	to, from := convertTypes(in)
	toInt, ftz := intType{uint(to.Bits()), to.Signed()}, in.has(".ftz")
	return func(v [4]uint64) uint64 {
		if !to.Float() {
			return toInt.fromFloat(floatOf(from, uint64(flushIf(ftz, uint32(v[0])))), roundZero)
		}
		return uint64(f16Format.fromF32(uint32(v[0]), roundZero, false))
	}
}

// packFour packs four 16-bit quarters, lowest first, into one register.
func packFour(w *warp, _ *frag, in *inst, mask uint32) outcome {
	for m := mask; m != 0; m &= m - 1 {
		l, x := first(m), uint64(0)
		for i, s := range in.args[1].list {
			x |= uint64(w.r32[s][l]&0xffff) << (16 * i)
		}
		w.r64[in.slot[0]][l] = x
	}
	return next
}

// unpackFour splits one register into four 16-bit quarters.
func unpackFour(w *warp, _ *frag, in *inst, mask uint32) outcome {
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		x := w.r64[in.slot[1]][l]
		for i, s := range in.args[0].list {
			w.r32[s][l] = uint32(x >> (16 * i) & 0xffff)
		}
	}
	return next
}
