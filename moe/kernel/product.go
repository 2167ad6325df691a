package kernel

import (
	"fmt"

	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// Point is a choice of tile shapes of a grouped product: a point of its
// search space. Comparable; results are the same bits for every point.
type Point struct {
	// TileN is the weight rows of a tile (up-projection: half gate, half up).
	TileN int
	// Stages is the depth of the load ring.
	Stages int
	// Panel is the row blocks that share weights in the L2 cache.
	Panel int
	// CTAs is the CTAs of a cluster: 1 (or 0), or 2, which load each half of
	// the weights into both.
	CTAs int
}

// String names the point, such as "128x256 s4 p16 c2".
func (p Point) String() string {
	return fmt.Sprintf("%dx%d s%d p%d c%d", BlockRows, p.TileN, p.Stages, p.Panel, p.ctas())
}

func (p Point) ctas() int { return max(1, p.CTAs) }

const (
	mathThreads = 2 * pipeline.WarpgroupThreads
	// productThreads are two math warpgroups and one load warpgroup: with one
	// CTA an SM they have 168 registers each.
	productThreads = mathThreads + pipeline.WarpgroupThreads
	tileABytes     = BlockRows * tile.RowBytes
	storeSlots     = 2
	// barrierBytes bounds the mbarriers and the tile queue of a product.
	barrierBytes = 512
)

func (p Point) stageBytes() int { return tileABytes + p.TileN*tile.RowBytes }

// sharedBytes is the shared memory of a product at this point.
func (p Point) sharedBytes() int {
	return p.Stages*p.stageBytes() + 2*storeSlots*tile.StagingBytes + barrierBytes
}

// product is the skeleton of the grouped products: two math warpgroups of 64
// rows each that share every stage's weights but wait, store and release on
// their own, and one load warpgroup.
type product struct {
	k       *ptx.Kernel
	point   Point
	kTiles  int
	queue   *schedule.Queue
	ring    *pipeline.Ring
	tid     ptx.U32
	staging ptx.Shared
	mem     *pipeline.Shared
	// release gives stages back, to both CTAs of a cluster.
	release pipeline.Releaser
	// gathered: A comes by cp.async, through the generic proxy.
	gathered bool
	// weightsMN: the weights' tile is MN-major.
	weightsMN bool
	// before, unless nil, is emitted ahead of each tile's main loop: loads
	// that the epilogue needs run under it.
	before func(s *storer, t schedule.Tile)
	// ending, unless nil, is emitted behind the main loop, while its last
	// products are under way: for loads whose results would cost registers
	// through the loop.
	ending func()
	// during, unless nil, is emitted behind the products of each k-tile.
	during func(kt ptx.U32)
}

// newProduct declares the schedule's parameters and lays out shared memory.
// fullArrivals fill a stage; loadReaders warps or lone threads of the load
// role read the tile queue.
func newProduct(k *ptx.Kernel, point Point, kTiles, columns, fullArrivals, loadReaders int) *product {
	const staging = 2 * storeSlots * tile.StagingBytes
	return layProduct(k, point, kTiles, columns, fullArrivals, loadReaders, staging, func(*pipeline.Setup, *pipeline.Shared) {})
}

// layProduct is newProduct for an epilogue that needs so many bytes of staging
// and adds barriers of its own.
func layProduct(k *ptx.Kernel, point Point, kTiles, columns, fullArrivals, loadReaders, staging int, more func(*pipeline.Setup, *pipeline.Shared)) *product {
	k.SetLaunchBounds(productThreads, 1)
	if point.ctas() > 1 {
		k.SetCluster(point.ctas())
	}
	p := &product{k: k, point: point, kTiles: kTiles}
	blocks := schedule.Blocks{
		Table: k.ParamPtr("table"), Count: k.ParamPtr("blocks"), Tickets: k.ParamPtr("tickets"),
		Columns: columns, Panel: point.Panel, CTAs: point.ctas(),
	}
	p.tid = k.Special("%tid.x")
	p.mem = pipeline.NewShared(k)
	set := pipeline.NewSetup(k)
	p.staging = p.mem.Take(staging, 1024)
	const mathWarps = 2 * 4
	p.ring = pipeline.NewRing(k, set, p.mem, point.Stages, point.stageBytes(), fullArrivals, mathWarps*point.ctas())
	p.release = pipeline.NewReleaser(k, p.tid.AndI(31), point.ctas())
	p.queue = schedule.NewQueue(k, set, p.mem, blocks, mathWarps+loadReaders)
	more(set, p.mem)
	set.Done(p.tid)
	p.syncCluster()
	k.GridDepWait()
	k.GridDepLaunch()
	return p
}

// syncCluster waits for the cluster's other CTA, where there is one.
func (p *product) syncCluster() {
	if p.point.ctas() > 1 {
		pipeline.ClusterSync(p.k)
	}
}

// loadAlone is the load role of a product whose operands both come by TMA: one
// thread, which publishes the tiles too. Rows past the expert's end are the
// next expert's: they are multiplied and dropped. fill loads all stages of a
// tile.
func (p *product) loadAlone(fill func(at *pipeline.Cursor, t schedule.Tile)) {
	k := p.k
	k.If(p.tid.ShrI(5).EqI(mathThreads/32), func() {
		k.If(k.ElectOne(), func() {
			at := p.ring.Producer()
			var publisher *schedule.Publisher
			k.If(p.queue.Publishes(), func() { publisher = p.queue.Publisher() })
			p.queue.Reader(ptx.True()).Each(func(t schedule.Tile) {
				k.If(p.queue.Publishes(), publisher.Publish)
				fill(at, t)
			})
		})
	})
}

// loadHalves starts the loads of both halves of a stage's weights, at their
// coordinates. Of a tile that the cluster shares, each CTA loads the half of
// its rank into both.
func (p *product) loadHalves(s pipeline.Stage, t schedule.Tile, w ptx.TensorMap, at func(part ptx.U32) []ptx.U32) {
	k := p.k
	half := p.point.TileN / 2 * tile.RowBytes
	both := func() {
		for part := range 2 {
			k.TMALoad(s.Data.At(tileABytes+part*half), w, s.Full, at(ptx.Uint(part))...)
		}
	}
	if p.point.ctas() == 1 {
		both()
		return
	}
	k.IfElse(t.Shared.NeI(0), func() {
		rank := k.Special("%cluster_ctarank")
		const bothCTAs = 3
		k.TMALoadMulticast(s.Data.At(tileABytes).Plus(rank.MulI(half)), w, s.Full, ptx.Uint(bothCTAs).B16(), at(rank)...)
	}, both)
}

// run emits both roles. epilogue gets a warpgroup's accumulators of one tile.
func (p *product) run(load func(), epilogue func(s *storer, t schedule.Tile, acc []ptx.F32)) {
	pipeline.Run(p.k, p.tid.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: 2, Body: func() {
			p.math(epilogue)
			p.syncCluster()
		}},
		pipeline.Role{Name: "load", First: 2, Count: 1, Body: func() {
			load()
			p.syncCluster()
		}},
	)
}

