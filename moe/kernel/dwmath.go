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
			e.multiply(at, t, wg, leader, skew, acc)
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

// multiply is the main loop, as product's, with both operands MN-major, and
// the rest of a step: as many 16-row parts as have rows. Parts of zeros would
// change nothing.
func (e *dw) multiply(at *pipeline.Cursor, t dwItem, wg ptx.U32, leader ptx.Pred, skew *skew, acc []ptx.F32) {
	k := e.k
	held := pipeline.NewHold(k)
	operands := func(s pipeline.Stage, step ptx.U32) (a, b tile.Descriptor) {
		s.Data = s.Data.Plus(step.MulI(tile.KStep * tile.RowBytes))
		return tile.NewDescriptorMN(k, s.Data.Plus(wg.MulI(tile.BlockBytes))), tile.NewDescriptorMN(k, s.Data.At(tileABytes))
	}
	full, left := t.rows.DivI(tile.K), t.rows.AndI(tile.K-1)
	k.For(ptx.Uint(0), full, ptx.Uint(1), func(kt ptx.U32) {
		s := at.Wait()
		k.FenceProxyAsync(".shared::cta")
		a, b := operands(s, ptx.Uint(0))
		notFirst := kt.NeI(0)
		multiplyTile(k, acc, a, b, notFirst, true, true)
		skew.lead(kt)
		k.WgmmaWait(1)
		k.Guarded(leader.And(notFirst), func() { held.Stage().Release(k) })
		held.Keep(s)
		at.Advance()
	})
	k.If(left.NeI(0).Or(full.EqI(0)), func() {
		s := at.Wait()
		k.FenceProxyAsync(".shared::cta")
		parts := left.AddI(tile.KStep - 1).DivI(tile.KStep).Max(ptx.Uint(1))
		k.For(ptx.Uint(0), parts, ptx.Uint(1), func(i ptx.U32) {
			a, b := operands(s, i)
			k.WgmmaFence()
			k.Wgmma(acc, a.Step(0, 0), b.Step(0, 0), full.Or(i).NeI(0), true, true)
			k.WgmmaCommit()
			k.WgmmaWait(1)
		})
		skew.lead(full)
		k.WgmmaWait(0)
		k.Guarded(leader.And(full.NeI(0)), func() { held.Stage().Release(k) })
		held.Keep(s)
		at.Advance()
	})
	k.WgmmaWait(0)
	k.Guarded(leader, func() { held.Stage().Release(k) })
}
