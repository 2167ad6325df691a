package emu

import (
	"math/bits"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// laneFunc computes one lane from its inputs, which are in the low bits.
type laneFunc func(v [4]uint64) uint64

// lanewise handles an instruction that computes each lane by itself, for registers of any
// width.
func lanewise(prepare func(in *inst) laneFunc) handler {
	return handler{exec: eachLane, prepare: func(in *inst) { in.lane = prepare(in) }}
}

func eachLane(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d := &in.args[0]
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		v := w.inputs(in, l)
		w.setElem(d, d.slot, l, in.lane(v))
	}
	return next
}

// inputs returns the operands after the first, in one lane.
func (w *warp) inputs(in *inst, l int) (v [4]uint64) {
	for i := range min(len(in.args)-1, len(v)) {
		switch a := &in.args[1+i]; a.bank {
		case bankNone:
			v[i] = uint64(a.imm)
		case bankPred:
			v[i] = uint64(w.pred(a) >> l & 1)
		default:
			v[i] = w.elem(a, a.slot, l)
		}
	}
	return v
}

// intOf returns the integer type of an instruction.
func intOf(in *inst) arith.Int { return arith.IntOf(in.typ) }

func integerMoreForms() map[isa.ID]handler {
	typed := func(op func(t arith.Int, v [4]uint64) uint64) handler {
		return lanewise(func(in *inst) laneFunc {
			t := intOf(in)
			return func(v [4]uint64) uint64 { return t.Extend(op(t, v)) & (^uint64(0) >> (64 - t.Bits)) }
		})
	}
	plain := func(op laneFunc) handler { return lanewise(func(*inst) laneFunc { return op }) }
	half := func(op func(a, b uint64) uint64) handler {
		return plain(func(v [4]uint64) uint64 { return op(v[0], v[1]) & 0xffff })
	}
	s32 := arith.Int{Bits: 32, Signed: true}
	forms := map[isa.ID]handler{
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
		isa.Sad: typed(func(t arith.Int, v [4]uint64) uint64 {
			if t.Less(v[0], v[1]) {
				return v[2] + t.Extend(v[1]) - t.Extend(v[0])
			}
			return v[2] + t.Extend(v[0]) - t.Extend(v[1])
		}),
		isa.Dp4a: lanewise(func(in *inst) laneFunc {
			a, b := arith.Int{Bits: 8, Signed: in.mod("a") == ".s32"}, arith.Int{Bits: 8, Signed: in.mod("b") == ".s32"}
			return func(v [4]uint64) uint64 {
				sum := v[2]
				for i := 0; i < 32; i += 8 {
					sum += a.Extend(v[0]>>i) * b.Extend(v[1]>>i)
				}
				return sum
			}
		}),
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
		isa.Shf: lanewise(func(in *inst) laneFunc { return funnel(in.has(".l"), in.has(".clamp")) }),
		isa.Lop3: plain(func(v [4]uint64) uint64 {
			a, b, c := v[0], v[1], v[2]
			d := uint64(0)
			for i, term := range []uint64{^a & ^b & ^c, ^a & ^b & c, ^a & b & ^c, ^a & b & c, a & ^b & ^c, a & ^b & c, a & b & ^c, a & b & c} {
				if v[3]>>i&1 == 1 {
					d |= term
				}
			}
			return d
		}),
		isa.Brev: typed(func(t arith.Int, v [4]uint64) uint64 { return bits.Reverse64(v[0]) >> (64 - t.Bits) }),
		isa.Bfind: lanewise(func(in *inst) laneFunc {
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
		}),
		isa.Bfe: typed(func(t arith.Int, v [4]uint64) uint64 {
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
		}),
		isa.Bfi: typed(func(t arith.Int, v [4]uint64) uint64 {
			at, n := v[2]&0xff, v[3]&0xff
			ones := ^uint64(0)
			if n < 64 {
				ones = 1<<n - 1
			}
			return v[1]&^(ones<<at) | v[0]&ones<<at
		}),
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
	for id, kind := range map[isa.ID]carryKind{isa.AddCC: {sets: true}, isa.Addc: {takes: true}, isa.SubCC: {sets: true, minus: true},
		isa.Subc: {takes: true, minus: true}, isa.MadCC: {sets: true, product: true}, isa.Madc: {takes: true, product: true}} {
		forms[id] = handler{exec: kind.exec}
	}
	for _, id := range []isa.ID{isa.SetpBits, isa.Setp16, isa.SetpUnsigned, isa.SetpF64, isa.SetpF16, isa.SetpBF16, isa.SetpPair, isa.SetpBool, isa.SetpBoolPair} {
		forms[id] = handler{exec: setPredicates, prepare: prepareCompare}
	}
	forms[isa.Set] = lanewise(func(in *inst) laneFunc {
		prepareCompare(in)
		holds, yes := in.lane, uint64(0xffffffff)
		if in.mod("d") == ".f32" {
			yes = 0x3f800000
		}
		return func(v [4]uint64) uint64 { return yes * holds(v) }
	})
	return forms
}

// choose returns 1 if a condition holds, else 0.
func choose(holds bool) int {
	if holds {
		return 1
	}
	return 0
}

func product24(in *inst) laneFunc {
	t, shift := arith.Int{Bits: 24, Signed: in.typ.Signed()}, 0
	if in.has(".hi") {
		shift = 16
	}
	return func(v [4]uint64) uint64 { return t.Extend(v[0]) * t.Extend(v[1]) >> shift & 0xffffffff }
}

// funnel is shf: a is the lower half of 64 bits, b the upper half.
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

// carryKind is an extended-precision instruction: whether it sets and takes the carry,
// subtracts, and multiplies.
type carryKind struct{ sets, takes, minus, product bool }

func (k carryKind) exec(w *warp, _ *frag, in *inst, mask uint32) outcome {
	t := intOf(in)
	all := ^uint64(0) >> (64 - t.Bits)
	sets := k.sets || in.has(".cc")
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		v := w.inputs(in, l)
		a, b := v[0], v[1]
		if k.product {
			_, a = t.Product(v[0], v[1])
			if b = v[2]; in.has(".hi") {
				a = t.High(v[0], v[1])
			}
		}
		carry := uint64(0)
		if k.takes {
			carry = uint64(w.carry >> l & 1)
		}
		a, b = a&all, b&all
		var sum, out uint64
		if k.minus {
			sum, out = bits.Sub64(a, b, carry)
			out &= 1
		} else if sum, out = bits.Add64(a, b, carry); t.Bits < 64 {
			out = sum >> t.Bits & 1
		}
		if sets {
			w.carry = w.carry&^(1<<l) | uint32(out)<<l
		}
		w.setElem(&in.args[0], in.args[0].slot, l, sum&all)
	}
	return next
}

