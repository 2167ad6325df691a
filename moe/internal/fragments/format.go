package fragments

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
)

// integerBase is the bf16 number 128, twice in a word. If a number n from 0 to 127 replaces the
// lowest 7 bits, the result is 128 + n.
const integerBase = 0x43004300

const (
	// Rows is the number of rows of a unit. Columns is the number of columns of a block.
	Rows    = 64
	Columns = KTiles * tile.K
	// KTiles is the number of k-tiles of a block.
	KTiles = 2

	rowPairs  = Rows / 2 // each lane has a pair of rows, 8 apart
	loadBytes = 16       // bytes of codes that a lane loads at a time
	// planeBytes is the number of bytes of codes that a warpgroup loads at a time.
	planeBytes = 128 * loadBytes
	// planeWords is the number of words of scales that a lane loads at a time.
	planeWords = loadBytes / 4
)

// Format is a format of packed weights, with the type of the layer's products.
type Format struct {
	*spec.Packing
	to tile.Element
}

// FormatOf returns the format of the experts' weights. Its Packing is nil for plain weights.
func FormatOf(c spec.Config) Format { return Format{spec.PackingOf(c), element.Of(c)} }

// IsPacked reports whether the weights are packed.
func (f Format) IsPacked() bool { return f.Packing != nil }

// codeBytes returns the size of the codes of one k-tile of a unit.
func (f Format) codeBytes() int { return Rows * tile.K * f.Code.Bits() / 8 }

// scalesAt returns the offset of the scales in a block.
func (f Format) scalesAt() int { return KTiles * f.codeBytes() }

// zero returns the code that fills blocks past the edges of the matrix. It stands for the number 0,
// except in formats with zero points. In these the zero points and scales are 0 past the edges.
func (f Format) zero() byte {
	if f.Code == spec.Int4 {
		return int4Zero
	}
	return 0
}

// int4Zero is the code Int4 of the number 0.
const int4Zero = 8

// groups returns the number of scales that a row has in a block.
func (f Format) groups() int { return Columns / min(Columns, f.Packing.Columns) }

// areBytes reports whether a scale takes one byte in a block: the biased exponent of a bf16.
func (f Format) areBytes() bool { return f.Scale == spec.ScaleE8M0 && f.groups() > 1 }

// scaleWords returns the number of 32-bit words that hold the scales of a pair of rows, upper and
// lower, in a block.
//
// A group is the columns of a row that share a scale. There are four cases:
//   - Scales of one byte: a k-tile has two groups and one word. Bytes 0 and 2 are the scales of the
//     first group in the upper and the lower row, and bytes 1 and 3 are the scales of the second
//     group.
//   - Scales of two terms (see [Format.terms]): each group has two words, one for each term. The halves
//     of a word are the bf16 numbers of the upper and the lower row.
//   - Scales of products in FP32: each group has two words, the FP32 scales of the upper and the
//     lower row.
//   - Other scales are bf16: each group has a word, whose halves are the scales of the upper and
//     the lower row.
//
// The words of the zero points come after the words of the scales. Each group has one word, whose
// halves are bf16 numbers for the upper and the lower row: 128 + the zero point. If there are more
// than two words, their number is rounded up to a multiple of planeWords.
func (f Format) scaleWords() int {
	n := f.zerosAt()
	if f.HasZeros {
		n += f.groups()
	}
	if n > 2 {
		n = (n + planeWords - 1) / planeWords * planeWords
	}
	return n
}

// zerosAt returns the number of words of the scales. It is also the index of the first word of the
// zero points.
func (f Format) zerosAt() int {
	switch {
	case f.inFP32(), f.hasTerms():
		return 2 * f.groups()
	case f.areBytes():
		return f.groups() / 2
	}
	return f.groups()
}

// wordAt returns the offset in a block of a scale word of a pair of rows. The words lie in planes. A
// plane has planeWords words of each pair, one pair after the other, so that the lanes of a warp load
// from all banks of the shared memory.
func (f Format) wordAt(pair, word int) int {
	each := min(planeWords, f.scaleWords())
	return f.scalesAt() + 4*(word/each*each*rowPairs+pair*each+word%each)
}

