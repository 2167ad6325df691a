package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// math multiplies the warpgroup's 64 lines of each tile. A warpgroup past the
// last line only gives the stages back.
func (e *dw) math() {
	k := e.k
	wg := e.tid.ShrI(7)
	leader := e.tid.AndI(31).EqI(0)
	acc := k.Accumulators(e.point.TileN / 2)
	at := e.ring.Consumer()
	store := e.newDWStore(wg)
	skew := &skew{k: k, wg: wg, first: ptx.NewVar(k, ptx.Uint(1))}
	e.queue.reader(leader).each(func(t dwItem) {
		steps := kTiles(t)
		skew.at = steps.Min(ptx.Uint(e.point.Stages)).SubI(1)
		skew.follow()
		store.m = t.m.Add(wg.MulI(warpgroupRows))
		k.IfElse(store.m.LtI(e.Hidden), func() {
			e.multiply(at, wg, leader, skew, steps, acc)
			last := e.join(t, wg, acc)
			k.If(last, func() { store.put(t, acc) })
		}, func() {
			k.For(ptx.Uint(0), steps, ptx.Uint(1), func(ptx.U32) {
				s := at.Wait()
				k.Guarded(leader, func() { s.Release(k) })
				at.Advance()
			})
			e.join(t, wg, nil)
		})
		skew.seeded()
	})
	store.finish()
}

// multiply is the main loop, as product's, with both operands MN-major.
func (e *dw) multiply(at *pipeline.Cursor, wg ptx.U32, leader ptx.Pred, skew *skew, steps ptx.U32, acc []ptx.F32) {
	k := e.k
	held := pipeline.NewHold(k)
	k.For(ptx.Uint(0), steps, ptx.Uint(1), func(kt ptx.U32) {
		s := at.Wait()
		k.FenceProxyAsync(".shared::cta")
		a := tile.NewDescriptorMN(k, s.Data.Plus(wg.MulI(tile.BlockBytes)))
		b := tile.NewDescriptorMN(k, s.Data.At(tileABytes))
		notFirst := kt.NeI(0)
		k.WgmmaFence()
		for i := range tile.K / tile.KStep {
			scale := ptx.True()
			if i == 0 {
				scale = notFirst
			}
			k.Wgmma(acc, a.Step(i, 0), b.Step(i, 0), scale, true, true)
		}
		k.WgmmaCommit()
		skew.lead(kt)
		k.WgmmaWait(1)
		k.Guarded(leader.And(notFirst), func() { held.Release(k) })
		held.Keep(s)
		at.Advance()
	})
	k.WgmmaWait(0)
	k.Guarded(leader, func() { held.Release(k) })
}
