package dh

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// dhEpilogue turns a warpgroup's dA' into dH, A' and the score's partial
// gradients. Each warp works alone, on its 16 rows and a part of 32 neurons at a
// time: H comes in by TMA, into two slots that take turns, the first two parts'
// under the main loop. A slot also turns fragments into rows of 64 bytes on
// their way out: dH takes the place of H, then A' that of dH's gate. In layers with
// biases the warps of a warpgroup add their sums of dH's columns, by way of the slots,
// when all parts are out.
type dhEpilogue struct {
	k       *ptx.Kernel
	element tile.Element
	act     func(gate, up, grad ptx.F32) (value, dGate, dUp ptx.F32)
	// onInput: scores multiply H, not the activation.
	onInput bool
	// groups of 64 neurons are those of a tile, neurons those of an expert.
	groups, neurons int
	// hParts are the parts of H: gate and up, or one. inPairs: dH has gate and up of
	// a neuron side by side.
	hParts  int
	inPairs bool
	// width and aWidth are the lengths of a row of dH and of A', of whole tiles.
	width, aWidth           int
	h                       ptx.TensorMap
	dh, a                   ptx.Global
	scores, pairs, partials ptx.Global
	// columns is where dH's columns are summed, in layers with biases, and joined joins
	// the warps of a warpgroup for it.
	bias    bool
	columns ptx.Global
	joined  pipeline.NamedBarriers

	// slots is the memory of all warps, full a barrier for each slot.
	slots, full ptx.Shared
}

const (
	// ScoreGroup is the neurons of a partial sum of a score's gradient.
	ScoreGroup      = 64
	dhPart          = 32 // neurons of a slot
	dhRows          = 16 // of a warp
	dhSlots         = 2
	dhHalfBytes     = tile.WarpStagingBytes // of a slot: gate, up
	dhWarpBytes     = dhSlots * 2 * dhHalfBytes
	dhEpilogueBytes = gemm.MathThreads / 32 * dhWarpBytes
	dhSlotBarriers  = gemm.MathThreads / 32 * dhSlots
)

// Finish implements gemm.Epilogue.
func (e *dhEpilogue) Finish() {}

// Begin implements gemm.Epilogue.
func (e *dhEpilogue) Begin(t gemm.Tile) gemm.TileEpilogue { return &dhTile{dhEpilogue: e, t: t} }

// dhTile is the epilogue of one tile.
type dhTile struct {
	*dhEpilogue
	t gemm.Tile

	// The thread's place, see locate: mine is its warp's slots, arrived their
	// barriers.
	lane          ptx.U32
	mine, arrived ptx.Shared
	staging       tile.WarpStaging
	fragment      tile.Fragment
	// row is the warp's first row, rows how many from it on are valid.
	row, rows ptx.U32

	// Of the thread's two rows: their scores, the sums for the score's gradient of the present
	// group, and of the group that the lane stores.
	score      [2]ptx.F32
	sum, quads [2]ptx.F32
}

// locate computes the thread's place where it is needed: cheaper than registers
// for it through the main loop.
func (e *dhTile) locate() {
	tid := e.k.TidX()
	warp := tid.ShrI(5)
	e.lane = tid.AndI(31)
	e.mine, e.arrived = e.slots.Plus(warp.MulI(dhWarpBytes)), e.full.Plus(warp.MulI(8*dhSlots))
	e.staging, e.fragment = tile.NewWarpStaging(e.k, e.lane), tile.NewFragment(e.lane)
	before := warp.AndI(3).MulI(dhRows)
	e.row, e.rows = e.t.FirstRow.Add(before), e.t.ValidRows.Sub(e.t.ValidRows.Min(before))
}

// Start implements gemm.TileEpilogue.
func (e *dhTile) Start([]ptx.F32) bool { return false }

