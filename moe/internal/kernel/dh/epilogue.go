package dh

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

const (
	// ScoreGroup is the number of neurons of a partial sum of a score's gradient.
	ScoreGroup = 64
	// ColumnSumRows is the number of rows over which DH sums each column of dH, for the
	// gradient of b1. These are the rows of one warpgroup.
	ColumnSumRows = gemm.WarpgroupM

	mathWarps   = gemm.MathThreads / 32
	warpRows    = 16 // number of rows that a warp handles
	partNeurons = 32 // number of neurons of a part; a warp handles one part at a time
	slotsOfWarp = 2
	// A slot is a buffer of a warp for one part. It has two halves, one for gate and one for up.
	halfBytes     = tile.WarpStagingBytes
	slotBytes     = 2 * halfBytes
	warpBytes     = slotsOfWarp * slotBytes
	epilogueBytes = mathWarps * warpBytes
	barrierBytes  = 8
)

// epilogue turns a warpgroup's dA' into dH, A' and the partial gradients of the scores.
// Each warp works alone on its 16 rows, one part of 32 neurons at a time. TMA loads H into
// two slots, which alternate; the first two parts are loaded during the main loop. A slot
// also turns fragments into rows of 64 bytes: dH overwrites H in the slot, then A'
// overwrites the gate half of dH. In layers with biases the warps of a warpgroup use the
// slots a third time, to add their sums of dH's columns.
type epilogue struct {
	DH
	k       *ptx.Kernel
	element tile.Element
	tensors
	// slots are the slots of all warps. full has a barrier for each slot.
	slots, full ptx.Shared
	joined      pipeline.NamedBarriers // with Bias
}

// PerKTile implements gemm.Epilogue. After k-tile 1 it starts the loads of the first two
// parts of H, and prefetches the other parts into the L2 cache.
func (e *epilogue) PerKTile(t gemm.Tile, kt ptx.U32) {
	e.k.If(kt.EqI(1), func() {
		w := e.locate(t)
		if e.Bias {
			e.joined.Sync(e.warpgroup()) // afterwards all warps have read the sums that the previous tile left in the slots
		}
		e.k.If(w.loads(), func() {
			for part := range e.parts() {
				if part < slotsOfWarp {
					w.loadH(part)
				} else {
					e.k.TMAPrefetch(e.h, e.neuron(t, part), w.row, ptx.Uint(0))
				}
			}
		})
	})
}

// UnderLastMMA implements gemm.Epilogue. It loads the scores of the thread's rows.
func (e *epilogue) UnderLastMMA(t gemm.Tile) func(acc []ptx.F32) {
	w := e.locate(t)
	var scores [2]ptx.F32
	for h := range scores {
		row := t.FirstRow.Add(w.rowInWarpgroup(h).Min(t.ValidRows.SubI(1))) // a row past the end repeats the last row; its results are dropped
		pair := ptx.LdGlobal[ptx.U32](e.pairs.Index(row, 4))
		scores[h] = ptx.LdGlobal[ptx.F32](e.scores.Index(pair, 4))
	}
	return func(acc []ptx.F32) { e.store(w, scores, acc) }
}

// Finish implements gemm.Epilogue.
func (e *epilogue) Finish() {}

// store computes and stores all parts of one tile.
func (e *epilogue) store(w warp, scores [2]ptx.F32, acc []ptx.F32) {
	const registers = partNeurons / 2 // number of registers of acc that hold the sums of a part
	e.k.If(w.rows.NeI(0), func() {
		var dscores scoreSums
		var columnSums [][]ptx.F32 // column sums of each part: gate's, then up's
		for part := range e.parts() {
			grad := acc[part*registers:][:registers]
			w.waitForH(part)
			w.clearPast(part, grad)
			weighted := w.differentiate(part, grad, scores, &dscores)
			if (part+1)*partNeurons%ScoreGroup == 0 {
				dscores.endGroup(w.lane, part*partNeurons/ScoreGroup)
			}
			columnSums = append(columnSums, w.storePart(part, weighted))
		}
		w.storeScoreSums(dscores)
		if e.Bias {
			w.shareColumnSums(columnSums)
		}
	})
	if e.Bias {
		e.joined.Sync(e.warpgroup())
		e.addColumnSums(w.t)
		e.k.FenceProxyAsync(".shared::cta") // the fence orders the accesses to the slots before the next tile's loads
	}
}

