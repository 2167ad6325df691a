package gemm

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// This file emits the math role: the main loop, the stagger of the two math warpgroups, and the
// stores of their sums.

// RunRoles emits the two roles of a CTA of [Threads] threads: math for the first two warpgroups,
// load for the third. thread is %tid.x.
func RunRoles(k *ptx.Kernel, thread ptx.U32, math, load func()) {
	pipeline.Run(k, ptx.WarpgroupOf(thread),
		pipeline.Role{Name: "math", First: 0, Count: MathThreads / pipeline.WarpgroupThreads, Body: math},
		pipeline.Role{Name: "load", First: MathThreads / pipeline.WarpgroupThreads, Count: 1, Body: load},
	)
}

// Multiply issues the wgmma group of one k-tile. It adds to the accumulators if adds is true, and
// overwrites them otherwise. aMN and bMN state that the operand is MN-major.
func Multiply(k *ptx.Kernel, of tile.Element, acc []ptx.F32, a, b tile.Descriptor, adds ptx.Pred, aMN, bMN bool) {
	multiplySteps(k, of, acc, a, b, stepsOfTile, adds, aMN, bMN)
}

// multiplySteps is [Multiply] for the first steps of a k-tile.
func multiplySteps(k *ptx.Kernel, of tile.Element, acc []ptx.F32, a, b tile.Descriptor, steps int, adds ptx.Pred, aMN, bMN bool) {
	k.WgmmaFence()
	for i := range steps {
		scale := ptx.True()
		if i == 0 {
			scale = adds
		}
		of.Wgmma(k, acc, a.Step(i, 0), b.Step(i, 0), scale, aMN, bMN)
	}
	k.WgmmaCommit()
}

// MultiplyRegisters does the same as [Multiply] for an A in registers: parameter a has the
// registers of wgmma's fragment for each step of 16. B is K-major.
func MultiplyRegisters(k *ptx.Kernel, of tile.Element, acc []ptx.F32, a [tile.K / tile.KStep][]ptx.U32, b tile.Descriptor, adds ptx.Pred) {
	k.WgmmaFence()
	for i, step := range a {
		scale := ptx.True()
		if i == 0 {
			scale = adds
		}
		of.WgmmaRegisters(k, acc, step, b.Step(i, 0), scale, false)
	}
	k.WgmmaCommit()
}

// MainLoop multiplies the stages of a ring in a math warpgroup. One wgmma group is always in
// flight: a stage is released after the group of the next stage has been issued and the stage's own
// group is complete.
type MainLoop struct {
	K       *ptx.Kernel
	Ring    *pipeline.Cursor
	Release pipeline.Releaser
}

// Run multiplies kTiles stages, at least one. multiply emits the wgmma group of a stage.
func (m MainLoop) Run(kTiles ptx.U32, multiply func(s pipeline.Stage, kt ptx.U32)) {
	f := m.Begin()
	f.Each(kTiles, false, multiply)
	f.Finish()
}

// InFlight is a sum between [MainLoop.Begin] and [InFlight.Finish]. It lets a sum run over several
// kinds of stages.
type InFlight struct {
	m       MainLoop
	pending *pipeline.PendingRelease // stage of the wgmma group in flight
}

// Begin starts a sum.
func (m MainLoop) Begin() *InFlight { return &InFlight{m, pipeline.NewPendingRelease(m.K)} }

// Each calls multiply for each of kTiles stages; kTiles may be 0. started states that the
// accumulator already holds the product of an earlier stage.
func (f *InFlight) Each(kTiles ptx.U32, started bool, multiply func(s pipeline.Stage, kt ptx.U32)) {
	f.m.K.Range(kTiles, func(kt ptx.U32) {
		follows := kt.NeI(0)
		if started {
			follows = ptx.True()
		}
		f.One(follows, 1, func(s pipeline.Stage) { multiply(s, kt) })
	})
}

// One multiplies the next stage, and then waits until at most the given number of wgmma groups are
// in flight. follows is true if the sum has an earlier stage.
func (f *InFlight) One(follows ptx.Pred, groups int, multiply func(s pipeline.Stage)) {
	s := f.m.Ring.Wait()
	multiply(s)
	f.m.K.WgmmaWait(groups)
	f.m.Release.Release(f.pending.Stage(), follows)
	f.pending.Set(s)
	f.m.Ring.Advance()
}

