package dh

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// ColumnSumsOf returns the index in ColumnSums of the sums over [ColumnSumRows] rows of an
// expert, from the given packed row on. The sums of an expert are consecutive, and precede
// those of the next expert.
func ColumnSumsOf(row, expert ptx.U32) ptx.U32 { return row.DivI(ColumnSumRows).Add(expert) }

// ColumnSumBytes returns the size of ColumnSums for a number of packed rows.
func ColumnSumBytes(c spec.Config, rows int) int64 {
	return 4 * int64(rows/ColumnSumRows+c.NumExperts) * int64(weights.DH(c).Elements())
}

// sumColumns sums the columns of a part of dH, which is in its slot, over the warp's rows.
// A lane gets the sum of one column in each half of the slot.
func (w warp) sumColumns(slot []ptx.Shared) (sums []ptx.F32) {
	// Rows past the expert's end may hold any value, also NaN.
	w.k.If(w.rows.LtI(warpRows), func() {
		for _, half := range slot {
			w.staging.ClearFrom(half, w.lane, w.rows)
		}
		w.sync()
	})
	for _, half := range slot {
		sums = append(sums, w.staging.ColumnSums(w.element, half, w.lane))
	}
	return sums
}

// tileColumns returns the number of columns of dH in a tile.
func (d DH) tileColumns() int { return d.HParts() * d.Tiling.TileN }

// shareColumnSums writes the warp's column sums to its slots, in the order of dH's
// columns: gate of all parts, then up; or part by part if gate and up are in pairs.
func (w warp) shareColumnSums(sums [][]ptx.F32) {
	ofPart, ofHalf := partNeurons, w.Tiling.TileN
	if weights.InPairs(w.Config) {
		ofPart, ofHalf = 2*partNeurons, partNeurons
	}
	to := w.mine.Plus(w.lane.AndI(3).ShlI(3).Add(w.lane.ShrI(2)).ShlI(2))
	for part, halves := range sums {
		for i, sum := range halves {
			ptx.StShared(to.At(4*(part*ofPart+i*ofHalf)), sum)
		}
	}
}

// addColumnSums adds the column sums of the warps that have rows, in order, and stores the
// results. A thread has every 128th column of the tile.
func (e *epilogue) addColumnSums(t gemm.Tile) {
	const threads, warps = pipeline.WarpgroupThreads, pipeline.WarpgroupThreads / 32
	width, aWidth := weights.DH(e.Config).Elements(), weights.A(e.Config).Elements()
	thread := e.k.TidX().AndI(threads - 1)
	from := e.slots.Plus(e.warpgroup().MulI(warps * warpBytes)).Plus(thread.ShlI(2))
	to := e.columnSums.Index(ColumnSumsOf(t.FirstRow, t.Expert), 4*width)
	for first := 0; first < e.tileColumns(); first += threads {
		sum := ptx.LdShared[ptx.F32](from.At(4 * first))
		for warp := 1; warp < warps; warp++ {
			has := t.ValidRows.GtI(warp * warpRows)
			v := ptx.LdShared[ptx.F32](from.Plus(ptx.Select(has, ptx.Uint(warp*warpBytes), ptx.Uint(0))).At(4 * first))
			sum = sum.Add(ptx.Select(has, v, ptx.Float(0)))
		}
		end, half, within := width, 0, first
		if !weights.InPairs(e.Config) {
			end, half, within = aWidth, first/e.Tiling.TileN, first%e.Tiling.TileN
		}
		column := e.column(t, 0).AddI(within).Add(thread)
		valid := ptx.True()
		if e.Intermediate%e.Tiling.TileN != 0 {
			valid = column.LtI(end)
		}
		e.k.Guarded(valid, func() { ptx.StGlobal(to.Index(column, 4).At(4*half*aWidth), sum) })
	}
}
