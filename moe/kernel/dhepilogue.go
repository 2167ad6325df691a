package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// dhEpilogue turns a warpgroup's dA' into dH, A' and the score's partial
// gradients, a group of 64 neurons at a time. Each group has its own slots of
// shared memory: H comes into one by TMA under the main loop, the threads put
// dH in its place and A' into another, and both go out by TMA, with the whole
// next main loop to do so.
type dhEpilogue struct {
	k *ptx.Kernel
	// groups is those of a tile, neurons those of an expert.
	groups, neurons        int
	h, dh, a               ptx.TensorMap
	scores, pairs, partial ptx.Global

	memory, barrier ptx.Shared        // of both warpgroups
	turn            *ptx.Var[ptx.U32] // parity of the tiles so far
	// slots is the warpgroup's memory, arrived its barriers, one a group.
	slots, arrived ptx.Shared
	staging        tile.Staging
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
	dhGroup  = 64           // neurons of a partial sum
	dhWidest = dhTileN / 64 // groups of a tile
	// dhTileN is the one width of a tile: slots for all of a wider one's groups
	// don't fit, and waiting for slots costs more than loading dO twice.
	dhTileN     = 128
	dhSlotBytes = 3 * tile.StagingBytes // gate and up, A'
	dhStaging   = dhWidest * dhSlotBytes
)

// barriers adds one for each slot.
func (e *dhEpilogue) barriers(set *pipeline.Setup, mem *pipeline.Shared) {
	for i := range 2 * dhWidest {
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
	e.slots, e.arrived = e.memory.Plus(wg.MulI(dhStaging)), e.barrier.Plus(wg.MulI(8*dhWidest))
	e.staging, e.fragment = tile.NewStaging(e.k, thread), tile.NewFragment(thread)
	e.lane = thread.AndI(3)
}

// start makes what outlives a tile.
func (e *dhEpilogue) start(memory ptx.Shared) {
	e.memory, e.turn = memory, ptx.NewVar(e.k, ptx.Uint(0))
	for h := range e.score {
		e.score[h] = ptx.NewVar(e.k, ptx.Float(0))
	}
}

// before notes the tile and asks where its rows' scores are.
func (e *dhEpilogue) before(s *storer, t schedule.Tile) {
	e.place()
	e.s, e.t = s, t
	for h := range e.pair {
		row := s.row.Add(e.fragment.Row.AddI(8 * h).Min(s.rows.SubI(1))) // rows past the end are dropped
		e.pair[h] = ptx.LdGlobal[ptx.U32](e.pairs.Index(row, 4))
	}
}

// during starts the loads that would have had to wait ahead of the main loop:
// the scores', whose addresses come from memory, and H's, whose slots the last
// tile's stores have read by now.
func (e *dhEpilogue) during(kt ptx.U32) {
	e.k.If(kt.EqI(1), func() {
		for h, pair := range e.pair {
			e.score[h].Set(ptx.LdGlobal[ptx.F32](e.scores.Index(pair, 4)))
		}
		e.k.If(e.s.elected, func() {
			e.k.BulkWait(0, ".read")
			for i := range e.groups {
				e.load(i)
			}
		})
	})
}

// neuron is the first neuron of a group.
func (e *dhEpilogue) neuron(group int) ptx.U32 {
	return e.t.Column.MulI(e.groups * dhGroup).AddI(group * dhGroup)
}

// slots of a group: gate, up and A'.
func (e *dhEpilogue) slot(group int) (gate, up, a ptx.Shared) {
	at := e.slots.At(group * dhSlotBytes)
	return at, at.At(tile.StagingBytes), at.At(2 * tile.StagingBytes)
}

// load starts the load of a group's H; one thread. Rows past the expert's end
// are dropped with what comes of them.
func (e *dhEpilogue) load(group int) {
	full := e.arrived.At(8 * group)
	gate, _, _ := e.slot(group)
	e.k.MbarrierArriveExpectTx(full, ptx.Uint(2*tile.StagingBytes))
	e.k.TMALoad(gate, e.h, full, e.neuron(group), e.s.row, ptx.Uint(0))
}

// store is the epilogue of a tile.
func (e *dhEpilogue) store(_ *storer, _ schedule.Tile, acc []ptx.F32) {
	e.place()
	for i := range e.groups {
		pipeline.WaitParity(e.k, e.arrived.At(8*i), e.turn.Get())
		for q := range dhGroup / 16 {
			e.differentiate(i, q, acc[32*i+8*q:][:8])
		}
		e.join(i)
		e.send(i)
	}
	e.storePartials()
	e.turn.Set(e.turn.Get().XorI(1))
}

// send starts the stores of a group that is in its slots.
func (e *dhEpilogue) send(group int) {
	k, s := e.k, e.s
	k.FenceProxyAsync(".shared::cta")
	k.BarSync(s.barrier, ptx.Uint(pipeline.WarpgroupThreads))
	k.If(s.elected, func() {
		neuron, clipped, row := e.neuron(group), ptx.Uint(warpgroupRows).Sub(s.rows), s.row.Add(s.rows)
		gate, _, a := e.slot(group)
		k.TMAStore(e.dh, gate, neuron, clipped, row, ptx.Uint(0))
		k.TMAStore(e.a, a, neuron, clipped, row)
		k.BulkCommit()
	})
}

// differentiate puts dH in the place of 16 columns of H, and A' in its slot,
// and adds to the sums of dA'·A.
func (e *dhEpilogue) differentiate(group, q int, grad []ptx.F32) {
	k := e.k
	gateSlot, upSlot, aSlot := e.slot(group)
	gates, ups := e.staging.Load(gateSlot, q), e.staging.Load(upSlot, q)
	var weighted []ptx.BF16x2
	for i := range gates {
		h := i % 2 // of the thread's rows
		g0, g1 := gates[i].Unpack()
		u0, u1 := ups[i].Unpack()
		lo := neuronGradient(g0, u0, grad[2*i], e.score[h].Get())
		hi := neuronGradient(g1, u1, grad[2*i+1], e.score[h].Get())
		gates[i], ups[i] = k.PackBF16(lo.gate, hi.gate), k.PackBF16(lo.up, hi.up)
		weighted = append(weighted, k.PackBF16(lo.weighted, hi.weighted))
		if q == 0 && i < 2 {
			e.sum[h] = grad[2*i].Mul(lo.a)
		} else {
			e.sum[h] = grad[2*i].Fma(lo.a, e.sum[h])
		}
		e.sum[h] = grad[2*i+1].Fma(hi.a, e.sum[h])
	}
	k.BarWarpSync(ptx.Uint(ptx.FullMask)) // what the warp overwrites, it has read
	e.staging.StoreWords(gateSlot, q, gates)
	e.staging.StoreWords(upSlot, q, ups)
	e.staging.StoreWords(aSlot, q, weighted)
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
