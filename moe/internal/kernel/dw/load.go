package dw

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// The load role copies the gathered rows by 16 bytes: a row's 128 columns are
// 16 lanes' work, a pass of the role covers 8 rows.
const (
	lanesOfRow = gemm.TileM * tile.ElementBytes / gemm.CopyBytes
	passRows   = pipeline.WarpgroupThreads / lanesOfRow
	passes     = tile.K / passRows
)

// load fills the ring: of each 64 packed rows, the gathered rows' 128 columns
// and the packed rows' TileN columns.
func (e *dw) load() {
	k := e.k
	thread := e.tid.AndI(pipeline.WarpgroupThreads - 1)
	elected := k.ElectOne().And(thread.LtI(32))
	at := e.ring.Producer()
	var publisher *publisher
	k.If(elected, func() { publisher = e.items.publisher(e.queue) })
	g := e.newGather(thread)
	e.queue.Reader(thread.AndI(31).EqI(0)).Each(func(t item) {
		k.If(elected, publisher.publish)
		g.start(t)
		full := t.rows.DivI(tile.K)
		steps := kTiles(t)
		k.For(ptx.Uint(0), steps, ptx.Uint(1), func(kt ptx.U32) {
			tokens := g.next(t, kt)
			s := at.Acquire()
			k.IfElse(kt.Lt(full), func() {
				k.If(elected, func() {
					k.MbarrierArriveExpectTx(s.Full, ptx.Uint(e.Tiling.TileBBytes()))
					k.TMALoad(s.Data.At(gemm.TileABytes), e.rowsMap, s.Full, ptx.Uint(0), t.row.Add(kt.MulI(tile.K)), t.n.DivI(tile.Block))
				})
				g.copy(s, tokens, ptx.Uint(tile.K))
			}, func() {
				k.If(elected, func() { k.MbarrierArrive(s.Full) })
				left := t.rows.Sub(kt.MulI(tile.K))
				g.copy(s, tokens, left)
				e.copyTail(s, t, kt, left, thread)
			})
			k.CpAsyncMbarrierArriveNoInc(s.Full)
			at.Advance()
			k.If(elected.And(kt.LeI(2)), func() { publisher.within(kt, steps) })
		})
	})
}

// rowGather is a thread's part of the gathered tile: columns of 8 rows. The
// tokens of the warp's 16 rows are loaded by 16 of its lanes, a step ahead.
type rowGather struct {
	*dw
	chunk, row ptx.U32 // 16 bytes of a row; the row in a pass
	dst        ptx.U32
	fetched    ptx.U32 // the row that this lane loads the token of
	half       ptx.U32
	token      *ptx.Var[ptx.U32]
	from       *ptx.Var[ptx.U64] // the thread's columns of token 0
	bytes      *ptx.Var[ptx.U32] // 16, or 0 past the last column
}

func (e *dw) newGather(thread ptx.U32) *rowGather {
	k := e.k
	lane := thread.AndI(31)
	g := &rowGather{dw: e, chunk: thread.AndI(lanesOfRow - 1), row: thread.DivI(lanesOfRow), half: lane.ShrI(4)}
	g.dst = g.chunk.ShrI(3).MulI(tile.BlockBytes).Add(tile.Swizzled(g.row, g.chunk.AndI(gemm.LanesOfRow-1)))
	g.fetched = thread.ShrI(5).MulI(2).Add(lane.AndI(1)).Add(lane.ShrI(1).AndI(passes - 1).MulI(passRows))
	g.token = ptx.NewVar(k, ptx.Uint(0))
	g.from = ptx.NewVar(k, e.x.Addr())
	g.bytes = ptx.NewVar(k, ptx.Uint(gemm.CopyBytes))
	return g
}

// fetch loads the lane's token of step kt; past the split's end it is 0.
func (g *rowGather) fetch(t item, kt ptx.U32) {
	row := kt.MulI(tile.K).Add(g.fetched)
	g.token.Set(ptx.Uint(0))
	g.k.If(row.Lt(t.rows), func() {
		g.token.Set(ptx.LdGlobal[ptx.U32](g.gather.Index(t.row.Add(row), 4), ".nc"))
	})
}

// start begins an item.
func (g *rowGather) start(t item) {
	column := t.m.Add(g.chunk.MulI(gemm.CopyBytes / tile.ElementBytes))
	inside := column.LtI(g.Hidden)
	g.bytes.Set(ptx.Select(inside, ptx.Uint(gemm.CopyBytes), ptx.Uint(0)))
	g.from.Set(g.x.Index(ptx.Select(inside, column, ptx.Uint(0)), tile.ElementBytes).Addr())
	g.fetch(t, ptx.Uint(0))
}

// next gives the tokens of the thread's rows of step kt, and loads those of
// the step after it.
func (g *rowGather) next(t item, kt ptx.U32) []ptx.U32 {
	tokens := make([]ptx.U32, passes)
	for i := range tokens {
		tokens[i] = g.token.Get().ShflIdx(g.half.AddI(2 * i))
	}
	g.fetch(t, kt.AddI(1))
	return tokens
}

// copy starts the copies of the tile's first rows; the others become zeros.
// A constant says that all are there.
func (g *rowGather) copy(s pipeline.Stage, tokens []ptx.U32, rows ptx.U32) {
	to := s.Data.Plus(g.dst)
	_, all := rows.Const()
	for i, token := range tokens {
		src := ptx.GlobalAt(g.from.Get()).Index(token, g.Hidden*tile.ElementBytes)
		var bytes []ptx.U32
		switch {
		case !all:
			bytes = []ptx.U32{ptx.Select(g.row.AddI(passRows*i).Lt(rows), g.bytes.Get(), ptx.Uint(0))}
		case g.Hidden%gemm.TileM != 0:
			bytes = []ptx.U32{g.bytes.Get()}
		}
		g.k.CpAsyncCG(to.At(i*passRows*tile.RowBytes), src, gemm.CopyBytes, bytes...)
	}
}

// copyTail copies the first rows, fewer than 64, of the packed rows' tile and
// fills it with zeros: TMA would load the next expert's.
func (e *dw) copyTail(s pipeline.Stage, t item, kt, rows, thread ptx.U32) {
	k := e.k
	const passRows = pipeline.WarpgroupThreads / gemm.LanesOfRow
	chunk := thread.AndI(gemm.LanesOfRow - 1)
	column := t.n.Add(chunk.MulI(gemm.CopyBytes / tile.ElementBytes))
	k.For(thread.DivI(gemm.LanesOfRow), ptx.Uint(tile.K), ptx.Uint(passRows), func(row ptx.U32) {
		there := row.Lt(rows)
		to := s.Data.At(gemm.TileABytes).Plus(tile.Swizzled(row, chunk))
		src := e.rows.Index(t.row.Add(kt.MulI(tile.K)).Add(ptx.Select(there, row, ptx.Uint(0))), e.width()*tile.ElementBytes).Index(column, tile.ElementBytes)
		for block := range e.Tiling.TileN / tile.Block {
			inside := there
			if e.width()%e.Tiling.TileN != 0 {
				inside = there.And(column.AddI(block * tile.Block).LtI(e.width()))
			}
			k.CpAsyncCG(to.At(block*tile.BlockBytes), src.At(block*tile.Block*tile.ElementBytes), gemm.CopyBytes,
				ptx.Select(inside, ptx.Uint(gemm.CopyBytes), ptx.Uint(0)))
		}
	})
}
