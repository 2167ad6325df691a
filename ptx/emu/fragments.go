package emu

import (
	"strconv"
	"strings"

	"sonicmoe/ptx/isa"
)

// Which element of a matrix each register of a warp holds. mma.sync documents it;
// of wmma, whose fragments only wmma knows, it is the same, and what a fragment has
// more registers for than elements are copies.

// warpFragment is a matrix of rows and columns in the registers of a warp: of A the
// rows and k, of B the columns and k, of the sums rows and columns.
type warpFragment struct {
	rows, columns int
	bits          int // of an element; single ones come by words of 32
	per           int // elements of a register
	width         int // bits that an element of a row in memory has
	// at are the places of the elements of each register, lane by lane, as
	// row*columns+column.
	at [][][warpLanes]uint16
}

// newFragment places the elements: lanes 4i to 4i+3 hold row i of each 8 rows,
// together elements of them that lie next to each other.
func newFragment(rows, columns, bits, together, registerBits int) *warpFragment {
	f := &warpFragment{rows: rows, columns: columns, bits: bits, per: registerBits / bits, width: bits}
	f.at = make([][][warpLanes]uint16, rows*columns/warpLanes/f.per)
	for r := range f.at {
		f.at[r] = make([][warpLanes]uint16, f.per)
		for e := range f.per {
			tile, i := (r*f.per+e)/together, (r*f.per+e)%together
			for l := range warpLanes {
				row, column := l>>2+tile%(rows/8)*8, together*(l&3+tile/(rows/8)*4)+i
				f.at[r][e][l] = uint16(row*columns + column)
			}
		}
	}
	return f
}

// shapeOf reads such as ".m16n8k32".
func shapeOf(text string) (m, n, k int) {
	text = strings.NewReplacer(".m", "", "n", " ", "k", " ").Replace(text)
	for i, p := range []*int{&m, &n, &k} {
		*p, _ = strconv.Atoi(strings.Fields(text)[i])
	}
	return m, n, k
}

// elementBits is the width of a type of element.
func elementBits(name string) int {
	switch name {
	case ".bf16":
		return 16
	case ".tf32":
		return 32
	case ".e4m3", ".e5m2":
		return 8
	}
	n, _ := strconv.Atoi(name[2:])
	return n
}

// operandFragment is A's or B's of so many rows, or columns.
func operandFragment(rows, k int, element string) *warpFragment {
	bits := elementBits(element)
	if bits == 1 {
		f := newFragment(rows, k/32, 32, 1, 32)
		f.width = 1
		return f
	}
	register := max(bits, 32)
	return newFragment(rows, k, bits, register/bits, register)
}

// sumsFragment is that of m by n sums, of which a lane has pairs of neighbours.
func sumsFragment(m, n int, t isa.Type) *warpFragment {
	bits := t.Bits()
	if t == isa.F16x2 {
		bits = 16
	}
	return newFragment(m, n, bits, 2, max(bits, 32))
}

// gather takes the elements out of registers. Registers beyond the fragment's
// are copies.
func (f *warpFragment) gather(w *warp, o *operand, to []uint64) {
	for r, slot := range o.list[:len(f.at)] {
		for e := range f.at[r] {
			at := &f.at[r][e]
			if f.bits == 64 {
				for l, x := range w.r64[slot] {
					to[at[l]] = x
				}
				continue
			}
			mask := uint32(1)<<f.bits - 1
			for l, x := range w.r32[slot] {
				to[at[l]] = uint64(x >> (f.bits * e) & mask)
			}
		}
	}
}

// scatter puts them into registers.
func (f *warpFragment) scatter(w *warp, o *operand, from []uint64) {
	for i, slot := range o.list {
		r := i % len(f.at)
		if f.bits == 64 {
			for l := range warpLanes {
				w.r64[slot][l] = from[f.at[r][0][l]]
			}
			continue
		}
		for l := range warpLanes {
			x := uint32(0)
			for e := range f.at[r] {
				x |= uint32(from[f.at[r][e][l]]) << (f.bits * e)
			}
			w.r32[slot][l] = x
		}
	}
}
