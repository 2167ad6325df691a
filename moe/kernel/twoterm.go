package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// twoTerm is the skeleton of the small products with an FP32 factor: A is
// split into two bf16 terms, together 16 bits of fraction, that the load role
// writes to shared memory itself; B is bf16, contiguous across the sum, and
// comes by TMA. One tile a CTA, two math warpgroups of 64 lines each. Each
// k16 step multiplies the upper terms, then the lower ones.
type twoTerm struct {
	k    *ptx.Kernel
	tid  ptx.U32
	ring *pipeline.Ring
	// aMN: A is MN-major.
	aMN bool
	// b is B's map, n the tile's first column.
	b ptx.TensorMap
	n ptx.U32
}

const (
	twoTermWidth  = 256
	twoTermA      = BlockRows * tile.RowBytes // bytes of one term's tile
	twoTermB      = twoTermWidth * tile.RowBytes
	twoTermStages = 3
	twoTermShared = twoTermStages*(2*twoTermA+twoTermB) + barrierBytes
)

func newTwoTerm(k *ptx.Kernel, tid ptx.U32) *twoTerm {
	k.SetLaunchBounds(productThreads, 1)
	p := &twoTerm{k: k, tid: tid}
	set := pipeline.NewSetup(k)
	const mathWarps, loadWarps, oneForTheBytes = 2 * 4, 4, 1
	p.ring = pipeline.NewRing(k, set, pipeline.NewShared(k), twoTermStages, 2*twoTermA+twoTermB, loadWarps+oneForTheBytes, mathWarps)
	set.Done(tid)
	k.GridDepWait()
	k.GridDepLaunch()
	return p
}

// fill writes both terms of step kt's A with the load role's threads. What it
// does before it asks for the stage runs while that is still in use.
type fill func(kt ptx.U32, stage func() ptx.Shared)

// run multiplies: step kt covers lines kt·64 from first on of B. newFill is
// called once, in the load role ahead of its loop. store gets the accumulators
// of a warpgroup, whose first line is active.
func (p *twoTerm) run(first, steps ptx.U32, active func(wg ptx.U32) ptx.Pred, newFill func() fill, store func(wg ptx.U32, acc []ptx.F32)) {
	k := p.k
	pipeline.Run(k, p.tid.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: 2, Body: func() {
			wg := p.tid.ShrI(7)
			acc := k.Accumulators(twoTermWidth / 2)
			loop := mainLoop{k, p.ring.Consumer(), pipeline.NewReleaser(k, p.tid.AndI(31), 1)}
			k.IfElse(active(wg), func() {
				p.multiply(loop, wg, steps, acc)
				store(wg, acc)
			}, func() { loop.drain(steps, nil) })
		}},
		pipeline.Role{Name: "load", First: 2, Count: 1, Body: func() { p.load(first, steps, newFill) }},
	)
}

// multiply makes the sums of all steps.
func (p *twoTerm) multiply(loop mainLoop, wg, steps ptx.U32, acc []ptx.F32) {
	k := p.k
	newA, rows := tile.NewDescriptor, warpgroupRows*tile.RowBytes
	if p.aMN {
		newA, rows = tile.NewDescriptorMN, tile.BlockBytes
	}
	rowsAt := wg.MulI(rows)
	loop.run(steps, func(s pipeline.Stage, kt ptx.U32) {
		upper := newA(k, s.Data.Plus(rowsAt))
		lower := newA(k, s.Data.At(twoTermA).Plus(rowsAt))
		b := tile.NewDescriptorMN(k, s.Data.At(2*twoTermA))
		notFirst := kt.NeI(0)
		k.WgmmaFence()
		for i := range tile.K / tile.KStep {
			scale := ptx.True()
			if i == 0 {
				scale = notFirst
			}
			k.Wgmma(acc, upper.Step(i, 0), b.Step(i, 0), scale, p.aMN, true)
			k.Wgmma(acc, lower.Step(i, 0), b.Step(i, 0), ptx.True(), p.aMN, true)
		}
		k.WgmmaCommit()
	}, nil)
}