// warpgroup returns the number of the math warpgroup, 0 or 1.
func (e *epilogue) warpgroup() ptx.U32 { return ptx.WarpgroupOf(e.k.TidX()) }

// parts returns the number of parts in a tile.
func (d DH) parts() int { return d.Tiling.TileN / partNeurons }

// neuron returns the first neuron of a part.
func (d DH) neuron(t gemm.Tile, part int) ptx.U32 {
	return t.Column.MulI(d.Tiling.TileN).AddI(part * partNeurons)
}

// column returns the first column of a part in the rows of dH. It is a gate column, or the first
// gate column of the part's pairs if gate and up are in pairs.
func (d DH) column(t gemm.Tile, part int) ptx.U32 {
	if weights.InPairs(d.Config) {
		return d.neuron(t, part).MulI(2)
	}
	return d.neuron(t, part)
}

// warp is the position of a warp in a tile, and of the thread in its warp.
type warp struct {
	*epilogue
	t    gemm.Tile
	lane ptx.U32
	// mine has the slots of this warp, and arrived has the barriers of these slots.
	mine, arrived ptx.Shared
	staging       tile.WarpStaging
	fragment      tile.Fragment
	// row is the first packed row of this warp, and rows is the number of the warp's valid rows.
	row, rows ptx.U32
}

// locate computes the thread's position where it is needed. That is cheaper than keeping
// it in registers during the main loop.
func (e *epilogue) locate(t gemm.Tile) warp {
	tid := e.k.TidX()
	number := ptx.WarpOf(tid)
	w := warp{epilogue: e, t: t, lane: ptx.LaneOf(tid)}
	w.mine, w.arrived = e.slots.Plus(number.MulI(warpBytes)), e.full.Plus(number.MulI(barrierBytes*slotsOfWarp))
	w.staging, w.fragment = tile.NewWarpStaging(e.k, w.lane), tile.NewFragment(w.lane)
	before := number.AndI(3).MulI(warpRows)
	w.row, w.rows = t.FirstRow.Add(before), t.ValidRows.Sub(t.ValidRows.Min(before))
	return w
}

// loads is true in the one lane that starts the loads, if its warp has rows.
func (w warp) loads() ptx.Pred { return w.lane.EqI(0).And(w.rows.NeI(0)) }

// rowInWarpgroup returns the number, within the 64 rows of the warpgroup, of the thread's
// row h (0 or 1).
func (w warp) rowInWarpgroup(h int) ptx.U32 {
	return w.row.Sub(w.t.FirstRow).Add(w.fragment.Row).AddI(8 * h)
}

// slot returns the slot of a part.
func (w warp) slot(part int) []ptx.Shared {
	at := w.mine.At(part % slotsOfWarp * slotBytes)
	return []ptx.Shared{at, at.At(halfBytes)}[:w.HParts()]
}

// loadH starts the load of a part of H, in one lane. It also loads rows past the expert's
// end; their results are dropped.
func (w warp) loadH(part int) {
	full := w.arrived.At(barrierBytes * (part % slotsOfWarp))
	w.k.MbarrierArriveExpectTx(full, ptx.Uint(w.HParts()*halfBytes))
	w.k.TMALoad(w.slot(part)[0], w.h, full, w.neuron(w.t, part), w.row, ptx.Uint(0))
}

// waitForH waits until a part of H has arrived. A tile uses each slot an even number of
// times, so every tile begins with the same parity.
func (w warp) waitForH(part int) {
	pipeline.WaitParity(w.k, w.arrived.At(barrierBytes*(part%slotsOfWarp)), ptx.Uint(part/slotsOfWarp%2))
}

// sync synchronises the lanes of the warp, because a lane reads from a slot what other lanes wrote.
func (w warp) sync() { w.k.BarWarpSync(ptx.Uint(ptx.FullMask)) }

// clearPast sets a part's dA' to 0 past the last neuron: W2 is 0 there, but an infinite
// dO would give NaN. H is 0 there too, and so are dH and the score's gradient.
func (w warp) clearPast(part int, grad []ptx.F32) {
	if w.Intermediate%ScoreGroup == 0 {
		return
	}
	w.k.If(w.neuron(w.t, part).AddI(partNeurons).GtI(w.Intermediate), func() {
		for i := 0; i < len(grad); i += 4 {
			w.k.If(w.neuron(w.t, part).AddI(i/4*8).GeI(w.Intermediate), func() {
				for _, v := range grad[i:][:4] {
					ptx.VarOf(v).Set(ptx.Float(0))
				}
			})
		}
	})
}

