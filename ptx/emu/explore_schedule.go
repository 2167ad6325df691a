package emu

import (
	"context"
	"fmt"
	"slices"

	"sonicmoe/ptx/emu/internal/causal"
)

// A schedule runs all clusters of a grid in one goroutine, in an order that choices determine. Its
// actors are the warps, the TMA loads and, for each warp, the mbarrier arrivals that follow its
// cp.async copies.
//
// A step of an actor is one use of a synchronisation object, with everything that the actor does
// until its next use. Synchronisation objects are mbarriers, other barriers, words that are
// accessed atomically or with acquire and release, and the exit of a CTA. Other actors cannot see
// the instructions between two uses unless these instructions race, and the race checks find races
// in any order. Asynchronous work other than TMA loads and deferred arrivals completes when a wait
// forces it.
//
// Without choices an actor runs until it waits, then the next actor runs. Loads complete when no
// warp can run.

// actor is what takes steps: a warp, the deferred arrivals of a warp, or a TMA load.
type actor struct {
	name   int // number of the actor; an actor has the same number in all orders
	w      *warp
	copies bool         // the actor performs the arrivals that follow the warp's cp.async
	load   *bulkLoad    // the load, if the actor is a load
	past   causal.Clock // for each actor, 1 + the number of its last step that happened before this actor's latest step
	mark   uint64       // hash of the actor's latest step and of all steps on which it depends
	issues int          // number of loads that the actor has issued
	// These fields describe a warp that polls. polled holds, for each polling instruction, the
	// version of the object that it last read. vain lists the polling instructions that have read
	// an unchanged object since the actor's latest step. on lists the objects of which at least one
	// must change before the actor can continue. before is the sum of the versions that these
	// objects had when the actor stopped.
	polled map[*inst]int
	vain   []*inst
	on     []object
	before int
}

// step is a step of a schedule, with the state of the actor that took it after the step.
type step struct {
	actor int
	clock causal.Clock // the actor's past
	mark  uint64       // the actor's mark
}

// schedule is one run of a launch in an order that choices determine.
type schedule struct {
	g        *grid
	clusters []*cluster
	actors   []actor // first all warps, then the warps' deferred arrivals, then the loads
	warps    int
	forced   []choice
	made     []choice // forced choices that differ from the default order
	wrong    *choice  // the choice that could not be made, or nil

	steps   []step
	races   [][2]int // pairs of dependent steps that could also come in the opposite order
	history map[object][]objectUse
	// arrived holds, for each barrier, the steps that happened before any of its arrivals. ended
	// holds the steps that happened before the end of its latest phase.
	arrived, ended map[object]causal.Clock

	acting   int // the actor that takes the present step
	current  int // the warp that took the latest step
	uses     []objectUse
	versions map[object]int
	mark     uint64 // hash of all steps: equal for orders that no warp can tell apart
}

// mix combines two numbers to a hash.
func mix(a, b uint64) uint64 {
	a ^= b + 0x9e3779b97f4a7c15 + a<<6 + a>>2
	a *= 0xbf58476d1ce4e5b9
	return a ^ a>>29
}

// follow launches a kernel in the order that the choices determine.
func (k *Kernel) follow(ctx context.Context, mem *Memory, l Launch, choices []choice) (*schedule, error) {
	g, err := k.newGrid(mem, l)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("launch of kernel %s: %w", k.entry.Name, err)
	}
	defer context.AfterFunc(ctx, func() { g.stop.Store(true) })()
	s := g.newSchedule(choices)
	s.run()
	return s, g.end(ctx)
}

func (g *grid) newSchedule(choices []choice) *schedule {
	s := &schedule{g: g, forced: choices, current: -1, history: map[object][]objectUse{}, arrived: map[object]causal.Clock{}, ended: map[object]causal.Clock{}, versions: map[object]int{}}
	for i := range g.clusters {
		cl := g.newCluster()
		cl.reset(i)
		cl.schedule = s
		s.clusters = append(s.clusters, cl)
		for _, w := range cl.warps {
			s.actors = append(s.actors, actor{name: len(s.actors), w: w, polled: map[*inst]int{}})
		}
	}
	s.warps = len(s.actors)
	for i := range s.warps {
		s.actors = append(s.actors, actor{name: len(s.actors), w: s.actors[i].w, copies: true})
	}
	return s
}

