package decode

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// This file has the code that both products of a single token share. Each CTA has an even share of
// the rows of the token's experts, and loads it through a ring.

const (
	// One warpgroup multiplies, one warp loads weights, and one warp loads the token.
	singleThreads   = pipeline.WarpgroupThreads + 64
	singleMathWarps = pipeline.WarpgroupThreads / 32
	// depth is the number of k-tiles of a stage. Two k-tiles are 256 bytes of a row of weights.
	depth = 2
	// A strip is the part of a stage for 8 rows of weights: their first k-tile, then the second.
	stripRows  = 8
	stripBytes = depth * stripRows * tile.RowBytes
	// maxStrips is the largest number of strips in a stage, unless a single item has more.
	maxStrips = 16
	// evenSMs is the number of SMs of H100 SXM and H200. With that many CTAs, a CTA's share of the
	// weights fills whole stages. The grid follows the device. On other chips a CTA's last stage
	// may be partly empty.
	evenSMs = 132
)

// singleRings has the sizes in bytes of the rings of SingleUp and SingleDown.
type singleRings struct{ up, down int }

// With sequential rings, a CTA of one product must leave an SM before a CTA of the other starts
// there. With overlapped rings both fit on an SM, and the down-projection starts during the
// up-projection: its first weights follow the last ones of the up-projection without a gap, but
// each product has less room for loads in flight.
var (
	sequential = singleRings{160 << 10, 160 << 10}
	overlapped = singleRings{90 << 10, 137 << 10}
)

// maxOverlapped is the largest share of W2 for each SM, in bytes, with which the products overlap.
// For small shares the gap between the products costs more than the smaller rings. On an H200,
// shares of 160 and 192 KB gained by overlapping, but shares of 528 KB and more lost.
const maxOverlapped = 224 << 10

// overlaps reports whether CTAs of both products share an SM.
func overlaps(c spec.Config) bool {
	rows := ceil(c.Hidden/stripRows, evenSMs) * stripRows
	return rows*c.TopK*tile.Tiles(c.Intermediate)*tile.RowBytes <= maxOverlapped
}

func ringsOf(c spec.Config) singleRings {
	if overlaps(c) {
		return overlapped
	}
	return sequential
}

// singleShape says how a product of a single token is divided.
type singleShape struct {
	// An item is the smallest piece of work of a CTA. items is the number of items of all CTAs, and
	// strips is the number of strips of an item. most is the number of items that a CTA multiplies
	// at once.
	items, strips, most int
	// width is the length of a sum, and kTiles is its number of k-tiles. columns is the number of
	// rows of the token's data in a stage, a multiple of 8.
	width, kTiles, columns int
}

func newSingleShape(items, strips, width, columns int) singleShape {
	// A CTA works through its share in passes. Divide the largest share evenly among its passes.
	share := ceil(items, evenSMs) // items of the largest share
	return singleShape{
		items: items, strips: strips, width: width, kTiles: tile.Tiles(width), columns: columns,
		most: ceil(share, ceil(share, max(1, maxStrips/strips))),
	}
}

// singleThread is a thread of a CTA.
type singleThread struct {
	k          *ptx.Kernel
	warp, lane ptx.U32
	cta        *pipeline.CTA
}

func newSingleThread(k *ptx.Kernel) singleThread {
	return singleThread{k, k.Warp(), k.Lane(), pipeline.NewCTA(k)}
}

// shareOf returns the CTA's share of a number of items: from item first to item end - 1.
func (t singleThread) shareOf(items int) (first, end ptx.U32) {
	k, ctas := t.k, t.k.NctaidX()
	each, more := ptx.Uint(items).Div(ctas), ptx.Uint(items).Rem(ctas)
	first = k.CtaidX().Mul(each).Add(k.CtaidX().Min(more))
	return first, first.Add(each).Add(ptx.Select(k.CtaidX().Lt(more), ptx.Uint(1), ptx.Uint(0)))
}

// single is a product of a single token.
type single struct {
	spec.Config
	singleShape
	singleThread
	ring *pipeline.Ring
	// ids [K] u32 has the token's expert for each slot.
	ids ptx.Shared
}

// newSingle reserves the ring and the room for the token's experts.
func newSingle(t singleThread, c spec.Config, s singleShape, ringBytes int) *single {
	bytes := s.weightsBytes() + s.tokenBytes()
	return &single{
		Config: c, singleShape: s, singleThread: t,
		ring: t.cta.Ring("ab", max(2, ringBytes/bytes), bytes, 2, singleMathWarps), ids: t.cta.Shared("ids", 4*c.TopK, 4),
	}
}

func ceil(a, b int) int { return (a + b - 1) / b }

// weightsBytes and tokenBytes return the sizes of the two parts of a stage. The weights take whole
// pairs of strips.
func (p singleShape) weightsBytes() int { return 2 * p.maxPairs() * stripBytes }
func (p singleShape) tokenBytes() int   { return depth * p.columns * tile.RowBytes }

