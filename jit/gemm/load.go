package gemm

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// This file emits the load role.

// If TMA loads both operands, one thread of the load role does everything. tmaArrivals is the
// number of arrivals that fill a stage, tmaReaders the number of readers of the queue in the load
// role.
const (
	tmaArrivals = 1
	tmaReaders  = 1
)

// TMA returns the load role of a product whose operands are both loaded by TMA.
// One thread starts all loads and publishes the tiles. fill loads all stages of a
// tile. Rows past the expert's last row belong to the next expert; their results
// are dropped.
func (p *Product) TMA(fill func(ring *pipeline.Cursor, t schedule.Tile)) func() {
	return func() {
		k := p.K
		k.If(k.Warp().EqI(MathWarps), func() {
			k.If(k.ElectOne(), func() {
				ring := p.Ring.Producer()
				var publisher *schedule.TilePublisher
				k.If(p.Queue.Publishes(), func() { publisher = p.Tiles.Publisher(p.Queue) })
				p.Queue.Reader(ptx.True()).Each(func(t schedule.Tile) {
					k.If(p.Queue.Publishes(), publisher.Publish)
					fill(ring, t)
				})
			})
		})
	}
}

// Expect makes the full barrier of stage s wait for the given number of bytes. With [FromRow], it
// also starts the load of the row from which the sums start, if kt is the tile's first k-tile.
func (p *Product) Expect(ring *pipeline.Cursor, s pipeline.Stage, t schedule.Tile, kt ptx.U32, bytes int) {
	k := p.K
	if p.Start.kind != fromRow {
		k.MbarrierArriveExpectTx(s.Full, ptx.Uint(bytes))
		return
	}
	first := kt.EqI(0)
	k.MbarrierArriveExpectTx(s.Full, ptx.Select(first, ptx.Uint(bytes+p.TileN*tile.ElementBytes), ptx.Uint(bytes)))
	k.If(first, func() { p.Start.load(p.rowOf(ring), s.Full, t) })
}

// LoadExtra starts the loads of the k-tiles of [Extra]. A load role of TMA calls it after the
// tile's other k-tiles.
func (p *Product) LoadExtra(ring *pipeline.Cursor, t schedule.Tile) {
	for i := range p.Extra.kTiles() {
		s := ring.Acquire()
		p.expectExtra(s, t, i)
		ring.Advance()
	}
}

// expectExtra starts the loads of k-tile i of [Extra].
func (p *Product) expectExtra(s pipeline.Stage, t schedule.Tile, i int) {
	p.K.MbarrierArriveExpectTx(s.Full, ptx.Uint(p.StageBytes()))
	p.Extra.Load(s, t, i)
}

// Box is a box that TMA loads into a part of a stage's B tile.
type Box struct {
	Map ptx.TensorMap
	// At has the box's coordinates in Map.
	At []ptx.U32
	// Offset is where the box goes in its half of the B tile, in bytes.
	Offset int
}

// LoadB starts the loads of both halves of a stage's B tile. boxes returns the boxes of one half.
// If the CTAs of a cluster share the tile, each CTA loads the half with the number of its own rank,
// and multicasts it to both CTAs.
func (p *Product) LoadB(s pipeline.Stage, t schedule.Tile, boxes func(half ptx.U32) []Box) {
	k := p.K
	halfBytes := p.TileBBytes() / 2
	both := func() {
		for half := range 2 {
			for _, b := range boxes(ptx.Uint(half)) {
				k.TMALoad(s.Data.At(TileABytes+half*halfBytes+b.Offset), b.Map, s.Full, b.At...)
			}
		}
	}
	if p.ClusterM == 1 {
		both()
		return
	}
	k.IfElse(t.Shared.NeI(0), func() {
		rank := k.ClusterCtarank()
		const bothCTAs = 0b11
		for _, b := range boxes(rank) {
			k.TMALoadMulticast(s.Data.At(TileABytes+b.Offset).Plus(rank.MulI(halfBytes)), b.Map, s.Full, ptx.Uint(bothCTAs).B16(), b.At...)
		}
	}, both)
}

