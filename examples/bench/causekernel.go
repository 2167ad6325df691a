package main

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// A probe is a kernel that keeps one part of the chip busy. Its CTAs have the shape of a product's
// CTAs: two math warpgroups, a warpgroup that loads, and a ring of stages of A [128, 64] and
// B [256, 64]. The tensor cores, shared memory, the L2 cache and device memory thus get the same
// accesses as in a product, each alone or together with others.
type probe struct {
	name string
	// load reports whether every stage is loaded. Otherwise only the first turn of the ring is
	// loaded, so that shared memory has real data.
	load bool
	// onlyA reports whether a stage has only A.
	onlyA bool
	// math emits what a math warpgroup does.
	math func(p *probeParts)
	// columns is the number of columns of A and B, a power of two. Few columns stay in the L2 cache.
	columns int
	// unit names what counted counts for each SM and k-tile.
	unit    string
	counted float64
}

const (
	probeN      = 256
	probeStages = 4
	probeABytes = gemm.TileM * tile.RowBytes
	probeBBytes = probeN * tile.RowBytes
	// probeTilesOfB is the number of tiles of B, which the CTAs share.
	probeTilesOfB = 8
	// stageWords is the number of 16-byte words of a stage that one math thread reads in the probe
	// of shared memory.
	stageWords = (probeABytes + probeBBytes) / 16 / gemm.MathThreads
	// chains is the number of independent sums of a thread in the probe of issue, and chainSteps the
	// number of steps of each in a k-tile.
	chains, chainSteps = 8, 16
	// idleSteps is the number of steps of the only sum in the probe of idle SMs.
	idleSteps = 256
	// fewColumns are in the L2 cache and manyColumns are not, for the A of all CTAs.
	fewColumns, manyColumns = 512, 65536
)

// probeRun holds the arguments of a launch. A is [128 for each SM, Columns], B is
// [256·probeTilesOfB, Columns]. Out has a word for each math thread.
type probeRun struct {
	A, B, Out    driver.DevicePtr
	Rows         int
	Columns      int
	KTiles, Mask int // Mask is the number of k-tiles of A and B, less 1
}

// probeParts holds the parts of a probe's kernel while it is being built.
type probeParts struct {
	k         *ptx.Kernel
	of        probe
	a, b      ptx.TensorMap
	out       ptx.Global
	ring      *pipeline.Ring
	warpgroup ptx.U32
	tid       ptx.U32
	kTiles    ptx.U32
	mask      ptx.U32
}

// build returns the kernel of a probe.
func (of probe) build() (*jit.Kernel[probeRun], error) {
	k := jit.NewBuilder[probeRun]("bench_probe", gemm.Threads, 1)
	k.Persistent(1)
	p := &probeParts{k: k.Kernel, of: of, tid: k.TidX()}
	p.a = k.Map(&k.Args.A, func(r *probeRun) gpu.TensorMap { return tile.RowMap(r.A, r.Columns, r.Rows, gemm.TileM) })
	p.b = k.Map(&k.Args.B, func(r *probeRun) gpu.TensorMap {
		return tile.RowMap(r.B, r.Columns, probeTilesOfB*probeN, probeN)
	})
	p.out, p.kTiles, p.mask = k.Ptr(&k.Args.Out), k.U32(&k.Args.KTiles), k.U32(&k.Args.Mask)
	p.warpgroup = k.Warpgroup()
	cta := pipeline.NewCTA(k.Kernel)
	p.ring = cta.Ring("ab", probeStages, probeABytes+probeBBytes, 1, gemm.MathThreads/32)
	cta.Ready(p.tid)
	gemm.RunRoles(k.Kernel, p.tid, func() { of.math(p) }, p.loads)
	return k.Build()
}

// loads is the producer: one thread, which fills stages as they become empty.
func (p *probeParts) loads() {
	k := p.k
	count := p.kTiles
	if !p.of.load {
		count = ptx.Uint(probeStages)
	}
	k.If(k.Warp().EqI(gemm.MathThreads/32), func() {
		k.If(k.ElectOne(), func() {
			at := p.ring.Producer()
			k.Range(count, func(kt ptx.U32) {
				column := kt.And(p.mask).MulI(tile.K)
				s := at.Acquire()
				bytes := probeABytes
				if !p.of.onlyA {
					bytes += probeBBytes
				}
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(bytes))
				k.TMALoad(s.Data, p.a, s.Full, column, k.CtaidX().MulI(gemm.TileM))
				if !p.of.onlyA {
					k.TMALoad(s.Data.At(probeABytes), p.b, s.Full, column, k.CtaidX().RemI(probeTilesOfB).MulI(probeN))
				}
				at.Advance()
			})
		})
	})
}

// write stores a value of each math thread, so that the assembler keeps what the value depends on.
func (p *probeParts) write(v ptx.U32) {
	ptx.StGlobal(p.out.Index(p.k.CtaidX().MulI(gemm.MathThreads).Add(p.tid), 4), v)
}

