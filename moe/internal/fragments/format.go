package fragments

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
)

const (
	// Rows is the number of rows of a unit, Columns the number of columns of a block.
	Rows    = 64
	Columns = KTiles * tile.K
	// KTiles is the number of k-tiles of a block.
	KTiles = 2

	rowPairs  = Rows / 2 // a lane has two rows, which are 8 apart
	loadBytes = 16       // of codes that a lane loads at a time
	// planeBytes is the size of what a warpgroup loads at a time.
	planeBytes = 128 * loadBytes
)

// Format is a format of packed weights.
type Format struct{ *spec.Packing }

// FormatOf returns the format of the experts' weights; Packing is nil for plain weights.
func FormatOf(c spec.Config) Format { return Format{spec.PackingOf(c)} }

// IsPacked reports whether the weights are packed.
func (f Format) IsPacked() bool { return f.Packing != nil }

// Suits reports whether a layer's weights have an order: in bf16, without zero points and
// global scales.
func Suits(c spec.Config) bool {
	p := spec.PackingOf(c)
	return p != nil && spread[p.Code] != nil && !p.HasGlobal && c.Type != spec.F16
}

// codeBytes is the size of the codes of a k-tile of a unit.
func (f Format) codeBytes() int { return Rows * tile.K * f.Code.Bits() / 8 }

// scalesAt is the offset of the scales in a block.
func (f Format) scalesAt() int { return KTiles * f.codeBytes() }

// zero is the code of 0, with which blocks are filled past the matrix' edges.
func (f Format) zero() byte {
	if f.Code == spec.Int4 {
		return 8
	}
	return 0
}

// groups is the number of scales of a row in a block.
func (f Format) groups() int { return Columns / min(Columns, f.Packing.Columns) }

// areBytes reports whether the scales in a block are bytes: biased exponents of a bf16.
func (f Format) areBytes() bool { return f.Scale == spec.ScaleE8M0 && f.groups() > 1 }

// scaleWords is the number of words of the scales of a pair of rows in a block.
//
// Scales that are bytes have a word for each k-tile of two groups: bytes 0 and 2 are the upper
// and the lower row's first group, bytes 1 and 3 are the second group. FP32 scales are the
// same in a row, and are one word each. Other scales are bf16, and each group has a word whose
// halves are the two rows' scales.
func (f Format) scaleWords() int {
	switch {
	case f.Scale == spec.ScaleF32:
		return 2
	case f.areBytes():
		return f.groups() / 2
	}
	return f.groups()
}

// BlockBytes is the size of a block of a unit.
func (f Format) BlockBytes() int { return f.scalesAt() + 4*rowPairs*f.scaleWords() }

// excess is the exponent by which a code's bits, at their places in a bf16, are too small.
func (f Format) excess() int {
	switch f.Code {
	case spec.E2M1:
		return 126 // the bias is 127 in place of 1
	case spec.E4M3:
		return 120 // 127 in place of 7
	}
	return 0
}

// Blocks is the number of blocks of a number of columns.
func Blocks(columns int) int { return (columns + Columns - 1) / Columns }

// place is the place of a code in a block: the offset of its word, and the places of its bits
// in the word, the lowest first.
type place struct {
	word int
	bits []int
}

// spread has the places of a code's bits for the registers of a fragment that come from one
// word. They are for the lower half of a register; those for the upper half are 16 further,
// cyclically.
var spread = map[spec.Code][][]int{
	spec.E2M1: {{6, 7, 8, 15}, {10, 11, 12, 19}, {0, 1, 2, 9}, {4, 13, 14, 21}},
	spec.E4M3: {{4, 5, 6, 7, 8, 9, 10, 15}, {12, 13, 14, 3, 0, 1, 2, 11}},
	spec.Int4: {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}},
}

// placeOf returns the place of the code of a row of a unit and a column of a block.
//
// In a step of 16 columns, register j of a lane has columns 2(lane%4) + 8(j/2) and the next
// one of row lane/4 + 8(j%2) of the warp's 16 rows.
func (f Format) placeOf(row, column int) place {
	step, half := column%tile.K/tile.KStep, column%2
	register := row%16/8 + column%tile.KStep/8*2
	thread := row/16*32 + row%8*4 + column%8/2
	of := spread[f.Code]
	word := (4*step + register) / len(of) // the lane's words of a k-tile
	p := place{word: column/tile.K*f.codeBytes() + word/4*planeBytes + thread*loadBytes + word%4*4}
	for _, bit := range of[register%len(of)] {
		p.bits = append(p.bits, (bit+16*half)%32)
	}
	return p
}

// rowPair returns the number of the pair of rows r and r+8 to which a row of a unit belongs. lower
// is 1 for row r+8, else 0.
func rowPair(row int) (pair, lower int) { return row/16*8 + row%8, row % 16 / 8 }
