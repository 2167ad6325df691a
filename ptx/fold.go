package ptx

import (
	"math/bits"

	"sonicmoe/ptx/isa"
)

// fold computes an instruction whose inputs are constants. The result has the bits that the GPU
// would return. It does not fold instructions that the GPU approximates.
func fold(f *isa.Form, m isa.Mods, in []val) (uint64, bool) {
	var c [3]uint64
	for i := range in {
		if !in[i].konst || i >= len(c) {
			return 0, false
		}
		c[i] = in[i].imm
	}
	t := f.ArgType(m, 1)
	if t.Float() {
		return foldFloat(f, m, c[0], c[1], c[2])
	}
	return foldInt(f, m, t, c[0], c[1], c[2])
}

func foldInt(f *isa.Form, m isa.Mods, t isa.Type, a, b, c uint64) (uint64, bool) {
	mask := ^uint64(0) >> (64 - t.Bits())
	sa, sb := signed(a, t), signed(b, t)
	switch f.ID {
	case isa.Add:
		return (a + b) & mask, true
	case isa.Sub:
		return (a - b) & mask, true
	case isa.MulLo:
		return (a * b) & mask, true
	case isa.MulHi:
		if t.Signed() {
			return uint64(sa*sb) >> 32, true
		}
		return a * b >> 32, true
	case isa.MulWide:
		if t.Signed() {
			return uint64(sa * sb), true
		}
		return a * b, true
	case isa.MadLo:
		return (a*b + c) & mask, true
	case isa.MadWide:
		if t.Signed() {
			return uint64(sa*sb) + c, true
		}
		return a*b + c, true
	case isa.Div, isa.Rem:
		return divide(f.ID, t, a, b, mask)
	case isa.Min, isa.Max:
		less := a < b
		if t.Signed() {
			less = sa < sb
		}
		if less == (f.ID == isa.Min) {
			return a, true
		}
		return b, true
	case isa.Setp:
		return compare(f.Mod(m, "cmp"), t.Signed(), a, b, sa, sb), true
	}
	return foldBits(f.ID, t, a, b, c)
}

// foldBits computes an operation on single bits or bytes.
func foldBits(id isa.ID, t isa.Type, a, b, c uint64) (uint64, bool) {
	mask := ^uint64(0) >> (64 - t.Bits())
	switch id {
	case isa.And:
		return a & b, true
	case isa.Or:
		return a | b, true
	case isa.Xor:
		return a ^ b, true
	case isa.Not:
		return ^a & mask, true
	case isa.Shl:
		return a << min(b, 64) & mask, true
	case isa.Shr:
		if t.Signed() {
			return uint64(signed(a, t)>>min(b, 63)) & mask, true
		}
		return a >> min(b, 64), true
	case isa.Popc:
		return uint64(bits.OnesCount64(a)), true
	case isa.Clz:
		return uint64(bits.LeadingZeros64(a) - (64 - t.Bits())), true
	case isa.Prmt:
		return permute(a, b, c), true
	}
	return 0, false
}

// permute executes prmt: each nibble of selector picks one of the eight bytes of b and a, a being
// the lower four. A nibble above 7 repeats the byte's sign bit instead.
func permute(a, b, selector uint64) (d uint64) {
	both := b<<32 | a
	for i := range 4 {
		n := selector >> (4 * i) & 15
		x := both >> (8 * (n & 7)) & 255
		if n > 7 {
			x = -(x >> 7) & 255
		}
		d |= x << (8 * i)
	}
	return d
}

func signed(x uint64, t isa.Type) int64 {
	if t.Bits() == 32 {
		return int64(int32(x))
	}
	return int64(x)
}

func divide(id isa.ID, t isa.Type, a, b, mask uint64) (uint64, bool) {
	if b == 0 {
		return 0, false
	}
	if t.Signed() {
		sa, sb := signed(a, t), signed(b, t)
		if id == isa.Div {
			return uint64(sa/sb) & mask, true
		}
		return uint64(sa%sb) & mask, true
	}
	if id == isa.Div {
		return a / b, true
	}
	return a % b, true
}

func compare(cmp string, signed bool, a, b uint64, sa, sb int64) uint64 {
	less := a < b
	if signed {
		less = sa < sb
	}
	var is bool
	switch cmp {
	case ".eq":
		is = a == b
	case ".ne":
		is = a != b
	case ".lt":
		is = less
	case ".le":
		is = less || a == b
	case ".gt":
		is = !less && a != b
	case ".ge":
		is = !less
	}
	if is {
		return 1
	}
	return 0
}

// simplify replaces operations that change nothing, such as adding 0, by their input.
func simplify(f *isa.Form, m isa.Mods, in []val) (val, bool) {
	if c, ok := fold(f, m, in); ok {
		return constant(c), true
	}
	typ := Mod(f.Mod(m, "type"))
	switch {
	case f.ID == isa.MadLo && in[1].konst && in[1].imm == 1:
		return operate(isa.Add, []Mod{typ}, in[0], in[2]), true
	case f.ID == isa.MadWide && in[0].konst && in[1].konst:
		product := operate(isa.MulWide, []Mod{typ}, in[0], in[1])
		return operate(isa.Add, []Mod{Mod("." + f.ArgType(m, 3).String())}, in[2], product), true
	}
	if typ == ".pred" {
		return simplifyPred(f, in)
	}
	if len(in) != 2 {
		return val{}, false
	}
	a, b := in[0], in[1]
	zero := func(v val) bool { return v.konst && v.imm == 0 }
	is1 := func(v val) bool { return v.konst && v.imm == 1 }
	switch f.ID {
	case isa.Add, isa.Or, isa.Xor:
		if zero(b) {
			return a, true
		}
		if zero(a) {
			return b, true
		}
	case isa.Sub, isa.Shl, isa.Shr:
		if zero(b) {
			return a, true
		}
	case isa.MulLo:
		if is1(b) || zero(a) {
			return a, true
		}
		if is1(a) || zero(b) {
			return b, true
		}
	case isa.Div, isa.Rem:
		if f.ID == isa.Div && is1(b) {
			return a, true
		}
		if b.konst && b.imm > 0 && typ == ".u32" {
			return simplifyDivision(f.ID, a, b), true
		}
	}
	return val{}, false
}

// simplifyDivision replaces unsigned division by a constant by shifts, masks and products.
func simplifyDivision(id isa.ID, a, b val) val {
	power := bits.OnesCount64(b.imm) == 1
	switch {
	case id == isa.Div && power:
		return operate(isa.Shr, []Mod{".u32"}, a, constant(uint64(bits.TrailingZeros64(b.imm))))
	case id == isa.Div:
		return divideConst(a, b.imm)
	case power:
		return operate(isa.And, []Mod{".b32"}, a, constant(b.imm-1))
	}
	q := operate(isa.MulLo, []Mod{".u32"}, divideConst(a, b.imm), b)
	return operate(isa.Sub, []Mod{".u32"}, a, q)
}

// simplifyPred simplifies operations on predicates with a constant input.
func simplifyPred(f *isa.Form, in []val) (val, bool) {
	if f.ID == isa.Not {
		return Pred{in[0]}.Negated().v, true
	}
	a, b := in[0], in[1]
	if a.konst {
		a, b = b, a
	}
	if !b.konst {
		return val{}, false
	}
	switch holds := b.imm != 0; {
	case f.ID == isa.And && holds, f.ID == isa.Or && !holds, f.ID == isa.Xor && !holds:
		return a, true
	case f.ID == isa.Xor:
		return Pred{a}.Negated().v, true
	}
	return b, true
}
