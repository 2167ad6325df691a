package choose

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// Router is the router's product with top-K and softmax in its epilogue. The logits X·Wrᵀ are
// rounded to 16 bits or kept in FP32. The scores are a softmax over the K largest logits, or over
// all logits. Each CTA handles a contiguous range of tokens, and counts for the plan how many of
// them chose each expert.
type Router struct {
	Hidden, NumExperts, TopK int
	// Element is the element type of the tokens and the weights.
	Element tile.Element
	// Logits is the format in which logits are compared and scored.
	Logits spec.Type
	// Bias adds a bias to the logits.
	Bias bool
	// F32 means that the router's weights are FP32. The kernel reads them as [Terms].
	F32 bool
	// All makes the scores a softmax over all logits instead of the K chosen ones. All experts must
	// then be in one chunk.
	All bool
	// LogitsOnly writes only the logits. [FromLogits] then chooses.
	LogitsOnly bool
}

const (
	// A chunk is the experts of one wgmma. maxChunk is the largest number of them. maxChunkKeys is
	// the largest number if the epilogue needs more registers: with 64-bit keys of FP32 logits,
	// with biases, and with several chunks.
	maxChunk     = 256
	maxChunkKeys = 128
	// A chain is a partial sum of a logit over a part of the columns of X. mostChains is the
	// largest number of chains of a logit. SmallBatchLogits gives each chain a warp, because the
	// steps of one chain wait for each other. Router adds the same chains one after another, and so
	// gets the same bits. Router needs a second set of accumulators for this, so only chunks of up
	// to maxChunkChains experts have several chains.
	mostChains     = 4
	maxChunkChains = 128
	// The load ring has at most maxRouterStages stages and maxRouterRing bytes.
	maxRouterStages = 8
	maxRouterRing   = 208 << 10
	// halfX is the bytes of a k-tile of one math warpgroup's tokens.
	halfX = gemm.WarpgroupM * tile.RowBytes
)

// RouterArgs are the arguments of [Router].
type RouterArgs struct {
	// X [T, d] are the tokens. Weights [E, d] are the router's weights, or their terms with F32.
	X       driver.DevicePtr
	Weights driver.DevicePtr
	// Bias [E] f32 is read if Router.Bias is set.
	Bias driver.DevicePtr
	// Scores [T, K] f32 and ExpertIDs [T, K] i32 are outputs, with the best expert first.
	Scores    driver.DevicePtr
	ExpertIDs driver.DevicePtr
	// Logits [T, E], in the layer's format, is an output unless its address is 0.
	Logits driver.DevicePtr
	// Counts [CTAs, E] u32 is an output: for each CTA, how many of its tokens chose each expert.
	Counts driver.DevicePtr
	// PerCTA, the number of tokens of a CTA, must be a multiple of [order.RangeStep].
	order.TokenRanges
}

// router is the state of a Router while its code is emitted. The other kernels of this package
// share parts of it.
type router struct {
	Router
	k            *ptx.Kernel
	tid          ptx.U32
	count, chunk int // number of chunks, and number of experts of a chunk
	ring         *pipeline.Ring
	counts       ptx.Shared // number of the CTA's tokens by expert
	mathWarps    pipeline.NamedBarriers
	x, w         ptx.TensorMap
	scores, ids  ptx.Global
	logits, bias ptx.Global
	allCounts    ptx.Global
	from, to     ptx.U32 // the CTA's tokens
	// apart reports whether the sums of the chains are separate, as SmallBatchLogits with Apart
	// writes them. tokens is then the number of rows of each chain.
	apart  bool
	tokens ptx.U32
}

