package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// multiplyTile issues the wgmma group of a k-tile, which adds to the sums so far
// where keep holds. aMN and bMN: the operand is MN-major.
func multiplyTile(k *ptx.Kernel, acc []ptx.F32, a, b tile.Descriptor, keep ptx.Pred, aMN, bMN bool) {
	k.WgmmaFence()
	for i := range tile.K / tile.KStep {
		scale := ptx.True()
		if i == 0 {
			scale = keep
		}
		k.Wgmma(acc, a.Step(i, 0), b.Step(i, 0), scale, aMN, bMN)
	}
	k.WgmmaCommit()
}

// mainLoop is a math warpgroup's way through a ring of stages.
type mainLoop struct {
	k       *ptx.Kernel
	at      *pipeline.Cursor
	release pipeline.Releaser
}

// run multiplies so many stages with one wgmma group in flight: a stage is given
// back when the group after it has been issued. issue emits a stage's group;
// ending, unless nil, what may run under the last one.
func (m mainLoop) run(steps ptx.U32, issue func(s pipeline.Stage, kt ptx.U32), ending func()) {
	k := m.k
	held := pipeline.NewHold(k)
	k.For(ptx.Uint(0), steps, ptx.Uint(1), func(kt ptx.U32) {
		s := m.at.Wait()
		issue(s, kt)
		k.WgmmaWait(1)
		m.release.Release(held.Stage(), kt.NeI(0))
		held.Keep(s)
		m.at.Advance()
	})
	if ending != nil {
		ending()
	}
	k.WgmmaWait(0)
	m.release.Release(held.Stage(), ptx.True())
}

// drain gives so many stages back unused. each, unless nil, is emitted for
// every stage that has come.
func (m mainLoop) drain(steps ptx.U32, each func(kt ptx.U32)) {
	m.k.For(ptx.Uint(0), steps, ptx.Uint(1), func(kt ptx.U32) {
		s := m.at.Wait()
		if each != nil {
			each(kt)
		}
		m.release.Release(s, ptx.True())
		m.at.Advance()
	})
}
