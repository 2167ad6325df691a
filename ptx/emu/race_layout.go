package emu

import (
	"fmt"

	"sonicmoe/ptx/emu/layout"
)

// With race checks, the emulator also records which box of which tensor map TMA wrote to each
// address of shared memory. A matrix descriptor must read the rows of this box where TMA put them.
// Only boxes that one instruction wrote and whose rows are as wide as the swizzle are checked.

// boxSpot is a 16-byte chunk of shared memory, with its place in the box that a load wrote there.
type boxSpot struct {
	load *bulkLoad
	at   uint32 // offset in shared memory
	x, y uint32 // byte in a row of the box, and number of the row
}

// boxAt returns the chunk at an offset with its place in the box, if a box lies there.
func (c *cta) boxAt(at uint32) (s boxSpot, ok bool) {
	if int(at/pageBytes) >= len(c.shared.shadow) || c.shared.shadow[at/pageBytes] == nil {
		return s, false
	}
	write := c.shared.shadow[at/pageBytes][at%pageBytes/4].write
	if write == nil || write.load == nil || write.load.tensor == nil || write.load.tensor.Rank < 2 {
		return s, false
	}
	s.load, s.at = write.load, at
	linear := s.load.tensor.Swizzle.Apply(at) - s.load.dst
	s.x, s.y = linear%s.load.rowBytes(), linear/s.load.rowBytes()
	return s, true
}

func (b *bulkLoad) rowBytes() uint32 { return b.tensor.Box[0] * uint32(b.tensor.Elem.Bytes()) }

// describe returns a description of the box, for messages.
func (s *boxSpot) describe(cl *cluster) string {
	t := s.load.tensor
	box := fmt.Sprint(t.Box[0])
	for _, n := range t.Box[1:t.Rank] {
		box += fmt.Sprintf(" x %d", n)
	}
	return fmt.Sprintf("what %s (%s) wrote to shared memory %s with %v, box %s of %d bytes each", s.load.in.form.Op, cl.place(s.load.in),
		s.load.to.symbolic(s.load.dst), t.Swizzle, box, t.Elem.Bytes())
}

// checkLayout checks that a matrix descriptor reads the rows of the box at its address. Operand 0
// is A, operand 1 is B. It returns the first difference, or nil.
func (w *warp) checkLayout(in *inst, operand int, d layout.MatrixDescriptor) *problem {
	major, n := in.major(operand), in.matrixRows(operand)
	from, ok := w.cta.boxAt(d.Group(major, 0, 0)[0])
	if !ok {
		return nil
	}
	cl := w.cta.cluster
	wrong := func(format string, args ...any) *problem {
		return problemf(IllegalDescriptor, "%c: matrix descriptor %#016x (%v, %v) reads %s: %s", 'A'+operand, d.Encode(), major, d.Swizzle,
			from.describe(cl), fmt.Sprintf(format, args...))
	}
	width := d.Swizzle.Width()
	if from.load.tensor.Swizzle != d.Swizzle {
		return wrong("want the same swizzle in both")
	}
	if from.load.rowBytes() != width {
		return nil
	}
	if from.y%8 != 0 {
		return wrong("it starts at row %d of the box, want a multiple of 8", from.y)
	}
	// The rows along the box's second dimension must lie where the descriptor expects them. A
	// kernel may choose slices of the further dimensions freely.
	lines := from.load.tensor.Box[1]
	rows := from.y/lines*lines + lines
	must := func(at uint32, what string, row uint32, offset string, has uint32) *problem {
		to, ok := w.cta.boxAt(at)
		if row+8 > rows || ok && to.load == from.load && to.x == from.x && to.y == row {
			return nil
		}
		where := "no box"
		if ok {
			where = fmt.Sprintf("row %d of the box", to.y)
			if to.load != from.load {
				where = fmt.Sprintf("row %d of another box", to.y)
			}
		}
		return wrong("%s at %s, which is %s, want row %d of the box: the %s is %d bytes, want %d", what, w.cta.symbolic(at), where, row, offset, has,
			(row-from.y)*width)
	}
	if major == layout.KMajor {
		for row := uint32(8); row < n; row += 8 {
			if p := must(d.Group(major, row, 0)[0], fmt.Sprintf("it reads row %d", row), from.y+row, "stride byte offset", d.SBO); p != nil {
				return p
			}
		}
		return nil
	}
	offset, has := "stride byte offset", d.SBO
	if d.Swizzle == layout.SwizzleNone {
		offset, has = "leading byte offset", d.LBO
	}
	if p := must(d.Group(major, 0, 0)[8], "it reads k 8", from.y+8, offset, has); p != nil {
		return p
	}
	return w.checkBlocks(d, from, n, wrong)
}

// checkBlocks checks the blocks of an MN-major operand. Each must have the same k as the first
// block, and none may be the first block again.
func (w *warp) checkBlocks(d layout.MatrixDescriptor, from boxSpot, n uint32, wrong func(string, ...any) *problem) *problem {
	offset, has := "leading byte offset", d.LBO
	if d.Swizzle == layout.SwizzleNone {
		offset, has = "stride byte offset", d.SBO
	}
	k := func(s boxSpot) uint32 { return s.y % s.load.tensor.Box[1] }
	block := d.Swizzle.Width() / 2
	for mn := block; mn < n; mn += block {
		to, ok := w.cta.boxAt(d.Group(layout.MNMajor, mn, 0)[0])
		switch {
		case !ok || to.load.tensor.Box != from.load.tensor.Box || to.load.tensor.Swizzle != d.Swizzle:
		case k(to) != k(from):
			return wrong("it reads m or n %d from row %d of a box, but m or n 0 from row %d: the %s is %d bytes, want the distance between blocks", mn, to.y, from.y, offset, has)
		case to.at == from.at:
			return wrong("it reads m or n %d at the address of m or n 0: the %s is %d bytes, want the distance between blocks", mn, offset, has)
		}
	}
	return nil
}
