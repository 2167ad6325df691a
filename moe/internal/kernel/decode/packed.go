package decode

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/ptx"
)

// wideLoop is the main loop of a wide block of packed weights. wgmma takes nearly all of its time, so
// the loop hides everything else:
//
//   - A step of 16 columns is unpacked while the wgmma of the step before runs. wgmma instructions of
//     a warp are issued one after the other, so a warp that unpacks a whole k-tile first would unpack
//     only during the last of its steps.
//   - The wait for a stage and the loads of its first codes come before the end of the previous
//     stage's last wgmma.
//   - A stage is released as soon as its last wgmma has ended.
type wideLoop struct {
	mathRole
	gemm.MainLoop
	lane    fragments.Lane
	ahead   []*ptx.Var[ptx.U32] // the words of the next stage that [fragments.Lane.Ahead] has loaded
	pending *pipeline.PendingRelease
	// columns is the number of columns of wgmma. sum are the sums.
	columns int
	sum     []ptx.F32
	// initialised means that the sums have values before the first stage.
	initialised bool
}

// multiplyWide computes the sums of a block. Each width has a loop of its own: with branches between
// the steps the assembler would serialise wgmma.
func (p mathRole) multiplyWide(loop gemm.MainLoop, sum []ptx.F32, b block) {
	initialised := p.bias.given || p.stages() == 1 // see multiply
	if initialised {
		p.setSums(b, [][]ptx.F32{sum})
	}
	p.byWidth(b.rows, func(columns int) {
		wideLoop{
			mathRole: p, MainLoop: loop, lane: fragments.NewLane(p.k, p.packed, p.k.ThreadInWarpgroup()),
			pending: pipeline.NewPendingRelease(p.k), columns: columns, sum: sum, initialised: initialised,
		}.run()
	})
}

func (l wideLoop) run() {
	k := l.K
	for _, w := range l.lane.Ahead(l.weights(l.Ring.Wait())) {
		l.ahead = append(l.ahead, ptx.NewVar(k, w))
	}
	if l.stages() == 1 {
		l.stage(ptx.Uint(0))
	} else {
		k.Range(ptx.Uint(l.stages()), l.stage)
	}
	k.WgmmaWait(0)
	l.release(ptx.True())
}

// weights returns the address of the warpgroup's weights in a stage.
func (l wideLoop) weights(s pipeline.Stage) ptx.Shared {
	return s.Data.Plus(l.warpgroup.MulI(l.unitBytes))
}

// release releases the stage before the present one if the predicate is true.
func (l wideLoop) release(when ptx.Pred) {
	l.K.BarWarpSync(ptx.Uint(ptx.FullMask)) // all lanes have loaded before one lane releases the stage
	l.Release.Release(l.pending.Stage(), when)
}

// stage multiplies a stage. Each of its k-tiles is a wgmma group.
func (l wideLoop) stage(number ptx.U32) {
	k, s, follows := l.K, l.Ring.Stage(), number.NeI(0)
	unpacked := l.lane.Resume(l.weights(s), values(l.ahead))
	adds := follows
	if l.initialised {
		adds = ptx.True()
	}
	for kt := range l.depth {
		if kt > 0 {
			k.WgmmaWait(1) // frees the registers of the group before the last one
			l.release(follows)
			adds = ptx.True()
		}
		l.kTile(unpacked.Steps(kt), tile.NewDescriptor(k, s.Data.At(l.tokensAt(kt))), adds)
	}
	l.pending.Set(s)
	l.Ring.Advance()
	k.If(number.NeI(l.stages()-1), func() {
		for i, w := range l.lane.Ahead(l.weights(l.Ring.Wait())) {
			l.ahead[i].Set(w)
		}
	})
	k.WgmmaWait(1)
}

// kTile issues the wgmma group of a k-tile. unpack returns the fragments of a step. The sums start from
// 0 if adds is false.
func (l wideLoop) kTile(unpack func(step int) []ptx.U32, tokens tile.Descriptor, adds ptx.Pred) {
	for step := range tile.K / tile.KStep {
		a := unpack(step)
		l.K.WgmmaFence()
		l.element.WgmmaRegisters(l.K, l.sum[:l.columns/2], a, tokens.Step(step, 0), adds, false)
		adds = ptx.True()
	}
	l.K.WgmmaCommit()
}

func values(vars []*ptx.Var[ptx.U32]) (list []ptx.U32) {
	for _, v := range vars {
		list = append(list, v.Get())
	}
	return list
}
