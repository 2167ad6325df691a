package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/ptx"
)

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
