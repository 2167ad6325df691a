package decode

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/fragments"
	"sonicmoe/ptx"
)

// wideLoop is the main loop of a block of packed weights in a wide or mid CTA. wgmma takes most of its time, so the
// loop hides everything else:
//
//   - A step of 16 columns is unpacked while the wgmma of the step before runs. wgmma instructions of
//     a warp are issued one after the other, so a warp that unpacks a whole k-tile first would unpack
//     only during the last of its steps.
//   - The wait for a stage, the loads of its first codes and the unpacking of its first step come
//     before the end of the previous stage's last wgmma.
//   - No wgmma is in flight when the loop repeats. Otherwise the assembler would keep registers of its
//     operands for each loop of the kernel, and the kernel could not have a loop for each width.
type wideLoop struct {
	mathRole
	gemm.MainLoop
	lane fragments.Lane
	// ahead are the words of the next stage that [fragments.Lane.Ahead] has loaded. first are the
	// fragments of the stage's first step.
	ahead, first []*ptx.Var[ptx.U32]
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
			columns: columns, sum: sum, initialised: initialised,
		}.run()
	})
}

func (l wideLoop) run() {
	words, first := l.begin()
	for _, w := range words {
		l.ahead = append(l.ahead, ptx.NewVar(l.K, w))
	}
	for _, a := range first {
		l.first = append(l.first, ptx.NewVar(l.K, a))
	}
	if l.stages() == 1 {
		l.stage(ptx.Uint(0))
	} else {
		l.K.Range(ptx.Uint(l.stages()), l.stage)
	}
}

// begin waits for the next stage, loads its first words and unpacks its first step.
func (l wideLoop) begin() (words, first []ptx.U32) {
	at := l.weights(l.Ring.Wait())
	words = l.lane.Ahead(at)
	return words, l.lane.FirstStep(at, words)
}

// weights returns the address of the warpgroup's weights in a stage.
func (l wideLoop) weights(s pipeline.Stage) ptx.Shared {
	return s.Data.Plus(l.warpgroup.MulI(l.unitBytes))
}

// stage multiplies a stage. Each step of 16 columns is a wgmma group.
func (l wideLoop) stage(number ptx.U32) {
	k, s, adds := l.K, l.Ring.Stage(), number.NeI(0)
	unpacked := l.lane.Resume(l.weights(s), values(l.ahead))
	if l.initialised {
		adds = ptx.True()
	}
	for kt := range l.depth {
		unpack, tokens := unpacked.Steps(kt), tile.NewDescriptor(k, s.Data.At(l.tokensAt(kt)))
		for step := range tile.K / tile.KStep {
			a := values(l.first)
			if kt > 0 || step > 0 {
				k.WgmmaWait(l.groups()) // frees the registers of an earlier step
				a = unpack(step)
			}
			k.WgmmaFence()
			l.element.WgmmaRegisters(k, l.sum[:l.columns/2], a, tokens.Step(step, 0), adds, false)
			k.WgmmaCommit()
			adds = ptx.True()
		}
	}
	l.Ring.Advance()
	k.WgmmaWait(1) // frees the registers of the steps before the last one, which the unpacking of the next stage needs
	k.If(number.NeI(l.stages()-1), func() {
		words, first := l.begin()
		ptx.SetAll(l.ahead, words)
		ptx.SetAll(l.first, first)
	})
	k.WgmmaWait(0)
	k.BarWarpSync(ptx.Uint(ptx.FullMask)) // all lanes have loaded before one lane releases the stage
	l.Release.Release(s, ptx.True())
}

func values(vars []*ptx.Var[ptx.U32]) (list []ptx.U32) {
	for _, v := range vars {
		list = append(list, v.Get())
	}
	return list
}