// run takes steps until all clusters have ended, one has a fault, or a choice cannot be made.
func (s *schedule) run() {
	for !s.g.stop.Load() && s.wrong == nil {
		if s.next() {
			continue
		}
		if s.g.fault == nil && s.wrong == nil && !s.g.stop.Load() && !s.allEnded() {
			s.stuck()
		}
		break
	}
	for _, cl := range s.clusters {
		cl.schedule = nil
	}
	s.g.ended = s.clusters
}

func (s *schedule) allEnded() bool {
	for i := range s.warps {
		if s.actors[i].w.live != 0 {
			return false
		}
	}
	return true
}

// stuck reports a deadlock of a cluster. It prefers a cluster that does not poll: a polling cluster
// may only wait for another one.
func (s *schedule) stuck() {
	for _, polls := range []bool{false, true} {
		for _, cl := range s.clusters {
			if cl.ended() || cl.runnable() != polls {
				continue
			}
			cl.guarded(func() {
				if polls {
					cl.spinning()
				}
				cl.deadlock()
			})
			s.g.report(cl)
			return
		}
	}
}

// next lets one actor take a step. It returns false if no actor can.
func (s *schedule) next() bool {
	if at := len(s.steps); len(s.forced) > 0 && s.forced[0].step == at {
		c := s.forced[0]
		s.forced = s.forced[1:]
		i := slices.IndexFunc(s.actors, func(x actor) bool { return x.name == c.actor })
		byItself := i >= 0 && i == s.current && !s.leaves(i)
		if i < 0 || !s.ready(i) || !s.act(i) {
			s.wrong = &c
			return false
		}
		if !byItself {
			s.made = append(s.made, c)
		}
		return s.note()
	}
	// Try the warp of the latest step first, then the warps after it cyclically, then deferred
	// arrivals and loads.
	for k := range s.actors {
		i := k
		if k < s.warps {
			i = (max(s.current, 0) + k) % s.warps
		}
		switch {
		case !s.ready(i) || s.leaves(i):
		case s.act(i):
			return s.note()
		case s.g.fault != nil:
			return false
		}
	}
	return s.spin()
}

// spin lets polling warps run again if no other actor can take a step, because a polling loop may
// give up after some tries. It reports whether a warp has taken a step.
func (s *schedule) spin() bool {
	for ran := true; ran; {
		ran = false
		for i := range s.warps {
			x := &s.actors[i]
			if x.on == nil || !s.ready(i) {
				continue
			}
			if x.w.cta.cluster.idle > s.g.spinLimit || s.g.stop.Load() {
				return false
			}
			x.on, ran = nil, true
			if s.act(i) {
				return s.note()
			}
			if s.g.fault != nil {
				return false
			}
		}
	}
	return false
}

// act runs actor i until it has taken a step, and reports whether it has. A poll that reads an
// unchanged object is not a step.
func (s *schedule) act(i int) bool {
	for s.take(i) {
		in, x := s.uses[0].in, &s.actors[i]
		if in == nil || x.polled == nil || x.polled[in] != s.version() || s.g.fault != nil {
			return true
		}
		again := slices.Contains(x.vain, in)
		x.vain = append(x.vain, in)
		for _, t := range s.uses {
			x.on = append(x.on, t.object)
		}
		if again {
			x.vain, x.before = nil, s.sum(x.on)
			return false
		}
	}
	return false
}

// leaves reports whether actor i waits in a polling loop and no object that it polls has changed
// since.
func (s *schedule) leaves(i int) bool {
	x := &s.actors[i]
	return x.on != nil && x.vain == nil && s.sum(x.on) == x.before
}

func (s *schedule) sum(list []object) (versions int) {
	for _, o := range list {
		versions += s.versions[o]
	}
	return versions
}

// version returns a number that changes if any object of the current step changes.
func (s *schedule) version() int {
	sum := 1
	for _, t := range s.uses {
		sum += s.versions[t.object]
	}
	return sum
}

