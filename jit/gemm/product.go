package gemm

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// TileArgs are launch arguments that every grouped product has: the source of its
// tiles, see [schedule.Tiles]. Argument structs embed it.
type TileArgs struct {
	// Table is the table of row pairs, RowPairs the address of its length.
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
	// KTiles is the depth of the sum, in tiles of 64. Columns is the width of C, in
	// tiles of TileN.
	KTiles, Columns int
	// Gathered selects cp.async for A's rows (see [Product.Gather]) in place of TMA.
	Gathered bool
	// BMN states that B is MN-major: contiguous across the sum.
	BMN bool
	// Start is the initial value of a tile's sums. The zero value is [NoBias].
	Start Start
}

// Start is the initial value of a tile's sums: [NoBias], [FromRow] or
// [FromRegisters].
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

// FromRow starts each row of the sums from the same row of TileN columns: the bias
// of the tile's columns. load starts the TMA loads of this row, which complete the
// full barrier of the tile's first stage. One wgmma step then sets the sums: one more step than
// the sum has otherwise, and about that share of time is the cost of a bias (see
// examples/bench/h200/experiments.md). Setting
// the sums by loads or moves would take longer, and nothing could hide it: the
// epilogue of one warpgroup already lasts as long as the main loop of the other.
func FromRow(load func(to, full ptx.Shared, t schedule.Tile)) Start {
	return Start{kind: fromRow, load: load}
}

// FromRegisters starts a thread's sums from values computed before the main loop.
// It is for biases that TMA cannot load as a row.
func FromRegisters(values func(t Tile) []ptx.F32) Start {
	return Start{kind: fromRegisters, values: values}
}

// Product is a grouped product that is being emitted. Its two math warpgroups
// compute 64 rows each. They share the B of every stage, but wait, store and
// release independently.
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
	release pipeline.Releaser // releases stages, in both CTAs of a cluster
}

// New declares the parameters of the tiles and reserves the ring "ab" and the
// queue in shared memory. They follow the memory that the epilogue has already
// reserved.
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
	p.Ring = cta.Ring("ab", c.Stages, c.StageBytes(), arrivals, MathWarps*c.ClusterM)
	if c.Start.kind == fromRow {
		p.rows = cta.Shared("rows", c.Stages*c.RowBytes(), rowAlign)
	}
	p.release = pipeline.NewReleaser(k, p.Thread.AndI(31), c.ClusterM)
	p.Queue = schedule.NewQueue[schedule.Tile](k, cta, schedule.TileWords, MathWarps+readers, c.ClusterM)
	return p
}

// Roles are the two roles of a product.
type Roles struct {
	// Load is the role of the third warpgroup: [Product.TMA] or [Product.Gather].
	Load func()
	// Math is the epilogue of the math role, the first two warpgroups.
	Math Epilogue
}

// Run initialises the barriers, waits for the predecessor kernel, and emits both
// roles.
func (p *Product) Run(r Roles) {
	p.start()
	RunRoles(p.K, p.Thread, func() {
		p.math(r.Math)
		p.syncCluster()
	}, func() {
		r.Load()
		p.syncCluster()
	})
}

func (p *Product) start() {
	if p.Start.kind == fromRow {
		p.clearTails()
	}
	p.cta.Ready(p.Thread)
	p.syncCluster()
	p.K.GridDepWait()
	p.K.GridDepLaunch()
}

// syncCluster waits for the other CTA of the cluster, if there is one.
func (p *Product) syncCluster() {
	if p.ClusterM > 1 {
		pipeline.ClusterSync(p.K)
	}
}

// Tile is a math warpgroup's part of a tile.
type Tile struct {
	schedule.Tile
	// FirstRow is the warpgroup's first packed row. ValidRows is the number of rows
	// from there on that belong to the expert, 1 to 64.
	FirstRow, ValidRows ptx.U32
	thread              ptx.U32 // index in the CTA
}

// Fragment returns the layout of a thread's sums in the warpgroup's part of the
// tile.
func (t Tile) Fragment() tile.Fragment {
	return tile.NewFragment(t.thread.AndI(pipeline.WarpgroupThreads - 1))
}

// Ragged returns the coordinates of the warpgroup's rows in a map of
// [tile.RaggedMap], after the leading ones.
func (t Tile) Ragged(leading ...ptx.U32) []ptx.U32 {
	return append(append([]ptx.U32{}, leading...), ptx.Uint(WarpgroupM).Sub(t.ValidRows), t.FirstRow.Add(t.ValidRows))
}

// Row returns the packed row of row h, 0 or 1, of a thread's fragment. Rows past
// the expert's last row repeat that row; their results are dropped.
func (t Tile) Row(f tile.Fragment, h int) ptx.U32 {
	return t.FirstRow.Add(f.Row.AddI(8 * h).Min(t.ValidRows.SubI(1)))
}

// Epilogue is what a math warpgroup does with the sums of its tiles.
type Epilogue interface {
	// PerKTile is emitted after the wgmma group of each k-tile.
	PerKTile(t Tile, kt ptx.U32)
	// UnderLastMMA is emitted after the main loop, while the tile's last wgmma group
	// runs. It starts loads whose results would occupy registers during the main loop,
	// and returns the function that stores the tile's sums.
	UnderLastMMA(t Tile) (store func(acc []ptx.F32))
	// Finish is emitted after the last tile.
	Finish()
}

