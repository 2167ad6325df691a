package mma

// decodeA256 and decodeB256 decode a tile of upper halves of FP32 numbers, and flip the bits of
// sign. The tile is transposed if across is not 0. They write the elements of 8 rows of A or
// columns of B.
func decodeA256(value *uint32, exponent *int16, t *Tile, across, sign int)

//go:noescape
func decodeB256(value *uint32, exponent *int16, t *Tile, across, sign int)

// decodeA is A.Decode for bf16, if the CPU has vectors.
func decodeA(value []uint32, exponent []int16, t *Tile, across, negate bool) bool {
	if level == levelGo {
		return false
	}
	c, s := flags(across, negate)
	decodeA256(&value[0], &exponent[0], t, c, s)
	return true
}

// decodeB is B.Decode for bf16, if the CPU has vectors.
func decodeB(value []uint32, exponent []int16, t *Tile, across, negate bool) bool {
	if level == levelGo {
		return false
	}
	c, s := flags(across, negate)
	decodeB256(&value[0], &exponent[0], t, c, s)
	return true
}

func flags(across, negate bool) (c, s int) {
	if across {
		c = 1
	}
	if negate {
		s = f32Sign
	}
	return c, s
}