// ofStage describes a stage's k-tiles.
func (p singleShape) ofStage() tile.Deep { return tile.Deep{Width: p.width, Tiles: depth} }

// tokenMap returns the tensor map that loads both k-tiles of a stage's token rows.
func (p singleShape) tokenMap(at driver.DevicePtr, rows, pitch int) gpu.TensorMap {
	return p.ofStage().Map(at, []int{p.columns}, tile.Dim{Extent: rows, Stride: pitch})
}

// stripMap returns the tensor map that loads both k-tiles of 8 rows of weights. If a box can hold
// gate and up, it loads these rows of both.
func (p singleShape) stripMap(m weights.Matrix, at driver.DevicePtr) gpu.TensorMap {
	// The capacity is constant so that a launch allocates nothing.
	box, dims := append(make([]int, 0, gpu.MaxTensorRank), stripRows), append(make([]tile.Dim, 0, gpu.MaxTensorRank), m.Out)
	if (units{m}).hasPart() {
		parts := 1
		if p.ofStage().Whole() {
			parts = m.Part.Extent
		}
		box, dims = append(box, parts), append(dims, m.Part)
	}
	return p.ofStage().Map(at, append(box, 1), append(dims, m.Expert)...)
}

// loadStrip loads a strip of an expert's weights: 8 rows of each part (gate, up) that the map has.
// It loads one stage of them, whose first k-tile is kt.
func (p *single) loadStrip(m weights.Matrix, w ptx.TensorMap, to, full ptx.Shared, row, kt, expert ptx.U32) {
	p.ofStage().Each(kt, row, func(first int, at []ptx.U32) {
		to := to.At(first * stripRows * tile.RowBytes)
		switch {
		case !(units{m}).hasPart():
			p.k.TMALoad(to, w, full, append(at, expert)...)
		case p.ofStage().Whole():
			p.k.TMALoad(to, w, full, append(at, ptx.Uint(0), expert)...)
		default:
			for part := range m.Part.Extent {
				p.k.TMALoad(to.At(part*stripBytes), w, full, append(slices.Clone(at), ptx.Uint(part), expert)...)
			}
		}
	})
}

// singleGrid returns the grid: a CTA for each SM, but at most one for each item.
func singleGrid(items, sms int) gpu.Dim3 { return gpu.Dim3{X: min(sms, items)} }

// share is the CTA's share of the items: from item first to item end - 1.
type share struct {
	*single
	first, end ptx.U32
}

