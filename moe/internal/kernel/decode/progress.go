package decode

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/ptx"
)

// progress lets the down-projection of an expert start when the up-projection of this expert is
// complete, while other experts' up-projection runs. Otherwise the SMs whose CTAs have no more tiles
// would wait for the last tiles of the up-projection. The last word of an entry of the table counts:
// the up-projection adds rows times units for each block it has stored. The zero value counts nothing.
type progress struct {
	table ptx.Global
	// stored is a ring without data. A stage is full when all math warps have stored a block. It is set
	// in the up-projection.
	stored *pipeline.Ring
	// units is the number of units of an expert in the up-projection. It is set in the down-projection.
	units int
}

// count returns the address of an entry's count.
func (p progress) count(entry ptx.U32) ptx.Global {
	return p.table.Index(entry, schedule.PairBytes).At(schedule.PairBytes - 4)
}

// newProgress returns the progress of the up-projection, whose CTA has a number of math warps.
func newProgress(cta *pipeline.CTA, table ptx.Global, mathWarps int) progress {
	const blocks = 2 // math warps may be this many blocks ahead of the warp that counts
	return progress{table: table, stored: cta.Ring("stored", blocks, 0, mathWarps, 1)}
}

// counts reports whether the kernel counts.
func (p progress) counts() bool { return p.stored != nil }

// hasStored returns the function that a math warp calls after it has stored a block.
func (p progress) hasStored(k *ptx.Kernel) func() {
	if !p.counts() {
		return func() {}
	}
	ring := p.stored.Producer()
	return func() {
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
		s := ring.Acquire()
		k.If(k.Lane().EqI(0), func() { k.MbarrierArrive(s.Full) })
		ring.Advance()
	}
}

// countBlocks counts the CTA's blocks. It runs in one thread of a warp of its own, because a math warp
// would have to wait until its stores have reached the L2 cache.
func (p progress) countBlocks(k *ptx.Kernel, tiles scheduler) {
	ring := p.stored.Consumer()
	tiles.readAlone(func(b block) {
		s := ring.Wait()
		k.FenceAcqRel(".gpu")
		k.RedGlobalAdd(p.count(b.mark), b.rows.Mul(b.units))
		s.Release(k)
		ring.Advance()
	})
}

// begin waits for the predecessor kernel if the table is not given.
func (p progress) begin(k *ptx.Kernel) {
	k.If(p.table.Addr().Eq(ptx.Long(0)), k.GridDepWait)
}

// await waits until the up-projection of a tile's rows is complete. The wait ends, because all CTAs of the
// up-projection are running.
func (p progress) await(k *ptx.Kernel, tile block) {
	k.If(p.table.Given(), func() {
		k.Loop(func() {
			k.BreakIf(ptx.LdGlobalAcquire(p.count(tile.mark)).Eq(tile.rows.MulI(p.units)))
		})
	})
}

// follow emits what single threads of the last warps do: one fences the tokens, one counts the progress.
func (p *product) follow(tiles scheduler) {
	if !p.progress.counts() {
		p.fenceTokens(tiles)
		return
	}
	p.k.IfElse(p.k.Warp().EqI(p.mathWarps()+1+p.copiers()), func() { p.fenceTokens(tiles) }, func() { p.progress.countBlocks(p.k, tiles) })
}
