package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// dhEpilogue turns a warpgroup's dA' into dH, A' and the score's partial
// gradients, a part of 32 neurons at a time. A few slots of shared memory take
// turns: H of a part comes in by TMA, the threads put dH in its place, and it
// goes out by TMA. The first parts' H comes under the main loop.
type dhEpilogue struct {
	k *ptx.Kernel
	// groups of 64 neurons are those of a tile, neurons those of an expert.
	groups, neurons        int
	h, dh, a               ptx.TensorMap
	scores, pairs, partial ptx.Global

	memory, barrier ptx.Shared        // of both warpgroups
	turn            *ptx.Var[ptx.U32] // parity of the tiles so far
	// slots is the warpgroup's memory, arrived the barriers of its slots of H.
	slots, arrived ptx.Shared
	staging        tile.Staging
	fragment       tile.Fragment
	lane           ptx.U32 // in the quad
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
	dhSlots     = 4
	dhSlotsOfA  = 2
	dhSlotBytes = 2 * tile.NarrowBytes // gate and up
	// dhStaging is a warpgroup's slots.
	dhStaging = dhSlots*dhSlotBytes + dhSlotsOfA*tile.NarrowBytes
)

// barriers adds one for each slot.
func (e *dhEpilogue) barriers(set *pipeline.Setup, mem *pipeline.Shared) {
	for i := range 2 * dhSlots {
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
	wg, thread := tid.ShrI(7), tid.AndI(pipeline.WarpgroupThreads-1)
	e.slots, e.arrived = e.memory.Plus(wg.MulI(dhStaging)), e.barrier.Plus(wg.MulI(8*dhSlots))
	e.staging, e.fragment = tile.NewNarrowStaging(e.k, thread), tile.NewFragment(thread)
	e.lane = thread.AndI(3)
}

// start makes what outlives a tile.
func (e *dhEpilogue) start(memory ptx.Shared) {
	e.memory, e.turn = memory, ptx.NewVar(e.k, ptx.Uint(0))
}

// before notes the tile.
func (e *dhEpilogue) before(s *storer, t schedule.Tile) { e.s, e.t = s, t }

// during starts the loads of H when the main loop is under way: by then the
// last tile's stores have read the slots. H that no slot is left for comes as
// far as the L2 cache.
func (e *dhEpilogue) during(kt ptx.U32) {
	e.k.If(kt.EqI(1).And(e.s.elected), func() {
		e.place()
		e.k.BulkWait(0, ".read")
		for i := range e.parts() {
			if i < dhSlots {
				e.load(i)
			} else {
				e.k.TMAPrefetch(e.h, e.neuron(i), e.s.row, ptx.Uint(0))
			}
		}
	})
}

// ending loads the scores of the thread's rows.
func (e *dhEpilogue) ending() {
	e.place()
	for h := range e.score {
		row := e.s.row.Add(e.fragment.Row.AddI(8 * h).Min(e.s.rows.SubI(1))) // rows past the end are dropped
		pair := ptx.LdGlobal[ptx.U32](e.pairs.Index(row, 4))
		e.score[h] = ptx.LdGlobal[ptx.F32](e.scores.Index(pair, 4))
	}
}

// parts is those of a tile.
func (e *dhEpilogue) parts() int { return e.groups * dhGroup / dhPart }

// neuron is the first neuron of a part.
func (e *dhEpilogue) neuron(part int) ptx.U32 {
	return e.t.Column.MulI(e.groups * dhGroup).AddI(part * dhPart)
}

// slot is a part's slot of H, whose halves are gate and up.
func (e *dhEpilogue) slot(part int) (gate, up ptx.Shared) {
	at := e.slots.At(part % dhSlots * dhSlotBytes)
	return at, at.At(tile.NarrowBytes)
}

// slotOfA is a part's slot of A'.
func (e *dhEpilogue) slotOfA(part int) ptx.Shared {
	return e.slots.At(dhSlots*dhSlotBytes + part%dhSlotsOfA*tile.NarrowBytes)
}

// load starts the load of a part's H; one thread. Rows past the expert's end
// are dropped with what comes of them.
func (e *dhEpilogue) load(part int) {
	full := e.arrived.At(8 * (part % dhSlots))
	e.k.MbarrierArriveExpectTx(full, ptx.Uint(dhSlotBytes))
	gate, _ := e.slot(part)
	e.k.TMALoad(gate, e.h, full, e.neuron(part), e.s.row, ptx.Uint(0))
}

// arrive waits for a part of H.
func (e *dhEpilogue) arrive(part int) {
	in := part % dhSlots
	uses := (e.parts() - in + dhSlots - 1) / dhSlots // of the slot in a tile
	parity := ptx.Uint(part / dhSlots % 2)
	if uses%2 == 1 {
		parity = e.turn.Get().Xor(parity)
	}
	pipeline.WaitParity(e.k, e.arrived.At(8*in), parity)
}

// store is the epilogue of a tile.
func (e *dhEpilogue) store(_ *storer, _ schedule.Tile, acc []ptx.F32) {
	for i := range e.parts() {
		e.arrive(i)
		// Twice 8 columns at a time have more to do at once; the first parts find
		// no registers for it.
		eights := 2
		if i < 2 {
			eights = 1
		}
		for c := 0; c < dhPart/8; c += eights {
			if c == dhPart/16 {
				e.refill(i)
			}
			e.differentiate(i, c, acc[i*dhPart/2+4*c:][:4*eights])
		}
		if (i+1)*dhPart%dhGroup == 0 {
			e.join(i * dhPart / dhGroup)
		}
		e.send(i)
	}
	e.storePartials()
	e.turn.Set(e.turn.Get().XorI(1))
}

// refill waits until the part before the given one is read, and loads H of
// another into its slot. Behind the next barrier all may use its slot of A'.
func (e *dhEpilogue) refill(part int) {
	if part == 0 {
		return
	}
	e.k.If(e.s.elected, func() {
		e.k.BulkWait(0, ".read")
		if next := part - 1 + dhSlots; next < e.parts() {
			e.load(next)
		}
	})
}

// send starts the stores of a part that is in its slots.
func (e *dhEpilogue) send(part int) {
	k, s := e.k, e.s
	k.FenceProxyAsync(".shared::cta")
	k.BarSync(s.barrier, ptx.Uint(pipeline.WarpgroupThreads))
	k.If(s.elected, func() {
		neuron, clipped, row := e.neuron(part), ptx.Uint(warpgroupRows).Sub(s.rows), s.row.Add(s.rows)
		gate, _ := e.slot(part)
		k.TMAStore(e.dh, gate, neuron, clipped, row, ptx.Uint(0))
		k.TMAStore(e.a, e.slotOfA(part), neuron, clipped, row)
		k.BulkCommit()
	})
}

// differentiate puts dH in the place of 8 or 16 columns of H, those from 8c of
// the part on, stores their A' and adds to the sums of dA'·A.
func (e *dhEpilogue) differentiate(part, c int, grad []ptx.F32) {
	k := e.k
	gateSlot, upSlot := e.slot(part)
	gates, ups := e.staging.Load(gateSlot, c, len(grad)/4), e.staging.Load(upSlot, c, len(grad)/4)
	var weighted []ptx.BF16x2
	for i := range gates {
		h := i % 2 // of the thread's rows
		g0, g1 := gates[i].Unpack()
		u0, u1 := ups[i].Unpack()
		lo := neuronGradient(g0, u0, grad[2*i], e.score[h])
		hi := neuronGradient(g1, u1, grad[2*i+1], e.score[h])
		gates[i], ups[i] = k.PackBF16(lo.gate, hi.gate), k.PackBF16(lo.up, hi.up)
		weighted = append(weighted, k.PackBF16(lo.weighted, hi.weighted))
		if first := i < 2 && (part*dhPart+8*c)%dhGroup == 0; first {
			e.sum[h] = grad[2*i].Mul(lo.a)
		} else {
			e.sum[h] = grad[2*i].Fma(lo.a, e.sum[h])
		}
		e.sum[h] = grad[2*i+1].Fma(hi.a, e.sum[h])
	}
	k.BarWarpSync(ptx.Uint(ptx.FullMask)) // what the warp overwrites, it has read
	e.staging.StoreWords(gateSlot, c, gates)
	e.staging.StoreWords(upSlot, c, ups)
	e.staging.StoreWords(e.slotOfA(part), c, weighted)
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
			sum = ptx.Select(e.lane.EqI(group), sum, e.joined[h])
		}
		e.joined[h] = sum
	}
}

// storePartials stores a tile's sums.
func (e *dhEpilogue) storePartials() {
	s := e.s
	group := e.t.Column.MulI(e.groups).Add(e.lane)
	for h, sum := range e.joined {
		row := e.fragment.Row.AddI(8 * h)
		valid := row.Lt(s.rows).And(e.lane.LtI(e.groups)).And(group.LtI(e.neurons / dhGroup))
		at := e.partial.Index(s.row.Add(row), e.neurons/dhGroup*4).Index(group, 4)
		e.k.Guarded(valid, func() { ptx.StGlobal(at, sum) })
	}
}
