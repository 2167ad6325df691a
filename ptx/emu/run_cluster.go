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
	rank    int // rank of the CTA in its cluster
	index   [3]int
	// inCluster is the CTA's position in its cluster. linear is its number in the grid.
	inCluster [3]int
	linear    int
	warps     []*warp
	groups    []*warpgroup
	shared    *sharedMemory
	bars      [16]namedBarrier
	// freeRegs is the CTA's pool of registers, which setmaxnreg.dec fills, in registers per thread
	// of one warp.
	freeRegs int
	// triggered is set when a warp has executed griddepcontrol.launch_dependents. atTrigger is the
	// set of earlier launches that were known to have ended then.
	triggered bool
	atTrigger causal.Launches
	// visits holds, for each component of the race checks' clock, the latest access to the CTA's
	// shared memory that must be done before the CTA ends.
	visits map[int]*access
	// trace records the CTA for the launch's trace. It is nil if the CTA is not recorded.
	trace *CTATrace
}

// cluster is a cluster of CTAs. Its warps take turns in one goroutine.
type cluster struct {
	grid   *grid
	number int64  // number of the cluster in the grid
	index  [3]int // position of the cluster in the grid; count is the grid's shape in clusters
	count  [3]int
	ctas   []*cta
	warps  []*warp
	rng    *rand.Rand
	last   *allocation // allocation of global memory that the latest access found
	loads  []*bulkLoad
	events uint64
	order  uint64 // sequence number of the next asynchronous copy
	fault  *Fault
	races  *races // nil without race checks
	// counter counts for the report, and timeline is a part of the report. Both are nil if no
	// report is wanted.
	counter  *counter
	timeline *Timeline
	traced   bool // some CTA of the cluster is recorded for a trace
	// schedule is the order in which the grid's warps run, if Timing is Chosen; else nil.
	schedule *schedule
	// unwritten is the first read of uninitialised shared memory, with race checks. If a write of
	// the bytes follows, the finding becomes a race with this write.
	unwritten *Fault

	barrier clusterBarrier
	steps   uint64
	idle    int  // warp instructions executed since the cluster last made progress
	polls   int  // mbarrier polls that failed since event was last called
	polled  bool // since its last progress the cluster has executed atomics, acquiring loads or mbarrier tests
	looked  bool // since its last progress the cluster has executed other loads of global memory
	moved   bool // the cluster has made progress in this round
	finite  bool // NaNs and infinities are looked for, and none has been found
	fresh   bool // the cluster has changed something since it last looked for cycles
	cycle   cycle
	others  uint64 // the grid's count of progress when this cluster was parked
}

// event records a change after which a waiting fragment may be able to continue.
func (cl *cluster) event() {
	cl.events++
	cl.polls = 0
	cl.progress()
}

// progress records that the cluster did something other than poll.
func (cl *cluster) progress() {
	cl.idle, cl.moved, cl.polled, cl.looked, cl.fresh = 0, true, false, false, true
}

// status says why [cluster.run] has returned.
type status uint8

const (
	finished status = iota
	parked          // the cluster polls global memory; another cluster should run
	broken          // the cluster has a fault
	stopped         // the launch was cancelled
)

const (
	quantum   = 256     // warp instructions that a fragment executes in one turn
	parkAfter = 1 << 15 // number of idle instructions after which a polling cluster is parked
	// computeLimit is the factor by which a cluster that does not poll may run longer than one that
	// polls. A cluster that does not poll may have much to compute, or it may loop for ever.
	computeLimit = 64
)

// run executes the cluster until it ends, has a fault or makes no progress.
func (cl *cluster) run() status {
	s := broken
	cl.guarded(func() { s = cl.rounds() })
	return s
}

// rounds gives each warp a turn in each round, until the cluster ends or makes no progress.
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
			if cl.timeline != nil || cl.traced {
				limit = 1
				cl.turn(w, f)
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

// between decides after each round whether method run goes on. If it returns true, run ends with
// the returned status.
func (cl *cluster) between(ran, random bool, round int) (status, bool) {
	if cl.timeline != nil {
		cl.endTurn()
	}
	if cl.traced {
		cl.endTraces()
	}
	if cl.moved {
		cl.moved = false
		cl.grid.progress.Add(1)
	}
	switch {
	case cl.grid.stop.Load():
		return stopped, true
	case !ran && random && round%8 != 0:
		// The random choice may have missed the warps that can run, so try again.
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

// finish completes or reports the asynchronous work that is pending when the cluster ends.
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

// fault reports a broken rule. It ends the cluster's run by a panic, which guarded recovers. It
// returns only if the launch goes on after the finding, or after a read of uninitialised shared
// memory if races are looked for.
func (w *warp) fault(in *inst, kind FaultKind, lanes uint32, format string, args ...any) outcome {
	return w.find(in, Error, kind, lanes, fmt.Sprintf(format, args...))
}

// find reports a broken rule with a severity and a finished text. Otherwise it does the same as
// fault.
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

// goesOn reports whether the launch goes on after finding f.
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

// harmless lists the kinds of findings, besides notes, after which the emulator can go on.
var harmless = []FaultKind{Race, ProxyRace, UninitializedShared, CTALifetime, IdleLane}

// deny reports problem p as a fault of the lanes. It does nothing if p is nil.
func (w *warp) deny(in *inst, lanes uint32, p *problem) {
	if p != nil {
		w.find(in, p.severity, p.kind, lanes, in.form.Op+": "+p.text)
	}
}

// guarded runs a part of the cluster's work. It reports whether the work ended without a fault.
func (cl *cluster) guarded(work func()) (ok bool) {
	defer func() {
		if p := recover(); p != nil && p != any(cl.fault) {
			panic(p)
		}
	}()
	work()
	return true
}
