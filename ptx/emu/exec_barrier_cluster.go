package emu

import (
	"sonicmoe/ptx/emu/internal/causal"
)

// clusterBarrier is the state of a cluster's barrier. A cluster has only one.
type clusterBarrier struct {
	gen       uint64
	now, done causal.Knowledge
}

// clusterWait is the state of a warp at the cluster barrier.
type clusterWait struct {
	arrived uint32 // lanes that arrived in the present generation
	owed    uint32 // lanes that arrived and have not waited yet
	target  [warpLanes]uint64
}

// clusterCheck completes the barrier's generation if every lane of the cluster that has not exited
// has arrived, and at least one lane has.
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
	cl.barrier.done.Join(&cl.barrier.now)
	cl.barrier.now.Clear()
	for _, w := range cl.warps {
		w.cluster.arrived = 0
	}
	cl.event()
}

func clusterArrive(w *warp, in *inst, mask uint32) {
	c := &w.cluster
	if twice := mask & c.owed; twice != 0 {
		w.fault(in, BarrierMisuse, twice, "a second barrier.cluster.arrive without a barrier.cluster.wait in between")
	}
	if r := w.cta.cluster.races; r != nil {
		if in.has(".relaxed") {
			r.releaseFenced(w, mask, &w.cta.cluster.barrier.now)
			w.cta.cluster.barrier.now.Seen.Set(r.component(w, componentOwn), startMoment)
		} else {
			r.release(w, mask, &w.cta.cluster.barrier.now)
		}
	}
	c.arrived |= mask
	c.owed |= mask
	for l := range lanesIn(mask) {
		c.target[l] = w.cta.cluster.barrier.gen + 1
	}
	gen := w.cta.cluster.barrier.gen
	w.cta.cluster.clusterCheck()
	w.usesClusterBarrier(toArrive, gen)
}

func clusterWaitExec(w *warp, _ *frag, in *inst, mask uint32) outcome {
	c := &w.cluster
	if bad := mask &^ c.owed; bad != 0 {
		return w.fault(in, BarrierMisuse, bad, "barrier.cluster.wait without barrier.cluster.arrive before")
	}
	w.cta.cluster.clusterCheck() // lanes that exited since the arrival may complete the generation
	for l := range lanesIn(mask) {
		if w.cta.cluster.barrier.gen < c.target[l] {
			return waiting
		}
	}
	c.owed &^= mask
	w.usesClusterBarrier(toWait, c.target[first(mask)]-1)
	if r := w.cta.cluster.races; r != nil {
		r.acquire(w, mask, &w.cta.cluster.barrier.done)
	}
	return next
}

func waitsForCluster(w *warp, _ *frag, _ *inst) need {
	var n need
	for _, x := range w.cta.cluster.warps {
		if x.live&^x.cluster.arrived != 0 {
			n.from = append(n.from, x)
		}
	}
	n.what = "waits at the cluster barrier for " + w.cta.cluster.warpNames(n.from)
	return n
}