// begin computes the CTA's share and initialises the ring. It sets the unused end of each stage to
// zero, because whole stages are multiplied.
func (p *single) begin() share {
	k := p.k
	first, end := p.shareOf(p.items)
	loaded := end.Sub(first).MinI(p.most).MulI(p.strips * stripBytes)
	k.For(loaded.Add(p.k.TidX().MulI(16)), ptx.Uint(p.weightsBytes()), ptx.Uint(16*singleThreads), func(at ptx.U32) {
		for i := range p.ring.Stages {
			ptx.StShared(p.ring.Data(i).Plus(at), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
		}
	})
	p.cta.Ready(p.k.TidX())
	return share{p, first, end}
}

// expert returns the expert of a slot.
func (p *single) expert(slot ptx.U32) ptx.U32 {
	return ptx.LdShared[ptx.U32](p.ids.Plus(slot.ShlI(2)))
}

// each divides the CTA's share into passes of up to most items. It calls body for each pass, with the
// pass's first item and its number n of items.
func (p share) each(body func(first, n ptx.U32)) {
	p.k.For(p.first, p.end, ptx.Uint(p.most), func(first ptx.U32) {
		body(first, p.end.Sub(first).MinI(p.most))
	})
}

// eachStage calls body once for each stage of the sum. kt is the first k-tile of the stage.
func (p *single) eachStage(body func(kt ptx.U32)) {
	p.k.For(ptx.Uint(0), ptx.Uint(p.kTiles), ptx.Uint(depth), body)
}

// loadPiece loads one lane's piece of the weights of a stage, and signals the barrier full.
type loadPiece func(to, full ptx.Shared, kt ptx.U32)

// nothing is a step that does nothing, for products that do not need the step.
func nothing() {}

// singleLoads describes the loads of a product. In each pass, a lane of the warp that loads weights
// loads one piece of every stage, or none if there are fewer pieces than lanes.
type singleLoads struct {
	// pieces is the number of pieces of an item. piece returns the function that loads a piece.
	pieces int
	piece  func(item, number ptx.U32) loadPiece
	token  ptx.TensorMap
	// beforeToken runs in the token's warp before its first load. beforeWeights runs in the
	// weights' warp before its first load, and afterWeights after its last load.
	beforeToken, beforeWeights, afterWeights func()
}

// singleSums has the functions that set the initial sums of a pass and store its results. A pass
// has n items from item first on.
type singleSums struct {
	start, store func(first, n ptx.U32, acc [][]ptx.F32)
	// ahead emits what all math warps do before their main loops, and before what the first of them
	// does then.
	ahead, before func()
}

// run emits the roles: "math" is one warpgroup, "load" is one warp for the weights and one for the
// token.
func (p share) run(l singleLoads, sums singleSums) {
	k := p.k
	pipeline.Run(k, k.Warpgroup(),
		pipeline.Role{Name: "math", First: 0, Count: 1, Body: func() { p.math(sums) }},
		pipeline.Role{Name: "load", First: 1, Count: 1, Body: func() {
			k.IfElse(p.warp.EqI(singleMathWarps), func() { p.loadWeights(l) }, func() {
				l.beforeToken()
				k.If(k.ElectOne(), func() { p.loadToken(l.token) })
			})
		}},
	)
}

func (p share) loadWeights(l singleLoads) {
	k, ring := p.k, p.ring.Producer()
	l.beforeWeights()
	p.each(func(first, n ptx.U32) {
		mine := p.lane.Lt(n.MulI(l.pieces))
		// Lanes without a piece compute the addresses of the first lane, and do not load.
		lane := ptx.Select(mine, p.lane, ptx.Uint(0))
		load, to := l.piece(first.Add(lane.DivI(l.pieces)), lane.RemI(l.pieces)), lane.MulI(p.strips/l.pieces*stripBytes)
		p.eachStage(func(kt ptx.U32) {
			s := ring.Acquire()
			k.If(p.lane.EqI(0), func() { k.MbarrierArriveExpectTx(s.Full, n.MulI(p.strips*stripBytes)) })
			k.BarWarpSync(ptx.Uint(ptx.FullMask))
			k.If(mine, func() { load(s.Data.Plus(to), s.Full, kt) })
			ring.Advance()
		})
	})
	l.afterWeights()
}

func (p share) loadToken(token ptx.TensorMap) {
	k, ring := p.k, p.ring.Producer()
	p.each(func(_, _ ptx.U32) {
		p.eachStage(func(kt ptx.U32) {
			s := ring.Acquire()
			k.MbarrierArriveExpectTx(s.Full, ptx.Uint(p.tokenBytes()))
			p.ofStage().Each(kt, ptx.Uint(0), func(first int, at []ptx.U32) {
				k.TMALoad(s.Data.At(p.weightsBytes()+first*p.columns*tile.RowBytes), token, s.Full, at...)
			})
			ring.Advance()
		})
	})
}

// maxPairs returns the number of pairs of strips in a stage. tiles returns the number of pairs that
// a warp multiplies: the pair with the warp's own number, and every fourth pair after it.
func (p singleShape) maxPairs() int { return ceil(p.most*p.strips, 2) }
func (p singleShape) tiles() int    { return ceil(p.maxPairs(), singleMathWarps) }

// math emits the math warps. The CTA takes up to most of its items at a time (see each), and the warps
// multiply the weights of these items by the token.
func (p share) math(sums singleSums) {
	k := p.k
	acc := make([][]ptx.F32, p.tiles())
	for i := range acc {
		acc[i] = k.Accumulators(p.columns / tile.WarpColumns * tile.WarpSums)
	}
	product := tile.NewWarpProduct(k, element.Of(p.Config), p.lane)
	ring := p.ring.Consumer()
	release := pipeline.NewReleaser(k, p.lane, 1)
	sums.ahead()
	k.If(p.warp.EqI(0), sums.before)
	stage := func(kTiles int) {
		s := ring.Wait()
		for kt := range kTiles {
			var tokens [][]ptx.U32
			for first := 0; first < p.columns; first += tile.WarpColumns {
				tokens = append(tokens, product.B(s.Data.At(p.weightsBytes()+(kt*p.columns+first)*tile.RowBytes)))
			}
			for i := range acc {
				// A warp without a further pair repeats the last pair.
				pair := p.warp.AddI(i * singleMathWarps).MinI(p.maxPairs() - 1)
				rows := s.Data.Plus(pair.MulI(2 * stripBytes)).At(kt * stripRows * tile.RowBytes)
				a := product.A(rows, rows.At(stripBytes))
				for j, b := range tokens {
					product.Multiply(acc[i][j*tile.WarpSums:][:tile.WarpSums], a, b, 0, tile.K/tile.KStep)
				}
			}
		}
		release.Release(s, ptx.True())
		ring.Advance()
	}
	p.each(func(first, n ptx.U32) {
		sums.start(first, n, acc)
		k.Range(ptx.Uint(p.kTiles/depth), func(ptx.U32) { stage(depth) })
		if p.kTiles%depth != 0 {
			stage(p.kTiles % depth)
		}
		sums.store(first, n, acc)
	})
}

// strip returns the number of a strip of the warp's i-th pair: the upper one if half is 0, else the
// lower one.
func (p *single) strip(i, half int) ptx.U32 {
	return p.warp.AddI(i * singleMathWarps).MulI(2).AddI(half)
}
