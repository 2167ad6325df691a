package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// storer writes a math warpgroup's 64 x 64 sub-tiles through its own slots of
// shared memory, one elected thread issuing the TMA stores.
type storer struct {
	k       *ptx.Kernel
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

func newStorer(p *product, wg ptx.U32) *storer {
	k := p.k
	thread := p.tid.AndI(pipeline.WarpgroupThreads - 1)
	return &storer{
		k:       k,
		staging: tile.NewStaging(k, thread),
		slots:   p.staging.Plus(wg.MulI(storeSlots * tile.StagingBytes)),
		barrier: wg.AddI(1),
		elected: k.ElectOne().And(thread.LtI(32)),
	}
}

// subTile is 64 columns of a fragment on their way to a ragged map.
type subTile struct {
	acc []ptx.F32
	to  ptx.TensorMap
	// lead are the coordinates before the row's.
	lead []ptx.U32
}

// put stores the sub-tiles of one tile; build makes each one's values just
// before it is staged.
func (s *storer) put(n int, build func(i int) subTile) {
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
		s.staging.Store(slot, b.acc)
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
	s.k.If(s.elected, func() { s.k.BulkWait(0) })
}
