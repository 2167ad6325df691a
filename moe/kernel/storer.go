package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// storer writes a math warpgroup's 64 x 64 sub-tiles through its own slots of
// shared memory, one elected thread issuing the TMA stores.
type storer struct {
	k          *ptx.Kernel
	memory     ptx.Shared // of both warpgroups
	newStaging func(*ptx.Kernel, ptx.U32) tile.Staging
	// The thread's place.
	staging tile.Staging
	slots   ptx.Shared
	barrier ptx.U32
	elected ptx.Pred
	// row is the warpgroup's first packed row, rows how many are valid.
	row, rows ptx.U32
	// whole: the maps are not ragged, and a sub-tile's lead is all its
	// coordinates.
	whole bool
}

func newStorer(p *product) *storer {
	s := &storer{k: p.k, memory: p.staging, newStaging: tile.NewStaging}
	s.place()
	return s
}

// place finds the thread's place anew: cheaper than registers for it through
// the main loop.
func (s *storer) place() {
	tid := s.k.Special("%tid.x")
	wg, thread := tid.ShrI(7), tid.AndI(pipeline.WarpgroupThreads-1)
	s.staging = s.newStaging(s.k, thread)
	s.slots = s.memory.Plus(wg.MulI(storeSlots * tile.StagingBytes))
	s.barrier = wg.AddI(1)
	s.elected = s.k.ElectOne().And(thread.LtI(32))
}

// subTile is 64 columns of a fragment on their way to a ragged map.
type subTile struct {
	// value is the value of register j of 32.
	value func(j int) ptx.F32
	to    ptx.TensorMap
	// lead are the coordinates before the row's.
	lead []ptx.U32
	// after, unless nil, is called when all values are staged.
	after func()
}

// registers is the value of a sub-tile that is in registers.
func registers(acc []ptx.F32) func(int) ptx.F32 {
	return func(j int) ptx.F32 { return acc[j] }
}

// put stores the sub-tiles of one tile; build is called for each just before
// it is staged.
func (s *storer) put(n int, build func(i int) subTile) {
	s.place()
	threads := ptx.Uint(pipeline.WarpgroupThreads)
	for i := range n {
		pending := storeSlots - 1
		if i == 0 && n%storeSlots != 0 {
			pending = 0 // the previous tile ended on this slot
		}
		slot := s.slots.At(i % storeSlots * tile.StagingBytes)
		b := build(i)
		s.k.If(s.elected, func() { s.k.BulkWait(pending, ".read") })
		s.k.BarSync(s.barrier, threads)
		s.staging.StoreEach(slot, b.value)
		if b.after != nil {
			b.after()
		}
		s.k.FenceProxyAsync(".shared::cta")
		s.k.BarSync(s.barrier, threads)
		s.k.If(s.elected, func() {
			at := append([]ptx.U32{}, b.lead...)
			if !s.whole {
				at = append(at, ptx.Uint(warpgroupRows).Sub(s.rows), s.row.Add(s.rows))
			}
			s.k.TMAStore(b.to, slot, at...)
			s.k.BulkCommit()
		})
	}
}

// finish waits until the stores are done.
func (s *storer) finish() {
	s.place()
	s.k.If(s.elected, func() { s.k.BulkWait(0) })
}
