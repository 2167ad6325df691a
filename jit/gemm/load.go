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

// LoadRole emits the load role of a product. [Product.TMA] and [Product.Gather] return one. It also
// loads the k-tiles of an [Extra].
type LoadRole func(extra Extra)

// TileLoad is a tile whose stages one thread of the load role loads.
type TileLoad struct {
	schedule.Tile
	Ring *pipeline.Cursor
	line lineReader
}

// TMA returns the load role of a product whose operands are both loaded by TMA.
// Each of its warps has one thread at work: the first starts all loads, the second
// draws and publishes the tiles, the third issues the stores of [Config].Outlet. A
// draw waits for memory twice, and loads must not wait for it. fill loads all stages
// of a tile but those of the extra operands. Rows past the expert's last row belong to
// the next expert; their results are dropped.
func (p *Product) TMA(fill func(t TileLoad)) LoadRole {
	return func(extra Extra) {
		k := p.K
		warp := k.Warp().SubI(MathWarps)
		k.If(warp.EqI(0), func() {
			k.If(k.ElectOne(), func() {
				ring := p.Ring.Producer()
				tiles := p.Queue.Reader(ptx.True())
				tiles.Each(func(t schedule.Tile) {
					k.If(p.Queue.Publishes(), func() { k.MbarrierArrive(p.started) })
					fill(TileLoad{t, ring, lineReader{p.Line, tiles}})
					p.loadExtra(extra, ring, t)
				})
			})
		})
		k.If(warp.EqI(1).And(p.Queue.Publishes()), func() { k.If(k.ElectOne(), p.publish) })
		if p.Outlet != nil {
			k.If(warp.EqI(2), func() { k.If(k.ElectOne(), func() { p.Outlet.run(p) }) })
		}
	}
}

// publish publishes the tiles: a further one whenever the load role starts a tile.
func (p *Product) publish() {
	phase := ptx.NewVar(p.K, ptx.Uint(0))
	p.Tiles.PublishAll(p.Queue, func() {
		pipeline.WaitParity(p.K, p.started, phase.Get())
		phase.Set(phase.Get().XorI(1))
	})
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

// loadExtra starts the loads of a tile's extra k-tiles.
func (p *Product) loadExtra(extra Extra, ring *pipeline.Cursor, t schedule.Tile) {
	for i := range extra.kTiles() {
		s := ring.Acquire()
		p.expectExtra(extra, s, t, i)
		ring.Advance()
	}
}

// expectExtra starts the loads of extra k-tile i.
func (p *Product) expectExtra(extra Extra, s pipeline.Stage, t schedule.Tile, i int) {
	p.K.MbarrierArriveExpectTx(s.Full, ptx.Uint(p.StageBytes()))
	extra.Load(p, s, t, i)
}

// Line is a row of values that the epilogue of each tile reads, such as numbers that
// belong to the tile's columns. The load role loads the line together with the
// tile's last k-tile, so that the epilogue need not wait for it.
type Line struct {
	// Bytes is the size of a line.
	Bytes  int
	count  int
	memory ptx.Shared
}

// lineReader is a role that uses the lines. tiles counts the role's tiles.
type lineReader struct {
	*Line
	tiles *schedule.Reader[schedule.Tile]
}

// NewLine reserves [Tiling.Lines] lines of the given size for a sum of kTiles.
func NewLine(cta *pipeline.CTA, bytes, kTiles int, t Tiling) *Line {
	const align = 128
	n := t.Lines(kTiles)
	return &Line{Bytes: bytes, count: n, memory: cta.Shared("line", n*bytes, align)}
}

// MostLines is the largest number of lines of a kernel.
const MostLines = schedule.QueueDepth

// Lines returns the number of lines for a sum of kTiles, a power of two. When a warp
// reads the line of its tile, the load role is at most one ring ahead, and may have
// loaded the last k-tiles of the tiles there.
func (t Tiling) Lines(kTiles int) int {
	n := 1
	for n < t.Stages/kTiles+1 {
		n *= 2
	}
	return n
}

// Line returns the address of the tile's line.
func (t TileLoad) Line() ptx.Shared { return t.line.at() }

// Line returns the address of the tile's line.
func (t Tile) Line() ptx.Shared { return t.line.at() }

// at returns the address of the line of the role's tile.
func (l lineReader) at() ptx.Shared {
	if l.count == 1 {
		return l.memory
	}
	return l.memory.Plus(l.tiles.Count().AndI(l.count - 1).MulI(l.Bytes))
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
func (p *Product) Gather(from Rows, loadB func(s pipeline.Stage, t schedule.Tile, kt ptx.U32)) LoadRole {
	return func(extra Extra) {
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
		reader := p.Queue.Reader(ptx.LaneOf(thread).EqI(0))
		weights := p.awaiter()

		// The row numbers are loaded one tile ahead. Rows past the expert's last row have the number of
		// the last row, but their chunks become 0 without a load; their results are dropped.
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
			fill := func(there func(i int) ptx.Pred) {
				k.Range(ptx.Uint(p.KTiles), func(kt ptx.U32) {
					s := ring.Acquire()
					k.If(elected, func() {
						p.Expect(ring, s, t, kt, p.TileBBytes())
						weights.wait(t.Expert)
						loadB(s, t, kt)
					})
					to := s.Data.Plus(dst)
					rows.CopyAndAdvance(kt, func(i int) ptx.Shared { return to.At(i * passRows * tile.RowBytes) }, there)
					k.CpAsyncMbarrierArriveNoInc(s.Full)
					ring.Advance()
				})
			}
			k.IfElse(t.Rows.GeI(TileM), func() {
				fill(func(int) ptx.Pred { return ptx.True() })
			}, func() {
				fill(func(i int) ptx.Pred { return row.AddI(passRows * i).Lt(t.Rows) })
			})
			p.gatherExtra(extra, ring, t, elected)
		})
	}
}

// gatherExtra loads a tile's extra k-tiles after k-tiles of gathered rows. The elected thread starts
// TMA loads of both operands, and all threads arrive at the stages as they do for gathered rows.
func (p *Product) gatherExtra(extra Extra, ring *pipeline.Cursor, t schedule.Tile, elected ptx.Pred) {
	for i := range extra.kTiles() {
		s := ring.Acquire()
		p.K.If(elected, func() {
			p.K.FenceProxyAsync(".shared::cta") // cp.async may have written this stage before
			p.expectExtra(extra, s, t, i)
		})
		p.K.CpAsyncMbarrierArriveNoInc(s.Full)
		ring.Advance()
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