// differentiate replaces a part of H in its slot by dH, adds to the partial gradients of
// the scores, and returns A' in packed words.
func (w warp) differentiate(part int, grad []ptx.F32, scores [2]ptx.F32, dscores *scoreSums) (weighted []ptx.U32) {
	slot, inPairs := w.slot(part), weights.InPairs(w.Config)
	var halves [][]ptx.U32
	for _, half := range slot {
		halves = append(halves, w.staging.Load(half))
	}
	gates, ups := halves[0], halves[len(halves)-1]
	for i := range gates {
		h := i % 2 // which of the thread's two rows
		g0, g1 := w.element.Unpack(gates[i])
		u0, u1 := g0, g1
		if w.HParts() > 1 {
			u0, u1 = w.element.Unpack(ups[i])
		}
		lo := w.gradient(g0, u0, grad[2*i], scores[h])
		hi := w.gradient(g1, u1, grad[2*i+1], scores[h])
		switch {
		case inPairs: // one word for each neuron, with gate and up
			gates[i], ups[i] = w.element.Pack(w.k, lo.gate, lo.up), w.element.Pack(w.k, hi.gate, hi.up)
		case w.HParts() > 1:
			gates[i], ups[i] = w.element.Pack(w.k, lo.gate, hi.gate), w.element.Pack(w.k, lo.up, hi.up)
		default:
			gates[i] = w.element.Pack(w.k, lo.gate, hi.gate)
		}
		weighted = append(weighted, w.element.Pack(w.k, lo.weighted, hi.weighted))
		startsGroup := i < 2 && part*partNeurons%ScoreGroup == 0
		dscores.add(h, startsGroup, lo.score)
		dscores.add(h, false, hi.score)
	}
	w.sync()
	if inPairs {
		w.stagePairs(slot, gates, ups)
		return weighted
	}
	for i, half := range slot {
		w.staging.Store(half, halves[i])
	}
	return weighted
}

// gradient is the result for one element of dA': the gradients of gate and up (dH), the element of
// A' (weighted), and the products that are added to the score's gradient. score has the two factors
// of each product, one after the other.
type gradient struct {
	gate, up, weighted ptx.F32
	score              []ptx.F32
}

func (w warp) gradient(gate, up, grad, score ptx.F32) gradient {
	act := activation.Of(w.Config).Gradient
	if w.ScoreOnInput {
		a, dGate, dUp := act(score.Mul(gate), score.Mul(up), grad)
		return gradient{gate: score.Mul(dGate), up: score.Mul(dUp), weighted: a, score: []ptx.F32{dGate, gate, dUp, up}[:2*w.HParts()]}
	}
	a, dGate, dUp := act(gate, up, score.Mul(grad))
	return gradient{gate: dGate, up: dUp, weighted: score.Mul(a), score: []ptx.F32{grad, a}}
}

// stagePairs writes 64 columns of dH to a slot. Gate and up of a neuron are neighbouring
// columns, and the first 32 columns go to the first half of the slot. first and second
// hold words of neighbouring neurons.
func (w warp) stagePairs(slot []ptx.Shared, first, second []ptx.U32) {
	quad := w.lane.AndI(3)
	at := tile.SwizzledNarrow(w.fragment.Row, quad.ShrI(1)) // a block of 8 neurons has 32 bytes; the thread has 8 of them
	for i := range first {
		block, h := i/2, i%2
		to := slot[block/2].Plus(at.XorI(block % 2 * 2 * tile.CopyBytes)).Plus(quad.AndI(1).ShlI(3))
		ptx.StShared(to.At(h*halfBytes/2), first[i], second[i])
	}
}