// PerKTile starts the loads of H when the main loop is under way. Parts beyond
// the two slots are only prefetched into the L2 cache.
func (e *dhTile) PerKTile(kt ptx.U32) {
	e.k.If(kt.EqI(1), func() {
		e.locate()
		if e.bias {
			e.joined.Sync(e.warpgroup()) // the tile before: all have read the sums in the slots
		}
		e.k.If(e.loads(), func() {
			for part := range e.parts() {
				if part < dhSlots {
					e.load(part)
				} else {
					e.k.TMAPrefetch(e.h, e.neuron(part), e.row, ptx.Uint(0))
				}
			}
		})
	})
}

// loads holds in the lane that loads for a warp that has rows.
func (e *dhTile) loads() ptx.Pred { return e.lane.EqI(0).And(e.rows.NeI(0)) }

// UnderLastMMA loads the scores of the thread's rows.
func (e *dhTile) UnderLastMMA() {
	e.locate()
	for h := range e.score {
		row := e.t.FirstRow.Add(e.rowInWarpgroup(h).Min(e.t.ValidRows.SubI(1))) // rows past the end are dropped
		pair := ptx.LdGlobal[ptx.U32](e.pairs.Index(row, 4))
		e.score[h] = ptx.LdGlobal[ptx.F32](e.scores.Index(pair, 4))
	}
}

// rowInWarpgroup is the thread's row h of the warpgroup's 64.
func (e *dhTile) rowInWarpgroup(h int) ptx.U32 {
	return e.row.Sub(e.t.FirstRow).Add(e.fragment.Row).AddI(8 * h)
}

// parts is the number of 32-neuron parts in a tile.
func (e *dhTile) parts() int { return e.groups * ScoreGroup / dhPart }

// neuron is the first neuron of a part.
func (e *dhTile) neuron(part int) ptx.U32 {
	return e.t.Column.MulI(e.groups * ScoreGroup).AddI(part * dhPart)
}

// pairColumn is the first column of a part where gate and up are side by side.
func (e *dhTile) pairColumn(part int) ptx.U32 { return e.neuron(part).MulI(2) }

// slot is a part's slot of H: its halves are gate and up, or the first is all.
func (e *dhTile) slot(part int) []ptx.Shared {
	at := e.mine.At(part % dhSlots * 2 * dhHalfBytes)
	return []ptx.Shared{at, at.At(dhHalfBytes)}[:e.hParts]
}

// load starts the load of a part's H; one lane. Rows past the expert's end
// are dropped with what comes of them.
func (e *dhTile) load(part int) {
	full := e.arrived.At(8 * (part % dhSlots))
	e.k.MbarrierArriveExpectTx(full, ptx.Uint(e.hParts*dhHalfBytes))
	e.k.TMALoad(e.slot(part)[0], e.h, full, e.neuron(part), e.row, ptx.Uint(0))
}

// waitFor waits for a part of H. A tile uses each slot an even number of times,
// so that all tiles begin with the same parity.
func (e *dhTile) waitFor(part int) {
	pipeline.WaitParity(e.k, e.arrived.At(8*(part%dhSlots)), ptx.Uint(part/dhSlots%2))
}

// Store makes and stores all parts of the tile.
func (e *dhTile) Store(acc []ptx.F32) {
	e.k.If(e.rows.NeI(0), func() {
		var sums [][]ptx.F32
		for part := range e.parts() {
			e.waitFor(part)
			e.clearPast(part, acc[part*dhPart/2:][:dhPart/2])
			weighted := e.differentiate(part, acc[part*dhPart/2:][:dhPart/2])
			if (part+1)*dhPart%ScoreGroup == 0 {
				e.sumQuads(part * dhPart / ScoreGroup)
			}
			sums = append(sums, e.storePart(part, weighted))
		}
		e.storePartials()
		if e.bias {
			e.shareSums(sums)
		}
	})
	if e.bias {
		e.joined.Sync(e.warpgroup())
		e.addSums()
		e.k.FenceProxyAsync(".shared::cta") // before the next tile's loads, see PerKTile
	}
}

// sync joins the warp: what one lane writes to the slot others read, and the
// other way round.
func (e *dhTile) sync() { e.k.BarWarpSync(ptx.Uint(ptx.FullMask)) }