// Finish waits until the sum is complete, and releases its last stage.
func (f *InFlight) Finish() {
	f.m.K.WgmmaWait(0)
	f.m.Release.Release(f.pending.Stage(), ptx.True())
}

// Drain waits for kTiles stages and releases them without using them.
func (m MainLoop) Drain(kTiles ptx.U32) { m.DrainEach(kTiles, func(ptx.U32) {}) }

// DrainEach does the same as Drain, and calls function each after the wait for a stage.
func (m MainLoop) DrainEach(kTiles ptx.U32, each func(kt ptx.U32)) {
	m.K.Range(kTiles, func(kt ptx.U32) {
		s := m.Ring.Wait()
		each(kt)
		m.Release.Release(s, ptx.True())
		m.Ring.Advance()
	})
}

// Stagger delays the second math warpgroup by one ring, starting with the CTA's first tile. One
// warpgroup then multiplies, as many stages ahead as the ring has, while the other is in its
// epilogue. Without the delay both would be in their epilogues at the same time, and the tensor
// cores would be idle.
type Stagger struct {
	k         *ptx.Kernel
	warpgroup ptx.U32
	barrier   pipeline.NamedBarriers
	tile      *ptx.Var[ptx.U32] // 1 until the first tile is done, then 2
}

// StaggerBarrier reserves the named barrier of a [Stagger].
func StaggerBarrier(cta *pipeline.CTA) pipeline.NamedBarriers {
	return cta.NamedBarriers("stagger", 1, MathThreads)
}

// NewStagger returns the stagger for math warpgroup 0 or 1.
func NewStagger(k *ptx.Kernel, barrier pipeline.NamedBarriers, warpgroup ptx.U32) *Stagger {
	return &Stagger{k: k, warpgroup: warpgroup, barrier: barrier, tile: ptx.NewVar(k, ptx.Uint(1))}
}

// WaitForLeader makes the second warpgroup wait before its first tile, until the first warpgroup
// has multiplied the k-tiles of its [Lead].
func (s *Stagger) WaitForLeader() {
	s.k.If(s.tile.Get().Eq(s.warpgroup), func() { s.barrier.Sync(ptx.Uint(0)) })
}

// TileDone records that the warpgroup has finished a tile. After the first one, no warpgroup waits for
// its leader.
func (s *Stagger) TileDone() { s.tile.Set(ptx.Uint(2)) }

// Lead is the number of k-tiles that the first warpgroup multiplies before the second one starts.
type Lead struct {
	*Stagger
	last ptx.U32 // the k-tile after which the second warpgroup may start
}

// Lead returns a lead of kTiles k-tiles, at least 1.
func (s *Stagger) Lead(kTiles ptx.U32) Lead { return Lead{s, kTiles.SubI(1)} }

// Multiplied states that the warpgroup has issued k-tile kt. If this is the last k-tile of the
// lead, the first warpgroup releases the second one.
func (l Lead) Multiplied(kt ptx.U32) {
	now := kt.Eq(l.last).And(l.tile.Get().EqI(1)).And(l.warpgroup.EqI(0))
	l.k.If(now, func() { l.barrier.Arrive(ptx.Uint(0)) })
}

// storeSlots is the number of sub-tiles of a warpgroup that may be stored at the same time.
const storeSlots = 2

// StoreBytes is the size of the shared memory of a [Store], for both math warpgroups.
const StoreBytes = 2 * storeSlots * tile.StagingBytes

const (
	// SubTileColumns is the number of columns of a sub-tile.
	SubTileColumns = tile.Block
	// SubTileRegisters is the number of accumulators of a sub-tile in each thread.
	SubTileRegisters = SubTileColumns / 2
)

// Store writes the sums of the math warpgroups to global memory, in sub-tiles of 64 x 64. Each
// warpgroup writes a sub-tile to one of its own slots of shared memory; then one elected thread
// issues a TMA store.
type Store struct {
	k          *ptx.Kernel
	element    tile.Element
	memory     ptx.Shared // slots of both warpgroups
	barriers   pipeline.NamedBarriers
	newStaging func(*ptx.Kernel, tile.Element, ptx.U32) tile.Staging
}

