package gemm

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// TileArgs are the arguments of every grouped product's launch, for a struct of
// arguments to embed: where its tiles come from, see [schedule.Tiles].
type TileArgs struct {
	// Table is the table of row pairs, RowPairs the address of its length.
	Table    driver.DevicePtr
	RowPairs driver.DevicePtr
	// Tickets is the address of a word that is 0 when the kernel starts.
	Tickets driver.DevicePtr
}

// Config is a grouped product C = A·Bᵀ: for each packed row of A its expert's
// B.
type Config struct {
	Tiling
	// Element is that of A and B.
	Element tile.Element
	// KTiles is the depth of the sum in tiles of 64, Columns the width of C in
	// tiles of TileN.
	KTiles, Columns int
	// Gathered: A's rows come by cp.async (see [Gather]), not by TMA.
	Gathered bool
	// BMN: B's tile is MN-major, contiguous across the sum.
	BMN bool
	// Row: the sums start from a row of TileN columns, which comes with the first
	// k-tile, see [Product.RowOf]. (Where threads load or set what sums start from all
	// of it shows: a warpgroup's epilogue is as long as the other one can multiply
	// without it.)
	Row bool
}

// Product is a grouped product that is being emitted: two math warpgroups of 64
// rows each, which share every stage's B but wait, store and release on their
// own, and one load warpgroup.
type Product struct {
	Config
	K     *ptx.Kernel
	Tiles schedule.Tiles
	Queue *schedule.Queue[schedule.Tile]
	// Ring has the stages: A's tile, then B's.
	Ring *pipeline.Ring
	// Thread is the thread's number in its CTA.
	Thread ptx.U32

	cta     *pipeline.CTA
	rows    ptx.Shared // of the stages, where sums start from one
	stagger pipeline.NamedBarriers
	release pipeline.Releaser // gives stages back, to both CTAs of a cluster
}

// New declares the tiles' parameters and reserves the ring and the queue, behind
// what the epilogue has reserved of the CTA.
func New(k *ptx.Kernel, cta *pipeline.CTA, params jit.Params, args *TileArgs, c Config) *Product {
	if c.ClusterM > 1 {
		k.SetCluster(c.ClusterM)
	}
	p := &Product{Config: c, K: k, cta: cta}
	p.Tiles = schedule.Tiles{
		Table: params.Ptr(&args.Table), Pairs: params.Ptr(&args.RowPairs), Tickets: params.Ptr(&args.Tickets),
		Columns: c.Columns, GroupM: c.GroupM, ClusterM: c.ClusterM,
	}
	p.Thread = k.TidX()
	p.stagger = StaggerBarrier(cta)
	arrivals, readers := tmaArrivals, tmaReaders
	if c.Gathered {
		arrivals, readers = gatherArrivals, gatherReaders
	}
	p.Ring = cta.Ring("ab", c.Stages, c.StageBytes(), arrivals, MathWarps*c.ClusterM)
	if c.Row {
		p.rows = cta.Shared("rows", c.Stages*c.RowBytes(), rowAlign)
	}
	p.release = pipeline.NewReleaser(k, p.Thread.AndI(31), c.ClusterM)
	p.Queue = schedule.NewQueue[schedule.Tile](k, cta, schedule.TileWords, MathWarps+readers, c.ClusterM)
	return p
}

// start makes the barriers valid and waits for the kernel before this one.
func (p *Product) start() {
	if p.Row {
		p.clearTails()
	}
	p.cta.Ready(p.Thread)
	p.syncCluster()
	p.K.GridDepWait()
	p.K.GridDepLaunch()
}

// syncCluster waits for the cluster's other CTA, where there is one.
func (p *Product) syncCluster() {
	if p.ClusterM > 1 {
		pipeline.ClusterSync(p.K)
	}
}

// Run makes the barriers of the CTA valid, waits for the kernel before this one,
// and emits both roles.
func (p *Product) Run(load func(), e Epilogue) {
	p.start()
	RunRoles(p.K, p.Thread, func() {
		p.math(e)
		p.syncCluster()
	}, func() {
		load()
		p.syncCluster()
	})
}

