package gemm

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// TileArgs has the launch arguments that every grouped product has: where its tiles come from (see
// [schedule.Tiles]). Argument structs of kernels embed it.
type TileArgs struct {
	// Table is the address of the table of row pairs, RowPairs the address of the table's length.
	Table    driver.DevicePtr
	RowPairs driver.DevicePtr
	// Tickets is the address of the counter from which CTAs draw their next tile. It must be 0 when
	// the kernel starts.
	Tickets driver.DevicePtr
}

// Config describes a grouped product C = A·Bᵀ, with one B for each expert.
type Config struct {
	Tiling
	// Element is the type of A and B.
	Element tile.Element
	// KTiles is the depth of the sum in k-tiles, which are 64 deep. Columns is the width of C in
	// tiles, which are TileN wide.
	KTiles, Columns int
	// Gathered states that cp.async gathers A's rows (see [Product.Gather]). If false, TMA loads
	// them.
	Gathered bool
	// BMN states that B is MN-major: elements of one k and neighbouring rows of B are adjacent.
	BMN bool
	// Start is the initial value of a tile's sums. The zero value is [NoBias].
	Start Start
	// Outlet stores the sums if it is set. It needs operands that TMA loads.
	Outlet *Outlet
	// Await says which B is ready if it is set. It needs rows that are gathered.
	Await *Await
	// Line is loaded for each tile if it is set. It needs operands that TMA loads.
	Line *Line
}

// Extra is a second pair of operands with a short sum, such as the factors of a low-rank adapter: C
// = A·Bᵀ + U·Vᵀ. Its k-tiles use the same ring and come last. V is contiguous in the same direction
// as B.
type Extra struct {
	// Steps is the depth of the sum, in wgmma steps of 16.
	Steps int
	// Load starts the loads of k-tile i of both operands. One thread runs it.
	Load func(p *Product, s pipeline.Stage, t schedule.Tile, i int)
}

// stepsOfTile is the number of wgmma steps of a k-tile.
const stepsOfTile = tile.K / tile.KStep

// kTiles returns the number of k-tiles.
func (x Extra) kTiles() int { return (x.Steps + stepsOfTile - 1) / stepsOfTile }

// Start says from which value a tile's sums start: [NoBias], [FromRow] or [FromRegisters].
type Start struct {
	kind   startKind
	load   func(to, full ptx.Shared, t schedule.Tile)
	values func(t Tile) []ptx.F32
}

type startKind int

const (
	fromZero startKind = iota
	fromRow
	fromRegisters
)

// NoBias starts the sums from 0.
var NoBias = Start{}

// FromRow makes each row of the sums start from the same row of TileN values: the bias of the
// tile's columns. load starts the TMA loads of this row; its bytes count at the full barrier of the
// tile's first stage.
//
// One wgmma step sets the sums to the row (see startFromRow). A bias thus costs one more step than
// the sum has without a bias. Setting the sums by loads or moves would take longer, and nothing
// could hide the time: the epilogue of one warpgroup already lasts as long as the main loop of the
// other.
func FromRow(load func(to, full ptx.Shared, t schedule.Tile)) Start {
	return Start{kind: fromRow, load: load}
}

// FromRegisters makes a thread's sums start from values that it computes before the main loop. It
// is for biases that TMA cannot load as a row: interleaved biases whose weights are not [in, out].
func FromRegisters(values func(t Tile) []ptx.F32) Start {
	return Start{kind: fromRegisters, values: values}
}

// Product is a grouped product that is being emitted. Its two math warpgroups compute 64 rows each.
// Both read the B of every stage, but they wait, store and release stages independently.
type Product struct {
	Config
	K     *ptx.Kernel
	Tiles schedule.Tiles
	Queue *schedule.Queue[schedule.Tile]
	// Ring has the stages: A's tile, then B's.
	Ring *pipeline.Ring
	// Thread is the thread's index in the CTA.
	Thread ptx.U32

	cta     *pipeline.CTA
	rows    ptx.Shared // one row for each stage, with FromRow
	stagger pipeline.NamedBarriers
	started ptx.Shared        // barrier of the tiles that the load role has started, with TMA
	release pipeline.Releaser // releases stages, in both CTAs of a cluster
}

