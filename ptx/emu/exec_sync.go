package emu

import (
	"fmt"
	"strings"

	"sonicmoe/ptx/isa"
)

// namedBarrier is one of the 16 barriers of a CTA.
type namedBarrier struct {
	gen     uint64 // completed generations
	threads int    // expected in this generation, 0 before the first arrival
	arrived int
	by      []string // who arrived, for messages
}

func barrierForms() map[isa.ID]handler {
	cluster := func(exec execFunc) handler { return handler{exec: exec, waits: waitsForCluster} }
	return map[isa.ID]handler{
		isa.BarSync:       {exec: barSync, waits: waitsAtBarrier},
		isa.BarArrive:     {exec: barArrive},
		isa.ClusterArrive: cluster(clusterArrive),
		isa.ClusterWait:   cluster(clusterWaitExec),
		isa.FenceProxyAsync: {exec: func(w *warp, _ *frag, _ *inst, _ uint32) outcome {
			return next
		}},
	}
}

// arriveNamed counts a warp in at a named barrier.
func (w *warp) arriveNamed(in *inst, mask uint32) (*namedBarrier, outcome) {
	id, same := w.uniform32(in.slot[0], mask)
	if !same || id > 15 {
		return nil, w.fault(in, BarrierMisuse, mask, "%s: the barrier is %d in the first lane: must be one of 0 to 15 and the same in all lanes", in.form.Op, id)
	}
	threads := uint32(len(w.cta.warps) * warpLanes)
	if len(in.args) > 1 {
		if threads, same = w.uniform32(in.slot[1], mask); !same || threads == 0 || threads%warpLanes != 0 {
			return nil, w.fault(in, BarrierMisuse, mask, "%s: barrier %d for %d threads: must be a multiple of 32 and the same in all lanes", in.form.Op, id, threads)
		}
	}
	if have := uint32(len(w.cta.warps) * warpLanes); threads > have {
		return nil, w.fault(in, BarrierMisuse, mask, "%s: barrier %d for %d threads in a CTA of %d", in.form.Op, id, threads, have)
	}
	b := &w.cta.bars[id]
	if b.arrived > 0 && b.threads != int(threads) {
		return nil, w.fault(in, BarrierMisuse, mask, "%s: barrier %d for %d threads, but this generation began with %d (%s)",
			in.form.Op, id, threads, b.threads, strings.Join(b.by, ", "))
	}
	b.threads = int(threads)
	b.arrived += warpLanes
	b.by = append(b.by, fmt.Sprintf("warp %d", w.id))
	if b.arrived == b.threads {
		b.gen++
		b.arrived, b.threads, b.by = 0, 0, b.by[:0]
		w.cta.cluster.event()
	}
	return b, next
}

func barArrive(w *warp, _ *frag, in *inst, mask uint32) outcome {
	_, out := w.arriveNamed(in, mask)
	return out
}

func barSync(w *warp, f *frag, in *inst, mask uint32) outcome {
	if !f.begun {
		id := w.r32[in.slot[0]][first(mask)] & 15
		gen := w.cta.bars[id].gen
		if _, out := w.arriveNamed(in, mask); out != next {
			return out
		}
		f.begun, f.gen = true, gen
	}
	if w.cta.bars[w.r32[in.slot[0]][first(mask)]].gen == f.gen {
		return waiting
	}
	f.begun = false
	return next
}

func waitsAtBarrier(w *warp, f *frag, in *inst) string {
	id := w.r32[in.slot[0]][first(f.mask)]
	b := &w.cta.bars[id&15]
	return fmt.Sprintf("waits at named barrier %d: %d of %d threads have arrived (%s)", id, b.arrived, b.threads, strings.Join(b.by, ", "))
}

// clusterBarrier is the one barrier of a cluster.
type clusterBarrier struct {
	gen uint64
}

// clusterWait is a warp's part in it.
type clusterWait struct {
	arrived uint32 // lanes that arrived in the present generation
	owed    uint32 // lanes that arrived and have not waited yet
	target  [warpLanes]uint64
}

// clusterCheck ends the generation when all lanes that have not exited have
// arrived, at least one of them.
func (cl *cluster) clusterCheck() {
	some := false
	for _, w := range cl.warps {
		if w.live&^w.cluster.arrived != 0 {
			return
		}
		some = some || w.cluster.arrived != 0
	}
	if !some {
		return
	}
	cl.barrier.gen++
	for _, w := range cl.warps {
		w.cluster.arrived = 0
	}
	cl.event()
}

func clusterArrive(w *warp, _ *frag, in *inst, mask uint32) outcome {
	c := &w.cluster
	if twice := mask & c.owed; twice != 0 {
		return w.fault(in, BarrierMisuse, twice, "barrier.cluster.arrive a second time without barrier.cluster.wait between")
	}
	c.arrived |= mask
	c.owed |= mask
	for m := mask; m != 0; m &= m - 1 {
		c.target[first(m)] = w.cta.cluster.barrier.gen + 1
	}
	w.cta.cluster.clusterCheck()
	return next
}

func clusterWaitExec(w *warp, _ *frag, in *inst, mask uint32) outcome {
	c := &w.cluster
	if bad := mask &^ c.owed; bad != 0 {
		return w.fault(in, BarrierMisuse, bad, "barrier.cluster.wait without barrier.cluster.arrive before")
	}
	w.cta.cluster.clusterCheck() // lanes may have exited since
	for m := mask; m != 0; m &= m - 1 {
		if w.cta.cluster.barrier.gen < c.target[first(m)] {
			return waiting
		}
	}
	c.owed &^= mask
	return next
}

func waitsForCluster(w *warp, _ *frag, _ *inst) string {
	var missing []string
	for _, x := range w.cta.cluster.warps {
		if n := x.live &^ x.cluster.arrived; n != 0 {
			missing = append(missing, fmt.Sprintf("CTA %d warp %d %s", x.cta.rank, x.id, laneList(n)))
		}
	}
	return "waits at the cluster barrier for " + strings.Join(missing, ", ")
}