// Fragment is where a math thread's sums lie in its warpgroup's part of a tile.
func (p *Product) Fragment() tile.Fragment {
	return tile.NewFragment(p.Thread.AndI(pipeline.WarpgroupThreads - 1))
}

// Tile is a math warpgroup's part of a tile.
type Tile struct {
	schedule.Tile
	// FirstRow is the warpgroup's first packed row, ValidRows how many from it
	// on are the expert's, 1 to 64.
	FirstRow, ValidRows ptx.U32
}

// Ragged are the coordinates in a map of [tile.RaggedMap] of the warpgroup's
// rows, behind those that lead.
func (t Tile) Ragged(lead ...ptx.U32) []ptx.U32 {
	return append(append([]ptx.U32{}, lead...), ptx.Uint(WarpgroupM).Sub(t.ValidRows), t.FirstRow.Add(t.ValidRows))
}

// Row is the packed row of a thread's h-th row, 0 or 1, of its fragment. Rows past
// the last one repeat it: what comes of them is dropped.
func (t Tile) Row(f tile.Fragment, h int) ptx.U32 {
	return t.FirstRow.Add(f.Row.AddI(8 * h).Min(t.ValidRows.SubI(1)))
}

// Epilogue is what a math warpgroup does with the sums of its tiles.
type Epilogue interface {
	// Begin is called ahead of each tile's main loop.
	Begin(t Tile) TileEpilogue
	// Finish is emitted behind the last tile.
	Finish()
}

// TileEpilogue is the epilogue of one tile.
type TileEpilogue interface {
	// Start, ahead of the main loop, may give the sums their first values instead
	// of 0, and says whether it did.
	Start(acc []ptx.F32) bool
	// PerKTile is emitted behind the wgmma group of each k-tile.
	PerKTile(kt ptx.U32)
	// UnderLastMMA is emitted behind the main loop, while its last products are
	// under way: for loads whose results would cost registers through the loop.
	UnderLastMMA()
	// Store stores what it makes of the tile's sums.
	Store(acc []ptx.F32)
}

// NoLoads is for tile epilogues that do nothing under the main loop.
type NoLoads struct{}

// Start implements TileEpilogue.
func (NoLoads) Start([]ptx.F32) bool { return false }

// PerKTile implements TileEpilogue.
func (NoLoads) PerKTile(ptx.U32) {}

// UnderLastMMA implements TileEpilogue.
func (NoLoads) UnderLastMMA() {}

// StoreOnly is an epilogue that writes by Store: Each does so with a tile's sums.
// Bias, unless nil, gives what the sums start from; Load, unless nil, loads what
// Each needs to know, under the last products.
type StoreOnly struct {
	*Store
	Each func(t Tile, acc []ptx.F32)
	Bias func(t Tile) []ptx.F32
	Load func(t Tile)
}

// Begin implements Epilogue.
func (s StoreOnly) Begin(t Tile) TileEpilogue { return storeOnlyTile{t: t, of: s} }

type storeOnlyTile struct {
	NoLoads
	t  Tile
	of StoreOnly
}

func (s storeOnlyTile) Start(acc []ptx.F32) bool {
	if s.of.Bias == nil {
		return false
	}
	for i, v := range s.of.Bias(s.t) {
		ptx.VarOf(acc[i]).Set(v)
	}
	return true
}

func (s storeOnlyTile) UnderLastMMA() {
	if s.of.Load != nil {
		s.of.Load(s.t)
	}
}

func (s storeOnlyTile) Store(acc []ptx.F32) { s.of.Each(s.t, acc) }

