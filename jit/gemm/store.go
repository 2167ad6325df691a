package gemm

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// storeSlots are the sub-tiles of a warpgroup that may be on their way.
const storeSlots = 2

// StoreBytes is the shared memory of both warpgroups' [Store].
const StoreBytes = 2 * storeSlots * tile.StagingBytes

// Store writes a math warpgroup's 64 x 64 sub-tiles through its own slots of
// shared memory, one elected thread issuing the TMA stores.
type Store struct {
	k          *ptx.Kernel
	memory     ptx.Shared // of both warpgroups
	barriers   pipeline.NamedBarriers
	newStaging func(*ptx.Kernel, ptx.U32) tile.Staging
}

// NewStore reserves StoreBytes.
func NewStore(k *ptx.Kernel, cta *pipeline.CTA) *Store {
	return &Store{k: k, memory: cta.Shared("store", StoreBytes, 1024), newStaging: tile.NewStaging,
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
		warpgroup: wg, staging: s.newStaging(s.k, thread), slots: s.memory.Plus(wg.MulI(storeSlots * tile.StagingBytes)),
		elected: s.k.ElectOne().And(thread.LtI(32)),
	}
}

// SubTile is 64 columns of a fragment on their way to global memory.
type SubTile struct {
	// Value is the value of register j of 32, or Pair, unless nil, of registers 2i
	// and 2i + 1.
	Value func(j int) ptx.F32
	Pair  func(i int) ptx.BF16x2
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
