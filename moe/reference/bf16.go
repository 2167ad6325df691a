package reference

import "sonicmoe/moe/num"

// Poison is a NaN that no kernel computes (they give 0x7fff): the bits to
// preset outputs with, so that an element never written is told from a NaN
// that was computed. Memory filled with bytes of 0xff holds it.
const Poison uint16 = 0xffff

// roundBF16 is the value of the bf16 nearest to x.
func roundBF16(x float64) float64 { return num.BF16ToFloat64(num.Float64ToBF16(x)) }
