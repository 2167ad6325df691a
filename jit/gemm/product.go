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
	// Row: the sums start from a row of TileN columns, which comes as a stage of its
	// own ahead of the first k-tile: a box of [tile.NewDescriptorStep] with the row
	// on its first line and 0 on the others. (Where threads load or set what sums
	// start from all of it shows: a warpgroup's epilogue is as long as the other one
	// can multiply without it.)
	Row bool
}

// RowStageBytes are loaded for the stage of a row.
func (c Config) RowStageBytes() int { return c.TileN / tile.Block * tile.StepBlockBytes }

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
	p.release = pipeline.NewReleaser(k, p.Thread.AndI(31), c.ClusterM)
	p.Queue = schedule.NewQueue[schedule.Tile](k, cta, schedule.TileWords, MathWarps+readers, c.ClusterM)
	return p
}

// start makes the barriers valid and waits for the kernel before this one.
func (p *Product) start() {
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
	stagger.SetLead(ptx.Uint(min(p.Stages-p.rowStages(), p.KTiles)))
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
			if p.Row {
				loop.Drain(ptx.Uint(p.rowStages()), nil)
			}
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
	if p.Row {
		f.One(ptx.False(), 1, func(s pipeline.Stage) { p.startFromRow(s, acc) })
	}
	f.Each(ptx.Uint(p.KTiles), p.Row, func(s pipeline.Stage, kt ptx.U32) {
		if p.Gathered {
			k.FenceProxyAsync(".shared::cta") // wgmma shall see what cp.async has written
		}
		a := tile.NewDescriptor(k, s.Data.Plus(rowsAt))
		b := newB(k, s.Data.At(TileABytes))
		Multiply(k, p.Element, acc, a, b, keep(kt), false, p.BMN)
		stagger.Multiplied(kt)
		e.PerKTile(kt)
	})
	f.End(e.UnderLastMMA)
}

// rowStages is how many stages a row is.
func (p *Product) rowStages() int {
	if p.Row {
		return 1
	}
	return 0
}

// startFromRow makes each row of the sums the row of a stage, exactly: A's first
// column is 1, its others are 0.
func (p *Product) startFromRow(s pipeline.Stage, acc []ptx.F32) {
	k := p.K
	one := ptx.Select(p.Thread.AndI(3).EqI(0), p.Element.Ones().AndI(0xffff), ptx.Uint(0))
	a := []ptx.U32{one, one, ptx.Uint(0), ptx.Uint(0)}
	k.WgmmaFence()
	p.Element.WgmmaRegisters(k, acc, a, tile.NewDescriptorStep(k, s.Data), ptx.False(), true)
	k.WgmmaCommit()
}
