package emu

import (
	"math/bits"

	"sonicmoe/ptx/isa"
)

type (
	ops32 = map[isa.Type]func(a, b, c uint32) uint32
	ops64 = map[isa.Type]func(a, b, c uint64) uint64
)

// wrapping makes the operations whose result does not depend on the sign.
func wrapping(op32 func(a, b, c uint32) uint32, op64 func(a, b, c uint64) uint64) handler {
	return byWidth(ops32{isa.U32: op32, isa.S32: op32, isa.B32: op32}, ops64{isa.U64: op64, isa.S64: op64, isa.B64: op64})
}

func integerForms() map[isa.ID]handler {
	return map[isa.ID]handler{
		isa.Add:     wrapping(func(a, b, _ uint32) uint32 { return a + b }, func(a, b, _ uint64) uint64 { return a + b }),
		isa.Sub:     wrapping(func(a, b, _ uint32) uint32 { return a - b }, func(a, b, _ uint64) uint64 { return a - b }),
		isa.MulLo:   wrapping(func(a, b, _ uint32) uint32 { return a * b }, func(a, b, _ uint64) uint64 { return a * b }),
		isa.MadLo:   wrapping(func(a, b, c uint32) uint32 { return a*b + c }, func(a, b, c uint64) uint64 { return a*b + c }),
		isa.And:     logic(func(a, b uint64) uint64 { return a & b }),
		isa.Or:      logic(func(a, b uint64) uint64 { return a | b }),
		isa.Xor:     logic(func(a, b uint64) uint64 { return a ^ b }),
		isa.Not:     logic(func(a, _ uint64) uint64 { return ^a }),
		isa.Div:     byWidth(ops32{isa.U32: divU32, isa.S32: divS32}, ops64{isa.U64: divU64}),
		isa.Rem:     byWidth(ops32{isa.U32: remU32, isa.S32: remS32}, ops64{isa.U64: remU64}),
		isa.Min:     byWidth(ops32{isa.U32: minU32, isa.S32: minS32}, ops64{isa.U64: minU64, isa.S64: minS64}),
		isa.Max:     byWidth(ops32{isa.U32: maxU32, isa.S32: maxS32}, ops64{isa.U64: maxU64, isa.S64: maxS64}),
		isa.MulHi:   byWidth(ops32{isa.U32: mulHiU32, isa.S32: mulHiS32}, nil),
		isa.MulWide: {exec: aluMixed, prepare: prepareWide},
		isa.MadWide: {exec: aluMixed, prepare: prepareWide},
		isa.Shl:     {exec: aluMixed, prepare: prepareShift},
		isa.Shr:     {exec: aluMixed, prepare: prepareShift},
		isa.Popc: {exec: aluMixed, prepare: func(in *inst) {
			in.op64 = func(a, _, _ uint64) uint64 { return uint64(bits.OnesCount64(a)) }
		}},
		isa.Clz: {exec: aluMixed, prepare: func(in *inst) {
			free := 64 - in.typ.Bits()
			in.op64 = func(a, _, _ uint64) uint64 { return uint64(bits.LeadingZeros64(a) - free) }
		}},
		isa.Prmt: {exec: alu32, prepare: func(in *inst) { in.op32 = permute }},
		isa.Setp: {exec: compare32, prepare: prepareCompare},
		isa.Selp: {exec: selectPred},
	}
}

// logic makes a bitwise operation on registers or predicates.
func logic(op func(a, b uint64) uint64) handler {
	return handler{exec: alu32, prepare: func(in *inst) {
		switch in.typ {
		case isa.B64:
			in.exec, in.op64 = alu64, func(a, b, _ uint64) uint64 { return op(a, b) }
		case isa.Pred:
			in.exec = func(w *warp, _ *frag, in *inst, mask uint32) outcome {
				b := uint32(0)
				if len(in.args) > 2 {
					b = w.pred(&in.args[2])
				}
				w.setPred(in.slot[0], uint32(op(uint64(w.pred(&in.args[1])), uint64(b))), mask)
				return next
			}
		default:
			in.op32 = func(a, b, _ uint32) uint32 { return uint32(op(uint64(a), uint64(b))) }
		}
	}}
}

// Division by zero gives all ones and leaves the dividend as remainder, as the
// hardware's own sequence does for unsigned numbers; PTX leaves it open.

func divU32(a, b, _ uint32) uint32 {
	if b == 0 {
		return fullMask
	}
	return a / b
}

func divS32(a, b, _ uint32) uint32 {
	if b == 0 {
		return fullMask
	}
	return uint32(int32(a) / int32(b))
}

func divU64(a, b, _ uint64) uint64 {
	if b == 0 {
		return ^uint64(0)
	}
	return a / b
}