// New declares the parameters of the tiles. It reserves shared memory for the ring "ab" and the
// queue, after the memory that the epilogue has reserved.
func New(k *ptx.Kernel, cta *pipeline.CTA, params jit.Params, args *TileArgs, c Config) *Product {
	if c.ClusterM > 1 {
		k.SetCluster(c.ClusterM)
	}
	p := &Product{Config: c, K: k, cta: cta}
	p.Tiles = schedule.Tiles{
		Table: params.Ptr(&args.Table), RowPairs: params.Ptr(&args.RowPairs), Tickets: params.Ptr(&args.Tickets),
		Columns: c.Columns, GroupM: c.GroupM, ClusterM: c.ClusterM,
	}
	p.Thread = k.TidX()
	p.stagger = StaggerBarrier(cta)
	arrivals, readers := tmaArrivals, tmaReaders
	if c.Gathered {
		arrivals, readers = gatherArrivals, gatherReaders
	}
	if c.Outlet != nil {
		readers++
	}
	p.Ring = cta.Ring("ab", c.Stages, c.StageBytes(), arrivals, MathWarps*c.ClusterM)
	if c.Start.kind == fromRow {
		p.rows = cta.Shared("rows", c.Stages*c.RowBytes(), rowAlign)
	}
	p.release = pipeline.NewReleaser(k, ptx.LaneOf(p.Thread), c.ClusterM)
	p.Queue = schedule.NewQueue[schedule.Tile](k, cta, schedule.TileWords, MathWarps+readers, c.ClusterM)
	if !c.Gathered {
		p.started = cta.Mbarriers("started", 1, 1)
	}
	if c.Outlet != nil {
		p.Outlet = c.Outlet.withBarriers(cta)
	}
	return p
}

// Roles emits the two roles of a product.
type Roles struct {
	// Load emits the load role, the third warpgroup.
	Load LoadRole
	// Math is the epilogue of the math role, which is the first two warpgroups.
	Math Epilogue
	// Extra is added to the sums after all k-tiles. The zero value adds nothing.
	Extra Extra
}

// Run initialises the barriers, waits for the predecessor kernel, and emits both roles.
func (p *Product) Run(r Roles) {
	p.start()
	RunRoles(p.K, p.Thread, func() {
		p.math(r.Math, r.Extra)
		p.syncCluster()
	}, func() {
		r.Load(r.Extra)
		if p.Await != nil {
			p.K.GridDepWait()
		}
		p.syncCluster()
	})
}

func (p *Product) start() {
	if p.Start.kind == fromRow {
		p.clearTails()
	}
	p.cta.Ready(p.Thread)
	p.syncCluster()
	if p.Await == nil {
		p.K.GridDepWait()
	} else {
		ptx.LdGlobalAcquire(p.Tiles.RowPairs) // after an acquiring load, later loads do not read stale cache lines
	}
	p.K.GridDepLaunch()
}

// syncCluster waits for the other CTA of the cluster, if there is one.
func (p *Product) syncCluster() {
	if p.ClusterM > 1 {
		pipeline.ClusterSync(p.K)
	}
}

// Tile is the part of a tile that one math warpgroup computes.
type Tile struct {
	schedule.Tile
	// FirstRow is the warpgroup's first packed row. ValidRows is the number of rows, starting with
	// this one, that belong to the expert: 1 to 64.
	FirstRow, ValidRows ptx.U32
	thread              ptx.U32 // index of the thread in the CTA
	outlet              outletUser
	line                lineReader
}

// Fragment returns the layout of the thread's sums in the warpgroup's part of the tile.
func (t Tile) Fragment() tile.Fragment {
	return tile.NewFragment(ptx.InWarpgroup(t.thread))
}