// storePart stores dH of a part from the part's slot, and then A', which passes through
// the same slot. It then starts the load of the next part of H that uses the slot. In
// layers with biases it returns the sums of dH's columns.
func (w warp) storePart(part int, weighted []ptx.U32) (sums []ptx.F32) {
	k, slot := w.k, w.slot(part)
	w.sync()
	if w.Bias {
		sums = w.sumColumns(slot)
	}
	width, aWidth := weights.DH(w.Config).Elements(), weights.A(w.Config).Elements()
	dh := w.dh.Index(w.row, width*tile.ElementBytes)
	for i, half := range slot {
		if weights.InPairs(w.Config) {
			w.copyRows(part, half, dh.At(i*partNeurons*tile.ElementBytes), width, w.column, width-i*partNeurons)
			continue
		}
		w.copyRows(part, half, dh.At(i*aWidth*tile.ElementBytes), width, w.neuron, aWidth)
	}
	w.sync()
	w.staging.Store(slot[0], weighted)
	w.sync()
	w.copyRows(part, slot[0], w.a.Index(w.row, aWidth*tile.ElementBytes), aWidth, w.neuron, aWidth)
	// The fence orders the warp's accesses to the slot before the next TMA load into it:
	// the load below, or the load in the next tile's main loop.
	k.FenceProxyAsync(".shared::cta")
	w.sync()
	if next := part + slotsOfWarp; next < w.parts() {
		k.If(w.loads(), func() { w.loadH(next) })
	}
	return sums
}

// copyRows copies 16 rows of 64 bytes from a half of a part's slot to global memory, from the
// part's column on. In global memory the rows are `pitch` elements apart. Each lane copies 16 bytes
// of two rows. Columns from `end` on are not stored.
func (w warp) copyRows(part int, from ptx.Shared, to ptx.Global, pitch int, column func(t gemm.Tile, part int) ptx.U32, end int) {
	k := w.k
	row, chunk := w.lane.ShrI(2), w.lane.AndI(3)
	from = from.Plus(tile.SwizzledNarrow(row, chunk))
	to = to.Index(row, pitch*tile.ElementBytes).Index(column(w.t, part).Add(chunk.MulI(tile.CopyElements)), tile.ElementBytes)
	for h := range 2 {
		valid := row.AddI(8 * h).Lt(w.rows).And(w.inside(part, column, end))
		v := ptx.LdSharedVec[ptx.U32](from.At(h*halfBytes/2), 4)
		k.Guarded(valid, func() { ptx.StGlobal(to.At(8*h*pitch*tile.ElementBytes), v...) })
	}
}

// inside reports whether a part begins before the end of its rows.
func (w warp) inside(part int, column func(t gemm.Tile, part int) ptx.U32, end int) ptx.Pred {
	switch {
	case w.Intermediate%w.Tiling.TileN == 0:
		return ptx.True()
	case w.Intermediate%ScoreGroup == 0:
		return w.neuron(w.t, part).LtI(w.Intermediate)
	}
	return column(w.t, part).LtI(end)
}

// scoreSums are the sums for the gradients of the scores of the thread's two rows. One sum
// is over this thread's values of the present group of neurons, the other over the quad's
// values of the group that this thread stores.
type scoreSums struct{ group, stored [2]ptx.F32 }

// add adds products of two factors to the sum of row h. The first product of a group
// starts the sum.
func (s *scoreSums) add(h int, startsGroup bool, factors []ptx.F32) {
	for i := 0; i < len(factors); i += 2 {
		if i == 0 && startsGroup {
			s.group[h] = factors[0].Mul(factors[1])
			continue
		}
		s.group[h] = factors[i].Fma(factors[i+1], s.group[h])
	}
}

// endGroup adds the sums of the four lanes of a quad: lanes 0+1 and 2+3, then both sums.
// Lane i of the quad keeps the sum of group i.
func (s *scoreSums) endGroup(lane ptx.U32, group int) {
	for h, sum := range s.group {
		for _, lanes := range []int{1, 2} {
			sum = sum.Add(sum.Bits().ShflXor(lanes).AsF32())
		}
		if group > 0 {
			sum = ptx.Select(lane.AndI(3).EqI(group), sum, s.stored[h])
		}
		s.stored[h] = sum
	}
}

// storeScoreSums stores the partial gradients of the scores.
func (w warp) storeScoreSums(s scoreSums) {
	perTile, perRow := w.Tiling.TileN/ScoreGroup, groups(w.Intermediate)
	quad := w.lane.AndI(3)
	group := w.t.Column.MulI(perTile).Add(quad)
	for h, sum := range s.stored {
		row := w.rowInWarpgroup(h)
		valid := row.Lt(w.t.ValidRows).And(quad.LtI(perTile)).And(group.LtI(perRow))
		at := w.partials.Index(w.t.FirstRow.Add(row), perRow*4).Index(group, 4)
		w.k.Guarded(valid, func() { ptx.StGlobal(at, sum) })
	}
}
