package pipeline

import "sonicmoe/ptx"

// Ring is a queue of Stages buffers in shared memory between a producer role and a
// consumer role. Each stage has two barriers. The producer's arrivals and bytes
// complete the full barrier. The consumers' releases complete the empty barrier.
type Ring struct {
	k           *ptx.Kernel
	name        string
	Stages      int
	StageBytes  int
	data        ptx.Shared
	full, empty ptx.Shared
}

// Ring returns a ring with the given name. A stage is full after fullArrivals
// arrivals and the bytes of its copies, and empty after emptyArrivals. Stages are
// aligned to 1024 bytes if they are whole swizzle patterns of that size.
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

// Data returns the start of stage i, for initialising a new ring.
func (r *Ring) Data(i int) ptx.Shared { return r.data.At(i * r.StageBytes) }

// Stage is one buffer of a ring, returned to a role by a [Cursor].
type Stage struct {
	// Data is the buffer's start.
	Data ptx.Shared
	// Full is the barrier that copies into the buffer complete.
	Full  ptx.Shared
	empty ptx.Shared
}

// Cursor is a role's position in a ring. Each role needs its own.
type Cursor struct {
	r     *Ring
	index *ptx.Var[ptx.U32]
	phase *ptx.Var[ptx.U32]
}

// Producer returns the cursor of a role that fills stages. A new ring is empty.
func (r *Ring) Producer() *Cursor { return r.cursor(1) }

// Consumer returns the cursor of a role that drains stages.
func (r *Ring) Consumer() *Cursor { return r.cursor(0) }

func (r *Ring) cursor(phase int) *Cursor {
	c := &Cursor{r: r}
	r.k.Named(r.name+"_stage", func() { c.index = ptx.NewVar(r.k, ptx.Uint(0)) })
	r.k.Named(r.name+"_phase", func() { c.phase = ptx.NewVar(r.k, ptx.Uint(phase)) })
	return c
}

// Stage returns the next stage, for a role that has already waited for it.
func (c *Cursor) Stage() Stage {
	bar := c.index.Get().ShlI(3)
	return Stage{
		Data:  c.r.data.Plus(c.index.Get().MulI(c.r.StageBytes)),
		Full:  c.r.full.Plus(bar),
		empty: c.r.empty.Plus(bar),
	}
}

// Index returns the number of the next stage.
func (c *Cursor) Index() ptx.U32 { return c.index.Get() }

// Acquire waits until the next stage is empty and returns it to the producer.
func (c *Cursor) Acquire() Stage {
	s := c.Stage()
	WaitParity(c.r.k, s.empty, c.phase.Get())
	return s
}

// Wait waits until the next stage is full and returns it to a consumer.
func (c *Cursor) Wait() Stage {
	s := c.Stage()
	WaitParity(c.r.k, s.Full, c.phase.Get())
	return s
}

// Advance moves to the next stage.
func (c *Cursor) Advance() {
	next := c.index.Get().AddI(1)
	wrap := next.EqI(c.r.Stages)
	c.index.Set(ptx.Select(wrap, ptx.Uint(0), next))
	c.phase.Set(c.phase.Get().Xor(ptx.Select(wrap, ptx.Uint(1), ptx.Uint(0))))
}

// Release returns the stage to the producer: the calling thread makes one of the
// empty barrier's arrivals.
func (s Stage) Release(k *ptx.Kernel) { k.MbarrierArrive(s.empty) }

// ReleaseTo releases the same stage in the CTA of the given rank in the cluster.
func (s Stage) ReleaseTo(k *ptx.Kernel, rank ptx.U32) {
	k.MbarrierArriveCluster(ptx.SharedAt(s.empty.Addr().Mapa(rank)))
}

// Releaser is the set of lanes of a warp that release a stage: one lane for each
// CTA whose producer fills that stage in all CTAs of the cluster.
type Releaser struct {
	k    *ptx.Kernel
	ctas int
	lane ptx.U32
	who  ptx.Pred
}

// NewReleaser returns the releaser for a ring that ctas CTAs fill: 1, or all of
// the cluster. The ring's emptyArrivals must count the warps of all of them.
func NewReleaser(k *ptx.Kernel, lane ptx.U32, ctas int) Releaser {
	return Releaser{k: k, ctas: ctas, lane: lane, who: lane.LtI(ctas)}
}

// Release releases s if when holds.
func (r Releaser) Release(s Stage, when ptx.Pred) {
	r.k.Guarded(r.who.And(when), func() {
		if r.ctas == 1 {
			s.Release(r.k)
		} else {
			s.ReleaseTo(r.k, r.lane)
		}
	})
}

// PendingRelease keeps a stage across iterations of a loop, to be released later.
type PendingRelease struct{ empty *ptx.Var[ptx.U32] }

// NewPendingRelease returns an empty PendingRelease.
func NewPendingRelease(k *ptx.Kernel) *PendingRelease {
	return &PendingRelease{ptx.NewVar(k, ptx.Uint(0))}
}

// Set keeps s.
func (p *PendingRelease) Set(s Stage) { p.empty.Set(s.empty.Addr()) }

// Stage returns the kept stage. It can only be released.
func (p *PendingRelease) Stage() Stage { return Stage{empty: ptx.SharedAt(p.empty.Get())} }