// Ragged returns coordinates in a map of [tile.RaggedMap]: the leading ones, then two for the
// warpgroup's rows.
func (t Tile) Ragged(leading ...ptx.U32) []ptx.U32 {
	return append(append([]ptx.U32{}, leading...), ptx.Uint(WarpgroupM).Sub(t.ValidRows), t.FirstRow.Add(t.ValidRows))
}

// Row returns the packed row of row h (0 or 1) of a thread's fragment. For a row past the expert's
// last row it returns the last row; the results of such rows are dropped.
func (t Tile) Row(f tile.Fragment, h int) ptx.U32 {
	return t.FirstRow.Add(f.Row.AddI(8 * h).Min(t.ValidRows.SubI(1)))
}

// Epilogue is what a math warpgroup does with the sums of its tiles.
type Epilogue interface {
	// PerKTile is emitted after the wgmma group of each k-tile.
	PerKTile(t Tile, kt ptx.U32)
	// UnderLastMMA is emitted after the main loop, while the tile's last wgmma group runs. It
	// starts loads that would occupy registers during the main loop if they started earlier. It
	// returns the function that stores the tile's sums.
	UnderLastMMA(t Tile) (store func(acc []ptx.F32))
	// Finish is emitted after the last tile.
	Finish()
}

// NoPerKTile is for embedding in epilogues that do nothing during the main loop.
type NoPerKTile struct{}

// PerKTile implements [Epilogue].
func (NoPerKTile) PerKTile(Tile, ptx.U32) {}

// StoreOnly is an epilogue that only stores sums. Each stores the sums of one tile.
type StoreOnly struct {
	*Store
	NoPerKTile
	Each func(t Tile, acc []ptx.F32)
}

// UnderLastMMA implements [Epilogue].
func (s StoreOnly) UnderLastMMA(t Tile) func(acc []ptx.F32) {
	return func(acc []ptx.F32) { s.Each(t, acc) }
}

// math multiplies the warpgroup's rows of each tile, and hands the sums to the epilogue. A
// warpgroup that has no rows in a tile only releases the stages.
func (p *Product) math(e Epilogue, extra Extra) {
	k := p.K
	wg := k.Warpgroup()
	leader := k.Lane().EqI(0)
	acc := k.Accumulators(p.TileN / 2)
	loop := MainLoop{K: k, Ring: p.Ring.Consumer(), Release: p.release}
	stagger := NewStagger(k, p.stagger, wg)
	lead := stagger.Lead(ptx.Uint(min(p.Stages, p.KTiles)))
	outlet, tiles := p.Outlet.user(wg), p.Queue.Reader(leader)
	tiles.Each(func(t schedule.Tile) {
		stagger.WaitForLeader()
		mine := p.part(t, wg)
		mine.outlet, mine.line = outlet, lineReader{p.Line, tiles}
		k.IfElse(mine.ValidRows.NeI(0), func() {
			store := p.multiply(loop, wg, lead, acc, mine, e, extra)
			store(acc)
		}, func() {
			loop.DrainEach(ptx.Uint(p.KTiles), lead.Multiplied)
			if tiles := extra.kTiles(); tiles > 0 {
				loop.Drain(ptx.Uint(tiles))
			}
			if p.Outlet != nil {
				outlet.skip()
			}
		})
		stagger.TileDone()
	})
	e.Finish()
}

// part returns a warpgroup's part of a tile.
func (p *Product) part(t schedule.Tile, wg ptx.U32) Tile {
	first := wg.MulI(WarpgroupM)
	mine := Tile{Tile: t, thread: p.Thread}
	mine.ValidRows = t.Live.Sub(t.Live.Min(first)).Min(ptx.Uint(WarpgroupM))
	mine.FirstRow = t.Row.Add(first)
	return mine
}

