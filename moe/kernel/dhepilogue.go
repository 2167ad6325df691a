package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// dhEpilogue turns a warpgroup's dA' into dH, A' and the score's partial
// gradients. Each warp works alone, on its 16 rows and a part of 32 neurons at a
// time: H comes in by TMA, into two slots that take turns, the first two parts'
// under the main loop. A slot also turns fragments into rows of 64 bytes on
// their way out: dH takes the place of H, then A' that of dH's gate.
type dhEpilogue struct {
	k *ptx.Kernel
	// groups of 64 neurons are those of a tile, neurons those of an expert.
	groups, neurons        int
	h                      ptx.TensorMap
	dh, a                  ptx.Global
	scores, pairs, partial ptx.Global

	memory, barrier ptx.Shared // of all warps
	// slots is the warp's memory, arrived the barriers of its slots.
	slots, arrived ptx.Shared
	staging        tile.WarpStaging
	fragment       tile.Fragment
	lane           ptx.U32 // in the warp
	// row is the warp's first row, rows how many from it on are valid.
	row, rows ptx.U32
	// The present tile.
	s *storer
	t schedule.Tile
	// Of the thread's two rows: their (token, slot) pairs and scores, the sums
	// of dA'·A of the present group, and of the group that the lane stores.
	score       [2]ptx.F32
	sum, joined [2]ptx.F32
}

const (
	dhGroup     = 64 // neurons of a partial sum
	dhPart      = 32 // neurons of a slot
	dhRows      = 16 // of a warp
	dhSlots     = 2
	dhHalfBytes = tile.WarpStagingBytes // of a slot: gate, up
	dhWarpBytes = dhSlots * 2 * dhHalfBytes
	dhStaging   = 4 * dhWarpBytes // of a warpgroup
)

// barriers adds one for each slot of each warp.
func (e *dhEpilogue) barriers(set *pipeline.Setup, mem *pipeline.Shared) {
	for i := range mathThreads / 32 * dhSlots {
		at := set.Barrier(mem, 1)
		if i == 0 {
			e.barrier = at
		}
	}
}

// place finds the thread's place anew: cheaper than registers for it through
// the main loop.
func (e *dhEpilogue) place() {
	tid := e.k.Special("%tid.x")
	warp := tid.ShrI(5)
	e.lane = tid.AndI(31)
	e.slots, e.arrived = e.memory.Plus(warp.MulI(dhWarpBytes)), e.barrier.Plus(warp.MulI(8*dhSlots))
	e.staging, e.fragment = tile.NewWarpStaging(e.k, e.lane), tile.NewFragment(e.lane)
	before := warp.AndI(3).MulI(dhRows)
	e.row, e.rows = e.s.row.Add(before), e.s.rows.Sub(e.s.rows.Min(before))
}

// before notes the tile.
func (e *dhEpilogue) before(s *storer, t schedule.Tile) { e.s, e.t = s, t }

// during starts the loads of H when the main loop is under way. H that no slot
// is left for comes as far as the L2 cache.
func (e *dhEpilogue) during(kt ptx.U32) {
	e.k.If(kt.EqI(1), func() {
		e.place()
		e.k.If(e.leads(), func() {
			for i := range e.parts() {
				if i < dhSlots {
					e.load(i)
				} else {
					e.k.TMAPrefetch(e.h, e.neuron(i), e.row, ptx.Uint(0))
				}
			}
		})
	})
}

// leads holds in the lane that loads for a warp that has rows.
func (e *dhEpilogue) leads() ptx.Pred { return e.lane.EqI(0).And(e.rows.NeI(0)) }

// ending loads the scores of the thread's rows.
func (e *dhEpilogue) ending() {
	e.place()
	for h := range e.score {
		row := e.s.row.Add(e.rowInWarpgroup(h).Min(e.s.rows.SubI(1))) // rows past the end are dropped
		pair := ptx.LdGlobal[ptx.U32](e.pairs.Index(row, 4))
		e.score[h] = ptx.LdGlobal[ptx.F32](e.scores.Index(pair, 4))
	}
}

// rowInWarpgroup is the thread's row h of the warpgroup's 64.
func (e *dhEpilogue) rowInWarpgroup(h int) ptx.U32 {
	return e.row.Sub(e.s.row).Add(e.fragment.Row).AddI(8 * h)
}

// parts is those of a tile.
func (e *dhEpilogue) parts() int { return e.groups * dhGroup / dhPart }

// neuron is the first neuron of a part.
func (e *dhEpilogue) neuron(part int) ptx.U32 {
	return e.t.Column.MulI(e.groups * dhGroup).AddI(part * dhPart)
}

// slot is a part's slot of H, whose halves are gate and up.
func (e *dhEpilogue) slot(part int) (gate, up ptx.Shared) {
	at := e.slots.At(part % dhSlots * 2 * dhHalfBytes)
	return at, at.At(dhHalfBytes)
}

// load starts the load of a part's H; one lane. Rows past the expert's end
// are dropped with what comes of them.
func (e *dhEpilogue) load(part int) {
	full := e.arrived.At(8 * (part % dhSlots))
	gate, _ := e.slot(part)
	e.k.MbarrierArriveExpectTx(full, ptx.Uint(2*dhHalfBytes))
	e.k.TMALoad(gate, e.h, full, e.neuron(part), e.row, ptx.Uint(0))
}

// arrive waits for a part of H. A tile uses each slot an even number of times, so
// that all tiles begin with the same parity.
func (e *dhEpilogue) arrive(part int) {
	pipeline.WaitParity(e.k, e.arrived.At(8*(part%dhSlots)), ptx.Uint(part/dhSlots%2))
}

