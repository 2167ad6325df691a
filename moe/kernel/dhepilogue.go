package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// dhEpilogue turns a warpgroup's dA' into dH, A' and the score's partial
// gradients, a group of 64 neurons at a time. Two slots of shared memory take
// turns: H of a group comes in by TMA, every thread replaces its own elements
// by dH, which go out by TMA. The first groups' H comes under the main loop.
type dhEpilogue struct {
	k *ptx.Kernel
	// groups is those of a tile, neurons those of an expert.
	groups, neurons        int
	h, dh, a               ptx.TensorMap
	scores, pairs, partial ptx.Global

	// slots is the warpgroup's memory: the slots of H, then one of A'. arrived
	// are the barriers of the slots of H.
	slots, arrived ptx.Shared
	parity         [dhSlots]*ptx.Var[ptx.U32] // of the next arrival in each slot
	fragment       tile.Fragment
	// word is where the thread's first word lies in a 64 x 64 tile.
	word ptx.U32
	lane ptx.U32 // in the quad
	// score is that of the thread's two rows of the present tile.
	score [2]ptx.F32
}

const (
	dhGroup     = 64 // neurons
	dhSlots     = 2
	dhSlotBytes = 2 * tile.StagingBytes // gate and up
	dhStaging   = dhSlots*dhSlotBytes + tile.StagingBytes
)

// barriers adds one for each slot.
func (e *dhEpilogue) barriers(set *pipeline.Setup, mem *pipeline.Shared) {
	for i := range 2 * dhSlots {
		at := set.Barrier(mem, 1)
		if i == 0 {
			e.arrived = at
		}
	}
}

// start finds the thread's place.
func (e *dhEpilogue) start(p *product) {
	wg, thread := p.tid.ShrI(7), p.tid.AndI(pipeline.WarpgroupThreads-1)
	e.slots, e.arrived = p.staging.Plus(wg.MulI(dhStaging)), e.arrived.Plus(wg.MulI(8*dhSlots))
	for i := range e.parity {
		e.parity[i] = ptx.NewVar(e.k, ptx.Uint(0))
	}
	e.fragment = tile.NewFragment(thread)
	e.lane = thread.AndI(3)
	e.word = tile.Swizzled(e.fragment.Row, ptx.Uint(0)).Add(e.lane.ShlI(2))
}

// before starts the loads that run under a tile's main loop.
func (e *dhEpilogue) before(s *storer, t schedule.Tile) {
	for h := range e.score {
		row := s.row.Add(e.fragment.Row.AddI(8 * h).Min(s.rows.SubI(1))) // rows past the end are dropped
		pair := ptx.LdGlobal[ptx.U32](e.pairs.Index(row, 4))
		e.score[h] = ptx.LdGlobal[ptx.F32](e.scores.Index(pair, 4))
	}
	e.k.If(s.elected, func() {
		e.k.BulkWait(0, ".read") // the previous tile's stores
		for i := range min(dhSlots, e.groups) {
			e.load(s, t, i)
		}
	})
}

// neuron is the first neuron of a group.
func (e *dhEpilogue) neuron(t schedule.Tile, group int) ptx.U32 {
	return t.Column.MulI(e.groups * dhGroup).AddI(group * dhGroup)
}

// load starts the load of a group's H; one thread. Rows past the expert's end
// are dropped with what comes of them.
func (e *dhEpilogue) load(s *storer, t schedule.Tile, group int) {
	slot := group % dhSlots
	full := e.arrived.At(8 * slot)
	e.k.MbarrierArriveExpectTx(full, ptx.Uint(dhSlotBytes))
	e.k.TMALoad(e.slots.At(slot*dhSlotBytes), e.h, full, e.neuron(t, group), s.row, ptx.Uint(0))
}

