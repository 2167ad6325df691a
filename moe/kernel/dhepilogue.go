package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// dhEpilogue turns a warpgroup's dA' into dH, A' and the score's partial
// gradients, a chunk of 32 neurons at a time. Slots of shared memory take
// turns: H of a chunk comes in by TMA, the threads put dH in its place, and it
// goes out by TMA. The first chunks' H comes under the main loop.
type dhEpilogue struct {
	k *ptx.Kernel
	// chunks is those of a tile, neurons those of an expert.
	chunks, neurons        int
	h, dh, a               ptx.TensorMap
	scores, pairs, partial ptx.Global

	memory, barrier ptx.Shared        // of both warpgroups
	turn            *ptx.Var[ptx.U32] // parity of the tiles so far
	// slots is the warpgroup's memory: the slots of H, then those of A'.
	// arrived are the barriers of the slots of H.
	slots, arrived ptx.Shared
	staging        tile.NarrowStaging
	fragment       tile.Fragment
	lane           ptx.U32 // in the quad
	// The present tile.
	s *storer
	t schedule.Tile
	// Of the thread's two rows: their (token, slot) pairs and scores, the sums
	// of dA'·A of the present group, and of the group that the lane stores.
	pair        [2]ptx.U32
	score       [2]*ptx.Var[ptx.F32]
	sum, joined [2]ptx.F32
}

const (
	dhGroup     = 64 // neurons of a partial sum
	dhChunk     = 32
	dhWidest    = 256 / dhChunk // chunks of the widest tile
	dhSlots     = 4
	dhSlotBytes = 2 * tile.NarrowBytes // gate and up
	dhStaging   = dhSlots*dhSlotBytes + 2*tile.NarrowBytes
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
	for h := range e.score {
		e.score[h] = ptx.NewVar(e.k, ptx.Float(0))
	}
}

// before starts loads ahead of a tile's main loop. All stores of the previous
// tile but the last chunk's are known to be read: of the slots of H only that
// one's may still be in use.
func (e *dhEpilogue) before(s *storer, t schedule.Tile) {
	e.place()
	e.s, e.t = s, t
	for h := range e.pair {
		row := s.row.Add(e.fragment.Row.AddI(8 * h).Min(s.rows.SubI(1))) // rows past the end are dropped
		e.pair[h] = ptx.LdGlobal[ptx.U32](e.pairs.Index(row, 4))
	}
	e.k.If(s.elected, func() {
		for i := range dhSlots {
			if i != e.lastSlot() {
				e.load(i)
			}
		}
	})
}

// during starts the loads that would have had to wait ahead of the main loop:
// the last slot's, and the scores', whose addresses come from memory. H that
// no slot is left for comes as far as the L2 cache.
func (e *dhEpilogue) during(kt ptx.U32) {
	e.k.If(kt.EqI(1), func() {
		for h, pair := range e.pair {
			e.score[h].Set(ptx.LdGlobal[ptx.F32](e.scores.Index(pair, 4)))
		}
		e.k.If(e.s.elected, func() {
			e.k.BulkWait(0, ".read")
			e.load(e.lastSlot())
			for i := dhSlots; i < e.chunks; i++ {
				e.k.TMAPrefetch(e.h, e.neuron(i), e.s.row, ptx.Uint(0))
			}
		})
	})
}

// lastSlot is the slot of H of a tile's last chunk, and the chunk that is the
// first to take it.
func (e *dhEpilogue) lastSlot() int { return (e.chunks - 1) % dhSlots }

// neuron is the first neuron of a chunk.
func (e *dhEpilogue) neuron(chunk int) ptx.U32 {
	return e.t.Column.MulI(e.chunks * dhChunk).AddI(chunk * dhChunk)
}

// slot is a chunk's slot of H, whose halves are gate and up.
func (e *dhEpilogue) slot(chunk int) ptx.Shared { return e.slots.At(chunk % dhSlots * dhSlotBytes) }

// slotOfA is a chunk's slot of A'.
func (e *dhEpilogue) slotOfA(chunk int) ptx.Shared {
	return e.slots.At(dhSlots*dhSlotBytes + chunk%2*tile.NarrowBytes)
}

// load starts the load of a chunk's H; one thread. Rows past the expert's end
// are dropped with what comes of them.
func (e *dhEpilogue) load(chunk int) {
	full := e.arrived.At(8 * (chunk % dhSlots))
	e.k.MbarrierArriveExpectTx(full, ptx.Uint(dhSlotBytes))
	e.k.TMALoad(e.slot(chunk), e.h, full, e.neuron(chunk), e.s.row, ptx.Uint(0))
}

// activation is a thread's part of 16 columns of H: pairs of neighbours, and
// the sigmoid of each gate.
type activation struct {
	gates, ups []ptx.BF16x2
	sigmoids   []ptx.F32
}

// arrive waits for a chunk of H.
func (e *dhEpilogue) arrive(chunk int) {
	in := chunk % dhSlots
	uses := (e.chunks - in + dhSlots - 1) / dhSlots // of the slot in a tile
	parity := ptx.Uint(chunk / dhSlots % 2)
	if uses%2 == 1 {
		parity = e.turn.Get().Xor(parity)
	}
	pipeline.WaitParity(e.k, e.arrived.At(8*in), parity)
}

