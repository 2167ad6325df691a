package gemm

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// Who fills a stage, and who reads the queue, where both operands come by TMA:
// one thread.
const (
	tmaArrivals = 1
	tmaReaders  = 1
)

// LoadTMA is the load role of a product whose operands both come by TMA: one
// thread, which publishes the tiles too. Rows past the expert's end are the
// next expert's: they are multiplied and dropped. fill loads all stages of a
// tile.
func (p *Product) LoadTMA(fill func(ring *pipeline.Cursor, t schedule.Tile)) {
	k := p.K
	k.If(p.Thread.ShrI(5).EqI(MathWarps), func() {
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

// Expect tells a stage's barrier how many bytes of a k-tile's copies to wait for.
// Of the first k-tile the sums' row is one of them, whose loads loadRow starts.
func (p *Product) Expect(s pipeline.Stage, kt ptx.U32, bytes int, loadRow func()) {
	k := p.K
	if !p.Row {
		k.MbarrierArriveExpectTx(s.Full, ptx.Uint(bytes))
		return
	}
	first := kt.EqI(0)
	k.MbarrierArriveExpectTx(s.Full, ptx.Select(first, ptx.Uint(bytes+p.TileN*tile.ElementBytes), ptx.Uint(bytes)))
	k.If(first, loadRow)
}

// Box is one load of a part of a stage's B tile.
type Box struct {
	Map ptx.TensorMap
	// At are its coordinates, Offset is where it goes in its half of the tile, in
	// bytes.
	At     []ptx.U32
	Offset int
}

// LoadB starts the loads of both halves of a stage's B tile: boxes gives those
// of a half. Of a tile that the cluster shares, each CTA loads the half of its
// rank into both.
func (p *Product) LoadB(s pipeline.Stage, t schedule.Tile, boxes func(half ptx.U32) []Box) {
	k := p.K
	bytes := p.TileBBytes() / 2
	both := func() {
		for half := range 2 {
			for _, b := range boxes(ptx.Uint(half)) {
				k.TMALoad(s.Data.At(TileABytes+half*bytes+b.Offset), b.Map, s.Full, b.At...)
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
			k.TMALoadMulticast(s.Data.At(TileABytes+b.Offset).Plus(rank.MulI(bytes)), b.Map, s.Full, ptx.Uint(bothCTAs).B16(), b.At...)
		}
	}, both)
}

// Gather is the load role of a product whose A rows are gathered: 128 threads
// copy 16 bytes each, 8 lanes a row, 16 rows a pass; one thread starts B's
// loads.
type Gather struct {
	*Product
	// X are the rows of RowBytes that are gathered, Rows the number of each
	// packed row's.
	X, Rows  ptx.Global
	RowBytes int // what the k-tiles have beyond them is 0
	// LoadB starts the loads of a stage's B.
	LoadB func(s pipeline.Stage, t schedule.Tile, kt ptx.U32)
	// LoadRow starts the loads of a tile's row, where there is one, for the stage of
	// its first k-tile.
	LoadRow func(to, full ptx.Shared, t schedule.Tile)
}

// The gather's geometry.
const (
	// gatherArrivals fill a stage: each thread's copies, and B's bytes.
	gatherArrivals = pipeline.WarpgroupThreads + 1
	// gatherReaders are the role's warps.
	gatherReaders = 4
	// CopyBytes is what one thread copies at a time, LanesOfRow how many
	// threads that takes for a row of a K-major tile.
	CopyBytes  = 16
	LanesOfRow = tile.RowBytes / CopyBytes

	passRows     = pipeline.WarpgroupThreads / LanesOfRow
	gatherPasses = TileM / passRows
)

// Load emits the role.
func (g Gather) Load() {
	k := g.K
	thread := g.Thread.AndI(pipeline.WarpgroupThreads - 1)
	chunk, row := thread.AndI(LanesOfRow-1), thread.ShrI(3)
	dst := tile.Swizzled(row, chunk)
	x := g.X.Plus(chunk.MulI(CopyBytes).U64())
	elected := k.ElectOne().And(thread.LtI(32))
	ring := g.Ring.Producer()
	var publisher *schedule.TilePublisher
	publishes := elected.And(g.Queue.Publishes())
	k.If(publishes, func() { publisher = g.Tiles.Publisher(g.Queue) })
	reader := g.Queue.Reader(thread.AndI(31).EqI(0))

	// The numbers of the thread's rows are loaded one tile ahead. Rows past the
	// expert's end repeat its last one: they are multiplied and dropped.
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
				numbers[i].Set(ptx.LdGlobal[ptx.U32](g.Rows.Index(next.row.Get().Add(r), 4), ".nc"))
			}
		})
	}
	fetch()
	k.Loop(func() {
		t := next.copy()
		k.BreakIf(t.IsEnd())
		var from [gatherPasses]*ptx.Var[ptx.U64]
		for i := range from {
			from[i] = ptx.NewVar(k, x.Index(numbers[i].Get(), g.RowBytes).Addr())
		}
		k.If(publishes, publisher.Publish)
		next.set(reader.Next())
		fetch()
		k.Range(ptx.Uint(g.KTiles), func(kt ptx.U32) {
			s := ring.Acquire()
			k.If(elected, func() {
				g.Expect(s, kt, g.TileBBytes(), func() { g.LoadRow(g.RowOf(ring), s.Full, t) })
				g.LoadB(s, t, kt)
			})
			to := s.Data.Plus(dst)
			var bytes []ptx.U32
			if g.RowBytes != g.KTiles*tile.RowBytes {
				there := kt.MulI(LanesOfRow).Add(chunk).LtI(g.RowBytes / CopyBytes)
				bytes = append(bytes, ptx.Select(there, ptx.Uint(CopyBytes), ptx.Uint(0)))
			}
			for i := range from {
				k.CpAsyncCG(to.At(i*passRows*tile.RowBytes), ptx.GlobalAt(from[i].Get()), CopyBytes, bytes...)
				from[i].Set(from[i].Get().AddI(tile.RowBytes))
			}
			k.CpAsyncMbarrierArriveNoInc(s.Full)
			ring.Advance()
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