// prepareCompare sets lane to return 1 where the comparison holds.
func prepareCompare(in *inst) {
	cmp, form := in.mod("cmp")[1:], in.form.ID
	name := map[string]string{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}[cmp]
	if name == "" {
		name = cmp
	}
	rel, ftz := arith.Compares[name], in.has(".ftz")
	number := func(x uint64) float64 { return arith.FloatOf(in.typ, x) }
	switch {
	case form == isa.SetpF16:
		number = func(x uint64) float64 { return arith.FloatOf(isa.F16, arith.FlushHalf(x, ftz)) }
	case form == isa.SetpBF16:
		number = func(x uint64) float64 { return arith.FloatOf(isa.BF16, x) }
	case form == isa.SetpF64:
		number = func(x uint64) float64 { return arith.FloatOf(isa.F64, x) }
	case !in.typ.Float():
		t := intOf(in)
		in.lane = func(v [4]uint64) uint64 {
			a, b := 0.0, 0.0 // a and b have the same relation as the numbers
			if t.Less(v[0], v[1]) {
				b = 1
			} else if t.Less(v[1], v[0]) {
				a = 1
			}
			return uint64(choose(rel.F64(a, b)))
		}
		return
	}
	in.lane = func(v [4]uint64) uint64 { return uint64(choose(rel.F64(number(v[0]), number(v[1])))) }
}

// setPredicates is setp with all options: a second predicate, which is the opposite of the
// first, and a third predicate that is combined with both.
func setPredicates(w *warp, _ *frag, in *inst, mask uint32) outcome {
	holds := uint32(0)
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		holds |= uint32(in.lane(w.inputs(in, l))) << l
	}
	p, q := holds, ^holds
	if len(in.args) > 3 {
		c := w.pred(&in.args[3])
		switch in.mod("bool") {
		case ".and":
			p, q = p&c, q&c
		case ".or":
			p, q = p|c, q|c
		default:
			p, q = p^c, q^c
		}
	}
	d := &in.args[0]
	w.setPred(d.slot, p, mask)
	if in.form.Args[0].Kind == isa.Pair {
		w.setPred(d.pair, q, mask)
	}
	return next
}
