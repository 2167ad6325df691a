package choose

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/moe/internal/route/scores"
	"sonicmoe/ptx"
)

// Router is the router product with top-K and softmax in its epilogue:
// logits = X·Wrᵀ, rounded to 16 bits or kept in FP32, the K largest (ties to the lower expert),
// softmax over those K, or over all. Each CTA takes a contiguous range of tokens and
// counts its experts for Plan.
type Router struct {
	Hidden, NumExperts, TopK int
	// Element is that of tokens and weights.
	Element tile.Element
	// Logits is the format in which logits are compared and scored.
	Logits spec.Logits
	// Bias is added to logits.
	Bias bool
	// F32: the weights are FP32, and come as [Terms].
	F32 bool
	// All: scores are a softmax over all logits, not over the K. There is one chunk.
	All bool
	// LogitsOnly leaves the choice to [FromLogits]: logits are all that is written.
	LogitsOnly bool
}

const (
	// maxChunk is the experts that one wgmma covers, maxChunkKeys where keys of FP32
	// logits take twice the registers, or biases on their way take some, and where
	// experts come in several chunks, whose logits may then have chains.
	maxChunk     = 256
	maxChunkKeys = 128
	// mostChains is how many sums a logit is of, each of a part of the columns, one
	// behind the other. The steps of a chain wait for each other, which is most of the
	// time that a lone token's logits take: its chains have a warp each. Here they
	// come one after another, and take registers of their own, so that only chunks of
	// up to maxChunkChains experts have them.
	mostChains     = 4
	maxChunkChains = 128
	// maxRouterRing bounds the shared memory of the load ring.
	maxRouterRing = 208 << 10
)

// chunks is how many times a block of tokens is multiplied, each time with
// chunk experts.
func (r Router) chunks() (count, chunk int) {
	most := maxChunk
	if r.NumExperts > maxChunk || r.Logits == spec.LogitsF32 && !r.LogitsOnly || r.Bias {
		most = maxChunkKeys
	}
	count = (r.NumExperts + most - 1) / most
	chunk = (r.NumExperts + count - 1) / count
	return count, (chunk + 7) / 8 * 8
}

// chains is how many sums a logit is of, each of depth k-tiles, the last one of
// what is left.
func (r Router) chains() (count, depth int) {
	if _, chunk := r.chunks(); chunk > maxChunkChains {
		return 1, r.kTiles()
	}
	stages := r.kTiles() / r.fewDepth()
	depth = (stages + mostChains - 1) / mostChains * r.fewDepth()
	return (r.kTiles() + depth - 1) / depth, depth
}

func (r Router) stageBytes() int {
	_, chunk := r.chunks()
	// The weights' tile starts on 1024 bytes and so must the next stage.
	return gemm.TileABytes + (chunk*tile.RowBytes+1023)/1024*1024
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
	logits, bias ptx.Global
	// apart: who chooses adds up the chains' sums, each of so many tokens.
	apart    bool
	tokens   ptx.U32
	from, to ptx.U32 // the CTA's tokens
}

// RouterArgs are the arguments of [Router].
type RouterArgs struct {
	// X [T, d] are the tokens, Weights [E, d] or terms, of Router's Element.
	X       driver.DevicePtr
	Weights driver.DevicePtr
	// Bias [E] f32, where there is one.
	Bias driver.DevicePtr
	// Scores [T, K] f32 and ExpertIDs [T, K] i32 are written, best first.
	Scores    driver.DevicePtr
	ExpertIDs driver.DevicePtr
	// Logits [T, E], in the layer's format, are written unless 0.
	Logits driver.DevicePtr
	// Counts [CTAs, E] u32 is written: each CTA's tokens by expert.
	Counts driver.DevicePtr
	order.TokenRanges
}

