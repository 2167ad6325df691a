package mma

import "encoding/binary"

// Rows is the extent in m of a wgmma: 16 rows for each of four warps.
const Rows = 64

// Lanes is the number of threads in a warp.
const Lanes = 32

// Group is the number of rows of A, or columns of B, that Decode decodes at once.
const Group = 8

// Tile holds the bytes of 8 rows of A, or 8 columns of B, of one step, as they are in shared
// memory. If the rows run along k (K-major), each has 32 bytes. Otherwise (MN-major) elements have
// two bytes, and each k has 16 bytes for the 8 rows.
type Tile [Group * stepBytes]byte

// operand holds the decoded elements of one step, with values and exponents in separate arrays. For
// each k, the elements that one accumulator register of a warp needs are contiguous. For A these
// are the elements of 8 rows, each four times, once for each lane that holds the row. For B these
// are the elements of 4 columns, all even or all odd.
type operand struct {
	format   *Format
	value    []uint32 // FP32 bits
	exponent []int16
}

func (o *operand) reset(f *Format, elements int) {
	o.format = f
	if cap(o.value) < elements {
		o.value, o.exponent = make([]uint32, elements), make([]int16, elements)
	}
	o.value, o.exponent = o.value[:elements], o.exponent[:elements]
}

const (
	rowCopies   = 4 // number of lanes that hold elements of one row
	columnGroup = 4 // number of columns whose elements are contiguous
)

// A holds the 64 decoded rows of a step.
type A struct{ operand }

// Reset sets the format. Afterwards Decode or Set must set all elements.
func (a *A) Reset(f *Format) { a.reset(f, Rows*f.Depth()*rowCopies) }

// index returns the index of the first of an element's four copies.
func (a *A) index(row, k int) int {
	return ((row/Group*a.format.Depth()+k)*Group + row%Group) * rowCopies
}

// Decode decodes a tile, and stores it as 8 rows, starting with the given row. negate changes the
// signs.
func (a *A) Decode(row int, t *Tile, across, negate bool) {
	if at := a.index(row, 0); a.format.truncated() && decodeA(a.value[at:], a.exponent[at:], t, across, negate) {
		return
	}
	a.format.each(t, across, negate, func(r, k int, v uint32, e int16) { a.put(a.index(row+r, k), v, e) })
}

// Set sets one element, whose bits are as in a register.
func (a *A) Set(row, k int, element uint32, negate bool) {
	v := a.format.widen(element)
	if negate {
		v ^= f32Sign
	}
	a.put(a.index(row, k), v, a.format.exponent(v))
}

func (a *A) put(at int, v uint32, e int16) {
	*(*[rowCopies]uint32)(a.value[at:]) = [rowCopies]uint32{v, v, v, v}
	*(*[rowCopies]int16)(a.exponent[at:]) = [rowCopies]int16{e, e, e, e}
}

// B holds the decoded columns of a step.
type B struct{ operand }

// Reset sets the format, and the number of columns, which is a multiple of 8.
func (b *B) Reset(f *Format, n int) { b.reset(f, n*f.Depth()) }

func (b *B) index(column, k int) int {
	return ((column/Group*2+column&1)*b.format.Depth()+k)*columnGroup + column%Group>>1
}

// Decode decodes a tile, and stores it as 8 columns, starting with the given column. negate changes
// the signs.
func (b *B) Decode(column int, t *Tile, across, negate bool) {
	if at := b.index(column, 0); b.format.truncated() && decodeB(b.value[at:], b.exponent[at:], t, across, negate) {
		return
	}
	b.format.each(t, across, negate, func(c, k int, v uint32, e int16) {
		at := b.index(column+c, k)
		b.value[at], b.exponent[at] = v, e
	})
}

// Set sets one element, whose bits are as in a register.
func (b *B) Set(column, k int, element uint32) {
	at := b.index(column, k)
	b.value[at] = b.format.widen(element)
	b.exponent[at] = b.format.exponent(b.value[at])
}

// truncated reports whether the format is bf16: elements are the upper halves of FP32 numbers.
func (f *Format) truncated() bool { return f.ToF32 == nil && f.Bytes == 2 }

// each calls visit for each element of a tile, with its row, k, FP32 bits and exponent.
func (f *Format) each(t *Tile, across, negate bool, visit func(row, k int, v uint32, e int16)) {
	sign := uint32(0)
	if negate {
		sign = f32Sign
	}
	depth := f.Depth()
	rowStep, kStep := stepBytes, f.Bytes
	if across {
		rowStep, kStep = f.Bytes, Group*f.Bytes
	}
	for row := range Group {
		for k := range depth {
			x := uint32(0)
			switch b := t[row*rowStep+k*kStep:]; f.Bytes {
			case 1:
				x = uint32(b[0])
			case 2:
				x = uint32(binary.LittleEndian.Uint16(b))
			default:
				x = binary.LittleEndian.Uint32(b)
			}
			v := f.widen(x) ^ sign
			visit(row, k, v, f.exponent(v))
		}
	}
}