// math multiplies the warpgroup's rows of each tile and hands them to the
// epilogue. A warpgroup whose rows all lie past the expert's end only gives
// the stages back.
func (p *product) math(epilogue func(s *storer, t schedule.Tile, acc []ptx.F32)) {
	k := p.k
	wg := p.tid.ShrI(7)
	leader := p.tid.AndI(31).EqI(0)
	acc := k.Accumulators(p.point.TileN / 2)
	loop := mainLoop{k, p.ring.Consumer(), p.release}
	store := newStorer(p)
	skew := p.newSkew(wg)
	p.queue.Reader(leader).Each(func(t schedule.Tile) {
		skew.follow()
		first := wg.MulI(warpgroupRows)
		store.rows = t.Live.Sub(t.Live.Min(first)).Min(ptx.Uint(warpgroupRows))
		store.row = t.Row.Add(first)
		k.IfElse(store.rows.NeI(0), func() {
			if p.before != nil {
				p.before(store, t)
			}
			p.multiply(loop, wg, skew, acc)
			epilogue(store, t, acc)
		}, func() { loop.drain(ptx.Uint(p.kTiles), skew.lead) })
		skew.seeded()
	})
	store.finish()
}

// multiply makes a tile's sums.
func (p *product) multiply(loop mainLoop, wg ptx.U32, skew *skew, acc []ptx.F32) {
	k := p.k
	newB := tile.NewDescriptor
	if p.weightsMN {
		newB = tile.NewDescriptorMN
	}
	rowsAt := wg.MulI(warpgroupRows * tile.RowBytes)
	loop.run(ptx.Uint(p.kTiles), func(s pipeline.Stage, kt ptx.U32) {
		if p.gathered {
			k.FenceProxyAsync(".shared::cta")
		}
		a := tile.NewDescriptor(k, s.Data.Plus(rowsAt))
		b := newB(k, s.Data.At(tileABytes))
		multiplyTile(k, acc, a, b, kt.NeI(0), false, p.weightsMN)
		skew.lead(kt)
		if p.during != nil {
			p.during(kt)
		}
	}, p.ending)
}