// multiply computes a tile's sums and returns the function that stores them.
func (p *Product) multiply(loop MainLoop, wg ptx.U32, lead Lead, acc []ptx.F32, t Tile, e Epilogue, extra Extra) (store func(acc []ptx.F32)) {
	k := p.K
	newB := tile.NewDescriptor
	if p.BMN {
		newB = tile.NewDescriptorMN
	}
	rowsAt := wg.MulI(WarpgroupM * tile.RowBytes)
	adds := func(kt ptx.U32) ptx.Pred { return kt.NeI(0) } // true if k-tile kt is added to acc, false if it overwrites acc
	if p.Start.kind != fromZero {
		adds = func(ptx.U32) ptx.Pred { return ptx.True() }
	}
	if p.Start.kind == fromRegisters {
		for i, v := range p.Start.values(t) {
			ptx.VarOf(acc[i]).Set(v)
		}
	}
	operands := func(s pipeline.Stage) (a, b tile.Descriptor) {
		return tile.NewDescriptor(k, s.Data.Plus(rowsAt)), newB(k, s.Data.At(TileABytes))
	}
	f := loop.Begin()
	kTile := func(s pipeline.Stage, kt ptx.U32) {
		if p.Gathered {
			k.FenceProxyAsync(".shared::cta") // makes the bytes that cp.async wrote visible to wgmma
		}
		a, b := operands(s)
		Multiply(k, p.Element, acc, a, b, adds(kt), false, p.BMN)
		lead.Multiplied(kt)
		e.PerKTile(t, kt)
	}
	if p.Start.kind != fromRow {
		f.Each(ptx.Uint(p.KTiles), false, kTile)
	} else {
		f.One(ptx.False(), 1, func(s pipeline.Stage) {
			p.startFromRow(p.rowOf(loop.Ring), acc)
			kTile(s, ptx.Uint(0))
		})
		f.Each(ptx.Uint(p.KTiles-1), true, func(s pipeline.Stage, kt ptx.U32) { kTile(s, kt.AddI(1)) })
	}
	for i := range extra.kTiles() {
		f.One(ptx.True(), 1, func(s pipeline.Stage) {
			a, b := operands(s)
			multiplySteps(k, p.Element, acc, a, b, min(extra.Steps-i*stepsOfTile, stepsOfTile), ptx.True(), false, p.BMN)
		})
	}
	store = e.UnderLastMMA(t)
	f.Finish()
	return store
}

// rowAlign is the alignment of [FromRow]'s row in shared memory.
const rowAlign = 128

// RowBytes returns the size of the row that [FromRow] needs in each stage, including the zeros
// after it.
func (t Tiling) RowBytes() int { return t.TileN*tile.ElementBytes + tile.RowTailBytes }

// rowOf returns the address of the row that belongs to the cursor's next stage. The rows of all
// stages are adjacent and have no swizzle.
func (p *Product) rowOf(ring *pipeline.Cursor) ptx.Shared {
	return p.rows.Plus(ring.Index().MulI(p.RowBytes()))
}

// clearTails sets the tail of each row, the bytes after it, to 0. Products may read the tails after
// the barriers are initialised.
func (p *Product) clearTails() {
	const chunk, chunks = 16, tile.RowTailBytes / 16
	p.K.If(p.Thread.LtI(p.Stages*chunks), func() {
		tail := p.rows.At(p.RowBytes() - tile.RowTailBytes).Plus(p.Thread.DivI(chunks).MulI(p.RowBytes()))
		ptx.StShared(tail.Plus(p.Thread.RemI(chunks).MulI(chunk)), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
		p.K.FenceProxyAsync(".shared::cta")
	})
}

// startFromRow sets each row of the sums to the given row, exactly. It multiplies the row with an A
// whose first column is 1 and whose other columns are 0.
func (p *Product) startFromRow(row ptx.Shared, acc []ptx.F32) {
	k := p.K
	one := ptx.Select(p.Thread.AndI(3).EqI(0), p.Element.Ones().AndI(0xffff), ptx.Uint(0))
	a := []ptx.U32{one, one, ptx.Uint(0), ptx.Uint(0)}
	k.WgmmaFence()
	p.Element.WgmmaRegisters(k, acc, a, tile.NewDescriptorRow(k, row), ptx.False(), true)
}
