package mma

// decodeA256 and decodeB256 decode a tile of bf16 elements, and flip the bits of sign. If across is
// not 0, they transpose the tile. They write the elements of 8 rows of A, or of 8 columns of B.
func decodeA256(value *uint32, exponent *int16, t *Tile, across, sign int)

//go:noescape
func decodeB256(value *uint32, exponent *int16, t *Tile, across, sign int)

// decodeA does the same as A.Decode for bf16. It reports false, and does nothing, if the CPU lacks
// vector code.
func decodeA(value []uint32, exponent []int16, t *Tile, across, negate bool) bool {
	if level == levelGo {
		return false
	}
	c, s := flags(across, negate)
	decodeA256(&value[0], &exponent[0], t, c, s)
	return true
}

// decodeB does the same as B.Decode for bf16. It reports false, and does nothing, if the CPU lacks
// vector code.
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