// multiply multiplies each loaded stage, as products do.
func (p *probeParts) multiply() {
	acc := p.k.Accumulators(probeN / 2)
	loop := gemm.MainLoop{K: p.k, Ring: p.ring.Consumer(), Release: pipeline.NewReleaser(p.k, p.k.Lane(), 1)}
	loop.Run(p.kTiles, func(s pipeline.Stage, kt ptx.U32) { p.step(acc, s.Data, kt.NeI(0)) })
	p.write(acc[0].Bits())
}

func (p *probeParts) step(acc []ptx.F32, stage ptx.Shared, adds ptx.Pred) {
	a := tile.NewDescriptor(p.k, stage.Plus(p.warpgroup.MulI(gemm.WarpgroupM*tile.RowBytes)))
	gemm.Multiply(p.k, tile.BF16, acc, a, tile.NewDescriptor(p.k, stage.At(probeABytes)), adds, false, false)
}

// first waits for the first turn of the ring.
func (p *probeParts) first() {
	at := p.ring.Consumer()
	p.k.Range(ptx.Uint(probeStages), func(ptx.U32) {
		at.Wait()
		at.Advance()
	})
}

// each calls body with the address of a stage for each k-tile, one stage after another.
func (p *probeParts) each(body func(kt ptx.U32, stage ptx.Shared)) {
	p.first()
	p.k.Range(p.kTiles, func(kt ptx.U32) {
		body(kt, p.ring.Data(0).Plus(kt.AndI(probeStages-1).MulI(p.ring.StageBytes)))
	})
}

// multiplyResident multiplies the first stages again and again.
func (p *probeParts) multiplyResident() {
	acc := p.k.Accumulators(probeN / 2)
	p.each(func(kt ptx.U32, stage ptx.Shared) {
		p.step(acc, stage, kt.NeI(0))
		p.k.WgmmaWait(1)
	})
	p.k.WgmmaWait(0)
	p.write(acc[0].Bits())
}

// drain releases each loaded stage.
func (p *probeParts) drain() {
	loop := gemm.MainLoop{K: p.k, Ring: p.ring.Consumer(), Release: pipeline.NewReleaser(p.k, p.k.Lane(), 1)}
	loop.Drain(p.kTiles)
}

// read reads the stages from shared memory, 16 bytes a thread and instruction.
func (p *probeParts) read() {
	sum := ptx.NewVar(p.k, ptx.Uint(0))
	p.each(func(_ ptx.U32, stage ptx.Shared) {
		at := stage.Plus(p.tid.MulI(16))
		for i := range stageWords {
			for _, v := range ptx.LdSharedVec[ptx.U32](at.At(i*16*gemm.MathThreads), 4) {
				sum.Set(sum.Get().Xor(v))
			}
		}
	})
	p.write(sum.Get())
}

// issue computes sums in registers.
func (p *probeParts) issue() {
	var sums []*ptx.Var[ptx.F32]
	p.first()
	at := p.ring.Data(0).Plus(p.tid.MulI(16))
	for i := range chains {
		sums = append(sums, ptx.NewVar(p.k, ptx.LdShared[ptx.F32](at.At(i*4096))))
	}
	factor := ptx.LdShared[ptx.F32](at.At(chains * 4096))
	p.k.Range(p.kTiles, func(ptx.U32) {
		for range chainSteps {
			for i, s := range sums {
				s.Set(s.Get().Fma(factor, sums[(i+1)%chains].Get()))
			}
		}
	})
	total := sums[0].Get()
	for _, s := range sums[1:] {
		total = total.Add(s.Get())
	}
	p.write(total.Bits())
}

// idle lets one thread of each CTA compute one sum, so that an SM has nearly nothing to do.
func (p *probeParts) idle() {
	p.first()
	p.k.If(p.tid.EqI(0), func() {
		sum := ptx.NewVar(p.k, ptx.LdShared[ptx.F32](p.ring.Data(0)))
		factor := ptx.LdShared[ptx.F32](p.ring.Data(1))
		p.k.Range(p.kTiles, func(ptx.U32) {
			for range idleSteps {
				sum.Set(sum.Get().Fma(factor, factor))
			}
		})
		p.write(sum.Get().Bits())
	})
}

// probes lists the probes. A k-tile has 2·128·256·64 FLOP.
var probes = []probe{
	{name: "idle SMs", math: (*probeParts).idle, columns: fewColumns},
	{name: "issue", math: (*probeParts).issue, columns: fewColumns, unit: "FMA of a thread", counted: chains * chainSteps * gemm.MathThreads},
	{name: "shared memory", math: (*probeParts).read, columns: fewColumns, unit: "byte", counted: probeABytes + probeBBytes},
	{name: "L2 to shared memory", load: true, math: (*probeParts).drain, columns: fewColumns, unit: "byte", counted: probeABytes + probeBBytes},
	{name: "HBM to shared memory", load: true, onlyA: true, math: (*probeParts).drain, columns: manyColumns, unit: "byte", counted: probeABytes},
	{name: "wgmma", math: (*probeParts).multiplyResident, columns: fewColumns, unit: "FLOP", counted: 2 * gemm.TileM * probeN * tile.K},
	{name: "wgmma and L2", load: true, math: (*probeParts).multiply, columns: fewColumns, unit: "FLOP", counted: 2 * gemm.TileM * probeN * tile.K},
}
