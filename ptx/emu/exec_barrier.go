package emu

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"sonicmoe/ptx/emu/internal/causal"
	"sonicmoe/ptx/isa"
)

// namedBarrier is one of the 16 barriers of a CTA.
type namedBarrier struct {
	gen     uint64 // completed generations
	threads int    // threads that this generation expects; 0 before the first arrival
	arrived int
	// Field by lists the warps that arrived in this generation. Field before lists the warps that
	// arrived in the previous one. Fault messages use both lists.
	by, before []int
	now, done  causal.Knowledge // arriving warps publish to now; leaving warps acquire done
	votes      [2]votes         // votes of the present and of the previous generation, at index gen&1
}

// votes combines the predicates that the threads bring to a bar.red.
type votes struct {
	count  int
	misses bool // some thread's predicate is false
}

func barrierForms() handlers {
	all := handlers{
		isa.ClusterArrive: {do: clusterArrive, waits: waitsForCluster},
		isa.ClusterWait:   {exec: clusterWaitExec, waits: waitsForCluster},
		isa.FenceProxyAsync: {do: func(w *warp, in *inst, mask uint32) {
			global := in.has(".global")
			if !global {
				for l := range lanesIn(mask) {
					w.cta.shared.proxy.fence(w.id*warpLanes + l)
				}
			}
			if r := w.cta.cluster.races; r != nil {
				r.fenceProxy(w, !global, global || in.mod("space") == "")
			}
		}},
	}
	all.same(handler{do: barArrive}, isa.BarArrive, isa.BarrierArrive)
	all.same(handler{exec: barSync, waits: waitsAtBarrier, at: namedBarrierAt}, isa.BarSync, isa.BarrierSync)
	all.same(handler{exec: barReduce, waits: waitsAtBarrier, at: namedBarrierAt}, isa.BarRed, isa.BarRedPopc)
	return all
}

// arriveNamed records the arrival of a warp at a named barrier.
func (w *warp) arriveNamed(in *inst, mask uint32) {
	number, count := 0, 1 // indices of the operands: the barrier's number and the count of threads
	if in.form.Args[0].Dir == isa.Out {
		number, count = 1, len(in.args)
	}
	id, same := uniform(&w.r32[in.slot[number]], mask)
	if !same || id > 15 {
		w.fault(in, BarrierMisuse, mask, "%s: the barrier is %d in the first lane, want 0 to 15 and the same in all lanes", in.form.Op, id)
	}
	threads := uint32(len(w.cta.warps) * warpLanes)
	if len(in.args) > count {
		if threads, same = uniform(&w.r32[in.slot[count]], mask); !same || threads == 0 || threads%warpLanes != 0 {
			w.fault(in, BarrierMisuse, mask, "%s: barrier %d for %d threads, want a multiple of 32 and the same in all lanes", in.form.Op, id, threads)
		}
	}
	if have := uint32(len(w.cta.warps) * warpLanes); threads > have {
		w.fault(in, BarrierMisuse, mask, "%s: barrier %d for %d threads, but the CTA has %d", in.form.Op, id, threads, have)
	}
	b := &w.cta.bars[id]
	if b.arrived > 0 && b.threads != int(threads) {
		w.fault(in, BarrierMisuse, mask, "%s: barrier %d for %d threads, but this generation began with %d (%s)",
			in.form.Op, id, threads, b.threads, plural("warp", b.by))
	}
	b.threads = int(threads)
	b.arrived += warpLanes
	b.by = append(b.by, w.id)
	if r := w.cta.cluster.races; r != nil {
		r.release(w, mask, &b.now)
	}
	w.cta.usesBarrier(namedBarrierObject, uint64(id), toArrive, b.gen, b.arrived == b.threads, nil)
	if b.arrived == b.threads {
		b.gen++
		b.arrived, b.threads = 0, 0
		b.by, b.before = b.before[:0], b.by
		b.done.Join(&b.now)
		b.now.Clear()
		w.cta.cluster.event()
	}
}

func barArrive(w *warp, in *inst, mask uint32) {
	w.arriveNamed(in, mask)
}

