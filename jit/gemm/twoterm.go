package gemm

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// TwoTerm is a matrix product A·B whose factor A is FP32. A is split into two terms of B's element
// type: the rounded value, and the rounded remainder. Together they hold 16 bits of A's fraction
// with bf16, and 22 with fp16. With fp16, A must be a multiple of 2^-24 and at most 65504.
//
// The load role computes the terms and writes them to shared memory. TMA loads B, whose elements of
// one k are contiguous in memory. A CTA computes one tile of 128 x TwoTermN, with two math
// warpgroups of 64 rows each. Each step of 16 in k multiplies the upper terms, then the lower ones.
type TwoTerm struct {
	K *ptx.Kernel
	// Element is the type of B and of the terms.
	Element tile.Element
	// Thread is the thread's index in the CTA.
	Thread ptx.U32
	// AMN states that A is MN-major in shared memory.
	AMN bool
	// Rounded omits the lower terms, so A is rounded to the element type.
	Rounded bool
	// B is the tensor map of B, and Atoms describes its boxes.
	B     ptx.TensorMap
	Atoms tile.Atoms

	ring *pipeline.Ring
}

// TwoTermTile is the tile of the product that a CTA computes.
type TwoTermTile struct {
	// Column is the tile's first column.
	Column ptx.U32
	// The sum runs over rows First to First + 64·Steps - 1 of B.
	First, Steps ptx.U32
	// HasLines reports whether a math warpgroup has rows of the result.
	HasLines func(wg ptx.U32) ptx.Pred
}

// TwoTermN is the width of the tile, TwoTermStages the number of stages of the ring.
const (
	TwoTermN      = 256
	TwoTermStages = 3
	// TermBytes is the size of the tile of one term of A. The tile of the lower term follows the
	// tile of the upper one.
	TermBytes     = TileM * tile.RowBytes
	twoTermBBytes = TwoTermN * tile.RowBytes
)

// Start begins the kernel: it lays out shared memory and waits for the predecessor kernel.
func (p TwoTerm) Start() *TwoTerm {
	k, cta := p.K, pipeline.NewCTA(p.K)
	const loadWarps, bytesOfB = 4, 1 // number of arrivals that fill a stage: one for each load warp, and one with the bytes of B
	p.ring = cta.Ring("ab", TwoTermStages, p.bAt()+twoTermBBytes, loadWarps+bytesOfB, MathWarps)
	cta.Ready(p.Thread)
	k.GridDepWait()
	k.GridDepLaunch()
	return &p
}

// bAt returns the offset of B in a stage.
func (p *TwoTerm) bAt() int {
	if p.Rounded {
		return TermBytes
	}
	return 2 * TermBytes
}

// Filler writes both terms of A to shared memory, with all threads of the load role.
type Filler interface {
	// Fill writes the terms of step kt. stage waits until the step's stage is empty and returns its
	// address. What Fill does before it calls stage overlaps with the previous use of the stage.
	Fill(kt ptx.U32, stage func() ptx.Shared)
}

// Run emits both roles. It calls newFiller once, before the loop of the load role. Function store
// stores the accumulators of a warpgroup. It is not called if the warpgroup has no rows of the
// result.
func (p *TwoTerm) Run(t TwoTermTile, newFiller func() Filler, store func(wg ptx.U32, acc []ptx.F32)) {
	k := p.K
	RunRoles(k, p.Thread, func() {
		wg := k.Warpgroup()
		acc := k.Accumulators(TwoTermN / 2)
		loop := MainLoop{K: k, Ring: p.ring.Consumer(), Release: pipeline.NewReleaser(k, k.Lane(), 1)}
		k.IfElse(t.HasLines(wg), func() {
			p.multiply(loop, wg, t.Steps, acc)
			store(wg, acc)
		}, func() { loop.Drain(t.Steps) })
	}, func() { p.load(t, newFiller) })
}

// multiply computes the sums of all k steps of the tile.
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
	})
}

// load fills the ring. The copies of B for the first stages start at once. Each later copy starts
// as soon as its stage is empty.
func (p *TwoTerm) load(t TwoTermTile, newFiller func() Filler) {
	k := p.K
	lane := k.Lane()
	elected := k.ElectOne().And(p.InRole().LtI(32))
	copyB := func(s pipeline.Stage, kt ptx.U32) {
		k.MbarrierArriveExpectTx(s.Full, ptx.Uint(twoTermBBytes))
		p.Atoms.Load(k, s.Data.At(p.bAt()), p.B, s.Full, t.First.Add(kt.MulI(tile.K)), t.Column)
	}
	ahead := p.ring.Producer()
	k.Range(t.Steps.Min(ptx.Uint(TwoTermStages)), func(kt ptx.U32) {
		s := ahead.Acquire()
		k.If(elected, func() { copyB(s, kt) })
		ahead.Advance()
	})
	filler := newFiller()
	at := p.ring.Producer()
	k.Range(t.Steps, func(kt ptx.U32) {
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

// EachEight emits body for each group of 8 columns in block i of a tile. A block has 64 columns.
// Parameter column is the tile's first column. At run time, groups past width are skipped. If the
// predicate there is false, all groups are skipped.
func (p *TwoTerm) EachEight(column ptx.U32, i, width int, there ptx.Pred, body func(j int)) {
	block := column.AddI(i * tile.Block)
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

// InRole returns the thread's index in its warpgroup.
func (p *TwoTerm) InRole() ptx.U32 { return ptx.InWarpgroup(p.Thread) }

// Terms splits two FP32 values into their terms. upper has the upper terms of both, packed into a
// word, and lower the lower terms.
func (p *TwoTerm) Terms(a, b ptx.F32) (upper, lower ptx.U32) {
	upper = p.Element.Pack(p.K, a, b)
	lo, hi := p.Element.Unpack(upper)
	return upper, p.Element.Pack(p.K, a.Sub(lo), b.Sub(hi))
}

// StoreEight writes both terms of 8 adjacent values of A to shared memory.
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

// LoadEight loads 8 adjacent FP32 values of a row. The row has `columns` values; values past its
// end are 0. If the predicate there is false, all values are 0.
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