// Build emits the kernel.
func (r Router) Build() (*jit.Kernel[RouterArgs], error) {
	name := "moe_router"
	if r.LogitsOnly {
		name = "moe_logits"
	}
	k := jit.NewBuilder[RouterArgs](name, gemm.Threads, 1)
	k.CTAs(func(a *RouterArgs) int { return a.Count() })

	// Operands.
	e := r.operands(k)

	// Ring "ab" holds stages of X and the router's weights.
	cta := pipeline.NewCTA(k.Kernel)
	e.ring = cta.Ring("ab", min(maxRouterRing/r.stageBytes(), maxRouterStages), r.stageBytes(), 1, gemm.MathWarps)
	if !r.LogitsOnly {
		e.counts = cta.Shared("counts", 4*r.NumExperts, 16)
		e.mathWarps = cta.NamedBarriers("math", 1, gemm.MathThreads)
		order.ClearWords(k.Kernel, e.counts, r.NumExperts, e.tid, gemm.Threads)
	}
	cta.Ready(e.tid)
	k.GridDepWait()
	k.GridDepLaunch()

	// The load role fills the ring. The math role multiplies; its epilogue chooses the
	// experts, and stores scores, ids, counts and logits.
	gemm.RunRoles(k.Kernel, e.tid, e.math, e.load)
	return k.Build()
}

// operands declares the parameters.
func (r Router) operands(k *jit.Builder[RouterArgs]) *router {
	e := &router{Router: r, k: k.Kernel}
	e.count, e.chunk = r.chunks()
	e.x, e.w = k.Map(&k.Args.X, r.xMap), k.Map(&k.Args.Weights, r.wMap)
	if !r.LogitsOnly {
		e.scores, e.ids = k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs)
	}
	e.logits = k.Ptr(&k.Args.Logits)
	if !r.LogitsOnly {
		e.allCounts = k.Ptr(&k.Args.Counts)
	}
	if r.Bias {
		e.bias = k.Ptr(&k.Args.Bias)
	}
	tokens, perCTA := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA)
	e.tid = k.TidX()
	e.from = k.CtaidX().Mul(perCTA)
	e.to = e.from.Add(perCTA).Min(tokens)
	return e
}

// xMap returns the map that loads the tokens of one math warpgroup.
func (r Router) xMap(a *RouterArgs) gpu.TensorMap {
	return tile.RowMap(a.X, r.Hidden, a.Tokens, gemm.WarpgroupM)
}

// wMap returns the map that loads a chunk of experts.
func (r Router) wMap(a *RouterArgs) gpu.TensorMap {
	_, chunk := r.chunks()
	return tile.RowMap(a.Weights, r.Hidden, r.lines(), chunk)
}

// chunks returns the number of chunks into which the experts are split, and the number of
// experts of a chunk. Each block of tokens is multiplied once for each chunk.
func (r Router) chunks() (count, chunk int) {
	most := maxChunk
	if r.NumExperts > maxChunk || r.Logits == spec.F32 && !r.LogitsOnly || r.Bias {
		most = maxChunkKeys
	}
	count = (r.NumExperts + most - 1) / most
	chunk = (r.NumExperts + count - 1) / count
	return count, (chunk + 7) / 8 * 8
}

// chains returns the number of chains of a logit, and the number of k-tiles of each. The last chain
// has the remaining k-tiles.
func (r Router) chains() (count, depth int) {
	if _, chunk := r.chunks(); chunk > maxChunkChains {
		return 1, r.kTiles()
	}
	stages := r.kTiles() / r.stageDepth()
	depth = (stages + mostChains - 1) / mostChains * r.stageDepth()
	return (r.kTiles() + depth - 1) / depth, depth
}

// stageBytes returns the size of a stage: a k-tile of the tokens, then one of the weights.
// Each starts at a multiple of 1024 bytes, the size of the swizzle pattern.
func (r Router) stageBytes() int {
	_, chunk := r.chunks()
	return gemm.TileABytes + (chunk*tile.RowBytes+1023)/1024*1024
}

// eachBlock runs body for each 128 tokens of the CTA's range.
func (e *router) eachBlock(body func(first ptx.U32)) {
	e.k.For(e.from, e.to, ptx.Uint(gemm.TileM), body)
}

// eachChunk runs body for each chunk of experts.
func (e *router) eachChunk(body func(chunk ptx.U32)) {
	if e.count == 1 {
		body(ptx.Uint(0))
		return
	}
	e.k.For(ptx.Uint(0), ptx.Uint(e.count), ptx.Uint(1), body)
}

