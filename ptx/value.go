package ptx

import (
	"fmt"
	"math"

	"sonicmoe/ptx/isa"
)

// val is a register of a kernel, a constant, or missing. The zero value is missing, and so is the
// result of a mistake. The first instruction that takes a missing value reports the mistake.
type val struct {
	k      *Kernel // nil for constants
	reg    int32
	konst  bool
	negate bool   // predicates only
	imm    uint64 // constants: the bits, masked to the width
	why    *string
}

// noVal returns a missing value. The text says why it is missing.
func noVal(format string, args ...any) val {
	why := fmt.Sprintf(format, args...) + " (" + here(new(position)).resolve().String() + ")"
	return val{why: &why}
}

// missing reports whether v is neither a register nor a constant.
func (v val) missing() bool { return !v.konst && v.k == nil }

// Value is a typed register or constant.
type Value interface {
	Pred | B16 | U32 | S32 | U64 | S64 | F32 | BF16x2 | F16x2
	val() val
	isaType() isa.Type
}

// The typed values. Constants come from [Uint], [Int], [Long] and [Float], all
// other values from a kernel's instructions.
type (
	// Pred is a predicate.
	Pred struct{ v val }
	// B16 is 16 bits, such as a bf16.
	B16 struct{ v val }
	// U32 is an unsigned 32-bit integer, or 32 raw bits.
	U32 struct{ v val }
	// S32 is a signed 32-bit integer.
	S32 struct{ v val }
	// U64 is an unsigned 64-bit integer, or 64 raw bits.
	U64 struct{ v val }
	// S64 is a signed 64-bit integer.
	S64 struct{ v val }
	// F32 is a single-precision float.
	F32 struct{ v val }
	// BF16x2 is two bf16. The lower half comes first in memory.
	BF16x2 struct{ v val }
	// F16x2 is two f16 (IEEE 754 half precision). The lower half comes first in
	// memory.
	F16x2 struct{ v val }
)

func (x Pred) val() val   { return x.v }
func (x B16) val() val    { return x.v }
func (x U32) val() val    { return x.v }
func (x S32) val() val    { return x.v }
func (x U64) val() val    { return x.v }
func (x S64) val() val    { return x.v }
func (x F32) val() val    { return x.v }
func (x BF16x2) val() val { return x.v }
func (x F16x2) val() val  { return x.v }

func (Pred) isaType() isa.Type   { return isa.Pred }
func (B16) isaType() isa.Type    { return isa.B16 }
func (U32) isaType() isa.Type    { return isa.U32 }
func (S32) isaType() isa.Type    { return isa.S32 }
func (U64) isaType() isa.Type    { return isa.U64 }
func (S64) isaType() isa.Type    { return isa.S64 }
func (F32) isaType() isa.Type    { return isa.F32 }
func (BF16x2) isaType() isa.Type { return isa.B32 }
func (F16x2) isaType() isa.Type  { return isa.B32 }

func wrap[T Value](v val) T {
	var t T
	switch p := any(&t).(type) {
	case *Pred:
		p.v = v
	case *B16:
		p.v = v
	case *U32:
		p.v = v
	case *S32:
		p.v = v
	case *U64:
		p.v = v
	case *S64:
		p.v = v
	case *F32:
		p.v = v
	case *BF16x2:
		p.v = v
	case *F16x2:
		p.v = v
	}
	return t
}

func constant(bits uint64) val { return val{konst: true, imm: bits} }

// Uint returns a 32-bit constant. n must fit in 32 bits; a negative n wraps around.
func Uint(n int) U32 { return U32{word(n)} }

// Int returns a signed 32-bit constant. n must fit in 32 bits.
func Int(n int) S32 { return S32{word(n)} }

func word(n int) val {
	if n < math.MinInt32 || n > math.MaxUint32 {
		return noVal("constant %d does not fit 32 bits", n)
	}
	return constant(uint64(uint32(n)))
}

// Long returns a 64-bit constant.
func Long(n uint64) U64 { return U64{constant(n)} }

// Float returns a single-precision constant: f, rounded.
func Float(f float64) F32 { return F32{constant(uint64(math.Float32bits(float32(f))))} }

// True returns the constant predicate that is always true.
func True() Pred { return Pred{constant(1)} }

// False returns the constant predicate that is always false.
func False() Pred { return Pred{constant(0)} }

// Const returns the value of a constant, and reports whether x is one.
func (x U32) Const() (uint32, bool) { return uint32(x.v.imm), x.v.konst }

// Bits reinterprets the same 32 bits as an integer. It emits nothing.
func (x F32) Bits() U32 { return U32(x) }

// Bits reinterprets the same 32 bits as an integer. It emits nothing.
func (x BF16x2) Bits() U32 { return U32(x) }

// Bits reinterprets the same 32 bits as an integer. It emits nothing.
func (x F16x2) Bits() U32 { return U32(x) }

// Bits reinterprets the same 32 bits as unsigned. It emits nothing.
func (x S32) Bits() U32 { return U32(x) }

// Signed reinterprets the same 32 bits as signed. It emits nothing.
func (x U32) Signed() S32 { return S32(x) }

// AsF32 reinterprets the same 32 bits as a float. It emits nothing.
func (x U32) AsF32() F32 { return F32(x) }

// AsBF16x2 reinterprets the same 32 bits as two bf16. It emits nothing.
func (x U32) AsBF16x2() BF16x2 { return BF16x2(x) }

// AsF16x2 reinterprets the same 32 bits as two f16. It emits nothing.
func (x U32) AsF16x2() F16x2 { return F16x2(x) }

// operand returns the instruction operand for a value of type t.
func (v val) operand(t isa.Type) Operand {
	switch {
	case v.missing():
		return v.nowhere()
	case !v.konst && v.negate:
		return Operand{Kind: OpNotReg, Reg: v.reg, owner: v.k}
	case !v.konst:
		return Operand{Kind: OpReg, Reg: v.reg, owner: v.k}
	case t == isa.F32:
		return Operand{Kind: OpF32, Imm: int64(uint32(v.imm))}
	case t == isa.S32:
		return Operand{Kind: OpInt, Imm: int64(int32(v.imm))}
	}
	return Operand{Kind: OpInt, Imm: int64(v.imm)}
}

// nowhere returns the operand for a missing value. emit reports the operand's Sym as an error.
func (v val) nowhere() Operand {
	if v.why == nil {
		return Operand{Kind: OpNone, Sym: "a zero value: nothing computed it"}
	}
	return Operand{Kind: OpNone, Sym: *v.why}
}

// kernelOf returns the kernel to which the first register among the values belongs.
func kernelOf(vs ...val) *Kernel {
	for _, v := range vs {
		if v.k != nil {
			return v.k
		}
	}
	return nil
}
