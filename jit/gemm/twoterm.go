package gemm

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// TwoTerm is a product with an FP32 factor: A is split into two terms of B's
// element, together 16 bits of fraction of bf16 or 22 of fp16, that the load role
// writes to shared memory itself; B is contiguous across the sum, and comes by TMA.
// With fp16, A is a multiple of 2^-24 and at most 65504. One tile of
// 128 x TwoTermN a CTA, two math warpgroups of 64 lines each. Each k16 step
// multiplies the upper terms, then the lower ones.
type TwoTerm struct {
	K *ptx.Kernel
	// Element is that of B and the terms.
	Element tile.Element
	// Thread is the thread's number in its CTA.
	Thread ptx.U32
	// AMN: A is MN-major.
	AMN bool
	// Rounded: the upper terms are all of A.
	Rounded bool
	// B is B's map, of Atoms, Column the tile's first column.
	B      ptx.TensorMap
	Atoms  tile.Atoms
	Column ptx.U32

	ring *pipeline.Ring
}

// The shape of a TwoTerm.
const (
	TwoTermN      = 256
	TwoTermStages = 3
	// TermBytes is the tile of one of A's terms: the lower one's follows
	// the upper one's.
	TermBytes     = TileM * tile.RowBytes
	twoTermBBytes = TwoTermN * tile.RowBytes
)

// Start begins the kernel: it lays out shared memory and waits for the kernel before
// this one.
func (p *TwoTerm) Start() {
	k, cta := p.K, pipeline.NewCTA(p.K)
	const loadWarps, oneForTheBytes = 4, 1
	p.ring = cta.Ring("ab", TwoTermStages, p.bAt()+twoTermBBytes, loadWarps+oneForTheBytes, MathWarps)
	cta.Ready(p.Thread)
	k.GridDepWait()
	k.GridDepLaunch()
}

// bAt is where a stage has B.
func (p *TwoTerm) bAt() int {
	if p.Rounded {
		return TermBytes
	}
	return 2 * TermBytes
}

// Filler writes both terms of A with the load role's threads.
type Filler interface {
	// Fill writes those of step kt. What it does before it asks for the stage
	// runs while that is still in use.
	Fill(kt ptx.U32, stage func() ptx.Shared)
}

// Run multiplies: step kt covers lines kt·64 from first on of B. newFiller is
// called once, in the load role ahead of its loop. store gets the accumulators
// of a warpgroup, whose first line is active.
func (p *TwoTerm) Run(first, steps ptx.U32, active func(wg ptx.U32) ptx.Pred, newFiller func() Filler, store func(wg ptx.U32, acc []ptx.F32)) {
	k := p.K
	RunRoles(k, p.Thread, func() {
		wg := p.Thread.ShrI(7)
		acc := k.Accumulators(TwoTermN / 2)
		loop := MainLoop{K: k, Ring: p.ring.Consumer(), Release: pipeline.NewReleaser(k, p.Thread.AndI(31), 1)}
		k.IfElse(active(wg), func() {
			p.multiply(loop, wg, steps, acc)
			store(wg, acc)
		}, func() { loop.Drain(steps, nil) })
	}, func() { p.load(first, steps, newFiller) })
}

// multiply makes the sums of all steps.
func (p *TwoTerm) multiply(loop MainLoop, wg, steps ptx.U32, acc []ptx.F32) {
	k := p.K
	newA, rows := tile.NewDescriptor, WarpgroupM*tile.RowBytes
	if p.AMN {
		newA, rows = tile.NewDescriptorMN, tile.BlockBytes
	}
	rowsAt := wg.MulI(rows)
	loop.Run(steps, func(s pipeline.Stage, kt ptx.U32) {
		upper := newA(k, s.Data.Plus(rowsAt))
		lower := newA(k, s.Data.At(TermBytes).Plus(rowsAt))
		b := tile.NewDescriptorMN(k, s.Data.At(p.bAt()))
		notFirst := kt.NeI(0)
		k.WgmmaFence()
		for i := range tile.K / tile.KStep {
			scale := ptx.True()
			if i == 0 {
				scale = notFirst
			}
			p.Element.Wgmma(k, acc, upper.Step(i, 0), b.Step(i, 0), scale, p.AMN, true)
			if !p.Rounded {
				p.Element.Wgmma(k, acc, lower.Step(i, 0), b.Step(i, 0), ptx.True(), p.AMN, true)
			}
		}
		k.WgmmaCommit()
	}, nil)
}