// eachKTile runs body for each k-tile of the product. column is the k-tile's first column. line is
// the row of the weight matrix where the term that the k-tile multiplies starts, see [Terms].
func (e *router) eachKTile(body func(column ptx.U32, line int)) {
	count, lines := e.terms()
	for term := range count {
		e.k.For(ptx.Uint(0), ptx.Uint(e.Hidden), ptx.Uint(tile.K), func(column ptx.U32) { body(column, term*lines) })
	}
}

// load is the load role: one thread fills the ring. It does not load the second math
// warpgroup's tokens if they are past the end of the range.
func (e *router) load() {
	k := e.k
	k.If(k.Warp().EqI(gemm.MathWarps), func() {
		k.If(k.ElectOne(), func() {
			at := e.ring.Producer()
			e.eachBlock(func(first ptx.U32) {
				second := first.AddI(gemm.WarpgroupM)
				both := second.Lt(e.to)
				bytes := ptx.Select(both, ptx.Uint(2*halfX+e.chunk*tile.RowBytes), ptx.Uint(halfX+e.chunk*tile.RowBytes))
				e.eachChunk(func(chunk ptx.U32) {
					e.eachKTile(func(column ptx.U32, line int) {
						s := at.Acquire()
						k.MbarrierArriveExpectTx(s.Full, bytes)
						k.TMALoad(s.Data, e.x, s.Full, column, first)
						k.If(both, func() { k.TMALoad(s.Data.At(halfX), e.x, s.Full, column, second) })
						k.TMALoad(s.Data.At(gemm.TileABytes), e.w, s.Full, column, chunk.MulI(e.chunk).AddI(line))
						at.Advance()
					})
				})
			})
		})
	})
}

// math is the math role: each warpgroup multiplies its 64 tokens of each block. A warpgroup
// without tokens only releases the stages.
func (e *router) math() {
	k := e.k
	warpgroup, thread := k.Warpgroup(), k.ThreadInWarpgroup()
	p := e.newProduct(warpgroup)
	out := e.newEpilogue(thread)
	e.eachBlock(func(block ptx.U32) {
		// The warpgroup's first token is computed again at each use, because the sums of a chunk
		// and 16 keys leave no register free to hold it.
		first := func() ptx.U32 { return block.Add(k.TidX().ShrI(7).MulI(gemm.WarpgroupM)) }
		k.IfElse(first().Lt(e.to), func() {
			out.begin()
			e.eachChunk(func(chunk ptx.U32) { out.add(p.logits(chunk, out.column), first, chunk) })
			out.end(first)
		}, func() { p.loop.Drain(ptx.Uint(e.count * e.kTiles())) })
	})
	if !e.LogitsOnly {
		e.mathWarps.Sync(ptx.Uint(0))
		order.StoreCounts(k, e.allCounts, e.counts, e.NumExperts, e.tid, gemm.MathThreads)
	}
}

// routerProduct computes the logits of a math warpgroup. chain has the thread's sums of one chain,
// and all has its sums over all chains. Both are the same registers if there is one chain.
type routerProduct struct {
	*router
	warpgroup  ptx.U32
	chain, all []ptx.F32
	loop       gemm.MainLoop
}

func (e *router) newProduct(warpgroup ptx.U32) routerProduct {
	k := e.k
	p := routerProduct{router: e, warpgroup: warpgroup, chain: k.Accumulators(e.chunk / 2)}
	p.all = p.chain
	if count, _ := e.chains(); count > 1 {
		p.all = k.Accumulators(e.chunk / 2)
	}
	p.loop = gemm.MainLoop{K: k, Ring: e.ring.Consumer(), Release: pipeline.NewReleaser(k, k.Lane(), 1)}
	return p
}