// math multiplies the warpgroup's rows of each tile and hands the sums to the
// epilogue. A warpgroup whose rows all lie past the expert's end only gives
// the stages back.
func (p *Product) math(e Epilogue) {
	k := p.K
	wg := p.Thread.ShrI(7)
	leader := p.Thread.AndI(31).EqI(0)
	acc := k.Accumulators(p.TileN / 2)
	loop := MainLoop{K: k, Ring: p.Ring.Consumer(), Release: p.release}
	stagger := NewStagger(k, p.stagger, wg)
	stagger.SetLead(ptx.Uint(min(p.Stages, p.KTiles)))
	p.Queue.Reader(leader).Each(func(t schedule.Tile) {
		stagger.WaitForLeader()
		first := wg.MulI(WarpgroupM)
		mine := Tile{Tile: t}
		mine.ValidRows = t.Live.Sub(t.Live.Min(first)).Min(ptx.Uint(WarpgroupM))
		mine.FirstRow = t.Row.Add(first)
		k.IfElse(mine.ValidRows.NeI(0), func() {
			epilogue := e.Begin(mine)
			p.multiply(loop, wg, stagger, acc, epilogue)
			epilogue.Store(acc)
		}, func() {
			loop.Drain(ptx.Uint(p.KTiles), stagger.Multiplied)
		})
		stagger.TileDone()
	})
	e.Finish()
}

// multiply makes a tile's sums.
func (p *Product) multiply(loop MainLoop, wg ptx.U32, stagger *Stagger, acc []ptx.F32, e TileEpilogue) {
	k := p.K
	newB := tile.NewDescriptor
	if p.BMN {
		newB = tile.NewDescriptorMN
	}
	rowsAt := wg.MulI(WarpgroupM * tile.RowBytes)
	keep := func(kt ptx.U32) ptx.Pred { return kt.NeI(0) }
	if e.Start(acc) || p.Row {
		keep = func(ptx.U32) ptx.Pred { return ptx.True() }
	}
	f := loop.Begin()
	kTile := func(s pipeline.Stage, kt ptx.U32) {
		if p.Gathered {
			k.FenceProxyAsync(".shared::cta") // wgmma shall see what cp.async has written
		}
		a := tile.NewDescriptor(k, s.Data.Plus(rowsAt))
		b := newB(k, s.Data.At(TileABytes))
		Multiply(k, p.Element, acc, a, b, keep(kt), false, p.BMN)
		stagger.Multiplied(kt)
		e.PerKTile(kt)
	}
	if !p.Row {
		f.Each(ptx.Uint(p.KTiles), false, kTile)
	} else {
		f.One(ptx.False(), 1, func(s pipeline.Stage) {
			p.startFromRow(p.RowOf(loop.Ring), acc)
			kTile(s, ptx.Uint(0))
		})
		f.Each(ptx.Uint(p.KTiles-1), true, func(s pipeline.Stage, kt ptx.U32) { kTile(s, kt.AddI(1)) })
	}
	f.End(e.UnderLastMMA)
}

// rowAlign is where copies may put a row.
const rowAlign = 128

// RowBytes is the room of a stage's row, with what lies behind it.
func (t Tiling) RowBytes() int { return t.TileN*tile.ElementBytes + tile.RowTailBytes }

// RowOf is where the row of a tile lies whose first k-tile is a role's next stage:
// boxes without swizzle, side by side.
func (p *Product) RowOf(ring *pipeline.Cursor) ptx.Shared {
	return p.rows.Plus(ring.Index().MulI(p.RowBytes()))
}

// clearTails sets what lies behind the rows to 0, for products to read once the
// barriers are valid.
func (p *Product) clearTails() {
	const chunk, chunks = 16, tile.RowTailBytes / 16
	p.K.If(p.Thread.LtI(p.Stages*chunks), func() {
		tail := p.rows.At(p.RowBytes() - tile.RowTailBytes).Plus(p.Thread.DivI(chunks).MulI(p.RowBytes()))
		ptx.StShared(tail.Plus(p.Thread.RemI(chunks).MulI(chunk)), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
		p.K.FenceProxyAsync(".shared::cta")
	})
}

// startFromRow makes each row of the sums that one, exactly: A's first column is 1,
// its others are 0.
func (p *Product) startFromRow(row ptx.Shared, acc []ptx.F32) {
	k := p.K
	one := ptx.Select(p.Thread.AndI(3).EqI(0), p.Element.Ones().AndI(0xffff), ptx.Uint(0))
	a := []ptx.U32{one, one, ptx.Uint(0), ptx.Uint(0)}
	k.WgmmaFence()
	p.Element.WgmmaRegisters(k, acc, a, tile.NewDescriptorRow(k, row), ptx.False(), true)
}