// store is the epilogue of a tile.
func (e *dhEpilogue) store(_ *storer, _ schedule.Tile, acc []ptx.F32) {
	e.k.If(e.rows.NeI(0), func() {
		for i := range e.parts() {
			e.arrive(i)
			weighted := e.differentiate(i, acc[i*dhPart/2:][:dhPart/2])
			if (i+1)*dhPart%dhGroup == 0 {
				e.join(i * dhPart / dhGroup)
			}
			e.send(i, weighted)
		}
		e.storePartials()
	})
}

// sync joins the warp: what one lane writes to the slot others read, and the
// other way round.
func (e *dhEpilogue) sync() { e.k.BarWarpSync(ptx.Uint(ptx.FullMask)) }

// send stores a part's dH, which is in its slot, and its A' by way of it, and
// loads another part's H into it.
func (e *dhEpilogue) send(part int, weighted []ptx.BF16x2) {
	k := e.k
	gate, up := e.slot(part)
	e.sync()
	dh := e.dh.Index(e.row, 2*e.neurons*bf16)
	e.copyRows(part, gate, dh, 2*e.neurons)
	e.copyRows(part, up, dh.At(e.neurons*bf16), 2*e.neurons)
	e.sync()
	e.staging.Store(gate, weighted)
	e.sync()
	e.copyRows(part, gate, e.a.Index(e.row, e.neurons*bf16), e.neurons)
	// What the warp has read and written comes before what TMA brings next: here,
	// or in the next tile's main loop.
	k.FenceProxyAsync(".shared::cta")
	e.sync()
	if next := part + dhSlots; next < e.parts() {
		k.If(e.leads(), func() { e.load(next) })
	}
}

// copyRows stores a part's 16 rows of 64 bytes from a half of its slot, 16 bytes
// for each lane at a time, to rows of so many elements.
func (e *dhEpilogue) copyRows(part int, from ptx.Shared, to ptx.Global, pitch int) {
	k := e.k
	row, chunk := e.lane.ShrI(2), e.lane.AndI(3)
	from = from.Plus(tile.SwizzledNarrow(row, chunk))
	to = to.Index(row, pitch*bf16).Index(e.neuron(part).Add(chunk.MulI(copyBytes/bf16)), bf16)
	for h := range 2 {
		valid := row.AddI(8 * h).Lt(e.rows)
		if e.neurons%(e.groups*dhGroup) != 0 {
			valid = valid.And(e.neuron(part).LtI(e.neurons))
		}
		v := ptx.LdSharedVec[ptx.U32](from.At(h*dhHalfBytes/2), 4)
		k.Guarded(valid, func() { ptx.StGlobal(to.At(8*h*pitch*bf16), v...) })
	}
}

// differentiate puts dH in the place of a part's H, gives its A' and adds to the
// sums of dA'·A.
func (e *dhEpilogue) differentiate(part int, grad []ptx.F32) []ptx.BF16x2 {
	k := e.k
	gateSlot, upSlot := e.slot(part)
	gates, ups := e.staging.Load(gateSlot), e.staging.Load(upSlot)
	var weighted []ptx.BF16x2
	for i := range gates {
		h := i % 2 // of the thread's rows
		g0, g1 := gates[i].Unpack()
		u0, u1 := ups[i].Unpack()
		lo := neuronGradient(g0, u0, grad[2*i], e.score[h])
		hi := neuronGradient(g1, u1, grad[2*i+1], e.score[h])
		gates[i], ups[i] = k.PackBF16(lo.gate, hi.gate), k.PackBF16(lo.up, hi.up)
		weighted = append(weighted, k.PackBF16(lo.weighted, hi.weighted))
		if i < 2 && part*dhPart%dhGroup == 0 {
			e.sum[h] = grad[2*i].Mul(lo.a)
		} else {
			e.sum[h] = grad[2*i].Fma(lo.a, e.sum[h])
		}
		e.sum[h] = grad[2*i+1].Fma(hi.a, e.sum[h])
	}
	e.sync()
	e.staging.Store(gateSlot, gates)
	e.staging.Store(upSlot, ups)
	return weighted
}

// gradient is what one element of dA' gives.
type gradient struct{ gate, up, a, weighted ptx.F32 }

// neuronGradient: silu' is sigmoid + silu·(1 - sigmoid).
func neuronGradient(gate, up, grad, score ptx.F32) gradient {
	sigmoid := sigmoid(gate)
	silu := gate.Mul(sigmoid)
	slope := silu.Fma(ptx.Float(1).Sub(sigmoid), sigmoid)
	a, da := silu.Mul(up), score.Mul(grad)
	return gradient{gate: da.Mul(up).Mul(slope), up: da.Mul(silu), a: a, weighted: score.Mul(a)}
}

// join adds a group's sums over each quad: lanes 0+1 and 2+3, then those. Lane
// i of the quad keeps group i's.
func (e *dhEpilogue) join(group int) {
	for h, sum := range e.sum {
		for _, lanes := range []int{1, 2} {
			sum = sum.Add(sum.Bits().ShflXor(lanes).AsF32())
		}
		if group > 0 {
			sum = ptx.Select(e.lane.AndI(3).EqI(group), sum, e.joined[h])
		}
		e.joined[h] = sum
	}
}

// storePartials stores a tile's sums.
func (e *dhEpilogue) storePartials() {
	s, lane := e.s, e.lane.AndI(3)
	group := e.t.Column.MulI(e.groups).Add(lane)
	for h, sum := range e.joined {
		row := e.rowInWarpgroup(h)
		valid := row.Lt(s.rows).And(lane.LtI(e.groups)).And(group.LtI(e.neurons / dhGroup))
		at := e.partial.Index(s.row.Add(row), e.neurons/dhGroup*4).Index(group, 4)
		e.k.Guarded(valid, func() { ptx.StGlobal(at, sum) })
	}
}