// Build emits the kernel.
func (r Router) Build() (*jit.Kernel[RouterArgs], error) {
	name := "moe_router"
	if r.LogitsOnly {
		name = "moe_logits"
	}
	k := jit.NewBuilder[RouterArgs](name, gemm.Threads, 1)
	k.CTAs(func(a *RouterArgs) int { return a.Count() })
	e := router{Router: r, k: k.Kernel}
	e.count, e.chunk = r.chunks()
	e.x, e.w = k.Map(&k.Args.X, r.xMap), k.Map(&k.Args.Weights, r.wMap)
	if !r.LogitsOnly {
		e.scores, e.ids = k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.ExpertIDs)
	}
	e.logits = k.Ptr(&k.Args.Logits)
	var counts ptx.Global
	if !r.LogitsOnly {
		counts = k.Ptr(&k.Args.Counts)
	}
	if r.Bias {
		e.bias = k.Ptr(&k.Args.Bias)
	}
	tokens, perCTA := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerCTA)

	e.tid = k.TidX()
	e.from = k.CtaidX().Mul(perCTA)
	e.to = e.from.Add(perCTA).Min(tokens)
	cta := pipeline.NewCTA(k.Kernel)
	stages := min(maxRouterRing/r.stageBytes(), 8)
	e.ring = cta.Ring("ab", stages, r.stageBytes(), 1, 8)
	finish := func() {}
	if !r.LogitsOnly {
		e.counts = cta.Shared("counts", 4*r.NumExperts, 16)
		math := cta.NamedBarriers("math", 1, gemm.MathThreads)
		order.ClearWords(k.Kernel, e.counts, r.NumExperts, e.tid, gemm.Threads)
		finish = func() {
			math.Sync(ptx.Uint(0))
			order.StoreCounts(k.Kernel, counts, e.counts, r.NumExperts, e.tid, gemm.MathThreads)
		}
	}
	cta.Ready(e.tid)
	k.GridDepWait()
	k.GridDepLaunch()

	pipeline.Run(k.Kernel, e.tid.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: 2, Body: func() {
			e.math()
			finish()
		}},
		pipeline.Role{Name: "load", First: 2, Count: 1, Body: e.load},
	)
	return k.Build()
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

func (e *router) load() {
	k := e.k
	k.If(e.tid.ShrI(5).EqI(8), func() {
		k.If(k.ElectOne(), func() {
			at := e.ring.Producer()
			e.eachBlock(func(first ptx.U32) {
				second := first.AddI(gemm.WarpgroupM)
				const half = gemm.WarpgroupM * tile.RowBytes
				both := second.Lt(e.to)
				bytes := ptx.Select(both, ptx.Uint(2*half+e.chunk*tile.RowBytes), ptx.Uint(half+e.chunk*tile.RowBytes))
				e.eachChunk(func(chunk ptx.U32) {
					e.eachKTile(func(column ptx.U32, line int) {
						s := at.Acquire()
						k.MbarrierArriveExpectTx(s.Full, bytes)
						k.TMALoad(s.Data, e.x, s.Full, column, first)
						k.If(both, func() { k.TMALoad(s.Data.At(half), e.x, s.Full, column, second) })
						k.TMALoad(s.Data.At(gemm.TileABytes), e.w, s.Full, column, chunk.MulI(e.chunk).AddI(line))
						at.Advance()
					})
				})
			})
		})
	})
}

// eachKTile runs body for each k-tile of the product: its first column of X and of
// the weights, and the first line of the term that it is of.
func (e *router) eachKTile(body func(column ptx.U32, line int)) {
	count, lines := e.terms()
	for term := range count {
		e.k.For(ptx.Uint(0), ptx.Uint(e.Hidden), ptx.Uint(tile.K), func(column ptx.U32) { body(column, term*lines) })
	}
}

// math multiplies and selects, each warpgroup its 64 rows of each block. One
// that has none only gives the stages back.
func (e *router) math() {
	k := e.k
	wg := e.tid.ShrI(7)
	thread := e.tid.AndI(pipeline.WarpgroupThreads - 1)
	acc := e.newSums()
	loop := gemm.MainLoop{K: k, Ring: e.ring.Consumer(), Release: pipeline.NewReleaser(k, e.tid.AndI(31), 1)}
	var sel topKSelection
	var at tile.Fragment
	if e.LogitsOnly {
		at = tile.NewFragment(thread)
	} else {
		sel = newTopK(k, e.Router, thread)
	}
	e.eachBlock(func(block ptx.U32) {
		// The warpgroup's first token is made anew where it is wanted, as selection
		// makes its places: beside a chunk's sums and 16 keys no register is left.
		first := func() ptx.U32 { return block.Add(k.TidX().ShrI(7).MulI(gemm.WarpgroupM)) }
		k.IfElse(first().Lt(e.to), func() {
			if e.LogitsOnly {
				e.eachChunk(func(chunk ptx.U32) {
					e.writeLogits(e.sums(loop, wg, acc, chunk, func() ptx.U32 { return at.Column }), first().Add(at.Row), chunk.MulI(e.chunk).Add(at.Column))
				})
				return
			}
			sel.clear()
			e.eachChunk(func(chunk ptx.U32) {
				sums := e.sums(loop, wg, acc, chunk, sel.column)
				k.If(e.logits.Given(), func() { e.writeLogits(sums, first().Add(sel.row()), chunk.MulI(e.chunk).Add(sel.column())) })
				sel.merge(sums, chunk)
			})
			e.write(sel, first())
		}, func() { loop.Drain(ptx.Uint(e.count * e.kTiles())) })
	})
}

