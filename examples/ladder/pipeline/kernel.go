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

const (
	tileM  = 128 // two math warpgroups of 64 rows
	tileN  = 256
	stages = 3

	mathGroups = 2
	threads    = (mathGroups + 1) * pipeline.WarpgroupThreads
	tileABytes = tileM * tile.RowBytes
	stageBytes = tileABytes + tileN*tile.RowBytes
)

// args holds the arguments of a launch. The kernel computes c [M, N] = a [M, K] · bᵀ for b [N,
// K].
type args struct {
	A, B, C driver.DevicePtr
	M, N, K int
	KTiles  int
}

// product holds the parts of the kernel while it is being built.
type product struct {
	k       *ptx.Kernel
	a, b, c ptx.TensorMap
	ring    *pipeline.Ring
	staging ptx.Shared // staging memory for all sub-tiles, by warpgroup and column
	stored  pipeline.NamedBarriers
	tid     ptx.U32
	row     ptx.U32 // first row of the CTA's tile
	column  ptx.U32
	depth   ptx.U32 // number of k-tiles
}

// multiply returns a kernel that computes c = a·bᵀ. Each CTA computes one tile of 128 x 256
// elements.
func multiply() *jit.Builder[args] {
	k := jit.NewBuilder[args]("multiply", threads, 1)
	k.SetGrid(func(a *args, _ int) gpu.Dim3 {
		return gpu.Dim3{X: (a.M + tileM - 1) / tileM, Y: (a.N + tileN - 1) / tileN}
	})
	p := product{k: k.Kernel}
	p.a = k.Map(&k.Args.A, func(a *args) gpu.TensorMap { return tile.RowMap(a.A, a.K, a.M, tileM) })
	p.b = k.Map(&k.Args.B, func(a *args) gpu.TensorMap { return tile.RowMap(a.B, a.K, a.N, tileN) })
	p.c = k.Map(&k.Args.C, func(a *args) gpu.TensorMap { return tile.RowMap(a.C, a.N, a.M, 64) })
	p.depth = k.U32(&k.Args.KTiles)
	p.tid = k.TidX()
	p.row = k.CtaidX().MulI(tileM)
	p.column = k.CtaidY().MulI(tileN)

	cta := pipeline.NewCTA(k.Kernel)
	p.staging = cta.Shared("staging", mathGroups*tileN/64*tile.StagingBytes, 1024)
	p.stored = cta.NamedBarriers("stored", mathGroups, pipeline.WarpgroupThreads)
	const loaders, warps = 1, mathGroups * 4 // threads that fill a stage, and warps that release it
	p.ring = cta.Ring("ab", stages, stageBytes, loaders, warps)
	cta.Ready(p.tid)

	warpgroup := k.Warpgroup()
	pipeline.Run(k.Kernel, warpgroup,
		pipeline.Role{Name: "math", First: 0, Count: mathGroups, Body: func() { p.multiply(warpgroup) }},
		pipeline.Role{Name: "load", First: mathGroups, Count: 1, Body: p.load},
	)
	return k
}

// load is the producer: one thread, which fills stages as they become empty. Elements past the
// ends of the matrices arrive as zero and add nothing.
func (p product) load() {
	k := p.k
	k.If(k.Warp().EqI(mathGroups*4), func() { // the first warp after the math warpgroups
		k.If(k.ElectOne(), func() {
			at := p.ring.Producer()
			k.Range(p.depth, func(kt ptx.U32) {
				s := at.Acquire()
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(stageBytes))
				k.TMALoad(s.Data, p.a, s.Full, kt.MulI(tile.K), p.row)
				k.TMALoad(s.Data.At(tileABytes), p.b, s.Full, kt.MulI(tile.K), p.column)
				at.Advance()
			})
		})
	})
}

// multiply is the consumer. Both math warpgroups use every stage: each uses its own 64 rows of
// A, and all of B. The layer's kernels use the same main loop. It releases a stage only after
// the products of the next stage have been issued, so that the tensor cores never wait for an
// issue.
func (p product) multiply(warpgroup ptx.U32) {
	k := p.k
	acc := k.Accumulators(tileN / 2)
	loop := gemm.MainLoop{K: k, Ring: p.ring.Consumer(), Release: pipeline.NewReleaser(k, k.Lane(), 1)}
	loop.Run(p.depth, func(s pipeline.Stage, kt ptx.U32) {
		a := tile.NewDescriptor(k, s.Data.Plus(warpgroup.MulI(64*tile.RowBytes)))
		b := tile.NewDescriptor(k, s.Data.At(tileABytes))
		gemm.Multiply(k, tile.BF16, acc, a, b, kt.NeI(0), false, false) // for kt = 0 the product overwrites acc
	})
	p.store(warpgroup, acc)
}

// store is the epilogue. It rounds the sums to bf16 and writes them to shared memory, from
// which TMA copies them to C. TMA drops elements past the ends of C.
func (p product) store(warpgroup ptx.U32, acc []ptx.F32) {
	k := p.k
	thread := ptx.InWarpgroup(p.tid)
	staging := tile.NewStaging(k, tile.BF16, thread)
	mine := p.staging.Plus(warpgroup.MulI(tileN / 64 * tile.StagingBytes))
	for i := range tileN / 64 {
		staging.Store(mine.At(i*tile.StagingBytes), acc[32*i:32*i+32])
	}
	k.FenceProxyAsync(".shared::cta") // the fence makes the stores visible to TMA
	p.stored.Sync(warpgroup)
	k.If(k.ElectOne().And(thread.LtI(32)), func() {
		for i := range tileN / 64 {
			k.TMAStore(p.c, mine.At(i*tile.StagingBytes), p.column.AddI(64*i), p.row.Add(warpgroup.MulI(64)))
		}
		k.BulkCommit()
		k.BulkWait(0)
	})
}