// load fills the ring: B's first copies start before anything else, the others
// as soon as a stage is empty.
func (p *TwoTerm) load(first, steps ptx.U32, newFiller func() Filler) {
	k := p.K
	lane := p.Thread.AndI(31)
	elected := k.ElectOne().And(p.InRole().LtI(32))
	copyB := func(s pipeline.Stage, kt ptx.U32) {
		k.MbarrierArriveExpectTx(s.Full, ptx.Uint(twoTermBBytes))
		p.Atoms.Load(k, s.Data.At(p.bAt()), p.B, s.Full, first.Add(kt.MulI(tile.K)), p.Column)
	}
	ahead := p.ring.Producer()
	k.Range(steps.Min(ptx.Uint(TwoTermStages)), func(kt ptx.U32) {
		s := ahead.Acquire()
		k.If(elected, func() { copyB(s, kt) })
		ahead.Advance()
	})
	filler := newFiller()
	at := p.ring.Producer()
	k.Range(steps, func(kt ptx.U32) {
		var s pipeline.Stage
		filler.Fill(kt, func() ptx.Shared {
			s = at.Acquire()
			k.If(elected.And(kt.GeI(TwoTermStages)), func() { copyB(s, kt) })
			return s.Data
		})
		k.FenceProxyAsync(".shared::cta")
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
		k.Guarded(lane.EqI(0), func() { k.MbarrierArrive(s.Full) })
		at.Advance()
	})
}

// EachEight runs body for each 8 columns of the tile's i-th 64 that a width has,
// where there.
func (p *TwoTerm) EachEight(i, width int, there ptx.Pred, body func(j int)) {
	block := p.Column.AddI(i * tile.Block)
	p.K.If(there.And(block.LtI(width)), func() {
		for j := range tile.Block / 8 {
			if width%tile.Block == 0 {
				body(j)
			} else {
				p.K.If(block.AddI(8*j).LtI(width), func() { body(j) })
			}
		}
	})
}

// InRole is the thread's number in its warpgroup.
func (p *TwoTerm) InRole() ptx.U32 { return p.Thread.AndI(pipeline.WarpgroupThreads - 1) }

// Terms splits two FP32 values.
func (p *TwoTerm) Terms(a, b ptx.F32) (upper, lower ptx.U32) {
	upper = p.Element.Pack(p.K, a, b)
	lo, hi := p.Element.Unpack(upper)
	return upper, p.Element.Pack(p.K, a.Sub(lo), b.Sub(hi))
}

// StoreEight writes both terms of 8 neighbours of A.
func (p *TwoTerm) StoreEight(to ptx.Shared, v []ptx.F32) {
	var upper, lower []ptx.U32
	for i := 0; i < len(v); i += 2 {
		u, l := p.Terms(v[i], v[i+1])
		upper, lower = append(upper, u), append(lower, l)
	}
	ptx.StShared(to, upper...)
	if !p.Rounded {
		ptx.StShared(to.At(TermBytes), lower...)
	}
}

// LoadEight loads 8 neighbours of a row, columns wide, of FP32 values: zeros
// past its end or where the row is not there.
func (p *TwoTerm) LoadEight(from ptx.Global, row, column ptx.U32, columns int, there ptx.Pred) []ptx.F32 {
	v := ptx.NewVars(p.K, 8, ptx.Float(0))
	at := from.Index(row, columns*4).Index(column, 4)
	if columns%8 == 0 {
		p.K.If(there.And(column.LtI(columns)), func() {
			ptx.SetAll(v[:4], ptx.LdGlobalVec[ptx.F32](at, 4))
			ptx.SetAll(v[4:], ptx.LdGlobalVec[ptx.F32](at.At(4*4), 4))
		})
	} else {
		for i := range v {
			p.K.If(there.And(column.AddI(i).LtI(columns)), func() { v[i].Set(ptx.LdGlobal[ptx.F32](at.At(4 * i))) })
		}
	}
	list := make([]ptx.F32, len(v))
	for i := range v {
		list[i] = v[i].Get()
	}
	return list
}