func remU32(a, b, _ uint32) uint32 {
	if b == 0 {
		return a
	}
	return a % b
}

func remS32(a, b, _ uint32) uint32 {
	if b == 0 {
		return a
	}
	return uint32(int32(a) % int32(b))
}

func remU64(a, b, _ uint64) uint64 {
	if b == 0 {
		return a
	}
	return a % b
}

func minU32(a, b, _ uint32) uint32   { return min(a, b) }
func minS32(a, b, _ uint32) uint32   { return uint32(min(int32(a), int32(b))) }
func minU64(a, b, _ uint64) uint64   { return min(a, b) }
func minS64(a, b, _ uint64) uint64   { return uint64(min(int64(a), int64(b))) }
func maxU32(a, b, _ uint32) uint32   { return max(a, b) }
func maxS32(a, b, _ uint32) uint32   { return uint32(max(int32(a), int32(b))) }
func maxU64(a, b, _ uint64) uint64   { return max(a, b) }
func maxS64(a, b, _ uint64) uint64   { return uint64(max(int64(a), int64(b))) }
func mulHiU32(a, b, _ uint32) uint32 { return uint32(uint64(a) * uint64(b) >> 32) }
func mulHiS32(a, b, _ uint32) uint32 { return uint32(uint64(int64(int32(a))*int64(int32(b))) >> 32) }

func prepareWide(in *inst) {
	if in.typ.Signed() {
		in.op64 = func(a, b, c uint64) uint64 { return uint64(int64(int32(a))*int64(int32(b))) + c }
		return
	}
	in.op64 = func(a, b, c uint64) uint64 { return a*b + c }
}

// prepareShift: a shift by the width or more gives zeros, or copies of the
// sign.
func prepareShift(in *inst) {
	width := uint64(in.typ.Bits())
	switch {
	case in.form.ID == isa.Shl:
		in.op64 = func(a, n, _ uint64) uint64 { return a << n }
	case !in.typ.Signed():
		in.op64 = func(a, n, _ uint64) uint64 { return a >> n }
	case width == 32:
		in.op64 = func(a, n, _ uint64) uint64 { return uint64(uint32(int32(a) >> min(n, 31))) }
	default:
		in.op64 = func(a, n, _ uint64) uint64 { return uint64(int64(a) >> min(n, 63)) }
	}
	if width == 32 {
		wide := in.op64
		in.exec = alu32
		in.op32 = func(a, n, _ uint32) uint32 { return uint32(wide(uint64(a), uint64(n), 0)) }
	}
}

// permute is prmt in its default mode: each nibble of the selector takes one
// of eight bytes, or with its top bit eight copies of that byte's sign.
func permute(a, b, selector uint32) uint32 {
	all := uint64(b)<<32 | uint64(a)
	var d uint32
	for i := range 4 {
		n := selector >> (4 * i) & 15
		v := byte(all >> (8 * (n & 7)))
		if n&8 != 0 {
			v = byte(int8(v) >> 7)
		}
		d |= uint32(v) << (8 * i)
	}
	return d
}

type ordered interface {
	uint32 | int32 | uint64 | int64
}

func relation[T ordered](name string) func(a, b T) bool {
	return map[string]func(a, b T) bool{
		".eq": func(a, b T) bool { return a == b }, ".ne": func(a, b T) bool { return a != b },
		".lt": func(a, b T) bool { return a < b }, ".le": func(a, b T) bool { return a <= b },
		".gt": func(a, b T) bool { return a > b }, ".ge": func(a, b T) bool { return a >= b },
	}[name]
}

func prepareCompare(in *inst) {
	cmp := in.mod("cmp")
	switch in.typ {
	case isa.U32:
		in.cmp32 = relation[uint32](cmp)
	case isa.S32:
		signed := relation[int32](cmp)
		in.cmp32 = func(a, b uint32) bool { return signed(int32(a), int32(b)) }
	case isa.U64:
		in.exec, in.cmp64 = compare64, relation[uint64](cmp)
	case isa.S64:
		signed := relation[int64](cmp)
		in.exec, in.cmp64 = compare64, func(a, b uint64) bool { return signed(int64(a), int64(b)) }
	}
}

func selectPred(w *warp, _ *frag, in *inst, mask uint32) outcome {
	p := w.pred(&in.args[3])
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		from := in.slot[2]
		if p>>l&1 == 1 {
			from = in.slot[1]
		}
		if in.typ == isa.B64 {
			w.r64[in.slot[0]][l] = w.r64[from][l]
		} else {
			w.r32[in.slot[0]][l] = w.r32[from][l]
		}
	}
	return next
}
