package emu

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"sonicmoe/ptx/emu/internal/causal"
)

// cta is one CTA: its warps and its shared memory.
type cta struct {
	cluster *cluster
	rank    int // in the cluster
	index   [3]int
	// inCluster is the CTA's position in its cluster, linear its number in the grid.
	inCluster [3]int
	linear    int
	warps     []*warp
	groups    []*warpgroup
	shared    *sharedMemory
	bars      [16]namedBarrier
	// freeRegs is the pool that setmaxnreg.dec fills, in registers per thread of one warp.
	freeRegs int
	// triggered is set when a warp has executed griddepcontrol.launch_dependents; atTrigger is
	// the set of earlier launches known to have ended at that time.
	triggered bool
	atTrigger causal.Launches
	// visits holds, for each component of the clock, the latest access that the CTA must outlive.
	visits map[int]*access
}

// cluster is a cluster of CTAs. Its warps take turns in one goroutine.
type cluster struct {
	grid   *grid
	number int64  // in the grid
	index  [3]int // position of the cluster in the grid, whose shape in clusters is count
	count  [3]int
	ctas   []*cta
	warps  []*warp
	rng    *rand.Rand
	last   *allocation // the allocation of global memory that the latest access found
	loads  []*bulkLoad
	events uint64
	order  uint64 // sequence number of the next asynchronous copy
	fault  *Fault
	races  *races // nil if races are not looked for
	// counter counts for a report, timeline is a part of the report; nil if no report is
	// wanted.
	counter  *counter
	timeline *Timeline
	// schedule is the order in which the grid's warps run if the launch's order is Chosen. Otherwise
	// it is nil.
	schedule *schedule
	// unwritten is the first read of uninitialised shared memory, if races are looked for. A
	// write that comes later turns it into a race with that writer.
	unwritten *Fault

	barrier clusterBarrier
	steps   uint64
	idle    int  // instructions executed since the cluster last changed anything
	polls   int  // mbarrier polls that failed since the last event
	polled  bool // the cluster has executed atomics, acquiring loads or mbarrier tests since its last progress
	looked  bool // the cluster has executed other loads of global memory since its last progress
	moved   bool // the cluster has made progress in this round
	finite  bool // no NaN or infinity has been noted, if they are looked for
	fresh   bool // the cluster has changed something since it last looked for cycles
	cycle   cycle
	others  uint64 // the grid's progress count when this cluster was parked
}

// event records a change after which waiting fragments may be able to continue.
func (cl *cluster) event() {
	cl.events++
	cl.polls = 0
	cl.progress()
}

// progress records that the cluster did something other than poll.
func (cl *cluster) progress() {
	cl.idle, cl.moved, cl.polled, cl.looked, cl.fresh = 0, true, false, false, true
}

// status is the state of a cluster when run returns.
type status uint8

const (
	finished status = iota
	parked          // the cluster polls global memory: another cluster should run
	broken          // fault is set
	stopped         // the launch was cancelled
)

const (
	quantum   = 256     // instructions that a warp executes in one turn
	parkAfter = 1 << 15 // idle instructions after which a polling cluster is parked
	// computeLimit is the factor by which a cluster that does not poll may run longer: it
	// computes, or loops for ever.
	computeLimit = 64
)

// run executes the cluster until it ends, faults or spins.
func (cl *cluster) run() status {
	s := broken
	cl.guarded(func() { s = cl.rounds() })
	return s
}

// rounds gives the warps their turns until the cluster ends or spins.
func (cl *cluster) rounds() status {
	random := cl.grid.launch.Timing == Random
	for round := 0; ; round++ {
		ran, alive := false, false
		for i := range cl.warps {
			w := cl.warps[i]
			limit := quantum
			if random {
				w = cl.warps[cl.rng.IntN(len(cl.warps))]
				limit = 1 + cl.rng.IntN(64)
			}
			if w.live == 0 {
				continue
			}
			alive = true
			f := w.pick()
			if cl.timeline != nil {
				limit = 1
				cl.timeline.turn(w, f)
			}
			if f != nil {
				if n := w.run(f, limit); n > 0 {
					ran = true
					cl.idle += n
					cl.steps += uint64(n)
				}
			}
			if random && cl.rng.IntN(4) == 0 {
				cl.completeRandom()
			}
		}
		if !alive && cl.ended() {
			cl.finish()
			return finished
		}
		if s, stop := cl.between(ran, random, round); stop {
			return s
		}
	}
}