// multiply makes the logits of a chunk of experts.
func (e *router) multiply(loop gemm.MainLoop, wg ptx.U32, acc chainSums) {
	k := e.k
	rowsAt := wg.MulI(gemm.WarpgroupM * tile.RowBytes)
	chain := func(kTiles ptx.U32) {
		loop.Run(kTiles, func(s pipeline.Stage, kt ptx.U32) {
			a := tile.NewDescriptor(k, s.Data.Plus(rowsAt))
			b := tile.NewDescriptor(k, s.Data.At(gemm.TileABytes))
			gemm.Multiply(k, e.Element, acc.chain, a, b, kt.NeI(0), false, false)
		})
	}
	count, depth := e.chains()
	if count == 1 {
		chain(ptx.Uint(e.kTiles()))
		return
	}
	for _, sum := range acc.all {
		ptx.VarOf(sum).Set(ptx.Float(0))
	}
	k.For(ptx.Uint(0), ptx.Uint(e.kTiles()), ptx.Uint(depth), func(first ptx.U32) {
		chain(ptx.Uint(e.kTiles()).Sub(first).MinI(depth))
		for i, sum := range acc.all {
			ptx.VarOf(sum).Set(sum.Add(acc.chain[i]))
		}
	})
}

// chainSums are a thread's sums of a chain and of all chains, which are the same
// where there is one.
type chainSums struct{ chain, all []ptx.F32 }

func (e *router) newSums() chainSums {
	s := chainSums{chain: e.k.Accumulators(e.chunk / 2)}
	s.all = s.chain
	if count, _ := e.chains(); count > 1 {
		s.all = e.k.Accumulators(e.chunk / 2)
	}
	return s
}

// sums makes the logits of a chunk of experts; column is the thread's first.
func (e *router) sums(loop gemm.MainLoop, wg ptx.U32, acc chainSums, chunk ptx.U32, column func() ptx.U32) []ptx.F32 {
	e.multiply(loop, wg, acc)
	if !e.Bias {
		return acc.all
	}
	return e.biased(acc.all, chunk.MulI(e.chunk).Add(column()))
}

// biased adds the bias to a thread's part of a chunk of sums, whose first expert
// is given.
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

// biasOf is an expert's bias, of those past the last one any.
func biasOf(bias ptx.Global, expert ptx.U32, experts int) ptx.F32 {
	return ptx.LdGlobal[ptx.F32](bias.Index(expert.Min(ptx.Uint(experts-1)), 4), ".nc")
}

// writeLogits stores a thread's part of a chunk of logits: rows token and token
// + 8, pairs of experts from the given one on, 8 apart.
func (e *router) writeLogits(acc []ptx.F32, token, expert ptx.U32) {
	if e.Logits != spec.LogitsF32 && e.NumExperts%4 == 0 && e.chunk%16 == 0 {
		e.writeFours(acc, token, expert)
		return
	}
	bytes := int(e.Logits.Type().Bytes())
	// With an even number of experts pairs are aligned, and whole or not there.
	together := 2 - e.NumExperts%2
	for h := range 2 {
		token := token.AddI(8 * h)
		e.k.If(token.Lt(e.to), func() {
			row := e.logits.Index(token, bytes*e.NumExperts).Index(expert, bytes)
			for i := 0; i < len(acc); i += 4 {
				for j := 0; j < 2; j += together {
					on := 2*i + j
					store := func() { scores.StoreLogits(e.k, e.Logits, row.At(bytes*on), acc[i+2*h+j:][:together]...) }
					if last := 6; (e.count-1)*e.chunk+last+on < e.NumExperts { // of a lane's first columns
						store()
					} else {
						e.k.If(expert.AddI(on).LtI(e.NumExperts), store)
					}
				}
			}
		})
	}
}

