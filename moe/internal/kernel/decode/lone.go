package decode

import (
	"slices"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// This file is what both products of a lone token share: even shares of the rows
// of its experts, one for each SM, and the way of a share through the ring.

const (
	// A warpgroup multiplies, one warp loads weights and one the token.
	loneThreads   = pipeline.WarpgroupThreads + 64
	loneMathWarps = pipeline.WarpgroupThreads / 32
	// depth is the k-tiles of a stage: 256 bytes of a row of weights.
	depth = 2
	// An octet is 8 rows of weights in a stage, one below the other: a k-tile of
	// them, then the next.
	octetRows  = 8
	octetBytes = depth * octetRows * tile.RowBytes
	// mostOctets is how many a stage has where a granule is not more.
	mostOctets = 16
)

// loneRings are the shared memory of both products' rings.
type loneRings struct{ up, down int }

// A CTA of the one product leaves its SM to one of the other, or they lie there side
// by side: then the down-projection has begun while the up-projection is under way,
// and its first weights come right behind the last of that one's, whose loads have
// less room. Both and what else the CTAs have must fit on an SM.
var (
	inTurn     = loneRings{160 << 10, 160 << 10}
	sideBySide = loneRings{90 << 10, 137 << 10}
)

// mostBeside is an SM's share of the down-projection up to which CTAs lie side by side.
// There the time between the products counts for more than the room: measured with
// shares of 160 and 192 KB, which gain, 528 KB and more, which lose.
const mostBeside = 224 << 10

// isBeside reports whether CTAs of both products lie side by side.
func isBeside(c spec.Config) bool {
	rows := ceil(c.Hidden/octetRows, driver.H200().SMs) * octetRows
	return rows*c.TopK*tile.Tiles(c.Intermediate)*tile.RowBytes <= mostBeside
}

func ringsOf(c spec.Config) loneRings {
	if isBeside(c) {
		return sideBySide
	}
	return inTurn
}

// lone is a lone token's product that is being emitted.
type lone struct {
	spec.Config
	k                  *ptx.Kernel
	thread, warp, lane ptx.U32
	cta                *pipeline.CTA
	// ids are the token's experts by slot.
	ids ptx.Shared
	// granules is how many there are, each of that many octets; most how many of
	// them are multiplied at once. A granule is what no two CTAs share.
	granules, octets, most int
	// width is the depth of a sum, kTiles that in tiles of 64, columns the token's
	// lines, in groups of 8.
	width, kTiles, columns int
	ring                   *pipeline.Ring
	first, end             ptx.U32 // the CTA's granules
}

func newLone(k *ptx.Kernel, c spec.Config, granules, octets, width, columns, ringBytes int) *lone {
	thread := k.TidX()
	p := &lone{Config: c, k: k, thread: thread, warp: thread.ShrI(5), lane: thread.AndI(31), cta: pipeline.NewCTA(k),
		granules: granules, octets: octets, width: width, kTiles: tile.Tiles(width), columns: columns}
	// The passes of an SM's share are alike.
	share := ceil(granules, driver.H200().SMs)
	p.most = ceil(share, ceil(share, max(1, mostOctets/octets)))
	bytes := p.weightsBytes() + p.tokenBytes()
	p.ring = p.cta.Ring("ab", max(2, ringBytes/bytes), bytes, 2, loneMathWarps)
	p.ids = p.cta.Shared("ids", 4*c.TopK, 4)
	return p
}

func ceil(a, b int) int { return (a + b - 1) / b }

// weightsBytes and tokenBytes are those of a stage, of whole pairs of octets.
func (p *lone) weightsBytes() int { return 2 * p.mostPairs() * octetBytes }
func (p *lone) tokenBytes() int   { return depth * p.columns * tile.RowBytes }

// ofStage are a stage's k-tiles of the product.
func (p *lone) ofStage() tile.Deep { return tile.Deep{Width: p.width, Tiles: depth} }

// tokenMap loads both k-tiles of a stage's tokens.
func (p *lone) tokenMap(at driver.DevicePtr, rows, pitch int) driver.TensorMap {
	return p.ofStage().Map(at, []int{p.columns}, tile.Dim{Extent: rows, Stride: pitch})
}

// octetMap loads both k-tiles of an octet of weights, of each part in turn where
// a box can have them both.
func (p *lone) octetMap(m weights.Matrix, at driver.DevicePtr) driver.TensorMap {
	// Of a constant capacity, so that a launch takes no memory.
	box, dims := append(make([]int, 0, driver.MaxTensorRank), octetRows), append(make([]tile.Dim, 0, driver.MaxTensorRank), m.Out)
	if (units{m}).hasPart() {
		parts := 1
		if p.ofStage().Whole() {
			parts = m.Part.Extent
		}
		box, dims = append(box, parts), append(dims, m.Part)
	}
	return p.ofStage().Map(at, append(box, 1), append(dims, m.Expert)...)
}

// loadOctet starts the loads of a stage's k-tiles, from kt on, of an octet of an
// expert: 8 rows of each part that the map has.
func (p *lone) loadOctet(m weights.Matrix, w ptx.TensorMap, to, full ptx.Shared, row, kt, expert ptx.U32) {
	p.ofStage().Each(kt, row, func(first int, at []ptx.U32) {
		to := to.At(first * octetRows * tile.RowBytes)
		switch {
		case !(units{m}).hasPart():
			p.k.TMALoad(to, w, full, append(at, expert)...)
		case p.ofStage().Whole():
			p.k.TMALoad(to, w, full, append(at, ptx.Uint(0), expert)...)
		default:
			for part := range m.Part.Extent {
				p.k.TMALoad(to.At(part*octetBytes), w, full, append(slices.Clone(at), ptx.Uint(part), expert)...)
			}
		}
	})
}

// loneGrid is a CTA for each SM, or granule.
func loneGrid(granules, sms int) driver.Dim3 { return driver.Dim3{X: min(sms, granules)} }

// begin gives the CTA its share and makes the ring ready. What is multiplied of a
// stage beyond the share, and not looked at, is 0.
func (p *lone) begin() {
	k, ctas := p.k, p.k.NctaidX()
	each, more := ptx.Uint(p.granules).Div(ctas), ptx.Uint(p.granules).Rem(ctas)
	p.first = k.CtaidX().Mul(each).Add(k.CtaidX().Min(more))
	p.end = p.first.Add(each).Add(ptx.Select(k.CtaidX().Lt(more), ptx.Uint(1), ptx.Uint(0)))
	loaded := p.end.Sub(p.first).MinI(p.most).MulI(p.octets * octetBytes)
	k.For(loaded.Add(p.thread.MulI(16)), ptx.Uint(p.weightsBytes()), ptx.Uint(16*loneThreads), func(at ptx.U32) {
		for i := range p.ring.Stages {
			ptx.StShared(p.ring.Data(i).Plus(at), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
		}
	})
	p.cta.Ready(p.thread)
}

// expert is a slot's.
func (p *lone) expert(slot ptx.U32) ptx.U32 {
	return ptx.LdShared[ptx.U32](p.ids.Plus(slot.ShlI(2)))
}

// each runs body for each pass over the CTA's share: n granules from first on.
func (p *lone) each(body func(first, n ptx.U32)) {
	p.k.For(p.first, p.end, ptx.Uint(p.most), func(first ptx.U32) {
		body(first, p.end.Sub(first).MinI(p.most))
	})
}

// eachStage runs body for the k-tiles of a pass.
func (p *lone) eachStage(body func(kt ptx.U32)) {
	p.k.For(ptx.Uint(0), ptx.Uint(p.kTiles), ptx.Uint(depth), body)
}

// loadPiece loads a piece of a stage, whose barrier is full.
type loadPiece func(to, full ptx.Shared, kt ptx.U32)

// loneLoads is what the loading warps bring. A lane of the weights' warp brings its
// piece of each stage of a pass, where it has one.
type loneLoads struct {
	// pieces is how many a granule has, piece gives what loads a lane's.
	pieces int
	piece  func(granule, number ptx.U32) loadPiece
	token  ptx.TensorMap
	// before, unless nil, is what the token's warp runs first, first and last what
	// the weights' warp does before its first loads and behind its last.
	before, first, last func()
}

// loneSums is what a pass's sums, of n granules from first on, start from, and
// where they go.
type loneSums struct {
	start, store func(first, n ptx.U32, acc [][]ptx.F32)
	// before, unless nil, is what the first warp that multiplies runs first.
	before func()
}

// run emits the roles.
func (p *lone) run(l loneLoads, sums loneSums) {
	k := p.k
	pipeline.Run(k, p.thread.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: 1, Body: func() { p.math(sums) }},
		pipeline.Role{Name: "load", First: 1, Count: 1, Body: func() {
			k.IfElse(p.warp.EqI(loneMathWarps), func() { p.loadWeights(l) }, func() {
				if l.before != nil {
					l.before()
				}
				k.If(k.ElectOne(), func() { p.loadToken(l.token) })
			})
		}},
	)
}

func (p *lone) loadWeights(l loneLoads) {
	k, ring := p.k, p.ring.Producer()
	if l.first != nil {
		l.first()
	}
	p.each(func(first, n ptx.U32) {
		mine := p.lane.Lt(n.MulI(l.pieces))
		// Lanes without a piece look at the first one's.
		lane := ptx.Select(mine, p.lane, ptx.Uint(0))
		load, to := l.piece(first.Add(lane.DivI(l.pieces)), lane.RemI(l.pieces)), lane.MulI(p.octets/l.pieces*octetBytes)
		p.eachStage(func(kt ptx.U32) {
			s := ring.Acquire()
			k.If(p.lane.EqI(0), func() { k.MbarrierArriveExpectTx(s.Full, n.MulI(p.octets*octetBytes)) })
			k.BarWarpSync(ptx.Uint(ptx.FullMask))
			k.If(mine, func() { load(s.Data.Plus(to), s.Full, kt) })
			ring.Advance()
		})
	})
	if l.last != nil {
		l.last()
	}
}

func (p *lone) loadToken(token ptx.TensorMap) {
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

// mostPairs is how many pairs of octets a stage has, and tiles how many of them a
// warp multiplies: its own number, and each fourth further on.
func (p *lone) mostPairs() int { return ceil(p.most*p.octets, 2) }
func (p *lone) tiles() int     { return ceil(p.mostPairs(), loneMathWarps) }

// math multiplies each pass.
func (p *lone) math(sums loneSums) {
	k := p.k
	acc := make([][]ptx.F32, p.tiles())
	for i := range acc {
		acc[i] = k.Accumulators(p.columns / tile.WarpColumns * tile.WarpSums)
	}
	product := tile.NewWarpProduct(k, element.Of(p.Config), p.lane)
	ring := p.ring.Consumer()
	release := pipeline.NewReleaser(k, p.lane, 1)
	if sums.before != nil {
		k.If(p.warp.EqI(0), sums.before)
	}
	stage := func(kTiles int) {
		s := ring.Wait()
		for kt := range kTiles {
			var tokens [][]ptx.U32
			for first := 0; first < p.columns; first += tile.WarpColumns {
				tokens = append(tokens, product.B(s.Data.At(p.weightsBytes()+(kt*p.columns+first)*tile.RowBytes)))
			}
			for i := range acc {
				// A pair that there is not is the last one once more.
				pair := p.warp.AddI(i * loneMathWarps).MinI(p.mostPairs() - 1)
				rows := s.Data.Plus(pair.MulI(2 * octetBytes)).At(kt * octetRows * tile.RowBytes)
				a := product.A(rows, rows.At(octetBytes))
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

// octet is one of the warp's tile i: the upper or the lower (0 or 1).
func (p *lone) octet(i, half int) ptx.U32 {
	return p.warp.AddI(i * loneMathWarps).MulI(2).AddI(half)
}