// storePart stores a part's dH, which is in its slot, and its A' by way of it,
// and loads another part's H into it. It gives the sums of dH's columns.
func (e *dhTile) storePart(part int, weighted []ptx.U32) (sums []ptx.F32) {
	k := e.k
	slot := e.slot(part)
	e.sync()
	if e.bias {
		sums = e.sumColumns(slot)
	}
	dh := e.dh.Index(e.row, e.width*tile.ElementBytes)
	for i, half := range slot {
		if e.inPairs {
			e.copyRows(part, half, dh.At(i*dhPart*tile.ElementBytes), e.width, e.pairColumn, e.width-i*dhPart)
			continue
		}
		e.copyRows(part, half, dh.At(i*e.aWidth*tile.ElementBytes), e.width, e.neuron, e.aWidth)
	}
	e.sync()
	e.staging.Store(slot[0], weighted)
	e.sync()
	e.copyRows(part, slot[0], e.a.Index(e.row, e.aWidth*tile.ElementBytes), e.aWidth, e.neuron, e.aWidth)
	// What the warp has read and written comes before what TMA brings next: here,
	// or in the next tile's main loop.
	k.FenceProxyAsync(".shared::cta")
	e.sync()
	if next := part + dhSlots; next < e.parts() {
		k.If(e.loads(), func() { e.load(next) })
	}
	return sums
}

// sumColumns sums a part's dH over the warp's rows, which lie as dH does: a lane has
// a column of each half.
func (e *dhTile) sumColumns(slot []ptx.Shared) (sums []ptx.F32) {
	// What comes of rows past the expert's end is not its own, nor a number always.
	e.k.If(e.rows.LtI(dhRows), func() {
		for _, half := range slot {
			e.staging.ClearFrom(half, e.lane, e.rows)
		}
		e.sync()
	})
	for _, half := range slot {
		sums = append(sums, e.staging.ColumnSums(e.element, half, e.lane))
	}
	return sums
}

// tileColumns is the columns of dH that a tile has.
func (e *dhTile) tileColumns() int { return e.hParts * e.parts() * dhPart }

// shareSums puts the warp's sums into its slots, in the order of dH's columns: gates
// and ups of all parts, or each part's pairs.
func (e *dhTile) shareSums(sums [][]ptx.F32) {
	ofPart, ofHalf := dhPart, e.parts()*dhPart
	if e.inPairs {
		ofPart, ofHalf = 2*dhPart, dhPart
	}
	to := e.mine.Plus(e.lane.AndI(3).ShlI(3).Add(e.lane.ShrI(2)).ShlI(2))
	for part, halves := range sums {
		for i, sum := range halves {
			ptx.StShared(to.At(4*(part*ofPart+i*ofHalf)), sum)
		}
	}
}

// addSums adds the warps' sums in order, of those that have rows, and stores them: a
// thread has every 128th column of the tile.
func (e *dhTile) addSums() {
	const threads, warps = pipeline.WarpgroupThreads, pipeline.WarpgroupThreads / 32
	thread := e.k.TidX().AndI(threads - 1)
	from := e.slots.Plus(e.warpgroup().MulI(warps * dhWarpBytes)).Plus(thread.ShlI(2))
	to := e.columns.Index(ColumnSumsOf(e.t.FirstRow, e.t.Expert), 4*e.width)
	for first := 0; first < e.tileColumns(); first += threads {
		sum := ptx.LdShared[ptx.F32](from.At(4 * first))
		for warp := 1; warp < warps; warp++ {
			has := e.t.ValidRows.GtI(warp * dhRows)
			v := ptx.LdShared[ptx.F32](from.Plus(ptx.Select(has, ptx.Uint(warp*dhWarpBytes), ptx.Uint(0))).At(4 * first))
			sum = sum.Add(ptx.Select(has, v, ptx.Float(0)))
		}
		at, end, half, within := e.pairColumn, e.width, 0, first
		if !e.inPairs {
			ofHalf := e.tileColumns() / e.hParts
			at, end, half, within = e.neuron, e.aWidth, first/ofHalf, first%ofHalf
		}
		column := at(0).AddI(within).Add(thread)
		valid := ptx.True()
		if e.neurons%(e.groups*ScoreGroup) != 0 {
			valid = column.LtI(end)
		}
		e.k.Guarded(valid, func() { ptx.StGlobal(to.Index(column, 4).At(4*half*e.aWidth), sum) })
	}
}

