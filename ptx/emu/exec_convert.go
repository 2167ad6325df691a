package emu

import (
	"math"
	"math/big"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// convertTypes returns the types of cvt's modifiers d and a.
func convertTypes(in *inst) (to, from isa.Type) {
	to, _ = isa.TypeNamed(in.mod("d")[1:])
	from, _ = isa.TypeNamed(in.mod("a")[1:])
	return to, from
}

// convert executes cvt between any two types. If the register is wider than the type, the result is
// sign- or zero-extended.
func convert(in *inst) laneFunc {
	to, from := convertTypes(in)
	ftz, sat, relu, mode := in.has(".ftz"), in.has(".sat"), in.has(".relu"), in.roundMode()
	fromInt, toInt := arith.IntOf(from), arith.IntOf(to)
	toFormat := arith.FormatOf(to)
	if !from.Float() && !to.Float() {
		return func(v [4]uint64) uint64 { return toInt.Convert(v[0], fromInt, sat) }
	}
	if !from.Float() {
		return func(v [4]uint64) uint64 {
			x := new(big.Float).SetPrec(64)
			if n := fromInt.Extend(v[0]); from.Signed() {
				x.SetInt64(int64(n))
			} else {
				x.SetUint64(n)
			}
			r := toFormat.Round(x, mode)
			if sat {
				r = arith.Saturate(r)
			}
			return toFormat.Encode(r)
		}
	}
	integral := len(in.mod("rnd")) == len(".rni")
	return func(v [4]uint64) uint64 {
		if from == isa.F32 {
			v[0] = uint64(arith.FlushIf(ftz, uint32(v[0])))
		}
		x := arith.FloatOf(from, v[0])
		if !to.Float() {
			return toInt.FromFloat(x, mode)
		}
		if integral {
			x = arith.RoundIntegral(x, mode)
		} else if x == x && !math.IsInf(x, 0) {
			x = toFormat.Compute(arith.OpMul, mode, x, 1, 0)
		}
		switch {
		case sat:
			x = arith.Saturate(x)
		case relu && !(x > 0) && x == x:
			x = 0
		}
		if r := toFormat.Encode(x); to == isa.F32 {
			return uint64(arith.FlushIf(ftz, uint32(r)))
		} else {
			return r
		}
	}
}

// intoPair returns a conversion of two FP32 numbers into one register. The first number goes to the
// upper half.
func intoPair(f arith.Format, mode arith.Rounding, relu, finite bool) laneFunc {
	one := narrow(f, mode, relu, finite)
	return func(v [4]uint64) uint64 { return one(v[0])<<f.Bits | one(v[1]) }
}

// narrow returns a conversion of an FP32 number to the narrower format f.
func narrow(f arith.Format, mode arith.Rounding, relu, finite bool) func(bits uint64) uint64 {
	return func(bits uint64) uint64 {
		x := arith.FloatOf(isa.F32, bits)
		r := x
		if x == x && !math.IsInf(x, 0) {
			r = f.Compute(arith.OpMul, mode, x, 1, 0)
		}
		if relu && !(r > 0) && r == r {
			r = 0
		}
		if finite && math.Abs(r) > f.Largest() {
			r = math.Copysign(f.Largest(), r)
		}
		return f.Encode(r)
	}
}

var formatFP8 = map[string]arith.Format{".e4m3x2": arith.FormatE4M3, ".e5m2x2": arith.FormatE5M2}

// halfOfFP8 has the FP16 number of each FP8 number.
var halfOfFP8 = map[string]*[256]uint64{".e4m3x2": halvesOf(arith.FormatE4M3), ".e5m2x2": halvesOf(arith.FormatE5M2)}

func halvesOf(f arith.Format) *[256]uint64 {
	var half [256]uint64
	for x := range half {
		half[x] = arith.Format16.Encode(arith.FromFP8(f, uint64(x)))
	}
	return &half
}

func conversionForms() handlers {
	forms := handlers{
		isa.CvtF32ToBF16Zero: lanewise(func(*inst) laneFunc {
			one := narrow(arith.FormatOf(isa.BF16), arith.RoundZero, false, false)
			return func(v [4]uint64) uint64 { return one(v[0]) }
		}),
		isa.CvtF32ToPair: lanewise(func(in *inst) laneFunc {
			to, _ := isa.TypeNamed(in.mod("d")[1:])
			return intoPair(arith.FormatOf(to), in.roundMode(), true, false)
		}),
		isa.CvtF32ToPairZero: lanewise(func(in *inst) laneFunc {
			to, _ := isa.TypeNamed(in.mod("d")[1:])
			return intoPair(arith.FormatOf(to), arith.RoundZero, false, false)
		}),
		isa.CvtTF32:    lanewise(intoTF32Away),
		isa.CvtTF32Any: lanewise(intoTF32),
		isa.CvtFP8: lanewise(func(in *inst) laneFunc {
			return intoPair(formatFP8[in.mod("fp8")], arith.RoundNearest, in.has(".relu"), true)
		}),
		isa.CvtFP8FromF16: lanewise(func(in *inst) laneFunc {
			pair := intoPair(formatFP8[in.mod("fp8")], arith.RoundNearest, in.has(".relu"), true)
			return func(v [4]uint64) uint64 {
				return pair([4]uint64{uint64(arith.F32FromF16(uint16(v[0] >> 16))), uint64(arith.F32FromF16(uint16(v[0])))})
			}
		}),
		isa.CvtFP8ToF16: lanewise(func(in *inst) laneFunc {
			half := halfOfFP8[in.mod("fp8")]
			return func(v [4]uint64) uint64 { return half[v[0]>>8&0xff]<<16 | half[v[0]&0xff] }
		}),
		isa.Pack64x4:   {do: packFour},
		isa.Unpack64x4: {do: unpackFour},
	}
	forms.same(lanewise(convert), isa.CvtIntSat, isa.CvtInt64Sat, isa.CvtInt8, isa.CvtIntFrom8, isa.CvtIntToF32Any, isa.CvtIntToF32More, isa.CvtIntToF64, isa.CvtIntToF16,
		isa.CvtF32ToIntAny, isa.CvtF32ToIntMore, isa.CvtF32ToWide, isa.CvtF64ToInt, isa.CvtF16ToInt, isa.CvtF32ToF64, isa.CvtF64ToF32,
		isa.CvtF16ToF64, isa.CvtF64ToF16, isa.CvtRoundF32, isa.CvtSatF32, isa.CvtRoundF64, isa.CvtRoundF16, isa.CvtF32ToF16Zero, isa.CvtF32ToHalf,
		isa.CvtIntToBF16, isa.CvtBF16ToInt, isa.CvtF16ToBF16, isa.CvtBF16ToF16)
	return forms
}

// tf32Dropped has the bits of an FP32 number that its TF32 number lacks: 13 of the fraction.
const tf32Dropped = 0x1fff

// intoTF32Away rounds to nearest, ties away from zero.
func intoTF32Away(*inst) laneFunc {
	return func(v [4]uint64) uint64 {
		x := uint32(v[0])
		if x&arith.F32Inf == arith.F32Inf {
			return uint64(arith.FromF32(arith.ToF32(x)))
		}
		return uint64((x + 0x1000) &^ tf32Dropped)
	}
}

// intoTF32 rounds to nearest, ties to even, or to zero.
func intoTF32(in *inst) laneFunc {
	nearest, relu := in.roundMode() == arith.RoundNearest, in.has(".relu")
	return func(v [4]uint64) uint64 {
		x := uint32(v[0])
		switch {
		case relu && arith.ToF32(x) < 0, relu && x == arith.F32Sign:
			return 0
		case x&arith.F32Inf == arith.F32Inf:
			return uint64(arith.FromF32(arith.ToF32(x)))
		case nearest:
			x += 0xfff + x>>13&1
		}
		return uint64(x &^ tf32Dropped)
	}
}

// packFour joins four 16-bit values, lowest first, into one 64-bit register.
func packFour(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		x := uint64(0)
		for i, s := range in.args[1].list {
			x |= uint64(w.r32[s][l]&0xffff) << (16 * i)
		}
		w.r64[in.slot[0]][l] = x
	}
}

// unpackFour splits a 64-bit register into four 16-bit values, lowest first.
func unpackFour(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		x := w.r64[in.slot[1]][l]
		for i, s := range in.args[0].list {
			w.r32[s][l] = uint32(x >> (16 * i) & 0xffff)
		}
	}
}
