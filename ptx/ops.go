package ptx

import (
	"math"
	"math/bits"

	"sonicmoe/ptx/isa"
)

// special reads special register i of isa.Specials.
func (k *Kernel) special(i int) val {
	old, sp := k.hint, &isa.Specials[i]
	isTid := sp.Name == "%tid.x"
	if isTid {
		k.hint = "tid"
	}
	d := k.result(sp.Type)
	k.hint = old
	k.op(isa.Mov, []Mod{Mod("." + sp.Type.String())}, d.operand(sp.Type), Operand{Kind: OpSpecial, Reg: int32(i)})
	if isTid && !k.guarded && k.thread[tidX].missing() {
		k.thread[tidX] = d
	}
	return d
}

// Select returns a if p is true, else b.
func Select[T Value](p Pred, a, b T) T {
	if p.v.konst {
		if p.v.imm != 0 {
			return a
		}
		return b
	}
	va, vb := a.val(), b.val()
	if a.isaType() == isa.Pred {
		pa, pb := Pred{va}, Pred{vb}
		return wrap[T](p.And(pa).Or(p.Negated().And(pb)).v)
	}
	k := p.v.k
	if k == nil {
		return wrap[T](p.v)
	}
	if p.v.negate {
		p.v.negate, va, vb = false, vb, va
	}
	t := a.isaType()
	mod := Mod(".b32")
	if t.Bits() == 64 {
		mod = ".b64"
	} else if t == isa.F32 {
		mod = ".f32"
	}
	return wrap[T](k.opTo(isa.Selp, t, []Mod{mod}, va.operand(t), vb.operand(t), p.v.operand(isa.Pred)))
}

func (v val) convert(id isa.ID, from, to isa.Type, mods ...Mod) val {
	if v.konst {
		return constant(convertConstant(v.imm, from, to))
	}
	if v.k == nil {
		return v
	}
	return v.k.opTo(id, to, mods, v.operand(from))
}

// U64 extends x with zeros to 64 bits.
func (x U32) U64() U64 {
	return U64{x.v.convert(isa.CvtInt, isa.U32, isa.U64, ".u64", ".u32")}
}

// U32 returns the low 32 bits of x.
func (x U64) U32() U32 {
	return U32{x.v.convert(isa.CvtInt, isa.U64, isa.U32, ".u32", ".u64")}
}

// U32 extends x with zeros to 32 bits.
func (x B16) U32() U32 { return U32{x.v.convert(isa.CvtInt, isa.U16, isa.U32, ".u32", ".u16")} }

// B16 returns the low 16 bits of x.
func (x U32) B16() B16 { return B16{x.v.convert(isa.CvtInt, isa.U32, isa.U16, ".u16", ".u32")} }

// F32 converts the integer to a float, rounded to nearest.
func (x U32) F32() F32 { return F32{x.v.convert(isa.CvtIntToF32, isa.U32, isa.F32, ".u32")} }

// PackBF16 rounds two floats to bf16, and packs them. lo becomes the lower half.
func (k *Kernel) PackBF16(lo, hi F32) BF16x2 {
	if lo.v.konst && hi.v.konst {
		return BF16x2{constant(toBF16(hi.v.imm)<<16 | toBF16(lo.v.imm))}
	}
	return BF16x2{k.opTo(isa.CvtF32ToBF16x2, isa.BF16x2, nil, hi.v.operand(isa.F32), lo.v.operand(isa.F32))}
}

// Unpack converts both halves to single precision. This needs only a shift and a mask, because a
// bf16 is the upper half of a float.
func (x BF16x2) Unpack() (lo, hi F32) {
	return x.Bits().ShlI(16).AsF32(), x.Bits().AndI(0xffff0000).AsF32()
}

// Sub subtracts each half of y from the same half of x, rounded to nearest.
func (x BF16x2) Sub(y BF16x2) BF16x2 {
	return BF16x2{operate(isa.SubBF16, []Mod{".rn", ".bf16x2"}, x.v, y.v)}
}

// Mul multiplies each half of x with the same half of y, rounded to nearest.
func (x BF16x2) Mul(y BF16x2) BF16x2 {
	return BF16x2{operate(isa.MulBF16, []Mod{".rn", ".bf16x2"}, x.v, y.v)}
}

// Fma multiplies each half of x with the same half of y, adds the half of z, and rounds to nearest
// once.
func (x BF16x2) Fma(y, z BF16x2) BF16x2 {
	return BF16x2{operate(isa.FmaBF16, []Mod{".bf16x2"}, x.v, y.v, z.v)}
}

// Halves returns two values: lo has the lower half of x in both halves, hi the upper half. The
// assembler folds this into the product that reads them.
func (x BF16x2) Halves() (lo, hi BF16x2) {
	if x.v.konst {
		l, h := x.v.imm&0xffff, x.v.imm>>16
		return BF16x2{constant(l<<16 | l)}, BF16x2{constant(h<<16 | h)}
	}
	if x.v.missing() {
		return x, x
	}
	twice := func(v val) BF16x2 {
		return BF16x2{v.k.opTo(isa.Pack32, isa.B32, nil, Operand{Kind: OpVec, List: []Operand{v.operand(isa.B16), v.operand(isa.B16)}})}
	}
	parts := x.v.halves()
	return twice(parts[0]), twice(parts[1])
}

// F16FromE4M3 converts the four E4M3 numbers of a word to f16, the lowest byte first. The
// conversion is exact, and NaN stays NaN.
func (x U32) F16FromE4M3() (pairs [2]F16x2) {
	for i, v := range x.v.halves() {
		pairs[i] = F16x2{operate(isa.CvtFP8ToF16, []Mod{".e4m3x2"}, v)}
	}
	return pairs
}