// mayJoin reports whether lanes of the warp are still on their way to the instruction at which f is.
// Threads arrive at a barrier one by one, and the hardware counts a warp when its last thread
// arrives.
func (w *warp) mayJoin(f *frag) bool {
	return slices.ContainsFunc(w.frags, func(g *frag) bool { return g != f && g.mask != 0 && g.before(f) })
}

func barSync(w *warp, f *frag, in *inst, mask uint32) outcome {
	if !f.begun && mask == f.mask && mask != w.live && w.mayJoin(f) {
		f.apart = true
		return waiting
	}
	if !f.begun {
		id := w.r32[in.slot[0]][first(mask)] & 15
		gen := w.cta.bars[id].gen
		w.arriveNamed(in, mask)
		f.begun, f.gen = true, gen
	}
	if w.cta.bars[w.r32[in.slot[0]][first(mask)]].gen == f.gen {
		return waiting
	}
	f.begun = false
	w.cta.usesBarrier(namedBarrierObject, uint64(w.r32[in.slot[0]][first(mask)]), toWait, f.gen, false, nil)
	if r := w.cta.cluster.races; r != nil {
		r.acquire(w, mask, &w.cta.bars[w.r32[in.slot[0]][first(mask)]].done)
	}
	return next
}

// barrierNumber returns the number of the named barrier that an instruction uses. The number is an
// operand, which is read in a lane of fragment f.
func barrierNumber(w *warp, f *frag, in *inst) int {
	number := 0
	if in.form.Args[0].Dir == isa.Out {
		number = 1
	}
	return int(w.r32[in.slot[number]][first(f.mask)] & 15)
}

// namedBarrierAt returns the name of the barrier at which fragment f waits, for messages.
func namedBarrierAt(w *warp, f *frag, in *inst) string {
	return w.cta.cluster.grid.kernel.namedBarrierName(barrierNumber(w, f, in))
}

func waitsAtBarrier(w *warp, f *frag, in *inst) need {
	id := barrierNumber(w, f, in)
	b := &w.cta.bars[id]
	n := need{what: fmt.Sprintf("waits at %s: %d of %d threads have arrived (%s)", w.cta.cluster.grid.kernel.namedBarrierName(id),
		b.arrived, b.threads, plural("warp", b.by))}
	// Name the warps that arrived in the previous generation and have not arrived yet. If there was
	// none, and the barrier counts all threads of the CTA, name every warp that has not arrived.
	for _, x := range w.cta.warps {
		if !slices.Contains(b.by, x.id) && (b.before == nil || slices.Contains(b.before, x.id)) {
			n.from = append(n.from, x)
		}
	}
	switch {
	case len(n.from) == 0:
	case b.before != nil:
		n.how = w.cta.cluster.whereabouts(n.from) + " should arrive, as before"
	case b.threads == len(w.cta.warps)*warpLanes:
		n.how = w.cta.cluster.whereabouts(n.from) + " should arrive"
	default:
		n.how = "other warps of the CTA: " + strings.TrimSuffix(w.cta.cluster.whereabouts(n.from), ",")
	}
	return n
}

// barReduce executes bar.red: a barrier of the whole CTA that combines predicates.
func barReduce(w *warp, f *frag, in *inst, mask uint32) outcome {
	id := w.r32[in.slot[1]][first(mask)] & 15
	b := &w.cta.bars[id]
	if !f.begun {
		holds := w.pred(&in.args[2]) & mask
		sum := &b.votes[b.gen&1]
		sum.count += bits.OnesCount32(holds)
		sum.misses = sum.misses || holds != mask
		gen := b.gen
		w.arriveNamed(in, mask)
		if b.gen != gen { // this arrival completed the generation: clear the votes of the next one
			b.votes[b.gen&1] = votes{}
		}
		f.begun, f.gen = true, gen
	}
	if b.gen == f.gen {
		return waiting
	}
	f.begun = false
	if r := w.cta.cluster.races; r != nil {
		r.acquire(w, mask, &b.done)
	}
	result := b.votes[f.gen&1]
	d := &in.args[0]
	if in.form.ID == isa.BarRedPopc {
		for l := range lanesIn(mask) {
			w.r32[d.slot][l] = uint32(result.count)
		}
		return next
	}
	holds := result.count > 0
	if in.has(".and") {
		holds = !result.misses
	}
	w.setPred(d.slot, -uint32(choose(holds)), mask)
	return next
}