const (
	// gatherArrivals is the number of arrivals that fill a stage if A is gathered: one for the
	// copies of each thread, and one with the bytes of B.
	gatherArrivals = pipeline.WarpgroupThreads + 1
	// gatherReaders is the number of warps of the load role that read the queue.
	gatherReaders = 4

	passRows     = pipeline.WarpgroupThreads / tile.LanesOfRow
	gatherPasses = TileM / passRows
)

// Rows describes the rows of A that a product gathers.
type Rows struct {
	// X has the rows, RowBytes each. Gather has, for each packed row, a 32-bit word with the number
	// of its row in X: its token.
	X, Gather ptx.Global
	// RowBytes is the size of a row. If the row does not fill its last k-tile, the rest of the
	// k-tile is 0.
	RowBytes int
}

// Gather returns the load role of a product whose A rows are gathered. 128 threads copy the rows by
// cp.async, 16 rows at a time. One of the threads also starts the loads of B: loadB starts them for
// one stage.
func (p *Product) Gather(from Rows, loadB func(s pipeline.Stage, t schedule.Tile, kt ptx.U32)) func() {
	return func() {
		k := p.K
		thread := k.ThreadInWarpgroup()
		copier := tile.NewRowCopy(k, thread, tile.LanesOfRow)
		row := copier.Row()
		dst := copier.Swizzled(row)
		x := from.X.Plus(copier.Chunk.MulI(tile.CopyBytes).U64())
		elected := k.ElectOne().And(thread.LtI(32))
		ring := p.Ring.Producer()
		var publisher *schedule.TilePublisher
		publishes := elected.And(p.Queue.Publishes())
		k.If(publishes, func() { publisher = p.Tiles.Publisher(p.Queue) })
		reader := p.Queue.Reader(thread.AndI(31).EqI(0))

		// The row numbers are loaded one tile ahead. Rows past the expert's last row have the
		// number of the last row; their results are dropped.
		next := newTileVar(k, reader.Next())
		var numbers [gatherPasses]*ptx.Var[ptx.U32]
		for i := range numbers {
			numbers[i] = ptx.NewVar(k, ptx.Uint(0))
		}
		fetch := func() {
			k.If(next.rows.Get().NeI(0), func() {
				last := next.rows.Get().SubI(1)
				for i := range numbers {
					r := row.AddI(passRows * i).Min(last)
					numbers[i].Set(ptx.LdGlobal[ptx.U32](from.Gather.Index(next.row.Get().Add(r), 4), ".nc"))
				}
			})
		}
		fetch()
		k.Loop(func() {
			t := next.copy()
			k.BreakIf(t.IsEnd())
			rows := copier.Rows(gatherPasses, from.RowBytes, p.KTiles, func(i int) ptx.Global { return x.Index(numbers[i].Get(), from.RowBytes) })
			k.If(publishes, publisher.Publish)
			next.set(reader.Next())
			fetch()
			k.Range(ptx.Uint(p.KTiles), func(kt ptx.U32) {
				s := ring.Acquire()
				k.If(elected, func() {
					p.Expect(ring, s, t, kt, p.TileBBytes())
					loadB(s, t, kt)
				})
				to := s.Data.Plus(dst)
				rows.CopyAndAdvance(func(i int) ptx.Shared { return to.At(i * passRows * tile.RowBytes) }, rows.Bytes(kt))
				k.CpAsyncMbarrierArriveNoInc(s.Full)
				ring.Advance()
			})
			for i := range p.Extra.kTiles() { // TMA loads both operands
				s := ring.Acquire()
				k.If(elected, func() { p.expectExtra(s, t, i) })
				k.CpAsyncMbarrierArriveNoInc(s.Full)
				ring.Advance()
			}
		})
	}
}

// tileVar is a tile that is kept in registers from one iteration of a loop to the next.
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