// writeFours is writeLogits of 16 bits by fours. A lane has two of each 8 columns;
// two neighbours exchange theirs of every other 8, so that each has four in a row.
// A quad then fills a sector of 32 bytes at once; by twos, half of one, the stores
// take twice the time (T=32768, 128 experts: 7 µs behind the products' 43).
func (e *router) writeFours(acc []ptx.F32, token, expert ptx.U32) {
	of, bytes := element.OfLogits(e.Logits), int(e.Logits.Type().Bytes())
	odd := e.k.TidX().AndI(1)
	isOdd := odd.NeI(0)
	// Columns 0, 2, 4, 6 of the quad's lanes become 0, 8, 4, 12.
	expert = expert.Add(odd.MulI(6))
	for h := range 2 {
		token := token.AddI(8 * h)
		there := token.Lt(e.to)
		row := e.logits.Index(token, bytes*e.NumExperts).Index(expert, bytes)
		for i := 0; i < len(acc); i += 8 {
			on := 2 * i
			a, b := of.Pack(e.k, acc[i+2*h], acc[i+2*h+1]), of.Pack(e.k, acc[i+4+2*h], acc[i+4+2*h+1])
			other := ptx.Select(isOdd, a, b).ShflXor(1)
			first, second := ptx.Select(isOdd, other, a), ptx.Select(isOdd, b, other)
			stored := there
			if (e.count-1)*e.chunk+on+16 > e.NumExperts {
				stored = there.And(expert.AddI(on).LtI(e.NumExperts))
			}
			e.k.Guarded(stored, func() { ptx.StGlobal(row.At(bytes*on), first, second) })
		}
	}
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

func (r Router) xMap(a *RouterArgs) driver.TensorMap {
	return tile.RowMap(a.X, r.Hidden, a.Tokens, gemm.WarpgroupM)
}

func (r Router) wMap(a *RouterArgs) driver.TensorMap {
	_, chunk := r.chunks()
	return tile.RowMap(a.Weights, r.Hidden, r.lines(), chunk)
}

// InRouter reports whether the router's epilogue makes a layer's choice and
// scores; else [FromLogits] does.
func InRouter(c spec.Config) bool {
	if c.TopK > maxFusedTopK || c.Groups != 0 || c.Scale() != 1 || c.ExpertScale {
		return false
	}
	return c.Score == spec.SoftmaxTopK || c.Score == spec.SoftmaxAll && c.NumExperts <= maxChunkKeys && !c.SelectionBias && c.Renormalize == spec.NoRenorm
}

// maxFusedTopK is how many keys of two rows a thread's registers hold.
const maxFusedTopK = 16

func outsideRouter(c spec.Config) bool { return !InRouter(c) }

// RouterKernel is Router's for layers that choose in its epilogue, LogitsKernel
// for others.
var (
	RouterKernel = &registry.Kernel[RouterArgs]{KernelName: "router", Roofline: routerWork, Only: InRouter, Emit: func(l registry.Layer) (*jit.Kernel[RouterArgs], error) {
		return RouterOf(l.Config).Build()
	}}
	LogitsKernel = &registry.Kernel[RouterArgs]{KernelName: "logits", Roofline: logitsWork, Only: outsideRouter, Emit: func(l registry.Layer) (*jit.Kernel[RouterArgs], error) {
		r := RouterOf(l.Config)
		r.LogitsOnly = true
		return r.Build()
	}}
)

// RouterOf is a layer's.
func RouterOf(c spec.Config) Router {
	return Router{Hidden: c.Hidden, NumExperts: c.NumExperts, TopK: c.TopK, Element: element.Of(c), Logits: c.Logits, Bias: c.RouterBias, F32: c.RouterF32, All: c.Score == spec.SoftmaxAll}
}

// logitsWork is the product's.
func logitsWork(c spec.Config, tokens int) []spec.Work { return []spec.Work{c.RouterWork(tokens)} }

// routerWork is its two parts'.
func routerWork(c spec.Config, tokens int) []spec.Work {
	return []spec.Work{c.RouterWork(tokens), c.TopKWork(tokens)}
}