// activate reads half a chunk of H.
func (e *dhEpilogue) activate(chunk, half int) activation {
	slot := e.slot(chunk)
	x := activation{gates: e.staging.Load(slot, half), ups: e.staging.Load(slot.At(tile.NarrowBytes), half)}
	for _, pair := range x.gates {
		lo, hi := pair.Unpack()
		x.sigmoids = append(x.sigmoids, sigmoid(lo), sigmoid(hi))
	}
	return x
}

// store is the epilogue of a tile. A chunk's sigmoids are taken beside the
// products of the chunk before or, if its H had to wait for a slot, behind
// them. Only the widest tile's first chunk goes half by half: no registers are
// free yet.
func (e *dhEpilogue) store(_ *storer, _ schedule.Tile, acc []ptx.F32) {
	e.place()
	var ready []activation
	prepare := func(chunk int) {
		e.arrive(chunk)
		ready = []activation{e.activate(chunk, 0), e.activate(chunk, 1)}
	}
	full := e.chunks == dhWidest
	if full {
		e.arrive(0)
	} else {
		prepare(0)
	}
	for i := range e.chunks {
		halves, next := ready, i+1
		ready = nil
		beside := next < dhSlots && (i > 0 || !full)
		if beside && next < e.chunks {
			prepare(next)
		}
		for half := range 2 {
			if halves == nil {
				e.differentiate(i, half, e.activate(i, half), acc[16*i+8*half:][:8])
			} else {
				e.differentiate(i, half, halves[half], acc[16*i+8*half:][:8])
			}
		}
		if !beside && next < e.chunks {
			prepare(next)
		}
		if done := (i + 1) * dhChunk; done%dhGroup == 0 {
			e.join(done/dhGroup - 1)
		}
		if i == e.chunks-1 {
			e.storePartials()
			e.turn.Set(e.turn.Get().XorI(1))
		}
		e.send(i)
	}
}

// send starts the stores of a chunk that is in its slots.
func (e *dhEpilogue) send(chunk int) {
	k, s := e.k, e.s
	k.FenceProxyAsync(".shared::cta")
	if chunk > 0 {
		k.If(s.elected, func() { e.reuse(chunk) })
	}
	k.BarSync(s.barrier, ptx.Uint(pipeline.WarpgroupThreads))
	k.If(s.elected, func() {
		neuron, clipped, row := e.neuron(chunk), ptx.Uint(warpgroupRows).Sub(s.rows), s.row.Add(s.rows)
		k.TMAStore(e.dh, e.slot(chunk), neuron, clipped, row, ptx.Uint(0))
		k.TMAStore(e.a, e.slotOfA(chunk), neuron, clipped, row)
		k.BulkCommit()
	})
}

// reuse waits until the chunk before the given one is read: its slot of A' is
// free for the next, its slot of H for the load of a later one; one thread.
func (e *dhEpilogue) reuse(chunk int) {
	e.k.BulkWait(0, ".read")
	if later := chunk - 1 + dhSlots; later < e.chunks {
		e.load(later)
	}
}

// differentiate puts dH in the place of half a chunk of H, and A' in its slot,
// and adds to the sums of dA'·A.
func (e *dhEpilogue) differentiate(chunk, half int, x activation, grad []ptx.F32) {
	k := e.k
	first := chunk*dhChunk%dhGroup == 0 && half == 0
	var gates, ups, weighted []ptx.BF16x2
	for i := range x.gates {
		h := i % 2 // of the thread's rows
		g0, g1 := x.gates[i].Unpack()
		u0, u1 := x.ups[i].Unpack()
		lo := neuronGradient(g0, u0, x.sigmoids[2*i], grad[2*i], e.score[h].Get())
		hi := neuronGradient(g1, u1, x.sigmoids[2*i+1], grad[2*i+1], e.score[h].Get())
		gates = append(gates, k.PackBF16(lo.gate, hi.gate))
		ups = append(ups, k.PackBF16(lo.up, hi.up))
		weighted = append(weighted, k.PackBF16(lo.weighted, hi.weighted))
		if first && i < 2 {
			e.sum[h] = grad[2*i].Mul(lo.a)
		} else {
			e.sum[h] = grad[2*i].Fma(lo.a, e.sum[h])
		}
		e.sum[h] = grad[2*i+1].Fma(hi.a, e.sum[h])
	}
	k.BarWarpSync(ptx.Uint(ptx.FullMask)) // what the warp overwrites, it has read
	e.staging.Store(e.slot(chunk), half, gates)
	e.staging.Store(e.slot(chunk).At(tile.NarrowBytes), half, ups)
	e.staging.Store(e.slotOfA(chunk), half, weighted)
}

// gradient is what one element of dA' gives.
type gradient struct{ gate, up, a, weighted ptx.F32 }

// neuronGradient: silu' is sigmoid + silu·(1 - sigmoid).
func neuronGradient(gate, up, sigmoid, grad, score ptx.F32) gradient {
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
	s, groups := e.s, e.chunks*dhChunk/dhGroup
	group := e.t.Column.MulI(groups).Add(e.lane)
	for h, sum := range e.joined {
		row := e.fragment.Row.AddI(8 * h)
		valid := row.Lt(s.rows).And(e.lane.LtI(groups)).And(group.LtI(e.neurons / dhGroup))
		at := e.partial.Index(s.row.Add(row), e.neurons/dhGroup*4).Index(group, 4)
		e.k.Guarded(valid, func() { ptx.StGlobal(at, sum) })
	}
}
