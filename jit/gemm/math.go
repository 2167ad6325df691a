package gemm

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// This file is what the math warpgroups do: their role, the main loop, their
// stagger, and the stores of their sums.

// RunRoles emits the two roles of a CTA of [Threads]: math for the first two
// warpgroups, load for the third. thread is %tid.x.
func RunRoles(k *ptx.Kernel, thread ptx.U32, math, load func()) {
	pipeline.Run(k, thread.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: MathThreads / pipeline.WarpgroupThreads, Body: math},
		pipeline.Role{Name: "load", First: MathThreads / pipeline.WarpgroupThreads, Count: 1, Body: load},
	)
}

// Multiply issues the wgmma group of a k-tile, which adds to the sums so far
// where keep holds. aMN and bMN: the operand is MN-major.
func Multiply(k *ptx.Kernel, of tile.Element, acc []ptx.F32, a, b tile.Descriptor, keep ptx.Pred, aMN, bMN bool) {
	k.WgmmaFence()
	for i := range tile.K / tile.KStep {
		scale := ptx.True()
		if i == 0 {
			scale = keep
		}
		of.Wgmma(k, acc, a.Step(i, 0), b.Step(i, 0), scale, aMN, bMN)
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
	f.Each(kTiles, false, multiply)
	f.End(underLast)
}

// End finishes the sum, with what may run under its last group.
func (f *InFlight) End(underLast func()) {
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

// Each multiplies kTiles stages, which may be none. behind says that the sum has
// one before them.
func (f *InFlight) Each(kTiles ptx.U32, behind bool, multiply func(s pipeline.Stage, kt ptx.U32)) {
	f.m.K.Range(kTiles, func(kt ptx.U32) {
		follows := kt.NeI(0)
		if behind {
			follows = ptx.True()
		}
		f.One(follows, 1, func(s pipeline.Stage) { multiply(s, kt) })
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

// storeSlots are the sub-tiles of a warpgroup that may be on their way.
const storeSlots = 2

// StoreBytes is the shared memory of both warpgroups' [Store].
const StoreBytes = 2 * storeSlots * tile.StagingBytes

// Store writes a math warpgroup's 64 x 64 sub-tiles through its own slots of
// shared memory, one elected thread issuing the TMA stores.
type Store struct {
	k          *ptx.Kernel
	element    tile.Element
	memory     ptx.Shared // of both warpgroups
	barriers   pipeline.NamedBarriers
	newStaging func(*ptx.Kernel, tile.Element, ptx.U32) tile.Staging
}

// NewStore reserves StoreBytes, for tensors of the given elements.
func NewStore(k *ptx.Kernel, of tile.Element, cta *pipeline.CTA) *Store {
	return &Store{k: k, element: of, memory: cta.Shared("store", StoreBytes, 1024), newStaging: tile.NewStaging,
		barriers: cta.NamedBarriers("store", 2, pipeline.WarpgroupThreads)}
}

// SyncWarpgroup joins the threads of a math warpgroup, 0 or 1.
func (s *Store) SyncWarpgroup(warpgroup ptx.U32) { s.barriers.Sync(warpgroup) }

// Transpose has the columns of sub-tiles stored as lines.
func (s *Store) Transpose() { s.newStaging = tile.NewTransposedStaging }

// place is a thread's in its warpgroup's slots.
type place struct {
	warpgroup ptx.U32
	staging   tile.Staging
	slots     ptx.Shared
	elected   ptx.Pred
}

// locate computes the thread's place where it is needed: cheaper than registers
// for it through the main loop.
func (s *Store) locate() place {
	tid := s.k.TidX()
	wg, thread := tid.ShrI(7), tid.AndI(pipeline.WarpgroupThreads-1)
	return place{
		warpgroup: wg, staging: s.newStaging(s.k, s.element, thread), slots: s.memory.Plus(wg.MulI(storeSlots * tile.StagingBytes)),
		elected: s.k.ElectOne().And(thread.LtI(32)),
	}
}

// SubTile is 64 columns of a fragment on their way to global memory.
type SubTile struct {
	// Value is the value of register j of 32, or Pair, unless nil, of registers 2i
	// and 2i + 1.
	Value func(j int) ptx.F32
	Pair  func(i int) ptx.U32
	// To is the tensor's map, At gives the box's coordinates there.
	To ptx.TensorMap
	At func() []ptx.U32
	// Staged, unless nil, is called when all values are in shared memory.
	Staged func()
}

// Registers is the value of a sub-tile that is in registers.
func Registers(acc []ptx.F32) func(int) ptx.F32 {
	return func(j int) ptx.F32 { return acc[j] }
}

// Tile stores n sub-tiles; build is called for each just before it is staged.
func (s *Store) Tile(n int, build func(i int) SubTile) {
	k, at := s.k, s.locate()
	for i := range n {
		pending := storeSlots - 1
		if i == 0 && n%storeSlots != 0 {
			pending = 0 // the previous tile ended on this slot
		}
		slot := at.slots.At(i % storeSlots * tile.StagingBytes)
		sub := build(i)
		k.If(at.elected, func() { k.BulkWait(pending, ".read") })
		s.SyncWarpgroup(at.warpgroup)
		if sub.Pair != nil {
			at.staging.StorePairs(slot, sub.Pair)
		} else {
			at.staging.StoreEach(slot, sub.Value)
		}
		if sub.Staged != nil {
			sub.Staged()
		}
		k.FenceProxyAsync(".shared::cta")
		s.SyncWarpgroup(at.warpgroup)
		k.If(at.elected, func() {
			k.TMAStore(sub.To, slot, sub.At()...)
			k.BulkCommit()
		})
	}
}

// Finish waits until the stores are done.
func (s *Store) Finish() {
	s.k.If(s.locate().elected, func() { s.k.BulkWait(0) })
}
