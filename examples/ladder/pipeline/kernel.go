package main

import (
	"sonicmoe/driver"
	"sonicmoe/examples/internal/rung"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

const (
	tileM  = 128 // two math warpgroups of 64 rows
	tileN  = 256
	stages = 3

	mathGroups = 2
	threads    = (mathGroups + 1) * pipeline.WarpgroupThreads
	tileABytes = tileM * tile.RowBytes
	stageBytes = tileABytes + tileN*tile.RowBytes
)

// product is the kernel while it is being built.
type product struct {
	k       *ptx.Kernel
	a, b, c ptx.TensorMap
	ring    *pipeline.Ring
	staging ptx.Shared // of all sub-tiles, by warpgroup and column
	tid     ptx.U32
	row     ptx.U32 // of this CTA's tile
	column  ptx.U32
	depth   ptx.U32 // k-tiles
}

// multiply sets c = a bᵀ, one 128 x 256 tile a CTA.
func multiply(m, n int) rung.Kernel {
	k := ptx.NewKernel("multiply")
	k.SetLaunchBounds(threads, 1)
	p := product{k: k, a: k.ParamTensorMap("a"), b: k.ParamTensorMap("b"), c: k.ParamTensorMap("c"), depth: k.ParamU32("kTiles")}
	p.tid = k.Special("%tid.x")
	p.row = k.Special("%ctaid.x").MulI(tileM)
	p.column = k.Special("%ctaid.y").MulI(tileN)

	mem := pipeline.NewShared(k)
	p.staging = mem.Take(mathGroups*tileN/64*tile.StagingBytes, 1024)
	set := pipeline.NewSetup(k)
	const loaders, warps = 1, mathGroups * 4 // who fills a stage, who empties it
	p.ring = pipeline.NewRing(k, set, mem, stages, stageBytes, loaders, warps)
	set.Done(p.tid)

	warpgroup := p.tid.ShrI(7)
	pipeline.Run(k, warpgroup,
		pipeline.Role{Name: "math", First: 0, Count: mathGroups, Body: func() { p.multiply(warpgroup) }},
		pipeline.Role{Name: "load", First: mathGroups, Count: 1, Body: p.load},
	)
	grid := [2]int{(m + tileM - 1) / tileM, (n + tileN - 1) / tileN}
	return rung.Kernel{Kernel: k, Name: "multiply", Grid: grid, Threads: threads, SharedBytes: mem.Bytes()}
}

// load is the producer: one thread that fills stages as they become empty.
// What lies past the matrices' ends arrives as zero and adds nothing.
func (p product) load() {
	k := p.k
	k.If(p.tid.ShrI(5).EqI(mathGroups*4), func() { // the role's first warp
		k.If(k.ElectOne(), func() {
			at := p.ring.Producer()
			k.For(ptx.Uint(0), p.depth, ptx.Uint(1), func(kt ptx.U32) {
				s := at.Acquire()
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(stageBytes))
				k.TMALoad(s.Data, p.a, s.Full, kt.MulI(tile.K), p.row)
				k.TMALoad(s.Data.At(tileABytes), p.b, s.Full, kt.MulI(tile.K), p.column)
				at.Advance()
			})
		})
	})
}

// multiply is the consumer: both warpgroups use every stage, each its own 64
// rows of A and all of B. A stage goes back when the products of the next one
// have been issued, so that the tensor cores never wait for an issue.
func (p product) multiply(warpgroup ptx.U32) {
	k := p.k
	acc := k.Accumulators(tileN / 2)
	leader := p.tid.AndI(31).EqI(0) // releases for its warp
	at, held := p.ring.Consumer(), pipeline.NewHold(k)
	k.For(ptx.Uint(0), p.depth, ptx.Uint(1), func(kt ptx.U32) {
		s := at.Wait()
		a := tile.NewDescriptor(k, s.Data.Plus(warpgroup.MulI(64*tile.RowBytes)))
		b := tile.NewDescriptor(k, s.Data.At(tileABytes))
		notFirst := kt.NeI(0)
		k.WgmmaFence()
		for i := range tile.K / tile.KStep {
			add := ptx.True()
			if i == 0 {
				add = notFirst
			}
			k.Wgmma(acc, a.Step(i, 0), b.Step(i, 0), add, false, false)
		}
		k.WgmmaCommit()
		k.WgmmaWait(1) // all but this stage's
		k.Guarded(leader.And(notFirst), func() { held.Stage().Release(k) })
		held.Keep(s)
		at.Advance()
	})
	k.WgmmaWait(0)
	p.store(warpgroup, acc)
}

// store is the epilogue: rounded to bf16, through shared memory, to C by TMA,
// which drops what lies past the end.
func (p product) store(warpgroup ptx.U32, acc []ptx.F32) {
	k := p.k
	thread := p.tid.AndI(pipeline.WarpgroupThreads - 1)
	staging := tile.NewStaging(k, thread)
	mine := p.staging.Plus(warpgroup.MulI(tileN / 64 * tile.StagingBytes))
	for i := range tileN / 64 {
		staging.Store(mine.At(i*tile.StagingBytes), acc[32*i:32*i+32])
	}
	k.FenceProxyAsync(".shared::cta") // TMA shall see what was stored
	k.BarSync(warpgroup.AddI(1), ptx.Uint(pipeline.WarpgroupThreads))
	k.If(k.ElectOne().And(thread.LtI(32)), func() {
		for i := range tileN / 64 {
			k.TMAStore(p.c, mine.At(i*tile.StagingBytes), p.column.AddI(64*i), p.row.Add(warpgroup.MulI(64)))
		}
		k.BulkCommit()
		k.BulkWait(0)
	})
}

// matrix is the map of row-major [rows, columns] bf16 in boxes of 64 columns.
func matrix(p driver.DevicePtr, rows, columns, boxRows int) driver.TensorMap {
	return driver.TensorMap{
		Elem: driver.BF16, Rank: 2, Address: p, Swizzle: driver.Swizzle128, Promote: driver.Promote256,
		Dims: [5]uint64{uint64(columns), uint64(rows)}, Strides: [4]uint64{uint64(columns) * 2},
		Box: [5]uint32{tile.K, uint32(boxRows)},
	}
}