// BlockBytes returns the size of a block of a unit.
func (f Format) BlockBytes() int { return f.scalesAt() + 4*rowPairs*f.scaleWords() }

// inFP32 reports whether codes and scales are multiplied in FP32, and the products then rounded to
// the layer's type. In the other formats codes and scales are multiplied in bf16. Each way rounds
// like the definition of the format.
func (f Format) inFP32() bool { return f.to == tile.F16 }

// areIntegers reports whether the bits of a code are read as a subnormal bf16 number. One fma then
// computes code·scale - 8·scale with one rounding. With zero points 8 would be another number, and
// its product with the scale would be rounded a second time.
func (f Format) areIntegers() bool { return f.Code == spec.Int4 && !f.inFP32() }

// hasTerms reports whether a scale is two bf16 numbers, see [Format.terms].
func (f Format) hasTerms() bool {
	return !f.inFP32() && (f.Scale == spec.ScaleF32 || f.Scale == spec.ScaleF16 || f.Scale == spec.ScaleE4M3)
}

// excess returns by how much the exponent of a code is too small when the code's bits are read as
// the bits of a bf16.
func (f Format) excess() int {
	switch {
	case f.Code == spec.E2M1:
		return 126 // bf16 has exponent bias 127, E2M1 has 1
	case f.Code == spec.E4M3:
		return 120 // bf16 has exponent bias 127, E4M3 has 7
	case f.areIntegers():
		return 129 // the number 1 is the fourth lowest of 133 bits of a subnormal bf16
	}
	return 0
}

// Blocks returns the number of blocks that hold a number of columns.
func Blocks(columns int) int { return (columns + Columns - 1) / Columns }

// place is where a block holds a code. word is the byte offset of a 32-bit word. bits has the
// position in this word of each bit of the code, the lowest bit first.
type place struct {
	word int
	bits []int
}

// spread has the positions of a code's bits in a word, the lowest bit first. The list of a code has
// an element for each register whose codes the word holds. The positions are for the code in the
// lower half of the register. The code in the upper half is 16 bits further, modulo 32.
var spread = map[spec.Code][][]int{
	spec.E2M1:  {{6, 7, 8, 15}, {10, 11, 12, 19}, {0, 1, 2, 9}, {4, 13, 14, 21}},
	spec.E4M3:  {{4, 5, 6, 7, 8, 9, 10, 15}, {12, 13, 14, 3, 0, 1, 2, 11}},
	spec.Int4:  integers,
	spec.UInt4: integers,
}

var integers = [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}

// placeOf returns where a block holds the code of one weight, given by its row in the unit and its
// column in the block.
//
// wgmma defines the registers of a lane in a step of 16 columns: register j, for j from 0 to 3,
// holds two consecutive columns from 2(lane%4) + 8(j/2) on, of row lane/4 + 8(j%2) of the 16 rows
// of its warp.
func (f Format) placeOf(row, column int) place {
	step, half := column%tile.K/tile.KStep, column%2
	register := row%16/8 + column%tile.KStep/8*2
	thread := row/16*32 + row%8*4 + column%8/2
	of := spread[f.Code]
	word := (4*step + register) / len(of) // the word's number among the lane's words of this k-tile
	p := place{word: column/tile.K*f.codeBytes() + word/4*planeBytes + thread*loadBytes + word%4*4}
	for _, bit := range of[register%len(of)] {
		p.bits = append(p.bits, (bit+16*half)%32)
	}
	return p
}

// places returns the place of each code of a block, by row, then column.
func (f Format) places() []place {
	list := make([]place, Rows*Columns)
	for i := range list {
		list[i] = f.placeOf(i/Columns, i%Columns)
	}
	return list
}

// rowPair returns the number of the pair to which a row of a unit belongs: rows r and r+8 are a
// pair. lower is 1 for row r+8 and 0 for row r.
func rowPair(row int) (pair, lower int) { return row/16*8 + row%8, row % 16 / 8 }
