package ptx

import (
	"math/bits"

	"sonicmoe/ptx/isa"
)

// divideConst returns x / d for a constant d that is not a power of two. It multiplies x by
// 2^(32+s)/d, rounded up, and shifts the product. This is exact for every x (Granlund and
// Montgomery, 1994). The assembler's own division would use an approximate reciprocal and
// corrections.
func divideConst(x val, d uint64) val {
	s := uint64(bits.Len64(d - 1))
	low := (uint64(1)<<s-d)<<32/d + 1 // the multiplier is 2^32 + low
	u32 := []Mod{".u32"}
	t := operate(isa.MulHi, u32, x, constant(low))
	// x times the multiplier is x·2^32 + x·low. This sum may overflow 64 bits, but half of it does
	// not.
	half := operate(isa.Shr, u32, operate(isa.Sub, u32, x, t), constant(1))
	return operate(isa.Shr, u32, operate(isa.Add, u32, half, t), constant(s-1))
}
