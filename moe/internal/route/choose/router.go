package choose

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
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

// Build emits the kernel.
func (r Router) Build() (*jit.Kernel[RouterArgs], error) {
	k := jit.NewBuilder[RouterArgs](r.name(), gemm.Threads, 1)
	k.CTAs(func(a *RouterArgs) int { return a.Count() })

	// Operands.
	x, w := k.Map(&k.Args.X, r.xMap), k.Map(&k.Args.Weights, r.wMap)
	out, bias := r.outputs(k), r.bias(k)
	tokens, perCTA, tid := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA), k.TidX()
	part := r.part(k.Kernel, tokens, perCTA)

	// Ring "ab" holds stages of X and the router's weights.
	cta := pipeline.NewCTA(k.Kernel)
	ring := cta.Ring("ab", min(maxRouterRing/r.stageBytes(), maxRouterStages), r.stageBytes(), 1, gemm.MathWarps)
	counter := r.counter(k.Kernel, cta, tid)
	cta.Ready(tid)
	k.GridDepWait()
	k.GridDepLaunch()

	// Roles. The load role fills the ring. The math role multiplies. Its epilogue chooses the
	// experts, and stores scores, ids, counts and logits.
	gemm.RunRoles(k.Kernel, tid,
		routerMath{routerPart: part, ring: ring, bias: bias, epilogue: func(thread ptx.U32) routerEpilogue {
			return part.epilogue(out, counter, thread)
		}}.run,
		routerLoad{routerPart: part, ring: ring, x: x, w: w}.run)
	return k.Build()
}

// name returns the name of the kernel's entry, which errors show.
func (r Router) name() string {
	if r.LogitsOnly {
		return "moe_logits"
	}
	return "moe_router"
}

// routerOutputs are the output tensors. With LogitsOnly there are only the logits.
type routerOutputs struct{ scores, ids, logits, counts ptx.Global }

func (r Router) outputs(k *jit.Builder[RouterArgs]) routerOutputs {
	if r.LogitsOnly {
		return routerOutputs{logits: k.Ptr(&k.Args.Logits)}
	}
	return routerOutputs{k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs), k.Ptr(&k.Args.Logits), k.Ptr(&k.Args.Counts)}
}

func (r Router) bias(k *jit.Builder[RouterArgs]) (none ptx.Global) {
	if !r.Bias {
		return none
	}
	return k.Ptr(&k.Args.Bias)
}

// counter counts in shared memory how many of the CTA's tokens chose each expert.
type counter struct {
	tid       ptx.U32
	counts    ptx.Shared
	mathWarps pipeline.NamedBarriers
}

// counter reserves and clears the counts. With LogitsOnly there are none.
func (r Router) counter(k *ptx.Kernel, cta *pipeline.CTA, tid ptx.U32) (none counter) {
	if r.LogitsOnly {
		return none
	}
	c := counter{tid, cta.Shared("counts", 4*r.NumExperts, 16), cta.NamedBarriers("math", 1, gemm.MathThreads)}
	order.ClearWords(k, c.counts, r.NumExperts, tid, gemm.Threads)
	return c
}

// routerPart is a CTA's part of the product.
type routerPart struct {
	Router
	k            *ptx.Kernel
	count, chunk int     // number of chunks, and number of experts of a chunk
	from, to     ptx.U32 // the CTA's tokens
}

func (r Router) part(k *ptx.Kernel, tokens, perCTA ptx.U32) routerPart {
	count, chunk := r.chunks()
	from := k.CtaidX().Mul(perCTA)
	return routerPart{Router: r, k: k, count: count, chunk: chunk, from: from, to: from.Add(perCTA).Min(tokens)}
}

// eachBlock runs body for each 128 tokens of the CTA's range.
func (e routerPart) eachBlock(body func(first ptx.U32)) {
	e.k.For(e.from, e.to, ptx.Uint(gemm.TileM), body)
}

// eachChunk runs body for each chunk of experts.
func (e routerPart) eachChunk(body func(chunk ptx.U32)) {
	if e.count == 1 {
		body(ptx.Uint(0))
		return
	}
	e.k.For(ptx.Uint(0), ptx.Uint(e.count), ptx.Uint(1), body)
}

// eachKTile runs body for each k-tile of the product. column is the k-tile's first column. line is
// the row of the weight matrix where the term that the k-tile multiplies starts, see [Terms].
func (e routerPart) eachKTile(body func(column ptx.U32, line int)) {
	count, lines := e.terms()
	for term := range count {
		e.k.For(ptx.Uint(0), ptx.Uint(e.Hidden), ptx.Uint(tile.K), func(column ptx.U32) { body(column, term*lines) })
	}
}

