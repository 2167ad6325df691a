package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// Router is the router product with top-K and softmax in its epilogue:
// logits = X·Wrᵀ, rounded to bf16 or kept in FP32, the K largest (ties to the lower expert),
// softmax over those K. Each CTA takes a contiguous range of tokens and
// counts its experts for Plan.
type Router struct {
	Hidden, Experts, TopK int
	// Logits is the format in which logits are compared and scored.
	Logits spec.Logits
}

const (
	// maxChunk is the experts that one wgmma covers; keys of FP32 logits take
	// twice the registers.
	maxChunk      = 256
	maxChunkF32   = 128
	routerThreads = productThreads
	// RangeStep is what a CTA's range of tokens is a multiple of.
	RangeStep = 64
	// maxRouterRing bounds the shared memory of the load ring.
	maxRouterRing = 208 << 10
)

// chunks is how many times a block of tokens is multiplied, each time with
// chunk experts.
func (r Router) chunks() (count, chunk int) {
	most := maxChunk
	if r.Logits == spec.LogitsF32 {
		most = maxChunkF32
	}
	count = (r.Experts + most - 1) / most
	chunk = (r.Experts + count - 1) / count
	return count, (chunk + 7) / 8 * 8
}

func (r Router) stageBytes() int {
	_, chunk := r.chunks()
	// The weights' tile starts on 1024 bytes and so must the next stage.
	return tileABytes + (chunk*tile.RowBytes+1023)/1024*1024
}

// router is the emission of a Router.
type router struct {
	Router
	k            *ptx.Kernel
	tid          ptx.U32
	count, chunk int
	ring         *pipeline.Ring
	counts       ptx.Shared
	x, w         ptx.TensorMap
	scores, ids  ptx.Global
	from, to     ptx.U32 // the CTA's tokens
}

// Build emits the kernel.
func (r Router) Build() (Kernel, error) {
	const name = "moe_router"
	k := ptx.NewKernel(name)
	k.SetLaunchBounds(routerThreads, 1)
	e := router{Router: r, k: k}
	e.count, e.chunk = r.chunks()
	e.x, e.w = k.ParamTensorMap("x"), k.ParamTensorMap("w")
	e.scores, e.ids = k.ParamPtr("scores"), k.ParamPtr("experts")
	counts := k.ParamPtr("counts")
	tokens, perCTA := k.ParamU32("tokens"), k.ParamU32("perCTA")

	e.tid = k.Special("%tid.x")
	e.from = k.Special("%ctaid.x").Mul(perCTA)
	e.to = e.from.Add(perCTA).Min(tokens)
	mem, set := pipeline.NewShared(k), pipeline.NewSetup(k)
	stages := min(maxRouterRing/r.stageBytes(), 8)
	e.ring = pipeline.NewRing(k, set, mem, stages, r.stageBytes(), 1, 8)
	e.counts = mem.Take(4*r.Experts, 16)
	clearWords(k, e.counts, r.Experts, e.tid, routerThreads)
	set.Done(e.tid)
	k.GridDepWait()
	k.GridDepLaunch()

	pipeline.Run(k, e.tid.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: 2, Body: func() {
			e.math()
			k.BarSync(ptx.Uint(1), ptx.Uint(mathThreads))
			storeCounts(k, counts, e.counts, r.Experts, e.tid, mathThreads)
		}},
		pipeline.Role{Name: "load", First: 2, Count: 1, Body: e.load},
	)
	return build(k, name, routerThreads, mem.Bytes())
}

// eachBlock runs body for each 128 tokens of the CTA's range.
func (e *router) eachBlock(body func(first ptx.U32)) {
	e.k.For(e.from, e.to, ptx.Uint(BlockRows), body)
}

// eachChunk runs body for each chunk of experts.
func (e *router) eachChunk(body func(chunk ptx.U32)) {
	if e.count == 1 {
		body(ptx.Uint(0))
		return
	}
	e.k.For(ptx.Uint(0), ptx.Uint(e.count), ptx.Uint(1), body)
}