// between decides what happens after each warp has had its turn.
func (cl *cluster) between(ran, random bool, round int) (status, bool) {
	if cl.timeline != nil {
		cl.endTurn()
	}
	if cl.moved {
		cl.moved = false
		cl.grid.progress.Add(1)
	}
	switch {
	case cl.grid.stop.Load():
		return stopped, true
	case !ran && random && round%8 != 0:
		// The random choice may just have missed the warps that can run.
	case !ran && !cl.runnable(), cl.polls > 4*len(cl.warps):
		cl.polls = 0
		if !cl.completeOldest() && !ran {
			cl.deadlock()
		}
	case cl.idle > cycleAfter && cl.repeats(round) && cl.grid.hopeless(cl):
		if !cl.completeOldest() && !cl.finishStores() {
			cl.cycling()
		}
	case cl.idle > cl.grid.spinLimit && cl.polled, cl.idle > computeLimit*cl.grid.spinLimit:
		cl.spinning()
	case cl.idle > parkAfter && cl.polled, cl.idle > computeLimit*parkAfter && cl.looked:
		return parked, true
	}
	return 0, false
}

func (cl *cluster) ended() bool {
	for _, w := range cl.warps {
		if w.live != 0 {
			return false
		}
	}
	return true
}

func (cl *cluster) runnable() bool {
	for _, w := range cl.warps {
		for _, f := range w.frags {
			if !f.stuck || f.since != cl.events {
				return true
			}
		}
	}
	return false
}

// finish checks what is still pending when the cluster ends.
func (cl *cluster) finish() {
	for _, c := range cl.ctas {
		for _, w := range c.warps {
			w.bulkAtExit()
			w.copiesAtExit()
		}
	}
	if cl.unwritten != nil {
		cl.fault = cl.unwritten
		panic(cl.fault)
	}
	for _, c := range cl.ctas {
		if cl.races != nil {
			cl.races.exits(c)
		}
	}
	for _, l := range cl.loads {
		l.warp.fault(l.in, AsyncPending, 1<<l.lane, "the CTA ended while a load of %d bytes to shared address %#x was in flight: wait for its mbarrier first", l.size, l.dst)
	}
}

// fault ends the cluster's run with a fault: it panics, and guarded recovers. It returns after
// findings for which the launch goes on, and after a read of uninitialised shared memory if races
// are looked for.
func (w *warp) fault(in *inst, kind FaultKind, lanes uint32, format string, args ...any) outcome {
	return w.find(in, Error, kind, lanes, fmt.Sprintf(format, args...))
}

// find is fault with a severity.
func (w *warp) find(in *inst, severity Severity, kind FaultKind, lanes uint32, text string) outcome {
	cl := w.cta.cluster
	f := &Fault{Kind: kind, Severity: severity, Kernel: cl.grid.kernel.entry.Name, Line: in.line, Where: cl.grid.where(in.line),
		CTA: w.cta.index, Warp: w.id, Lanes: lanes, Text: text}
	switch {
	case cl.grid.goesOn(f):
		return next
	case kind == Race || kind == ProxyRace || kind == CTALifetime || cl.races == nil:
	case kind == UninitializedShared:
		if cl.unwritten == nil {
			cl.unwritten = f
		}
		return next
	case cl.unwritten != nil:
		f = cl.unwritten // the earlier read of unwritten memory is probably the cause
	}
	cl.fault = f
	panic(f)
}

// goesOn reports whether the launch goes on after a finding.
func (g *grid) goesOn(f *Fault) bool {
	if f.Severity != Note && !slices.Contains(harmless, f.Kind) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch l := &g.launch; {
	case l.Known != nil && l.Known(f):
		return true
	case l.GoOn != nil:
		return l.GoOn(f)
	}
	return f.Severity == Note
}

// harmless are the kinds of findings after which the emulator can go on.
var harmless = []FaultKind{Race, ProxyRace, UninitializedShared, CTALifetime}

// deny is a fault of some lanes if there is a problem.
func (w *warp) deny(in *inst, lanes uint32, p *problem) {
	if p != nil {
		w.find(in, p.severity, p.kind, lanes, in.form.Op+": "+p.text)
	}
}

// guarded does a part of the cluster's work and reports whether it ended without a fault.
func (cl *cluster) guarded(work func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil && p != any(cl.fault) {
			panic(p)
		}
	}()
	work()
	return true
}