// routerLoad is the load role: one thread fills the ring. It does not load the second math
// warpgroup's tokens if they are past the end of the range.
type routerLoad struct {
	routerPart
	ring *pipeline.Ring
	x, w ptx.TensorMap
}

// run emits the role.
func (e routerLoad) run() {
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

// routerMath is the math role: each warpgroup multiplies its 64 tokens of each block. A warpgroup
// without tokens only releases the stages.
type routerMath struct {
	routerPart
	ring     *pipeline.Ring
	bias     ptx.Global
	epilogue func(thread ptx.U32) routerEpilogue // thread is the thread's index in its warpgroup
}

// run emits the role.
func (e routerMath) run() {
	k := e.k
	warpgroup, thread := k.Warpgroup(), k.ThreadInWarpgroup()
	p := e.newProduct(warpgroup)
	out := e.epilogue(thread)
	e.eachBlock(func(block ptx.U32) {
		// The warpgroup's first token is computed again at each use, because the sums of a chunk
		// and 16 keys leave no register free to hold it.
		first := func() ptx.U32 { return block.Add(ptx.WarpgroupOf(k.TidX()).MulI(gemm.WarpgroupM)) }
		k.IfElse(first().Lt(e.to), func() {
			out.begin()
			var totals rowTotals
			e.eachChunk(func(chunk ptx.U32) { totals = out.add(p.logits(chunk, out.column), first, chunk) })
			out.end(first, totals)
		}, func() { p.loop.Drain(ptx.Uint(e.count * e.kTiles())) })
	})
	out.finish()
}

// routerProduct computes the logits of a math warpgroup. chain has the thread's sums of one chain,
// and all has its sums over all chains. Both are the same registers if there is one chain.
type routerProduct struct {
	routerMath
	warpgroup  ptx.U32
	chain, all []ptx.F32
	loop       gemm.MainLoop
}

func (e routerMath) newProduct(warpgroup ptx.U32) routerProduct {
	k := e.k
	chain := k.Accumulators(e.chunk / 2)
	all := chain
	if count, _ := e.chains(); count > 1 {
		all = k.Accumulators(e.chunk / 2)
	}
	loop := gemm.MainLoop{K: k, Ring: e.ring.Consumer(), Release: pipeline.NewReleaser(k, k.Lane(), 1)}
	return routerProduct{routerMath: e, warpgroup: warpgroup, chain: chain, all: all, loop: loop}
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
func (e routerMath) biased(acc []ptx.F32, expert ptx.U32) []ptx.F32 {
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

// routerEpilogue takes the logits of the 64 tokens of a warpgroup, one chunk of experts after
// another.
type routerEpilogue interface {
	// column returns the thread's first column of a chunk.
	column() ptx.U32
	// begin starts a block of tokens, add takes the logits of a chunk, and end stores the block's
	// results. first returns the warpgroup's first token. end gets what the last add returned.
	begin()
	add(logits []ptx.F32, first func() ptx.U32, chunk ptx.U32) rowTotals
	end(first func() ptx.U32, totals rowTotals)
	// finish is called after the last block.
	finish()
}

// rowTotals has, with All, the sum of the exponentials of all logits of each of the thread's rows.
type rowTotals [2]ptx.F32

// epilogue returns the router's epilogue for a thread of a math warpgroup.
func (e routerPart) epilogue(out routerOutputs, c counter, thread ptx.U32) routerEpilogue {
	w := logitWriter{e, out.logits}
	if e.LogitsOnly {
		return storeLogits{w, tile.NewFragment(thread)}
	}
	return chooseTopK{w, out, c, newTopK(e.k, e.Router, thread)}
}

// storeLogits is the epilogue that only stores the logits.
type storeLogits struct {
	logitWriter
	at tile.Fragment
}

func (e storeLogits) column() ptx.U32 { return e.at.Column }

func (storeLogits) begin() {}

func (storeLogits) finish() {}

func (e storeLogits) add(logits []ptx.F32, first func() ptx.U32, chunk ptx.U32) (none rowTotals) {
	e.write(logits, first().Add(e.at.Row), chunk.MulI(e.chunk).Add(e.at.Column))
	return none
}

func (storeLogits) end(func() ptx.U32, rowTotals) {}