// NewStore reserves the shared memory and the named barriers of a store.
func NewStore(k *ptx.Kernel, of tile.Element, cta *pipeline.CTA) *Store {
	return &Store{k: k, element: of, memory: cta.Shared("store", StoreBytes, 1024), newStaging: tile.NewStaging,
		barriers: cta.NamedBarriers("store", 2, pipeline.WarpgroupThreads)}
}

// NewTransposedStore does the same as NewStore for a tensor that is the transpose of the sums: the
// columns of a sub-tile become rows.
func NewTransposedStore(k *ptx.Kernel, of tile.Element, cta *pipeline.CTA) *Store {
	s := NewStore(k, of, cta)
	s.newStaging = tile.NewTransposedStaging
	return s
}

// SyncWarpgroup synchronises the threads of math warpgroup 0 or 1.
func (s *Store) SyncWarpgroup(warpgroup ptx.U32) { s.barriers.Sync(warpgroup) }

// storePlace is where a thread writes: its offsets in a slot, and its warpgroup's slots.
type storePlace struct {
	warpgroup ptx.U32
	staging   tile.Staging
	slots     ptx.Shared
	elected   ptx.Pred
}

// locate computes a thread's place when a sub-tile is stored. Keeping the place in registers
// through the main loop would cost more than computing it again.
func (s *Store) locate() storePlace {
	tid := s.k.TidX()
	wg, thread := ptx.WarpgroupOf(tid), ptx.InWarpgroup(tid)
	return storePlace{
		warpgroup: wg, staging: s.newStaging(s.k, s.element, thread), slots: s.memory.Plus(wg.MulI(storeSlots * tile.StagingBytes)),
		elected: s.k.ElectOne().And(thread.LtI(32)),
	}
}

// SubTile is a sub-tile of 64 columns to store.
type SubTile struct {
	Values Values
	// To is the tensor map of the destination. At returns the coordinates of the sub-tile in it.
	To ptx.TensorMap
	At func() []ptx.U32
}

// Values writes the values of a sub-tile to its slot. [Registers], [Computed] and [Packed] return
// such functions.
type Values func(to tile.Staging, slot ptx.Shared)

// Registers writes the accumulators of a sub-tile.
func Registers(acc []ptx.F32) Values { return Computed(func(j int) ptx.F32 { return acc[j] }) }

// OfSubTile returns those accumulators of a thread that belong to sub-tile i.
func OfSubTile(acc []ptx.F32, i int) []ptx.F32 { return acc[i*SubTileRegisters:][:SubTileRegisters] }

// Computed writes values that are computed when they are needed. value returns the value for
// register j, 0 to 31, of the sub-tile.
func Computed(value func(j int) ptx.F32) Values {
	return func(to tile.Staging, slot ptx.Shared) { to.StoreEach(slot, value) }
}

// Packed writes values that are already rounded. pair returns the values for registers 2i and 2i +
// 1 as one word.
func Packed(pair func(i int) ptx.U32) Values {
	return func(to tile.Staging, slot ptx.Shared) { to.StorePairs(slot, pair) }
}

// Tile stores n sub-tiles. It calls build for each one just before this sub-tile is written to
// shared memory.
func (s *Store) Tile(n int, build func(i int) SubTile) {
	k, at := s.k, s.locate()
	for i := range n {
		pending := storeSlots - 1
		if i == 0 && n%storeSlots != 0 {
			pending = 0 // the last sub-tile of the previous tile used this slot
		}
		slot := at.slots.At(i % storeSlots * tile.StagingBytes)
		sub := build(i)
		k.If(at.elected, func() { k.BulkWait(pending, ".read") })
		s.SyncWarpgroup(at.warpgroup)
		sub.Values(at.staging, slot)
		k.FenceProxyAsync(".shared::cta")
		s.SyncWarpgroup(at.warpgroup)
		k.If(at.elected, func() {
			k.TMAStore(sub.To, slot, sub.At()...)
			k.BulkCommit()
		})
	}
}

// Finish waits until all stores of the warpgroup are complete.
func (s *Store) Finish() {
	s.k.If(s.locate().elected, func() { s.k.BulkWait(0) })
}
