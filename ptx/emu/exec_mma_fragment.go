package emu

import (
	"strconv"
	"strings"

	"sonicmoe/ptx/isa"
)

// This file maps the registers of a warp to matrix elements. The manual defines the mapping for
// mma.sync. It leaves the fragments of wmma opaque; the emulator gives them the same mapping. A
// wmma fragment may have more registers than its elements fill; the remaining registers hold
// copies.

// warpFragment describes a matrix in the registers of a warp. For A, rows and columns are m and k;
// for B, they are n and k; for C and D, they are m and n.
type warpFragment struct {
	rows, columns int
	bits          int // bits of an element; 1-bit elements are grouped into words of 32 bits
	per           int // elements per register
	width         int // bits of an element in memory
	// at[r][e][l] is the matrix element, as row*columns+column, that lane l holds as element e of
	// register r.
	at [][][warpLanes]uint16
}

// newFragment assigns matrix elements to registers. Lanes 4i to 4i+3 hold row i of each 8 rows.
// Each lane holds `together` neighbouring elements of a row.
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

// shapeOf parses a shape such as ".m16n8k32".
func shapeOf(text string) (m, n, k int) {
	text = strings.NewReplacer(".m", "", "n", " ", "k", " ").Replace(text)
	for i, p := range []*int{&m, &n, &k} {
		*p, _ = strconv.Atoi(strings.Fields(text)[i])
	}
	return m, n, k
}

// elementBits returns the width of an element type.
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

// operandFragment returns the fragment of A or B. rows is the extent m of A or n of B.
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

// sumsFragment returns the fragment of m by n sums. A lane holds pairs of neighbouring columns.
func sumsFragment(m, n int, t isa.Type) *warpFragment {
	bits := t.Bits()
	if t == isa.F16x2 {
		bits = 16
	}
	return newFragment(m, n, bits, 2, max(bits, 32))
}

// gather reads the matrix elements from the registers of operand o. It ignores registers that hold
// copies.
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

// scatter writes the matrix elements to the registers of operand o, and the copies to the remaining
// registers.
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
