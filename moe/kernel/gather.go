package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// gatherer is the load role of a product whose A rows are gathered: 128
// threads copy 16 bytes each, 8 lanes a row, 16 rows a pass; one thread
// starts the weights' TMA loads.
type gatherer struct {
	*product
	x, gather ptx.Global
	rowBytes  int
	loadB     func(s pipeline.Stage, t schedule.Tile, kt ptx.U32)
}

const (
	gatherPasses  = BlockRows / 16
	gatherPass    = 16 * tile.RowBytes // bytes of shared memory a pass covers
	copyBytes     = 16
	lanesOfOneRow = tile.RowBytes / copyBytes
)

func (g gatherer) load() {
	k := g.k
	thread := g.tid.AndI(pipeline.WarpgroupThreads - 1)
	chunk, row := thread.AndI(lanesOfOneRow-1), thread.ShrI(3)
	dst := tile.Swizzled(row, chunk)
	x := g.x.Plus(chunk.MulI(copyBytes).U64())
	elected := k.ElectOne().And(thread.LtI(32))
	at := g.ring.Producer()
	walk := g.blocks.Walk(k)

	// The token of each of the thread's rows, loaded one tile ahead.
	var tokens [gatherPasses]*ptx.Var[ptx.U32]
	for i := range tokens {
		tokens[i] = ptx.NewVar(k, ptx.Uint(0))
	}
	fetch := func() {
		k.If(walk.More(), func() {
			t := walk.Next()
			last := t.Rows.SubI(1)
			for i := range tokens {
				r := row.AddI(16 * i).Min(last)
				tokens[i].Set(ptx.LdGlobal[ptx.U32](g.gather.Index(t.Row.Add(r), 4), ".nc"))
			}
		})
	}
	fetch()
	walk.Each(func(t schedule.Tile) {
		var from [gatherPasses]*ptx.Var[ptx.U64]
		var bytes [gatherPasses]ptx.U32
		for i := range from {
			from[i] = ptx.NewVar(k, x.Index(tokens[i].Get(), g.rowBytes).Addr())
			// Rows past the expert's end are filled with zeros.
			bytes[i] = ptx.Select(row.AddI(16*i).Lt(t.Rows), ptx.Uint(copyBytes), ptx.Uint(0))
		}
		fetch()
		unroll := unrolled(g.kTiles)
		k.For(ptx.Uint(0), ptx.Uint(g.kTiles), ptx.Uint(unroll), func(kt ptx.U32) {
			for u := range unroll {
				s := at.Acquire()
				k.If(elected, func() {
					k.MbarrierArriveExpectTx(s.Full, ptx.Uint(g.point.TileN*tile.RowBytes))
					g.loadB(s, t, kt.AddI(u))
				})
				to := s.Data.Plus(dst)
				for i := range from {
					k.CpAsyncCG(to.At(i*gatherPass), ptx.GlobalAt(from[i].Get()).At(u*tile.RowBytes), copyBytes, bytes[i])
				}
				k.CpAsyncMbarrierArriveNoInc(s.Full)
				at.Advance()
			}
			for i := range from {
				from[i].Set(from[i].Get().AddI(unroll * tile.RowBytes))
			}
		})
	})
}

// unrolled is how many passes of a loop of n are written out.
func unrolled(n int) int {
	for _, u := range []int{4, 3, 2} {
		if n%u == 0 {
			return u
		}
	}
	return 1
}
