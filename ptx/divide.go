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
	low := (uint64(1)<<s-d)<<32/d + 1 // the product's factor is 2^32 + low
	u32 := []Mod{".u32"}
	t := operate(isa.MulHi, u32, x, constant(low))
	// x·factor = x·2^32 + x·low; the sum may not fit, its half does.
	half := operate(isa.Shr, u32, operate(isa.Sub, u32, x, t), constant(1))
	return operate(isa.Shr, u32, operate(isa.Add, u32, half, t), constant(s-1))
}
