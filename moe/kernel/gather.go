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
	// gatherArrivals fill a stage: each thread's copies, and the weights' bytes.
	gatherArrivals = pipeline.WarpgroupThreads + 1
	// gatherReaders are the role's warps.
	gatherReaders = 4
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
	var publisher *schedule.Publisher
	publishes := elected.And(g.queue.Publishes())
	k.If(publishes, func() { publisher = g.queue.Publisher() })
	reader := g.queue.Reader(thread.AndI(31).EqI(0))

	// The tokens of the thread's rows are loaded one tile ahead. Rows past the
	// expert's end repeat its last one: they are multiplied and dropped.
	next := newTileVar(k, reader.Next())
	var tokens [gatherPasses]*ptx.Var[ptx.U32]
	for i := range tokens {
		tokens[i] = ptx.NewVar(k, ptx.Uint(0))
	}
	fetch := func() {
		k.If(next.rows.Get().NeI(0), func() {
			last := next.rows.Get().SubI(1)
			for i := range tokens {
				r := row.AddI(16 * i).Min(last)
				tokens[i].Set(ptx.LdGlobal[ptx.U32](g.gather.Index(next.row.Get().Add(r), 4), ".nc"))
			}
		})
	}
	fetch()
	k.Loop(func() {
		t := next.copy()
		k.BreakIf(t.Rows.EqI(0))
		var from [gatherPasses]*ptx.Var[ptx.U64]
		for i := range from {
			from[i] = ptx.NewVar(k, x.Index(tokens[i].Get(), g.rowBytes).Addr())
		}
		k.If(publishes, publisher.Publish)
		next.set(reader.Next())
		fetch()
		k.For(ptx.Uint(0), ptx.Uint(g.kTiles), ptx.Uint(1), func(kt ptx.U32) {
			s := at.Acquire()
			k.If(elected, func() {
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(g.point.TileN*tile.RowBytes))
				g.loadB(s, t, kt)
			})
			to := s.Data.Plus(dst)
			for i := range from {
				k.CpAsyncCG(to.At(i*gatherPass), ptx.GlobalAt(from[i].Get()), copyBytes)
				from[i].Set(from[i].Get().AddI(tile.RowBytes))
			}
			k.CpAsyncMbarrierArriveNoInc(s.Full)
			at.Advance()
		})
	})
}

// tileVar is a tile kept across passes of a loop.
type tileVar struct{ expert, row, rows, column, shared *ptx.Var[ptx.U32] }

func newTileVar(k *ptx.Kernel, t schedule.Tile) tileVar {
	return tileVar{ptx.NewVar(k, t.Expert), ptx.NewVar(k, t.Row), ptx.NewVar(k, t.Rows), ptx.NewVar(k, t.Column), ptx.NewVar(k, t.Shared)}
}

func (v tileVar) set(t schedule.Tile) {
	v.expert.Set(t.Expert)
	v.row.Set(t.Row)
	v.rows.Set(t.Rows)
	v.column.Set(t.Column)
	v.shared.Set(t.Shared)
}

func (v tileVar) copy() schedule.Tile {
	return schedule.Tile{Expert: v.expert.Copy(), Row: v.row.Copy(), Rows: v.rows.Copy(), Column: v.column.Copy(), Shared: v.shared.Copy()}
}