// warpgroup is the math warpgroup, 0 or 1.
func (e *dhTile) warpgroup() ptx.U32 { return e.k.TidX().ShrI(7) }

// ColumnSumRows are the rows that dH sums together for the gradient of b1: a
// warpgroup's, from an expert's first on.
const ColumnSumRows = 64

// ColumnSumsOf is which of the sums are those of an expert's rows from the given
// one on. Those of an expert are neighbours, and before the next one's.
func ColumnSumsOf(row, expert ptx.U32) ptx.U32 { return row.DivI(ColumnSumRows).Add(expert) }

// ColumnSumBytes is the size of all, of so many packed rows.
func ColumnSumBytes(c spec.Config, rows int) int64 {
	return 4 * int64(rows/ColumnSumRows+c.NumExperts) * int64(weights.DH(c).Elements())
}

// copyRows stores a part's 16 rows of 64 bytes from a half of its slot, 16 bytes
// for each lane at a time, to rows that are pitch elements apart, from the
// part's column on, and end at a column.
func (e *dhTile) copyRows(part int, from ptx.Shared, to ptx.Global, pitch int, column func(part int) ptx.U32, end int) {
	k := e.k
	row, chunk := e.lane.ShrI(2), e.lane.AndI(3)
	from = from.Plus(tile.SwizzledNarrow(row, chunk))
	to = to.Index(row, pitch*tile.ElementBytes).Index(column(part).Add(chunk.MulI(gemm.CopyBytes/tile.ElementBytes)), 2)
	for h := range 2 {
		valid := row.AddI(8 * h).Lt(e.rows).And(e.inside(part, column, end))
		v := ptx.LdSharedVec[ptx.U32](from.At(h*dhHalfBytes/2), 4)
		k.Guarded(valid, func() { ptx.StGlobal(to.At(8*h*pitch*tile.ElementBytes), v...) })
	}
}

// inside holds where a part's column is before the end of rows.
func (e *dhTile) inside(part int, column func(part int) ptx.U32, end int) ptx.Pred {
	switch {
	case e.neurons%(e.groups*ScoreGroup) == 0:
		return ptx.True()
	case e.neurons%ScoreGroup == 0:
		return e.neuron(part).LtI(e.neurons)
	}
	return column(part).LtI(end)
}

// clearPast makes a part's dA' 0 past the last neuron, whatever dO is: so are dH and
// the sums of the score's gradient, as H is 0 there.
func (e *dhTile) clearPast(part int, grad []ptx.F32) {
	if e.neurons%ScoreGroup == 0 {
		return
	}
	e.k.If(e.neuron(part).AddI(dhPart).GtI(e.neurons), func() {
		for i := 0; i < len(grad); i += 4 {
			e.k.If(e.neuron(part).AddI(i/4*8).GeI(e.neurons), func() {
				for _, v := range grad[i:][:4] {
					ptx.VarOf(v).Set(ptx.Float(0))
				}
			})
		}
	})
}