// logits computes the thread's logits of a chunk of experts. column returns the thread's first
// column of the chunk.
func (p routerProduct) logits(chunk ptx.U32, column func() ptx.U32) []ptx.F32 {
	p.multiply()
	if !p.Bias {
		return p.all
	}
	return p.biased(p.all, chunk.MulI(p.chunk).Add(column()))
}

// biased returns the thread's sums of a chunk with the biases added; expert is the thread's
// first expert.
func (e *router) biased(acc []ptx.F32, expert ptx.U32) []ptx.F32 {
	sums := make([]ptx.F32, len(acc))
	for i := 0; i < len(acc); i += 4 {
		for j := range 2 {
			bias := biasOf(e.bias, expert.AddI(2*i+j), e.NumExperts)
			for h := range 2 {
				sums[i+2*h+j] = acc[i+2*h+j].Add(bias)
			}
		}
	}
	return sums
}

// biasOf loads an expert's bias. Past the last expert it loads the last expert's bias.
func biasOf(bias ptx.Global, expert ptx.U32, experts int) ptx.F32 {
	return ptx.LdGlobal[ptx.F32](bias.Index(expert.Min(ptx.Uint(experts-1)), 4), ".nc")
}

// multiply sums a chunk of experts over all k-tiles.
func (p routerProduct) multiply() {
	k := p.k
	rowsAt := p.warpgroup.MulI(halfX)
	chain := func(kTiles ptx.U32) {
		p.loop.Run(kTiles, func(s pipeline.Stage, kt ptx.U32) {
			a := tile.NewDescriptor(k, s.Data.Plus(rowsAt))
			b := tile.NewDescriptor(k, s.Data.At(gemm.TileABytes))
			gemm.Multiply(k, p.Element, p.chain, a, b, kt.NeI(0), false, false)
		})
	}
	count, depth := p.chains()
	if count == 1 {
		chain(ptx.Uint(p.kTiles()))
		return
	}
	for _, sum := range p.all {
		ptx.VarOf(sum).Set(ptx.Float(0))
	}
	k.For(ptx.Uint(0), ptx.Uint(p.kTiles()), ptx.Uint(depth), func(first ptx.U32) {
		chain(ptx.Uint(p.kTiles()).Sub(first).MinI(depth))
		for i, sum := range p.all {
			ptx.VarOf(sum).Set(sum.Add(p.chain[i]))
		}
	})
}

// InRouter reports whether the epilogue of [Router] chooses and scores for the layer. If not,
// [FromLogits] does.
func InRouter(c spec.Config) bool {
	if c.TopK > maxFusedTopK || c.Groups != 0 || c.Scale() != 1 || c.ExpertScale {
		return false
	}
	return c.Score == spec.SoftmaxTopK || c.Score == spec.SoftmaxAll && c.NumExperts <= maxChunkKeys && !c.SelectionBias && c.Renormalize == spec.NoRenorm
}

// maxFusedTopK is the largest K for which the keys of two rows fit in a quad's registers.
const maxFusedTopK = 16

func outsideRouter(c spec.Config) bool { return !InRouter(c) }

// RouterKernel is for layers whose router chooses in its epilogue. LogitsKernel is for all other
// layers.
var (
	RouterKernel = &registry.Kernel[RouterArgs]{KernelName: "router", Roofline: registry.Works{spec.RouterWork, spec.TopKWork}, Only: InRouter, Emit: func(l registry.Layer) (*jit.Kernel[RouterArgs], error) {
		return RouterOf(l.Config).Build()
	}}
	LogitsKernel = &registry.Kernel[RouterArgs]{KernelName: "logits", Roofline: registry.Works{spec.RouterWork}, Only: outsideRouter, Emit: func(l registry.Layer) (*jit.Kernel[RouterArgs], error) {
		r := RouterOf(l.Config)
		r.LogitsOnly = true
		return r.Build()
	}}
)

// RouterOf returns the router of a layer.
func RouterOf(c spec.Config) Router {
	return Router{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK, Element: element.Of(c), Logits: c.Logits, Bias: c.RouterBias, F32: c.RouterF32, All: c.Score == spec.SoftmaxAll}
}
