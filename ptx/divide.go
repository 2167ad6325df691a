package ptx

import (
	"math/bits"

	"sonicmoe/ptx/isa"
)

// divideConst is x / d for a constant d that is no power of two, as a product
// with 2^(32+s)/d rounded up (Granlund and Montgomery, 1994; exact for every
// x). The assembler would divide by an approximate reciprocal and corrections.
func divideConst(x val, d uint64) val {
	s := uint64(bits.Len64(d - 1))
	// The factor has 33 bits, the highest 1: only the others are computed,
	// for 2^(32+s) may have 65. d divides no power of two, so rounding up is +1.
	low := (1<<s-d)<<32/d + 1
	u32 := []Mod{".u32"}
	// x·(2^32 + low) >> 32 = x + t may not fit, its half does.
	t := operate(isa.MulHi, u32, x, constant(low))
	half := operate(isa.Shr, u32, operate(isa.Sub, u32, x, t), constant(1))
	return operate(isa.Shr, u32, operate(isa.Add, u32, half, t), constant(s-1))
}
