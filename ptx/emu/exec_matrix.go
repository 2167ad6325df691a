package emu

import (
	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/isa"
)

const matrixRowBytes = 16

func prepareMatrix(in *inst) { in.matrix = true }

// countMatrices counts the accesses to the rows of 8x8 matrices for Launch.Report.
func (w *warp) countMatrices(in *inst, o *operand, matrices int, d direction) {
	if c := w.cta.cluster.counter; c != nil {
		c.shared(w, in, o, fullMask>>(warpLanes-8*matrices), matrixRowBytes, d)
	}
}

// matrixRow checks the access to one row of 8x8 matrix j, and returns the shared memory and the
// offset of the row. Lane l holds the address of row l%8 of matrix l/8. Parameter read is true for
// a load, and false for a store.
func (w *warp) matrixRow(in *inst, o *operand, j, row int, read bool) (*sharedMemory, uint32) {
	l := layout.MatrixRowLane(j, row)
	c, at := w.sharedOf(in, isa.Shared, w.shared32(o, l), l)
	if r := c.cluster.races; r != nil {
		r.start(fullMask)
		w.deny(in, 1<<l, r.touch(r.ordinary(w, in, !read), c, at, matrixRowBytes))
	}
	check := c.shared.check
	if read {
		check = c.shared.checkRead
	}
	w.deny(in, 1<<l, check(at, matrixRowBytes, matrixRowBytes))
	return c.shared, at
}

func storeMatrix(w *warp, in *inst, mask uint32) {
	if mask != fullMask {
		w.fault(in, DivergentAligned, mask, "stmatrix needs all 32 lanes of the warp")
	}
	trans := in.has(".trans")
	w.cta.cluster.progress()
	w.countMatrices(in, &in.args[0], len(in.args[1].list), writes)
	for j, slot := range in.args[1].list {
		var rows [8]uint32
		var s *sharedMemory
		for row := range rows {
			s, rows[row] = w.matrixRow(in, &in.args[0], j, row, false)
		}
		for l, v := range w.r32[slot] {
			for half := range 2 {
				row, col := layout.MatrixPosition(l, half, trans)
				at := rows[row] + uint32(2*col)
				writeWord(s.bytes[at:], 2, uint64(v>>(16*half)))
				s.proxy.wrote(at, 2, w.id*warpLanes+l)
			}
		}
		for _, at := range rows {
			s.markWritten(at, matrixRowBytes)
		}
	}
}

func loadMatrix(w *warp, in *inst, mask uint32) {
	if mask != fullMask {
		w.fault(in, DivergentAligned, mask, "ldmatrix needs all 32 lanes of the warp")
	}
	trans := in.has(".trans")
	w.countMatrices(in, &in.args[1], len(in.args[0].list), reads)
	var loaded [4][warpLanes]uint32 // the rows are loaded first, because a result may overwrite the address register
	for j := range in.args[0].list {
		var rows [8]uint32
		var s *sharedMemory
		for row := range rows {
			s, rows[row] = w.matrixRow(in, &in.args[1], j, row, true)
		}
		for l := range warpLanes {
			for half := range 2 {
				row, col := layout.MatrixPosition(l, half, trans)
				loaded[j][l] |= uint32(readWord(s.bytes[rows[row]+uint32(2*col):], 2)) << (16 * half)
			}
		}
	}
	for j, slot := range in.args[0].list {
		w.r32[slot] = loaded[j]
	}
}

// moveMatrix executes movmatrix: it transposes an 8x8 matrix of 16-bit elements that the warp
// holds.
func moveMatrix(w *warp, in *inst, mask uint32) {
	if mask != fullMask {
		w.fault(in, DivergentAligned, mask, "movmatrix needs all 32 lanes of the warp")
	}
	from, to := w.r32[in.slot[1]], &w.r32[in.slot[0]]
	*to = [warpLanes]uint32{}
	for l := range warpLanes {
		for half := range 2 {
			row, col := layout.MatrixPosition(l, half, false)
			to[col*4+row/2] |= from[l] >> (16 * half) & 0xffff << (16 * (row % 2))
		}
	}
}
