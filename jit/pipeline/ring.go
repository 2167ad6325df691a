package pipeline

import "sonicmoe/ptx"

// Ring is a queue of Stages buffers in shared memory, between a producer role and a consumer role.
// Each stage has two mbarriers. The full barrier completes a phase when the producer's arrivals and
// bytes are there, the empty barrier when the consumers have released the stage.
type Ring struct {
	k           *ptx.Kernel
	name        string
	Stages      int
	StageBytes  int
	data        ptx.Shared
	full, empty ptx.Shared
}

// Ring reserves a ring with the given name. A stage is full after fullArrivals arrivals and the
// bytes of its copies. It is empty after emptyArrivals arrivals. Stages are aligned to 1024 bytes
// if their size is a multiple of that, because a swizzle pattern has 1024 bytes.
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

// Data returns the address of stage i. It is for initialising a new ring.
func (r *Ring) Data(i int) ptx.Shared { return r.data.At(i * r.StageBytes) }

// Stage is one buffer of a ring. A role gets its stages from a [Cursor].
type Stage struct {
	// Data is the address of the buffer.
	Data ptx.Shared
	// Full is the mbarrier at which copies into the buffer count their bytes.
	Full  ptx.Shared
	empty ptx.Shared
}

// Cursor is the position of a role in a ring. Each role needs its own cursor.
type Cursor struct {
	r     *Ring
	index *ptx.Var[ptx.U32]
	phase *ptx.Var[ptx.U32]
}

// Producer returns the cursor of a role that fills stages. In a new ring all stages are empty.
func (r *Ring) Producer() *Cursor { return r.cursor(1) }

// Consumer returns the cursor of a role that drains stages.
func (r *Ring) Consumer() *Cursor { return r.cursor(0) }

func (r *Ring) cursor(phase int) *Cursor {
	c := &Cursor{r: r}
	r.k.Named(r.name+"_stage", func() { c.index = ptx.NewVar(r.k, ptx.Uint(0)) })
	r.k.Named(r.name+"_phase", func() { c.phase = ptx.NewVar(r.k, ptx.Uint(phase)) })
	return c
}

// Stage returns the next stage. The role must already have waited for it.
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

// Acquire waits until the next stage is empty, and returns it to the producer.
func (c *Cursor) Acquire() Stage {
	s := c.Stage()
	WaitParity(c.r.k, s.empty, c.phase.Get())
	return s
}

// Wait waits until the next stage is full, and returns it to a consumer.
func (c *Cursor) Wait() Stage {
	s := c.Stage()
	WaitParity(c.r.k, s.Full, c.phase.Get())
	return s
}

// Advance moves the cursor to the next stage.
func (c *Cursor) Advance() {
	next := c.index.Get().AddI(1)
	wrap := next.EqI(c.r.Stages)
	c.index.Set(ptx.Select(wrap, ptx.Uint(0), next))
	c.phase.Set(c.phase.Get().Xor(ptx.Select(wrap, ptx.Uint(1), ptx.Uint(0))))
}

// Release gives the stage back to the producer: the calling thread arrives once at the empty
// barrier.
func (s Stage) Release(k *ptx.Kernel) { k.MbarrierArrive(s.empty) }

// ReleaseTo releases the stage with the same number in the CTA of the given rank in the cluster.
func (s Stage) ReleaseTo(k *ptx.Kernel, rank ptx.U32) {
	k.MbarrierArriveCluster(ptx.SharedAt(s.empty.Addr().Mapa(rank)))
}

// Releaser releases stages by several lanes of a warp: one lane for each CTA that fills the stage.
// With multicast, every CTA of the cluster fills a part of the stage in all CTAs.
type Releaser struct {
	k    *ptx.Kernel
	ctas int
	lane ptx.U32
	who  ptx.Pred
}

// NewReleaser returns the releaser for a ring that ctas CTAs fill: one, or all of the cluster. The
// ring's emptyArrivals must count the consuming warps of all these CTAs.
func NewReleaser(k *ptx.Kernel, lane ptx.U32, ctas int) Releaser {
	return Releaser{k: k, ctas: ctas, lane: lane, who: lane.LtI(ctas)}
}

// Release releases stage s if the predicate when is true.
func (r Releaser) Release(s Stage, when ptx.Pred) {
	r.k.Guarded(r.who.And(when), func() {
		if r.ctas == 1 {
			s.Release(r.k)
		} else {
			s.ReleaseTo(r.k, r.lane)
		}
	})
}

// PendingRelease keeps a stage across iterations of a loop, so that it can be released later.
type PendingRelease struct{ empty *ptx.Var[ptx.U32] }

// NewPendingRelease returns an empty PendingRelease.
func NewPendingRelease(k *ptx.Kernel) *PendingRelease {
	return &PendingRelease{ptx.NewVar(k, ptx.Uint(0))}
}

// Set keeps stage s.
func (p *PendingRelease) Set(s Stage) { p.empty.Set(s.empty.Addr()) }

// Stage returns the kept stage. Its only use is to be released.
func (p *PendingRelease) Stage() Stage { return Stage{empty: ptx.SharedAt(p.empty.Get())} }
