package dw

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
)

// roundBits is the bits of a slot's state that count splits, of which 2^31 rows
// have 2^18 at most; the rest count the tiles that have been joined in the slot,
// modulo 4096: as many tiles of one slot are never under way at a time.
const roundBits = 20

// join adds up the splits of a tile, in order, and reports whether this was
// the last: its accumulators are then the tile's sum. Each split waits for
// the sum of those before it, in one of the slots of partial sums, and leaves
// its own there. A slot's state says which tile and split may have it next.
// The warpgroups have slots and states of their own; one without lines in the
// tile, and so without accumulators, takes its turn all the same.
func (e *dw) join(t item, wg ptx.U32, acc []ptx.F32) (last ptx.Pred) {
	k := e.k
	last = t.split.AddI(1).Eq(t.splits)
	k.If(t.splits.GtI(1), func() {
		thread := e.tid.AndI(pipeline.WarpgroupThreads - 1)
		first := thread.EqI(0)
		sync := func() { e.store.SyncWarpgroup(wg) }
		round := t.serial.Div(e.slots)
		own := t.serial.Sub(round.Mul(e.slots)).MulI(2).Add(wg)
		turn := round.ShlI(roundBits).Or(t.split)
		state := e.state.Index(own, 4)
		part := e.partials.Index(own, e.PartialBytes()/2).Index(thread, 16)
		k.If(first, func() {
			k.Loop(func() { k.BreakIf(ptx.LdGlobalAcquire(state).Eq(turn)) })
		})
		sync()
		k.If(t.split.NeI(0), func() { addPartial(part, acc) })
		k.If(last.Not(), func() {
			for i := 0; i < len(acc); i += 4 {
				ptx.StGlobal(part.At(i/4*partialStep), acc[i:i+4]...)
			}
		})
		sync()
		k.If(first, func() {
			ptx.StGlobalRelease(state, ptx.Select(last, round.AddI(1).ShlI(roundBits), turn.AddI(1)))
		})
	})
	return last
}

// partialStep is from one of a thread's 16 bytes to its next: a warpgroup
// writes them side by side.
const partialStep = pipeline.WarpgroupThreads * 16

// addPartial adds the sum of the splits before, some loads at a time.
func addPartial(part ptx.Global, acc []ptx.F32) {
	const inFlight = 32
	for i := 0; i < len(acc); i += inFlight {
		n := min(inFlight, len(acc)-i)
		var before []ptx.F32
		for j := 0; j < n; j += 4 {
			before = append(before, ptx.LdGlobalVec[ptx.F32](part.At((i+j)/4*partialStep), 4)...)
		}
		for j, x := range before {
			ptx.VarOf(acc[i+j]).Set(x.Add(acc[i+j]))
		}
	}
}