// load fills the ring: B's first copies start before anything else, the others
// as soon as a stage is empty.
func (p *twoTerm) load(first, steps ptx.U32, newFill func() fill) {
	k := p.k
	lane := p.tid.AndI(31)
	elected := k.ElectOne().And(p.thread().LtI(32))
	copyB := func(s pipeline.Stage, kt ptx.U32) {
		k.MbarrierArriveExpectTx(s.Full, ptx.Uint(twoTermB))
		k.TMALoad(s.Data.At(2*twoTermA), p.b, s.Full, ptx.Uint(0), first.Add(kt.MulI(tile.K)), p.n.DivI(tile.Block))
	}
	ahead := p.ring.Producer()
	k.For(ptx.Uint(0), steps.Min(ptx.Uint(twoTermStages)), ptx.Uint(1), func(kt ptx.U32) {
		s := ahead.Acquire()
		k.If(elected, func() { copyB(s, kt) })
		ahead.Advance()
	})
	fill := newFill()
	at := p.ring.Producer()
	k.For(ptx.Uint(0), steps, ptx.Uint(1), func(kt ptx.U32) {
		var s pipeline.Stage
		fill(kt, func() ptx.Shared {
			s = at.Acquire()
			k.If(elected.And(kt.GeI(twoTermStages)), func() { copyB(s, kt) })
			return s.Data
		})
		k.FenceProxyAsync(".shared::cta")
		k.BarWarpSync(ptx.Uint(ptx.FullMask))
		k.Guarded(lane.EqI(0), func() { k.MbarrierArrive(s.Full) })
		at.Advance()
	})
}

// thread is the thread's number in its warpgroup.
func (p *twoTerm) thread() ptx.U32 { return p.tid.AndI(pipeline.WarpgroupThreads - 1) }

// terms splits two FP32 values.
func (p *twoTerm) terms(a, b ptx.F32) (upper, lower ptx.U32) {
	u := p.k.PackBF16(a, b)
	lo, hi := u.Unpack()
	return u.Bits(), p.k.PackBF16(a.Sub(lo), b.Sub(hi)).Bits()
}

// storeEight writes both terms of 8 neighbours of A.
func (p *twoTerm) storeEight(to ptx.Shared, v []ptx.F32) {
	var upper, lower []ptx.U32
	for i := 0; i < len(v); i += 2 {
		u, l := p.terms(v[i], v[i+1])
		upper, lower = append(upper, u), append(lower, l)
	}
	ptx.StShared(to, upper...)
	ptx.StShared(to.At(twoTermA), lower...)
}

// loadEight loads 8 neighbours of a row of FP32 values with so many columns,
// zeros past its end or where the row is not there.
func (p *twoTerm) loadEight(from ptx.Global, row, column ptx.U32, columns int, there ptx.Pred) []ptx.F32 {
	v := newFloats(p.k, 8)
	at := from.Index(row, columns*4).Index(column, 4)
	if columns%8 == 0 {
		p.k.If(there.And(column.LtI(columns)), func() {
			setAll(v[:4], ptx.LdGlobalVec[ptx.F32](at, 4))
			setAll(v[4:], ptx.LdGlobalVec[ptx.F32](at.At(4*4), 4))
		})
	} else {
		for i := range v {
			p.k.If(there.And(column.AddI(i).LtI(columns)), func() { v[i].Set(ptx.LdGlobal[ptx.F32](at.At(4 * i))) })
		}
	}
	list := make([]ptx.F32, len(v))
	for i := range v {
		list[i] = v[i].Get()
	}
	return list
}

// newFloats makes n zeros that a branch may set.
func newFloats(k *ptx.Kernel, n int) []*ptx.Var[ptx.F32] {
	list := make([]*ptx.Var[ptx.F32], n)
	for i := range list {
		list[i] = ptx.NewVar(k, ptx.Float(0))
	}
	return list
}

// setAll sets variables to as many values.
func setAll[T ptx.Value](vars []*ptx.Var[T], to []T) {
	for i, v := range vars {
		v.Set(to[i])
	}
}

// linesMap is the load map of B [lines, width], in boxes of 64 lines x the
// tile's columns, 64 columns after 64 columns.
func linesMap(p driver.DevicePtr, width, lines, columns int) driver.TensorMap {
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 3, Address: p,
		Dims:    [5]uint64{tile.Block, uint64(max(lines, 1)), uint64(width) / tile.Block},
		Strides: [4]uint64{uint64(width) * bf16, tile.Block * bf16},
		Box:     [5]uint32{tile.Block, tile.K, uint32(columns / tile.Block)},
		Swizzle: driver.Swizzle128, Promote: driver.Promote128,
	}
}
