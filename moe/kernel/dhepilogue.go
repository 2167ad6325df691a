package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// dhEpilogue turns a warpgroup's dA' into dH, A' and the score's partial
// gradients, a group of 64 neurons at a time. Two slots of shared memory take
// turns: H of a group comes in by TMA, the threads put dH in its place, and it
// goes out by TMA. The first two groups' H comes under the main loop.
type dhEpilogue struct {
	k *ptx.Kernel
	// groups is those of a tile, neurons those of an expert.
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
	dhUnit      = 8  // columns that a thread works on at a time
	dhSlots     = 2
	dhSlotBytes = 2 * tile.StagingBytes                   // gate and up
	dhStaging   = dhSlots*dhSlotBytes + tile.StagingBytes // and one slot of A'
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
	e.staging, e.fragment = tile.NewStaging(e.k, thread), tile.NewFragment(thread)
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
		for i := range e.groups {
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

// neuron is the first neuron of a group.
func (e *dhEpilogue) neuron(group int) ptx.U32 {
	return e.t.Column.MulI(e.groups * dhGroup).AddI(group * dhGroup)
}

// slot is a group's slot of H, whose halves are gate and up.
func (e *dhEpilogue) slot(group int) (gate, up ptx.Shared) {
	at := e.slots.At(group % dhSlots * dhSlotBytes)
	return at, at.At(tile.StagingBytes)
}

// slotOfA is the slot of A'.
func (e *dhEpilogue) slotOfA() ptx.Shared { return e.slots.At(dhSlots * dhSlotBytes) }

// load starts the load of a group's H; one thread. Rows past the expert's end
// are dropped with what comes of them.
func (e *dhEpilogue) load(group int) {
	full := e.arrived.At(8 * (group % dhSlots))
	gate, _ := e.slot(group)
	e.k.MbarrierArriveExpectTx(full, ptx.Uint(dhSlotBytes))
	e.k.TMALoad(gate, e.h, full, e.neuron(group), e.s.row, ptx.Uint(0))
}

// arrive waits for a group of H.
func (e *dhEpilogue) arrive(group int) {
	in := group % dhSlots
	uses := (e.groups - in + dhSlots - 1) / dhSlots // of the slot in a tile
	parity := ptx.Uint(group / dhSlots % 2)
	if uses%2 == 1 {
		parity = e.turn.Get().Xor(parity)
	}
	pipeline.WaitParity(e.k, e.arrived.At(8*in), parity)
}

// store is the epilogue of a tile. A group's first half keeps its A' in
// registers until the group before is read from the slots.
func (e *dhEpilogue) store(_ *storer, _ schedule.Tile, acc []ptx.F32) {
	for i := range e.groups {
		e.arrive(i)
		var kept [][]ptx.BF16x2
		for u := range dhGroup / dhUnit {
			if u == dhGroup/dhUnit/2 && i > 0 {
				e.reuse(i)
				for v, words := range kept {
					e.staging.StoreWords(e.slotOfA(), v, words)
				}
			}
			words := e.differentiate(i, u, acc[32*i+4*u:][:4])
			if u < dhGroup/dhUnit/2 && i > 0 {
				kept = append(kept, words)
			} else {
				e.staging.StoreWords(e.slotOfA(), u, words)
			}
		}
		e.join(i)
		e.send(i)
	}
	e.storePartials()
	e.turn.Set(e.turn.Get().XorI(1))
}

// reuse waits until the group before the given one is read: the slot of A' is
// free, and its slot of H for the load of the next.
func (e *dhEpilogue) reuse(group int) {
	e.k.If(e.s.elected, func() {
		e.k.BulkWait(0, ".read")
		if next := group + 1; next >= dhSlots && next < e.groups {
			e.load(next)
		}
	})
	e.k.BarSync(e.s.barrier, ptx.Uint(pipeline.WarpgroupThreads))
}

// send starts the stores of a group that is in its slots.
func (e *dhEpilogue) send(group int) {
	k, s := e.k, e.s
	k.FenceProxyAsync(".shared::cta")
	k.BarSync(s.barrier, ptx.Uint(pipeline.WarpgroupThreads))
	k.If(s.elected, func() {
		neuron, clipped, row := e.neuron(group), ptx.Uint(warpgroupRows).Sub(s.rows), s.row.Add(s.rows)
		gate, _ := e.slot(group)
		k.TMAStore(e.dh, gate, neuron, clipped, row, ptx.Uint(0))
		k.TMAStore(e.a, e.slotOfA(), neuron, clipped, row)
		k.BulkCommit()
	})
}

// differentiate puts dH in the place of 8 columns of H, gives their A' and
// adds to the sums of dA'·A.
func (e *dhEpilogue) differentiate(group, unit int, grad []ptx.F32) []ptx.BF16x2 {
	k := e.k
	gateSlot, upSlot := e.slot(group)
	gates, ups := e.staging.Load(gateSlot, unit), e.staging.Load(upSlot, unit)
	var weighted []ptx.BF16x2
	for h := range gates { // the thread's rows
		g0, g1 := gates[h].Unpack()
		u0, u1 := ups[h].Unpack()
		lo := neuronGradient(g0, u0, grad[2*h], e.score[h])
		hi := neuronGradient(g1, u1, grad[2*h+1], e.score[h])
		gates[h], ups[h] = k.PackBF16(lo.gate, hi.gate), k.PackBF16(lo.up, hi.up)
		weighted = append(weighted, k.PackBF16(lo.weighted, hi.weighted))
		if unit == 0 {
			e.sum[h] = grad[2*h].Mul(lo.a)
		} else {
			e.sum[h] = grad[2*h].Fma(lo.a, e.sum[h])
		}
		e.sum[h] = grad[2*h+1].Fma(hi.a, e.sum[h])
	}
	k.BarWarpSync(ptx.Uint(ptx.FullMask)) // what the warp overwrites, it has read
	e.staging.StoreWords(gateSlot, unit, gates)
	e.staging.StoreWords(upSlot, unit, ups)
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
