package dw

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// math multiplies the warpgroup's 64 lines of each tile. A warpgroup past the
// last line only gives the stages back.
func (e *dw) math() {
	k := e.k
	wg, lane := e.tid.ShrI(7), e.tid.AndI(31)
	acc := k.Accumulators(e.Tiling.TileN / 2)
	loop := gemm.MainLoop{K: k, Ring: e.ring.Consumer(), Release: pipeline.NewReleaser(k, lane, 1)}
	write := e.newWriter()
	stagger := gemm.NewStagger(k, e.stagger, wg)
	e.queue.Reader(lane.EqI(0)).Each(func(t item) {
		steps := kTiles(t)
		stagger.SetLead(steps.Min(ptx.Uint(e.Tiling.Stages)))
		stagger.WaitForLeader()
		write.m = t.m.Add(wg.MulI(gemm.WarpgroupM))
		k.IfElse(write.m.LtI(e.Hidden), func() {
			e.multiply(loop, t, wg, stagger, acc)
			last := e.join(t, wg, acc)
			k.If(last, func() { write.tile(t, acc) })
		}, func() {
			loop.Drain(steps, nil)
			e.join(t, wg, nil)
		})
		stagger.TileDone()
	})
	e.store.Finish()
}

// multiply is the main loop with both operands MN-major, and the rest of a step:
// as many 16-row parts as have rows. Parts of zeros would change nothing.
func (e *dw) multiply(loop gemm.MainLoop, t item, wg ptx.U32, stagger *gemm.Stagger, acc []ptx.F32) {
	k := e.k
	operands := func(s pipeline.Stage, step ptx.U32) (a, b tile.Descriptor) {
		s.Data = s.Data.Plus(step.MulI(tile.KStep * tile.RowBytes))
		return tile.NewDescriptorMN(k, s.Data.Plus(wg.MulI(tile.BlockBytes))), tile.NewDescriptorMN(k, s.Data.At(gemm.TileABytes))
	}
	full, left := t.rows.DivI(tile.K), t.rows.AndI(tile.K-1)
	sum := loop.Begin()
	sum.Each(full, func(s pipeline.Stage, kt ptx.U32) {
		k.FenceProxyAsync(".shared::cta") // wgmma shall see what cp.async has written
		a, b := operands(s, ptx.Uint(0))
		gemm.Multiply(k, acc, a, b, kt.NeI(0), true, true)
		stagger.Multiplied(kt)
	})
	k.If(left.NeI(0).Or(full.EqI(0)), func() {
		sum.One(full.NeI(0), 0, func(s pipeline.Stage) {
			k.FenceProxyAsync(".shared::cta")
			parts := left.AddI(tile.KStep - 1).DivI(tile.KStep).Max(ptx.Uint(1))
			k.Range(parts, func(i ptx.U32) {
				a, b := operands(s, i)
				k.WgmmaFence()
				k.Wgmma(acc, a.Step(0, 0), b.Step(0, 0), full.Or(i).NeI(0), true, true)
				k.WgmmaCommit()
				k.WgmmaWait(1)
			})
			stagger.Multiplied(full)
		})
	})
	sum.Finish()
}
