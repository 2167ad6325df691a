package isa

// Type is the type of an operand.
type Type uint8

// Operand types, named as in PTX.
const (
	NoType Type = iota
	Pred
	B8
	U8
	B16
	U16
	S16
	BF16
	F16
	B32
	U32
	S32
	F32
	BF16x2
	F16x2
	B64
	U64
	S64
	S8
	F64
)

var typeNames = [...]string{"", "pred", "b8", "u8", "b16", "u16", "s16", "bf16", "f16", "b32", "u32", "s32", "f32", "bf16x2", "f16x2", "b64", "u64", "s64", "s8", "f64"}

// String returns the name of the type without a dot.
func (t Type) String() string { return typeNames[t] }

// TypeNamed returns the type with a name such as "u32", without a dot.
func TypeNamed(name string) (Type, bool) {
	for i, n := range typeNames {
		if i > 0 && n == name {
			return Type(i), true
		}
	}
	return NoType, false
}

// Bits returns the width of the type in bits. It is 1 for a predicate.
func (t Type) Bits() int {
	switch t {
	case Pred:
		return 1
	case B8, U8, S8:
		return 8
	case B16, U16, S16, BF16, F16:
		return 16
	case B32, U32, S32, F32, BF16x2, F16x2:
		return 32
	case B64, U64, S64, F64:
		return 64
	}
	return 0
}

// Bytes returns the size of the type in memory, in bytes.
func (t Type) Bytes() int { return t.Bits() / 8 }

// Class returns the register class that holds the type: Pred, B16, B32 or B64.
// 8-bit values live in 16-bit registers.
func (t Type) Class() Type {
	switch t.Bits() {
	case 1:
		return Pred
	case 8, 16:
		return B16
	case 32:
		return B32
	case 64:
		return B64
	}
	return NoType
}

// Signed reports whether integer operations on the type are signed.
func (t Type) Signed() bool { return t == S8 || t == S16 || t == S32 || t == S64 }

// Float reports whether the type is a floating-point type.
func (t Type) Float() bool {
	return t == F32 || t == BF16 || t == F16 || t == BF16x2 || t == F16x2 || t == F64
}
