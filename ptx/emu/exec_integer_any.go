package emu

import (
	"math/bits"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// intOf returns the integer type of an instruction.
func intOf(in *inst) arith.Int { return arith.IntOf(in.typ) }

// typed returns the handler of an operation on values of the instruction's integer type.
func typed(op func(t arith.Int, v [4]uint64) uint64) handler {
	return lanewise(func(in *inst) laneFunc {
		t := intOf(in)
		return func(v [4]uint64) uint64 { return t.Extend(op(t, v)) & (^uint64(0) >> (64 - t.Bits)) }
	})
}

// plain returns the handler of an operation that depends on its inputs only, not on type or
// modifiers.
func plain(op laneFunc) handler { return lanewise(func(*inst) laneFunc { return op }) }

// half returns the handler of an operation on 16-bit registers.
func half(op func(a, b uint64) uint64) handler {
	return plain(func(v [4]uint64) uint64 { return op(v[0], v[1]) & 0xffff })
}

// integerArithmeticForms handles the arithmetic forms for which zlanes.go has no function: 16-bit
// types, saturation and 24-bit products.
func integerArithmeticForms() handlers {
	s32 := arith.Int{Bits: 32, Signed: true}
	return handlers{
		isa.Add16:     typed(func(_ arith.Int, v [4]uint64) uint64 { return v[0] + v[1] }),
		isa.Sub16:     typed(func(_ arith.Int, v [4]uint64) uint64 { return v[0] - v[1] }),
		isa.AddSat:    plain(func(v [4]uint64) uint64 { return s32.Clamp(int64(s32.Extend(v[0])) + int64(s32.Extend(v[1]))) }),
		isa.SubSat:    plain(func(v [4]uint64) uint64 { return s32.Clamp(int64(s32.Extend(v[0])) - int64(s32.Extend(v[1]))) }),
		isa.MulLo16:   typed(func(_ arith.Int, v [4]uint64) uint64 { return v[0] * v[1] }),
		isa.MulHiMore: typed(func(t arith.Int, v [4]uint64) uint64 { return t.High(v[0], v[1]) }),
		isa.MulWide16: lanewise(func(in *inst) laneFunc {
			t := intOf(in)
			return func(v [4]uint64) uint64 { return t.Extend(v[0]) * t.Extend(v[1]) }
		}),
		isa.MadWide16: lanewise(func(in *inst) laneFunc {
			t := intOf(in)
			return func(v [4]uint64) uint64 { return t.Extend(v[0])*t.Extend(v[1]) + v[2] }
		}),
		isa.MadLoMore: typed(func(_ arith.Int, v [4]uint64) uint64 { return v[0]*v[1] + v[2] }),
		isa.MadHi:     typed(func(t arith.Int, v [4]uint64) uint64 { return t.High(v[0], v[1]) + v[2] }),
		isa.Mul24:     lanewise(func(in *inst) laneFunc { return product24(in) }),
		isa.Mad24: lanewise(func(in *inst) laneFunc {
			p := product24(in)
			return func(v [4]uint64) uint64 { return p(v) + v[2] }
		}),
		isa.Sad:  typed(absoluteDifference),
		isa.Dp4a: lanewise(dotBytes),
		isa.DivMore: typed(func(t arith.Int, v [4]uint64) uint64 {
			if t.Signed {
				return uint64(arith.Divide(int64(t.Extend(v[0])), int64(t.Extend(v[1]))))
			}
			return arith.Divide(t.Extend(v[0]), t.Extend(v[1]))
		}),
		isa.RemMore: typed(func(t arith.Int, v [4]uint64) uint64 {
			if t.Signed {
				return uint64(arith.Remainder(int64(t.Extend(v[0])), int64(t.Extend(v[1]))))
			}
			return arith.Remainder(t.Extend(v[0]), t.Extend(v[1]))
		}),
		isa.Min16: typed(func(t arith.Int, v [4]uint64) uint64 { return v[choose(t.Less(v[1], v[0]))] }),
		isa.Max16: typed(func(t arith.Int, v [4]uint64) uint64 { return v[choose(t.Less(v[0], v[1]))] }),
		isa.Neg:   typed(func(_ arith.Int, v [4]uint64) uint64 { return -v[0] }),
		isa.Abs: typed(func(t arith.Int, v [4]uint64) uint64 {
			if x := t.Extend(v[0]); int64(x) >= 0 {
				return x
			}
			return -v[0]
		}),
	}
}

// bitForms handles the shifts, bit fields and bitwise operations for which zlanes.go has no
// function.
func bitForms() handlers {
	return handlers{
		isa.And16: half(func(a, b uint64) uint64 { return a & b }),
		isa.Or16:  half(func(a, b uint64) uint64 { return a | b }),
		isa.Xor16: half(func(a, b uint64) uint64 { return a ^ b }),
		isa.Not16: half(func(a, _ uint64) uint64 { return ^a }),
		isa.Cnot:  typed(func(t arith.Int, v [4]uint64) uint64 { return uint64(choose(t.Extend(v[0]) == 0)) }),
		isa.Shl16: half(func(a, n uint64) uint64 { return a << n }),
		isa.ShrMore: typed(func(t arith.Int, v [4]uint64) uint64 {
			if x := t.Extend(v[0]); t.Signed {
				return uint64(int64(x) >> v[1])
			} else {
				return x >> v[1]
			}
		}),
		isa.Shf:   lanewise(func(in *inst) laneFunc { return funnel(in.has(".l"), in.has(".clamp")) }),
		isa.Lop3:  plain(lop3),
		isa.Brev:  typed(func(t arith.Int, v [4]uint64) uint64 { return bits.Reverse64(v[0]) >> (64 - t.Bits) }),
		isa.Bfind: lanewise(findBit),
		isa.Bmsk: lanewise(func(in *inst) laneFunc {
			wrap := in.has(".wrap")
			return func(v [4]uint64) uint64 {
				at, n := v[0]&0xffffffff, v[1]&0xffffffff
				if wrap {
					at, n = at%32, n%32
				}
				return (1<<min(n, 32) - 1) << min(at, 32) & 0xffffffff
			}
		}),
		isa.Bfe: typed(extractField),
		isa.Bfi: typed(insertField),
		isa.PrmtMode: lanewise(func(in *inst) laneFunc {
			mode := in.mod("mode")
			return func(v [4]uint64) uint64 {
				return uint64(arith.Permute(uint32(v[0]), uint32(v[1]), arith.PermuteSelector(mode, uint32(v[2]&3))))
			}
		}),
		isa.Slct: lanewise(func(in *inst) laneFunc {
			return func(v [4]uint64) uint64 { return v[choose(int32(v[2]) < 0)] }
		}),
	}
}

// absoluteDifference executes sad: it adds |a-b| to the third operand.
func absoluteDifference(t arith.Int, v [4]uint64) uint64 {
	if t.Less(v[0], v[1]) {
		return v[2] + t.Extend(v[1]) - t.Extend(v[0])
	}
	return v[2] + t.Extend(v[0]) - t.Extend(v[1])
}

// dotBytes executes dp4a: it adds the products of four pairs of bytes to the third operand.
func dotBytes(in *inst) laneFunc {
	a, b := arith.Int{Bits: 8, Signed: in.mod("a") == ".s32"}, arith.Int{Bits: 8, Signed: in.mod("b") == ".s32"}
	return func(v [4]uint64) uint64 {
		sum := v[2]
		for i := 0; i < 32; i += 8 {
			sum += a.Extend(v[0]>>i) * b.Extend(v[1]>>i)
		}
		return sum
	}
}

// lop3 computes a bitwise function of three operands. The fourth operand is its truth table.
func lop3(v [4]uint64) uint64 {
	a, b, c := v[0], v[1], v[2]
	d := uint64(0)
	for i, term := range []uint64{^a & ^b & ^c, ^a & ^b & c, ^a & b & ^c, ^a & b & c, a & ^b & ^c, a & ^b & c, a & b & ^c, a & b & c} {
		if v[3]>>i&1 == 1 {
			d |= term
		}
	}
	return d
}

// findBit executes bfind: it returns the position of the highest bit that differs from the sign
// bit. With .shiftamt it returns the distance of this bit from the top bit.
func findBit(in *inst) laneFunc {
	t, shift := intOf(in), in.has(".shiftamt")
	return func(v [4]uint64) uint64 {
		x := t.Extend(v[0])
		if t.Signed && int64(x) < 0 {
			x = ^x
		}
		n := uint64(bits.Len64(x)) - 1
		if shift && int64(n) >= 0 {
			n = uint64(t.Bits) - 1 - n
		}
		return n & 0xffffffff
	}
}

// extractField executes bfe: it extracts a field of bits. For a signed type it sign-extends the
// field.
func extractField(t arith.Int, v [4]uint64) uint64 {
	at, n, top := v[1]&0xff, v[2]&0xff, uint64(t.Bits-1)
	if n == 0 {
		return 0
	}
	x, sign := t.Extend(v[0]), uint64(0)
	if t.Signed {
		sign = x >> min(at+n-1, top) & 1
	}
	field := uint64(0)
	if at <= top {
		field = x & (^uint64(0) >> (63 - top)) >> at
	}
	if have := min(n, max(top+1, at)-at); have < 64 {
		field &= 1<<have - 1
		if sign == 1 {
			field |= ^uint64(0) << have
		}
	}
	return field
}

// insertField executes bfi: it puts the low n bits of a into a field of b.
func insertField(t arith.Int, v [4]uint64) uint64 {
	at, n := v[2]&0xff, v[3]&0xff
	ones := ^uint64(0)
	if n < 64 {
		ones = 1<<n - 1
	}
	return v[1]&^(ones<<at) | v[0]&ones<<at
}

func product24(in *inst) laneFunc {
	t, shift := arith.Int{Bits: 24, Signed: in.typ.Signed()}, 0
	if in.has(".hi") {
		shift = 16
	}
	return func(v [4]uint64) uint64 { return t.Extend(v[0]) * t.Extend(v[1]) >> shift & 0xffffffff }
}

// funnel executes shf: it shifts a 64-bit number, whose lower half is a and whose upper half is b.
func funnel(left, clamp bool) laneFunc {
	return func(v [4]uint64) uint64 {
		n := v[2] & 31
		if clamp {
			n = min(v[2], 32)
		}
		both := v[1]<<32 | v[0]&0xffffffff
		if left {
			return both << n >> 32
		}
		return both >> n & 0xffffffff
	}
}