// NoPerKTile is embedded by epilogues that do nothing in the main loop.
type NoPerKTile struct{}

// PerKTile implements Epilogue.
func (NoPerKTile) PerKTile(Tile, ptx.U32) {}

// StoreOnly is an epilogue that loads nothing. Each stores a tile's sums.
type StoreOnly struct {
	*Store
	NoPerKTile
	Each func(t Tile, acc []ptx.F32)
}

// UnderLastMMA implements Epilogue.
func (s StoreOnly) UnderLastMMA(t Tile) func(acc []ptx.F32) {
	return func(acc []ptx.F32) { s.Each(t, acc) }
}

// math multiplies the warpgroup's rows of each tile and passes the sums to the
// epilogue. A warpgroup without rows in the tile only releases the stages.
func (p *Product) math(e Epilogue) {
	k := p.K
	wg := k.Warpgroup()
	leader := k.Lane().EqI(0)
	acc := k.Accumulators(p.TileN / 2)
	loop := MainLoop{K: k, Ring: p.Ring.Consumer(), Release: p.release}
	stagger := NewStagger(k, p.stagger, wg)
	lead := stagger.Lead(ptx.Uint(min(p.Stages, p.KTiles)))
	p.Queue.Reader(leader).Each(func(t schedule.Tile) {
		stagger.WaitForLeader()
		first := wg.MulI(WarpgroupM)
		mine := Tile{Tile: t, thread: p.Thread}
		mine.ValidRows = t.Live.Sub(t.Live.Min(first)).Min(ptx.Uint(WarpgroupM))
		mine.FirstRow = t.Row.Add(first)
		k.IfElse(mine.ValidRows.NeI(0), func() {
			store := p.multiply(loop, wg, lead, acc, mine, e)
			store(acc)
		}, func() {
			loop.DrainEach(ptx.Uint(p.KTiles), lead.Multiplied)
		})
		stagger.TileDone()
	})
	e.Finish()
}

// multiply computes a tile's sums and returns the function that stores them.
func (p *Product) multiply(loop MainLoop, wg ptx.U32, lead Lead, acc []ptx.F32, t Tile, e Epilogue) (store func(acc []ptx.F32)) {
	k := p.K
	newB := tile.NewDescriptor
	if p.BMN {
		newB = tile.NewDescriptorMN
	}
	rowsAt := wg.MulI(WarpgroupM * tile.RowBytes)
	adds := func(kt ptx.U32) ptx.Pred { return kt.NeI(0) } // reports whether k-tile kt adds to acc
	if p.Start.kind != fromZero {
		adds = func(ptx.U32) ptx.Pred { return ptx.True() }
	}
	if p.Start.kind == fromRegisters {
		for i, v := range p.Start.values(t) {
			ptx.VarOf(acc[i]).Set(v)
		}
	}
	f := loop.Begin()
	kTile := func(s pipeline.Stage, kt ptx.U32) {
		if p.Gathered {
			k.FenceProxyAsync(".shared::cta") // makes cp.async's writes visible to wgmma
		}
		a := tile.NewDescriptor(k, s.Data.Plus(rowsAt))
		b := newB(k, s.Data.At(TileABytes))
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
	store = e.UnderLastMMA(t)
	f.Finish()
	return store
}

// rowAlign is the alignment of a row in shared memory.
const rowAlign = 128

// RowBytes is the size of a stage's row with its tail of zeros, for [FromRow].
func (t Tiling) RowBytes() int { return t.TileN*tile.ElementBytes + tile.RowTailBytes }

// rowOf returns the row for the cursor's next stage. Rows are adjacent, without
// swizzle.
func (p *Product) rowOf(ring *pipeline.Cursor) ptx.Shared {
	return p.rows.Plus(ring.Index().MulI(p.RowBytes()))
}

// clearTails sets the tails of all rows to 0. Products may read them once the
// barriers are initialised.
func (p *Product) clearTails() {
	const chunk, chunks = 16, tile.RowTailBytes / 16
	p.K.If(p.Thread.LtI(p.Stages*chunks), func() {
		tail := p.rows.At(p.RowBytes() - tile.RowTailBytes).Plus(p.Thread.DivI(chunks).MulI(p.RowBytes()))
		ptx.StShared(tail.Plus(p.Thread.RemI(chunks).MulI(chunk)), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
		p.K.FenceProxyAsync(".shared::cta")
	})
}

// startFromRow sets each row of the sums to the given row, exactly: it multiplies an
// A whose first column is 1 and whose other columns are 0.
func (p *Product) startFromRow(row ptx.Shared, acc []ptx.F32) {
	k := p.K
	one := ptx.Select(p.Thread.AndI(3).EqI(0), p.Element.Ones().AndI(0xffff), ptx.Uint(0))
	a := []ptx.U32{one, one, ptx.Uint(0), ptx.Uint(0)}
	k.WgmmaFence()
	p.Element.WgmmaRegisters(k, acc, a, tile.NewDescriptorRow(k, row), ptx.False(), true)
}