func (e *router) load() {
	k := e.k
	k.If(e.tid.ShrI(5).EqI(8), func() {
		k.If(k.ElectOne(), func() {
			at := e.ring.Producer()
			e.eachBlock(func(first ptx.U32) {
				second := first.AddI(warpgroupRows)
				const half = warpgroupRows * tile.RowBytes
				both := second.Lt(e.to)
				bytes := ptx.Select(both, ptx.Uint(2*half+e.chunk*tile.RowBytes), ptx.Uint(half+e.chunk*tile.RowBytes))
				e.eachChunk(func(chunk ptx.U32) {
					k.For(ptx.Uint(0), ptx.Uint(e.Hidden), ptx.Uint(tile.K), func(column ptx.U32) {
						s := at.Acquire()
						k.MbarrierArriveExpectTx(s.Full, bytes)
						k.TMALoad(s.Data, e.x, s.Full, column, first)
						k.If(both, func() { k.TMALoad(s.Data.At(half), e.x, s.Full, column, second) })
						k.TMALoad(s.Data.At(tileABytes), e.w, s.Full, column, chunk.MulI(e.chunk))
						at.Advance()
					})
				})
			})
		})
	})
}

// math multiplies and selects, each warpgroup its 64 rows of each block. One
// that has none only gives the stages back.
func (e *router) math() {
	k := e.k
	wg := e.tid.ShrI(7)
	thread := e.tid.AndI(pipeline.WarpgroupThreads - 1)
	acc := k.Accumulators(e.chunk / 2)
	loop := mainLoop{k, e.ring.Consumer(), pipeline.NewReleaser(k, e.tid.AndI(31), 1)}
	sel := newTopK(k, e.Router, thread)
	e.eachBlock(func(block ptx.U32) {
		first := block.Add(wg.MulI(warpgroupRows))
		k.IfElse(first.Lt(e.to), func() {
			sel.clear()
			e.eachChunk(func(chunk ptx.U32) {
				e.multiply(loop, wg, acc)
				sel.merge(acc, chunk)
			})
			e.write(sel, first)
		}, func() { loop.drain(ptx.Uint(e.count*e.Hidden/tile.K), nil) })
	})
}

// multiply makes the logits of a chunk of experts.
func (e *router) multiply(loop mainLoop, wg ptx.U32, acc []ptx.F32) {
	k := e.k
	rowsAt := wg.MulI(warpgroupRows * tile.RowBytes)
	loop.run(ptx.Uint(e.Hidden/tile.K), func(s pipeline.Stage, kt ptx.U32) {
		a := tile.NewDescriptor(k, s.Data.Plus(rowsAt))
		b := tile.NewDescriptor(k, s.Data.At(tileABytes))
		multiplyTile(k, acc, a, b, kt.NeI(0), false, false)
	}, nil)
}

// write stores scores and ids of the warpgroup's 64 tokens and counts them.
func (e *router) write(sel topKSelection, first ptx.U32) {
	k := e.k
	for h := range 2 {
		token := first.Add(sel.row()).AddI(8 * h)
		score, id := sel.finish(h)
		k.If(token.Lt(e.to), func() {
			for s := range score {
				slot := sel.quadLane().AddI(4 * s)
				k.If(slot.LtI(e.TopK), func() {
					at := token.Mad(ptx.Uint(e.TopK), slot)
					ptx.StGlobal(e.scores.Index(at, 4), score[s])
					ptx.StGlobal(e.ids.Index(at, 4), id[s])
					k.RedSharedAdd(e.counts.Plus(id[s].ShlI(2)), ptx.Uint(1))
				})
			}
		})
	}
}

// XMap is the load map of X [T, d].
func (r Router) XMap(p driver.DevicePtr, tokens int) driver.TensorMap {
	return rowMap(p, r.Hidden, tokens, warpgroupRows)
}

// WMap is the load map of the router weights [E, d].
func (r Router) WMap(p driver.DevicePtr) driver.TensorMap {
	_, chunk := r.chunks()
	return rowMap(p, r.Hidden, r.Experts, chunk)
}