// halves splits a 32-bit value into its lower and its upper half.
func (v val) halves() [2]val {
	if v.missing() || v.konst {
		return [2]val{v, v}
	}
	l, h := v.k.result(isa.B16), v.k.result(isa.B16)
	v.k.op(isa.Unpack32, nil, Operand{Kind: OpVec, List: []Operand{l.operand(isa.B16), h.operand(isa.B16)}}, v.operand(isa.B32))
	return [2]val{l, h}
}

// PackF16 rounds two floats to f16, and packs them. lo becomes the lower half. Values outside the
// range of f16 become infinite.
func (k *Kernel) PackF16(lo, hi F32) F16x2 {
	return F16x2{k.opTo(isa.CvtF32ToF16x2, isa.F16x2, nil, hi.v.operand(isa.F32), lo.v.operand(isa.F32))}
}

// Unpack converts both halves to single precision. The conversion is exact.
func (x F16x2) Unpack() (lo, hi F32) {
	return x.Bits().B16().F32FromF16(), x.Bits().ShrI(16).B16().F32FromF16()
}

// RotateRight rotates the bits to the right by n places. n is 1 to 31.
func (x U32) RotateRight(n int) U32 {
	if c, ok := x.Const(); ok {
		return U32{constant(uint64(bits.RotateLeft32(c, -n)))}
	}
	return U32{operate(isa.Shf, []Mod{".r", ".wrap"}, x.v, x.v, constant(uint64(n)))}
}

// Pack64 joins two 32-bit halves to a 64-bit value.
func (k *Kernel) Pack64(lo, hi U32) U64 {
	if lo.v.konst && hi.v.konst {
		return Long(hi.v.imm<<32 | lo.v.imm)
	}
	return U64{k.opTo(isa.Pack64, isa.U64, nil, Operand{Kind: OpVec, List: []Operand{lo.v.operand(isa.B32), hi.v.operand(isa.B32)}})}
}

// Unpack returns the lower and the upper 32 bits.
func (x U64) Unpack() (lo, hi U32) {
	if x.v.konst {
		return U32{constant(x.v.imm & math.MaxUint32)}, U32{constant(x.v.imm >> 32)}
	}
	if x.v.missing() {
		return U32(x), U32(x)
	}
	k := x.v.k
	l, h := k.result(isa.U32), k.result(isa.U32)
	k.op(isa.Unpack64, nil, Operand{Kind: OpVec, List: []Operand{l.operand(isa.B32), h.operand(isa.B32)}}, x.v.operand(isa.B64))
	return U32{l}, U32{h}
}

// FullMask is the member mask of all lanes of a warp.
const FullMask = 0xffffffff

// ShflXor returns the value that x has in another lane: the lane whose index is this lane's index
// XOR mask.
func (x U32) ShflXor(mask int) U32 { return x.shfl(".bfly", Uint(mask), 0x1f) }

// ShflIdx returns the value that x has in the given lane.
func (x U32) ShflIdx(lane U32) U32 { return x.shfl(".idx", lane, 0x1f) }

// ShflUp returns the value that x has in the lane n below this one. The first n lanes get their own
// value.
func (x U32) ShflUp(n int) U32 { return x.shfl(".up", Uint(n), 0) }

func (x U32) shfl(mode Mod, lane U32, clamp int) U32 {
	if x.v.konst || x.v.missing() {
		return x
	}
	return U32{x.v.k.opTo(isa.ShflSync, isa.U32, []Mod{mode}, x.v.operand(isa.B32), lane.v.operand(isa.U32),
		Operand{Kind: OpInt, Imm: int64(clamp)}, Operand{Kind: OpInt, Imm: FullMask})}
}

// Any returns a predicate that is true in all lanes if p is true in at least one.
func (k *Kernel) Any(p Pred) Pred { return k.vote(".any", p) }

// All returns a predicate that is true in all lanes if p is true in every lane.
func (k *Kernel) All(p Pred) Pred { return k.vote(".all", p) }

func (k *Kernel) vote(mode Mod, p Pred) Pred {
	if p.v.konst || p.v.missing() {
		return p
	}
	return Pred{k.opTo(isa.Vote, isa.Pred, []Mod{mode}, p.v.operand(isa.Pred), Operand{Kind: OpInt, Imm: FullMask})}
}

// ReduxAdd returns the sum of x over all lanes of the warp.
func (x U32) ReduxAdd() U32 {
	if n, ok := x.Const(); ok {
		return U32{constant(uint64(n * 32))}
	}
	return x.redux(".add")
}

// ReduxMax returns the largest x of all lanes of the warp.
func (x U32) ReduxMax() U32 { return x.redux(".max") }

func (x U32) redux(op Mod) U32 {
	if x.v.konst || x.v.missing() {
		return x
	}
	return U32{x.v.k.opTo(isa.ReduxSync, isa.U32, []Mod{op, ".u32"}, x.v.operand(isa.U32), Operand{Kind: OpInt, Imm: FullMask})}
}

// ElectOne returns a predicate that is true in one lane of a converged warp, always the same lane.
func (k *Kernel) ElectOne() Pred {
	return Pred{k.opTo(isa.ElectSync, isa.Pred, nil, Operand{Kind: OpInt, Imm: FullMask})}
}

// SetMaxNReg changes the number of registers per thread of this warpgroup to n. All warps of the
// warpgroup must execute it.
func (k *Kernel) SetMaxNReg(n int, increase bool) {
	dir := Mod(".dec")
	if increase {
		dir = ".inc"
	}
	k.op(isa.SetMaxNReg, []Mod{dir}, Operand{Kind: OpInt, Imm: int64(n)})
}