// store is the epilogue of a tile.
func (e *dhEpilogue) store(s *storer, t schedule.Tile, acc []ptx.F32) {
	k := e.k
	threads := ptx.Uint(pipeline.WarpgroupThreads)
	slotOfA := e.slots.At(dhSlots * dhSlotBytes)
	for i := range e.groups {
		slot, parity := e.slots.At(i%dhSlots*dhSlotBytes), e.parity[i%dhSlots]
		pipeline.WaitParity(k, e.arrived.At(8*(i%dhSlots)), parity.Get())
		parity.Set(parity.Get().XorI(1))
		if i > 0 {
			k.If(s.elected, func() {
				k.BulkWait(0, ".read") // the stores of the group before
				if next := i + 1; next >= dhSlots && next < e.groups {
					e.load(s, t, next)
				}
			})
		}
		weighted := e.differentiate(s, t, i, slot, acc[32*i:32*i+32])
		if i > 0 {
			// The slot of A' is free: for the first group H's arrival says so.
			k.BarSync(s.barrier, threads)
		}
		s.staging.Store(slotOfA, weighted)
		k.FenceProxyAsync(".shared::cta")
		k.BarSync(s.barrier, threads)
		k.If(s.elected, func() {
			neuron, clipped, row := e.neuron(t, i), ptx.Uint(warpgroupRows).Sub(s.rows), s.row.Add(s.rows)
			k.TMAStore(e.dh, slot, neuron, clipped, row, ptx.Uint(0))
			k.TMAStore(e.a, slotOfA, neuron, clipped, row)
			k.BulkCommit()
		})
	}
}

// differentiate replaces the thread's elements of H in a slot by dH, stores
// the sums of dA'·A and gives A'.
func (e *dhEpilogue) differentiate(s *storer, t schedule.Tile, group int, slot ptx.Shared, grad []ptx.F32) (weighted []ptx.F32) {
	// The word of columns 8j + 2·lane and the next of the thread's row h.
	at := slot.Addr().Add(e.word)
	word := func(j, h int) ptx.Shared {
		return ptx.SharedAt(at.XorI(j << 4)).At(8 * h * tile.RowBytes)
	}
	var gates, ups [16]ptx.BF16x2
	for i := range gates {
		w := word(i/2, i%2)
		gates[i] = ptx.LdShared[ptx.U32](w).AsBF16x2()
		ups[i] = ptx.LdShared[ptx.U32](w.At(tile.StagingBytes)).AsBF16x2()
	}
	weighted = make([]ptx.F32, len(grad))
	var sum [2]ptx.F32
	for i := range gates {
		h := i % 2
		g0, g1 := gates[i].Unpack()
		u0, u1 := ups[i].Unpack()
		x, y := e.neuronGradient(g0, u0, grad[2*i], e.score[h]), e.neuronGradient(g1, u1, grad[2*i+1], e.score[h])
		w := word(i/2, h)
		ptx.StShared(w, e.k.PackBF16(x.gate, y.gate).Bits())
		ptx.StShared(w.At(tile.StagingBytes), e.k.PackBF16(x.up, y.up).Bits())
		weighted[2*i], weighted[2*i+1] = x.weighted, y.weighted
		if i < 2 {
			sum[h] = grad[2*i].Mul(x.a)
		} else {
			sum[h] = grad[2*i].Fma(x.a, sum[h])
		}
		sum[h] = grad[2*i+1].Fma(y.a, sum[h])
	}
	e.storePartial(s, e.neuron(t, group), sum)
	return weighted
}

// gradient is what one element of dA' gives.
type gradient struct{ gate, up, a, weighted ptx.F32 }

// neuronGradient: silu' is sigmoid + silu·(1 - sigmoid).
func (e *dhEpilogue) neuronGradient(gate, up, grad, score ptx.F32) gradient {
	sig := sigmoid(gate)
	act := gate.Mul(sig)
	slope := act.Fma(ptx.Float(1).Sub(sig), sig)
	a, da := act.Mul(up), score.Mul(grad)
	return gradient{gate: da.Mul(up).Mul(slope), up: da.Mul(act), a: a, weighted: score.Mul(a)}
}

// storePartial sums over the quad and stores the thread's rows' sums.
func (e *dhEpilogue) storePartial(s *storer, neuron ptx.U32, sum [2]ptx.F32) {
	k := e.k
	perRow := e.neurons / dhGroup
	for h := range sum {
		for _, lanes := range []int{1, 2} {
			sum[h] = sum[h].Add(sum[h].Bits().ShflXor(lanes).AsF32())
		}
		row := e.fragment.Row.AddI(8 * h)
		mine := e.lane.EqI(0).And(row.Lt(s.rows)).And(neuron.LtI(e.neurons))
		k.If(mine, func() {
			of := e.partial.Index(s.row.Add(row), 4*perRow)
			ptx.StGlobal(of.Index(neuron.DivI(dhGroup), 4), sum[h])
		})
	}
}
