package pipeline

import "sonicmoe/ptx"

// Ring is a queue of Stages buffers in shared memory between a producer role
// and a consumer role. Each stage has a full barrier, which the producer's
// arrivals and bytes complete, and an empty barrier, which the consumers'
// releases complete.
type Ring struct {
	k           *ptx.Kernel
	name        string
	Stages      int
	StageBytes  int
	data        ptx.Shared
	full, empty ptx.Shared
}

// Ring makes a ring of that name. fullArrivals is how many arrivals fill a stage
// beside the bytes of its copies, emptyArrivals how many empty it. Stages of
// whole swizzle patterns (1024 bytes) start on one.
func (c *CTA) Ring(name string, stages, stageBytes, fullArrivals, emptyArrivals int) *Ring {
	align := 16
	if stageBytes%1024 == 0 {
		align = 1024
	}
	return &Ring{
		k: c.k, name: name, Stages: stages, StageBytes: stageBytes,
		data:  c.pieces(name, stages, stageBytes, align),
		full:  c.Mbarriers(name+".full", stages, fullArrivals),
		empty: c.Mbarriers(name+".empty", stages, emptyArrivals),
	}
}

// Data is the start of stage i, for what every thread does to a fresh ring.
func (r *Ring) Data(i int) ptx.Shared { return r.data.At(i * r.StageBytes) }

// Stage is one buffer of a ring, as a role holds it.
type Stage struct {
	// Data is the buffer's start.
	Data ptx.Shared
	// Full is the barrier that copies into the buffer complete.
	Full  ptx.Shared
	empty ptx.Shared
}

// Cursor is a role's place in a ring. Each role needs its own.
type Cursor struct {
	r     *Ring
	index *ptx.Var[ptx.U32]
	phase *ptx.Var[ptx.U32]
}

// Producer is the place of a role that fills stages: a fresh ring is empty.
func (r *Ring) Producer() *Cursor { return r.cursor(1) }

// Consumer is the place of a role that drains stages.
func (r *Ring) Consumer() *Cursor { return r.cursor(0) }

func (r *Ring) cursor(phase int) *Cursor {
	c := &Cursor{r: r}
	r.k.Named(r.name+"_stage", func() { c.index = ptx.NewVar(r.k, ptx.Uint(0)) })
	r.k.Named(r.name+"_phase", func() { c.phase = ptx.NewVar(r.k, ptx.Uint(phase)) })
	return c
}

// Stage is the next stage, for a role that has waited for it before.
func (c *Cursor) Stage() Stage {
	bar := c.index.Get().ShlI(3)
	return Stage{
		Data:  c.r.data.Plus(c.index.Get().MulI(c.r.StageBytes)),
		Full:  c.r.full.Plus(bar),
		empty: c.r.empty.Plus(bar),
	}
}

// Index is the number of the stage that comes next.
func (c *Cursor) Index() ptx.U32 { return c.index.Get() }

// Acquire waits until the next stage is empty and gives it to the producer.
func (c *Cursor) Acquire() Stage {
	s := c.Stage()
	WaitParity(c.r.k, s.empty, c.phase.Get())
	return s
}

// Wait waits until the next stage is full and gives it to a consumer.
func (c *Cursor) Wait() Stage {
	s := c.Stage()
	WaitParity(c.r.k, s.Full, c.phase.Get())
	return s
}

// Advance goes on to the next stage.
func (c *Cursor) Advance() {
	next := c.index.Get().AddI(1)
	wrap := next.EqI(c.r.Stages)
	c.index.Set(ptx.Select(wrap, ptx.Uint(0), next))
	c.phase.Set(c.phase.Get().Xor(ptx.Select(wrap, ptx.Uint(1), ptx.Uint(0))))
}

// Release gives the stage back to the producer: one of the ring's empty
// arrivals, by the calling thread.
func (s Stage) Release(k *ptx.Kernel) { k.MbarrierArrive(s.empty) }

// ReleaseTo gives the stage of the same place back to the producer of the CTA
// of the given rank in the cluster.
func (s Stage) ReleaseTo(k *ptx.Kernel, rank ptx.U32) {
	k.MbarrierArriveCluster(ptx.SharedAt(s.empty.Addr().Mapa(rank)))
}

// Releaser is the lanes of a warp that give a stage back: one lane for each
// CTA whose producer fills that stage in all CTAs of the cluster.
type Releaser struct {
	k    *ptx.Kernel
	ctas int
	lane ptx.U32
	who  ptx.Pred
}

// NewReleaser is for a ring that ctas CTAs fill: 1, or all of the cluster. The ring's empty arrivals must count the warps of all of them.
func NewReleaser(k *ptx.Kernel, lane ptx.U32, ctas int) Releaser {
	return Releaser{k: k, ctas: ctas, lane: lane, who: lane.LtI(ctas)}
}

// Release gives s back where the condition holds.
func (r Releaser) Release(s Stage, when ptx.Pred) {
	r.k.Guarded(r.who.And(when), func() {
		if r.ctas == 1 {
			s.Release(r.k)
		} else {
			s.ReleaseTo(r.k, r.lane)
		}
	})
}

// PendingRelease is a stage kept across passes of a loop, to be released later.
type PendingRelease struct{ empty *ptx.Var[ptx.U32] }

// NewPendingRelease makes a place for such a stage.
func NewPendingRelease(k *ptx.Kernel) *PendingRelease {
	return &PendingRelease{ptx.NewVar(k, ptx.Uint(0))}
}

// Set keeps s.
func (p *PendingRelease) Set(s Stage) { p.empty.Set(s.empty.Addr()) }

// Stage is what is kept, good for a release only.
func (p *PendingRelease) Stage() Stage { return Stage{empty: ptx.SharedAt(p.empty.Get())} }