// differentiate puts dH in the place of a part's H, gives its A' and adds to the
// sums of the score's gradient.
func (e *dhTile) differentiate(part int, grad []ptx.F32) []ptx.U32 {
	slot := e.slot(part)
	var halves [][]ptx.U32
	for _, half := range slot {
		halves = append(halves, e.staging.Load(half))
	}
	gates, ups := halves[0], halves[len(halves)-1]
	var weighted []ptx.U32
	for i := range gates {
		h := i % 2 // of the thread's rows
		g0, g1 := e.element.Unpack(gates[i])
		u0, u1 := g0, g1
		if e.hParts > 1 {
			u0, u1 = e.element.Unpack(ups[i])
		}
		lo := e.neuronGradient(g0, u0, grad[2*i], e.score[h])
		hi := e.neuronGradient(g1, u1, grad[2*i+1], e.score[h])
		switch {
		case e.inPairs: // of the two neurons
			gates[i], ups[i] = e.element.Pack(e.k, lo.gate, lo.up), e.element.Pack(e.k, hi.gate, hi.up)
		case e.hParts > 1:
			gates[i], ups[i] = e.element.Pack(e.k, lo.gate, hi.gate), e.element.Pack(e.k, lo.up, hi.up)
		default:
			gates[i] = e.element.Pack(e.k, lo.gate, hi.gate)
		}
		weighted = append(weighted, e.element.Pack(e.k, lo.weighted, hi.weighted))
		if i < 2 && part*dhPart%ScoreGroup == 0 {
			e.sum[h] = lo.score[0].Mul(lo.score[1])
			e.add(h, lo.score[2:])
		} else {
			e.add(h, lo.score)
		}
		e.add(h, hi.score)
	}
	e.sync()
	if e.inPairs {
		e.stagePairs(slot, gates, ups)
		return weighted
	}
	for i, half := range slot {
		e.staging.Store(half, halves[i])
	}
	return weighted
}

// stagePairs puts 64 columns of dH in a slot, the first 32 in its first half:
// each thread gate and up of two neighbours, first and second, at a time.
func (e *dhTile) stagePairs(slot []ptx.Shared, first, second []ptx.U32) {
	quad := e.lane.AndI(3)
	at := tile.SwizzledNarrow(e.fragment.Row, quad.ShrI(1)) // of 8 neurons: 32 bytes, 8 of them the thread's
	for i := range first {
		block, h := i/2, i%2
		to := slot[block/2].Plus(at.XorI(block % 2 * 2 * gemm.CopyBytes)).Plus(quad.AndI(1).ShlI(3))
		ptx.StShared(to.At(h*dhHalfBytes/2), first[i], second[i])
	}
}

// gradient is what one element of dA' gives: to the score's gradient the products
// of pairs of factors.
type gradient struct {
	gate, up, weighted ptx.F32
	score              []ptx.F32
}

// add adds products to the sum of the thread's row h.
func (e *dhTile) add(h int, factors []ptx.F32) {
	for i := 0; i < len(factors); i += 2 {
		e.sum[h] = factors[i].Fma(factors[i+1], e.sum[h])
	}
}

func (e *dhTile) neuronGradient(gate, up, grad, score ptx.F32) gradient {
	if e.onInput {
		a, dGate, dUp := e.act(score.Mul(gate), score.Mul(up), grad)
		return gradient{gate: score.Mul(dGate), up: score.Mul(dUp), weighted: a, score: []ptx.F32{dGate, gate, dUp, up}[:2*e.hParts]}
	}
	a, dGate, dUp := e.act(gate, up, score.Mul(grad))
	return gradient{gate: dGate, up: dUp, weighted: score.Mul(a), score: []ptx.F32{grad, a}}
}

// sumQuads adds a group's sums over each quad: lanes 0+1 and 2+3, then those.
// Lane i of the quad keeps group i's.
func (e *dhTile) sumQuads(group int) {
	for h, sum := range e.sum {
		for _, lanes := range []int{1, 2} {
			sum = sum.Add(sum.Bits().ShflXor(lanes).AsF32())
		}
		if group > 0 {
			sum = ptx.Select(e.lane.AndI(3).EqI(group), sum, e.quads[h])
		}
		e.quads[h] = sum
	}
}

// storePartials stores a tile's sums.
func (e *dhTile) storePartials() {
	lane := e.lane.AndI(3)
	group := e.t.Column.MulI(e.groups).Add(lane)
	for h, sum := range e.quads {
		row := e.rowInWarpgroup(h)
		valid := row.Lt(e.t.ValidRows).And(lane.LtI(e.groups)).And(group.LtI(groups(e.neurons)))
		at := e.partials.Index(e.t.FirstRow.Add(row), groups(e.neurons)*4).Index(group, 4)
		e.k.Guarded(valid, func() { ptx.StGlobal(at, sum) })
	}
}