// ready reports whether actor i may be able to take a step.
func (s *schedule) ready(i int) bool {
	switch x := &s.actors[i]; {
	case x.load != nil:
		return slices.Contains(x.w.cta.cluster.loads, x.load)
	case x.copies:
		return slices.ContainsFunc(x.w.copies.recs, func(r *copyRecord) bool { return r.arrive })
	default:
		events := x.w.cta.cluster.events
		return x.w.live != 0 && slices.ContainsFunc(x.w.frags, func(f *frag) bool { return !f.stuck || f.since != events })
	}
}

// take runs actor i until it uses an object, and reports whether it has.
func (s *schedule) take(i int) bool {
	cl := s.actors[i].w.cta.cluster
	s.acting, s.uses = i, s.uses[:0]
	if !cl.guarded(func() { s.proceed(&s.actors[i]) }) {
		s.g.report(cl)
	}
	cl.moved = false
	return len(s.uses) > 0
}

func (s *schedule) proceed(x *actor) {
	w, cl := x.w, x.w.cta.cluster
	switch {
	case x.load != nil:
		cl.completeLoad(slices.Index(cl.loads, x.load))
	case x.copies:
		at := slices.IndexFunc(w.copies.recs, func(r *copyRecord) bool { return r.arrive })
		x.past.Join(w.copies.recs[at].past)
		for _, r := range w.copies.recs[:at] {
			w.completeCopy(r, fullMask)
		}
		w.sweepCopies()
	default:
		for len(s.uses) == 0 && w.live != 0 && !s.g.stop.Load() {
			f := w.pick()
			if f == nil {
				break
			}
			n := w.run(f, quantum)
			cl.idle += n
			cl.steps += uint64(n)
			if cl.idle > computeLimit*s.g.spinLimit {
				cl.spinning()
			}
		}
	}
	if cl.ended() {
		cl.finish()
	}
}

// note records the step that was just taken. It finds the earlier steps that depend on this step
// and could also come after it. It returns false if the kernel has a fault.
func (s *schedule) note() bool {
	x, at := &s.actors[s.acting], len(s.steps)
	s.steps = append(s.steps, step{actor: s.acting})
	for i := range s.uses {
		o := &s.uses[i]
		follows := mix(mix(mix(uint64(o.kind), o.at), uint64(o.rank)), mix(o.phase, uint64(o.cluster)))
		if o.use == toWait {
			x.past.Join(s.ended[o.object])
		}
		list := s.history[o.object]
		for k := len(list) - 1; k >= 0; k-- {
			t := &list[k]
			if !t.depends(o) || t.actor == s.acting {
				continue
			}
			if x.past.At(t.actor) > t.step {
				if t.use == toWrite {
					break // every earlier step of the history happened before t
				}
				continue
			}
			if t.use != toWait || s.arrived[o.object].At(t.actor) <= t.step {
				s.races = append(s.races, [2]int{t.step, at})
			}
			x.past.Join(t.clock)
			follows += t.mark
		}
		if o.use == toRead {
			x.past.Join(s.ended[o.object])
		}
		x.past.Set(s.acting, uint32(at+1))
		x.mark = mix(x.mark, follows+uint64(x.name))
		s.steps[at].mark += x.mark
		o.step, o.actor, o.clock, o.mark = at, s.acting, slices.Clone(x.past), x.mark
		s.history[o.object] = append(list, *o)
		if o.use == toArrive {
			all := s.arrived[o.object]
			all.Join(o.clock)
			if s.arrived[o.object] = all; o.ends {
				s.ended[o.object] = slices.Clone(all)
			}
		}
	}
	s.mark += s.steps[at].mark
	s.steps[at].clock = slices.Clone(x.past)
	if x.load != nil || x.copies {
		return s.g.fault == nil
	}
	s.current, x.vain, x.on = s.acting, nil, nil
	if in := s.uses[0].in; in != nil {
		x.polled[in] = s.version()
	}
	return s.g.fault == nil
}

// issued adds a load, which the acting warp has issued, as an actor.
func (cl *cluster) issued(b *bulkLoad) {
	if s := cl.schedule; s != nil {
		by := &s.actors[s.acting]
		by.issues++
		s.actors = append(s.actors, actor{name: by.name + s.warps*(1+by.issues), w: b.warp, load: b, past: slices.Clone(by.past)})
	}
}
