package gemm

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// Multiply issues the wgmma group of a k-tile, which adds to the sums so far
// where keep holds. aMN and bMN: the operand is MN-major.
func Multiply(k *ptx.Kernel, acc []ptx.F32, a, b tile.Descriptor, keep ptx.Pred, aMN, bMN bool) {
	k.WgmmaFence()
	for i := range tile.K / tile.KStep {
		scale := ptx.True()
		if i == 0 {
			scale = keep
		}
		k.Wgmma(acc, a.Step(i, 0), b.Step(i, 0), scale, aMN, bMN)
	}
	k.WgmmaCommit()
}

// MainLoop is a math warpgroup's way through a ring of stages, with one wgmma
// group in flight: a stage is given back when the group after it has been issued.
type MainLoop struct {
	K       *ptx.Kernel
	Ring    *pipeline.Cursor
	Release pipeline.Releaser
}

// Run multiplies kTiles stages, at least one. multiply emits a stage's wgmma
// group; underLast, unless nil, what may run under the last one.
func (m MainLoop) Run(kTiles ptx.U32, multiply func(s pipeline.Stage, kt ptx.U32), underLast func()) {
	f := m.Begin()
	f.Each(kTiles, multiply)
	if underLast != nil {
		underLast()
	}
	f.Finish()
}

// InFlight is a main loop under way, for sums that end with a stage of another
// kind.
type InFlight struct {
	m       MainLoop
	pending *pipeline.PendingRelease // the stage of the group in flight
}

// Begin starts a sum.
func (m MainLoop) Begin() *InFlight { return &InFlight{m, pipeline.NewPendingRelease(m.K)} }

// Each multiplies kTiles stages, which may be none.
func (f *InFlight) Each(kTiles ptx.U32, multiply func(s pipeline.Stage, kt ptx.U32)) {
	f.m.K.Range(kTiles, func(kt ptx.U32) {
		f.One(kt.NeI(0), 1, func(s pipeline.Stage) { multiply(s, kt) })
	})
}

// One multiplies the next stage and waits until at most that many wgmma groups
// are in flight. follows says that the sum has a stage before it.
func (f *InFlight) One(follows ptx.Pred, groups int, multiply func(s pipeline.Stage)) {
	s := f.m.Ring.Wait()
	multiply(s)
	f.m.K.WgmmaWait(groups)
	f.m.Release.Release(f.pending.Stage(), follows)
	f.pending.Set(s)
	f.m.Ring.Advance()
}

// Finish waits for the sum and gives the last stage back.
func (f *InFlight) Finish() {
	f.m.K.WgmmaWait(0)
	f.m.Release.Release(f.pending.Stage(), ptx.True())
}

// Drain releases kTiles stages unused. each, unless nil, is emitted for every
// stage that has come.
func (m MainLoop) Drain(kTiles ptx.U32, each func(kt ptx.U32)) {
	m.K.Range(kTiles, func(kt ptx.U32) {
		s := m.Ring.Wait()
		if each != nil {
			each(kt)
		}
		m.Release.Release(s, ptx.True())
		m.Ring.Advance()
	})
}

// Stagger sets the second math warpgroup one ring behind the first, once, at
// the CTA's first tile. From then on one warpgroup multiplies, as far ahead as
// the ring is deep, while the other is in its epilogue; side by side, both
// would leave the tensor cores idle at the same time.
type Stagger struct {
	k         *ptx.Kernel
	warpgroup ptx.U32
	barrier   pipeline.NamedBarriers
	tile      *ptx.Var[ptx.U32] // 1 until the first tile is done, then 2
	after     ptx.U32           // the k-tile after which the second may start
}

// StaggerBarrier is what NewStagger needs.
func StaggerBarrier(cta *pipeline.CTA) pipeline.NamedBarriers {
	return cta.NamedBarriers("stagger", 1, MathThreads)
}

// NewStagger is for the math warpgroup of that number, 0 or 1.
func NewStagger(k *ptx.Kernel, barrier pipeline.NamedBarriers, warpgroup ptx.U32) *Stagger {
	return &Stagger{k: k, warpgroup: warpgroup, barrier: barrier, tile: ptx.NewVar(k, ptx.Uint(1))}
}

// SetLead has the second warpgroup start when the first has multiplied kTiles
// k-tiles, at least 1, of its first tile.
func (s *Stagger) SetLead(kTiles ptx.U32) { s.after = kTiles.SubI(1) }

// WaitForLeader holds the second warpgroup at its first tile.
func (s *Stagger) WaitForLeader() {
	s.k.If(s.tile.Get().Eq(s.warpgroup), func() { s.barrier.Sync(ptx.Uint(0)) })
}

// Multiplied lets the second start when the first has issued enough k-tiles.
func (s *Stagger) Multiplied(kt ptx.U32) {
	now := kt.Eq(s.after).And(s.tile.Get().EqI(1)).And(s.warpgroup.EqI(0))
	s.k.If(now, func() { s.barrier.Arrive(ptx.Uint(0)) })
}

// TileDone ends the first tile.
func (s *Stagger) TileDone() { s.tile.Set(ptx.Uint(2)) }
