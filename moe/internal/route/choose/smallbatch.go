package choose

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// SmallBatchLogits is the router's product of a small batch, logits = X·Wrᵀ. A CTA has 8 experts
// and 16 tokens, so that many SMs read the weights. A logit is the sum of several chains, which are
// partial sums. Each chain has a warp of its own, because the steps of a chain wait for each other.
// The sums have the same bits as Router's. With Apart, for up to [MaxApart] tokens, each chain has
// a CTA of its own, on more SMs. The kernel that chooses then adds the chains: see [ByChains].
type SmallBatchLogits struct {
	// Router is the layer's router.
	Router
	// Written is the format in which the logits are written.
	Written spec.Type
	// Apart gives each chain a CTA, which writes the chain's sums. It is for up to MaxApart tokens.
	Apart bool
}

const (
	// MaxApart is the largest batch for Apart: one group of tokens.
	MaxApart = tokenGroup
	// A CTA has ctaExperts experts. It has ctaTokens tokens, in one or two groups of 8.
	ctaExperts  = tile.WarpColumns
	ctaTokens   = tile.WarpRows
	tokenGroup  = ctaTokens / 2
	weightBytes = ctaExperts * tile.RowBytes
	tokenBytes  = ctaTokens * tile.RowBytes
	// ringBytes bounds the ring. A smaller ring delays the pass of a single token; a larger
	// one gains nothing.
	ringBytes = 100 << 10
	// maxDepth is the largest number of k-tiles that a stage has of each chain.
	maxDepth = 4
)

// SmallBatchLogitsArgs are the arguments of [SmallBatchLogits].
type SmallBatchLogitsArgs struct {
	// X [T, d] are the tokens. Weights [E, d] are the router's weights, or their terms.
	X       driver.DevicePtr
	Weights driver.DevicePtr
	// Bias [E] f32 is read if the router has a bias.
	Bias driver.DevicePtr
	// Logits [T, E] is the output. With Apart it is [chains, T, E] f32, without biases.
	Logits driver.DevicePtr
	// With Apart the kernel sets Chosen [K+1] and Tickets [2] u32 to 0.
	Chosen  driver.DevicePtr
	Tickets driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// smallBatchLogits is the state of a SmallBatchLogits while its code is emitted.
type smallBatchLogits struct {
	router
	written spec.Type
	lane    ptx.U32
	// first, expert and chain are the CTA's first token, expert and chain.
	first, expert, chain, tokens ptx.U32
	// box is the size of a k-tile's tokens in a stage.
	box ptx.U32
	// zeros is a group of 8 tokens that are zeros, for CTAs without a second group.
	zeros ptx.Shared
	deep  tile.Deep
	// depth is the number of k-tiles of a chain in a stage. chains is the number of chains of the
	// CTA, and all is the number of chains of the product. A chain has `stages` stages, except that
	// the last chain has lastStages.
	depth, chains, all, stages, lastStages int
	// partial has the sums of the chains if the CTA has several. meet synchronises the warps that
	// write them with the warp that reads them.
	partial ptx.Shared
	meet    pipeline.NamedBarriers
}

// stageDepth returns the number of k-tiles of a chain in a stage. It divides the number of all
// k-tiles, so that all stages are equal.
func (r Router) stageDepth() int {
	depth := maxDepth
	for tile.Tiles(r.Hidden)%depth != 0 {
		depth--
	}
	return depth
}

// groups returns the number of CTAs that all experts take.
func (r SmallBatchLogits) groups() int { return (r.NumExperts + ctaExperts - 1) / ctaExperts }

// Build emits the kernel.
func (r SmallBatchLogits) Build() (*jit.Kernel[SmallBatchLogitsArgs], error) {
	all, chainDepth := r.chains()
	name, chains := "moe_small_batch_logits", all
	if r.Apart {
		name, chains = "moe_chain_logits", 1
	}
	threads := (chains + 1) * 32
	k := jit.NewBuilder[SmallBatchLogitsArgs](name, threads, 1)
	k.CTAs(func(a *SmallBatchLogitsArgs) int {
		return r.groups() * ((a.Tokens + ctaTokens - 1) / ctaTokens) * all / chains
	})
	e := smallBatchLogits{router: router{Router: r.Router, k: k.Kernel, apart: r.Apart}, written: r.Written, depth: r.stageDepth(), deep: r.deep(), chains: chains, all: all}
	e.stages = chainDepth / e.depth
	e.lastStages = r.kTiles()/e.depth - (all-1)*e.stages
	e.x, e.w = k.Map(&k.Args.X, r.xMap), k.Map(&k.Args.Weights, r.wMap)
	e.logits = k.Ptr(&k.Args.Logits)
	var chosen, tickets ptx.Global
	if r.Apart {
		chosen, tickets = k.Ptr(&k.Args.Chosen), k.Ptr(&k.Args.Tickets)
	} else if r.Bias {
		e.bias = k.Ptr(&k.Args.Bias)
	}
	e.tokens, e.tid = k.U32(&k.Args.Tokens), k.TidX()
	e.lane = k.Lane()
	block := k.CtaidX().DivI(r.groups())
	e.first, e.expert = block.MulI(ctaTokens), k.CtaidX().Sub(block.MulI(r.groups())).MulI(ctaExperts)
	if r.Apart {
		e.first, e.chain = ptx.Uint(0), block
		e.logits = e.logits.Index(e.chain.Mul(e.tokens), 4*r.NumExperts)
	}
	e.box = ptx.Select(e.tokens.LeI(tokenGroup), ptx.Uint(tokenGroup*tile.RowBytes), ptx.Uint(tokenBytes))
	cta := pipeline.NewCTA(k.Kernel)
	stageBytes := e.chains * e.chainBytes()
	e.ring = cta.Ring("ab", min(ringBytes/stageBytes, e.stages), stageBytes, 1, e.chains)
	e.zeros = cta.Shared("zeros", tokenGroup*tile.RowBytes, 1024)
	k.For(e.tid.MulI(16), ptx.Uint(tokenGroup*tile.RowBytes), ptx.Uint(16*threads), func(at ptx.U32) {
		ptx.StShared(e.zeros.Plus(at), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
	})
	if e.chains > 1 {
		e.partial = cta.Shared("partial", e.chains*chainSumsBytes, 16)
		e.meet = cta.NamedBarriers("partial", 1, e.chains*32)
	}
	cta.Ready(e.tid)
	// Weights may be prefetched into the L2 cache before the wait, even if the predecessor kernel
	// writes them, because L2 is coherent. Terms are not prefetched: they are in the cache already.
	if !r.F32 {
		mine := ptx.Uint(e.kTiles() / e.depth)
		if r.Apart {
			mine = e.stagesOf(e.chain)
		}
		k.If(e.tid.Lt(mine), func() {
			e.deep.Each(e.kTile(0, e.tid), e.expert, func(_ int, at []ptx.U32) { k.TMAPrefetch(e.w, at...) })
		})
	}
	k.GridDepWait()
	k.GridDepLaunch()
	if r.Apart {
		k.If(k.CtaidX().EqI(0).And(e.tid.LeI(r.TopK)), func() { ptx.StGlobal(chosen.Index(e.tid, 4), ptx.Uint(0)) })
		k.If(k.CtaidX().EqI(0).And(e.tid.EqI(0)), func() { schedule.ClearTickets(tickets) })
	}
	pipeline.Run(k.Kernel, k.Warp(),
		pipeline.Role{Name: "math", First: 0, Count: e.chains, Body: e.math},
		pipeline.Role{Name: "load", First: e.chains, Count: 1, Body: func() { k.If(k.ElectOne(), e.load) }},
	)
	return k.Build()
}

// ChainBytes returns the bytes of a token's sums of all chains.
func ChainBytes(c spec.Config) int {
	chains, _ := RouterOf(c).chains()
	return 4 * chains * c.NumExperts
}

// xMap returns the map that loads one or two groups of 8 tokens. It loads one group if the batch
// has no more tokens, because a box takes the same time whether or not its rows exist. Rows after
// the last token are loaded as 0.
func (r SmallBatchLogits) xMap(a *SmallBatchLogitsArgs) gpu.TensorMap {
	rows := ctaTokens
	if a.Tokens <= tokenGroup {
		rows = tokenGroup
	}
	return r.stageMap(a.X, a.Tokens, rows)
}

func (r SmallBatchLogits) wMap(a *SmallBatchLogitsArgs) gpu.TensorMap {
	return r.stageMap(a.Weights, r.lines(), ctaExperts)
}

// stageMap returns the tensor map that loads the k-tiles of a stage from the matrix at the given
// address. The matrix has the given number of lines, and a box has the given number of rows.
func (r SmallBatchLogits) stageMap(at driver.DevicePtr, lines, rows int) gpu.TensorMap {
	return r.deep().Map(at, []int{rows}, tile.Dim{Extent: lines, Stride: r.Hidden})
}

func (r SmallBatchLogits) deep() tile.Deep { return tile.Deep{Width: r.Hidden, Tiles: r.stageDepth()} }

// chainBytes is the size of a chain's part of a stage.
func (e *smallBatchLogits) chainBytes() int { return e.depth * (weightBytes + tokenBytes) }

// stagesOf returns the number of stages of a chain.
func (e *smallBatchLogits) stagesOf(chain ptx.U32) ptx.U32 {
	if e.lastStages == e.stages {
		return ptx.Uint(e.stages)
	}
	return ptx.Select(chain.EqI(e.all-1), ptx.Uint(e.lastStages), ptx.Uint(e.stages))
}

// kTile returns the first k-tile of stage i of one of the CTA's chains.
func (e *smallBatchLogits) kTile(chain int, i ptx.U32) ptx.U32 {
	i = i.AddI(chain * e.stages)
	if e.apart {
		i = e.chain.Mad(ptx.Uint(e.stages), i)
	}
	return i.MulI(e.depth)
}

func (e *smallBatchLogits) load() {
	k, at := e.k, e.ring.Producer()
	bytes := e.box.AddI(weightBytes).MulI(e.depth)
	terms, lines := e.terms()
	stages := ptx.Uint(e.stages)
	if e.apart {
		stages = e.stagesOf(e.chain)
	}
	k.Range(stages, func(i ptx.U32) {
		s := at.Acquire()
		hasLast := ptx.True()
		if e.lastStages < e.stages && !e.apart {
			hasLast = i.LtI(e.lastStages)
		}
		k.MbarrierArriveExpectTx(s.Full, bytes.MulI(e.chains-1).Add(ptx.Select(hasLast, bytes, ptx.Uint(0))))
		for chain := range e.chains {
			load := func() {
				kt, expert := e.kTile(chain, i), e.expert
				if terms > 1 {
					ofTerm := e.kTiles() / terms
					kt, expert = kt.RemI(ofTerm), expert.Add(kt.DivI(ofTerm).MulI(lines))
				}
				to := s.Data.At(chain * e.chainBytes())
				e.deep.Each(kt, expert, func(first int, at []ptx.U32) {
					k.TMALoad(to.At(first*weightBytes), e.w, s.Full, at...)
				})
				e.deep.Each(kt, e.first, func(first int, at []ptx.U32) {
					k.TMALoad(to.At(e.depth*weightBytes).Plus(e.box.MulI(first)), e.x, s.Full, at...)
				})
			}
			if chain == e.chains-1 {
				k.If(hasLast, load)
			} else {
				load()
			}
		}
		at.Advance()
	})
}

func (e *smallBatchLogits) math() {
	k := e.k
	acc := k.Accumulators(tile.WarpSums)
	for _, sum := range acc {
		ptx.VarOf(sum).Set(ptx.Float(0))
	}
	product := tile.NewWarpProduct(k, e.Element, e.lane)
	chain := e.tid.ShrI(5)
	own := chain.MulI(e.chainBytes())
	load := func(s pipeline.Stage, kt int) (x, w []ptx.U32) {
		part := s.Data.Plus(own)
		first := part.At(e.depth * weightBytes).Plus(e.box.MulI(kt))
		second := ptx.SharedAt(ptx.Select(e.box.EqI(tokenBytes), first.At(tokenGroup*tile.RowBytes).Addr(), e.zeros.Addr()))
		return product.A(first, second), product.B(part.At(kt * weightBytes))
	}
	at, release := e.ring.Consumer(), pipeline.NewReleaser(k, e.lane, 1)
	firstX, firstW := load(at.Wait(), 0)
	carriedX, carriedW := varsOf(k, firstX), varsOf(k, firstW)
	// Each k-tile is loaded to registers in the middle of the multiplications of the previous
	// k-tile.
	stage := func(more bool) {
		const half = tile.K / tile.KStep / 2
		x, w, s := valuesOf(carriedX), valuesOf(carriedW), at.Stage()
		for kt := range e.depth {
			product.Multiply(acc, x, w, 0, half)
			last := kt == e.depth-1
			if last {
				release.Release(s, ptx.True())
				at.Advance()
			}
			if last && more {
				s = at.Wait()
			}
			nowX, nowW := x, w
			if !last || more {
				x, w = load(s, (kt+1)%e.depth)
			}
			product.Multiply(acc, nowX, nowW, half, 2*half)
		}
		if more {
			ptx.SetAll(carriedX, x)
			ptx.SetAll(carriedW, w)
		}
	}
	if e.apart {
		chain = e.chain
	}
	stages := e.stagesOf(chain)
	k.Range(stages.SubI(1), func(ptx.U32) { stage(true) })
	stage(false)
	if e.chains == 1 {
		e.store(acc)
		return
	}
	k.Range(ptx.Uint(e.stages).Sub(stages), func(ptx.U32) { // the last chain may have fewer stages; for the missing ones it only releases the ring's stages
		release.Release(at.Wait(), ptx.True())
		at.Advance()
	})
	e.join(acc, chain)
}

// chainSumsBytes is the size of a chain's sums.
const chainSumsBytes = 32 * tile.WarpSums * 4

// join adds the sums of the chains in the first chain's warp, and stores the result.
func (e *smallBatchLogits) join(acc []ptx.F32, chain ptx.U32) {
	k := e.k
	mine := e.partial.Plus(e.lane.MulI(tile.WarpSums * 4))
	ptx.StShared(mine.Plus(chain.MulI(chainSumsBytes)), acc...)
	e.meet.Sync(ptx.Uint(0))
	k.If(chain.EqI(0), func() {
		sums := []ptx.F32{ptx.Float(0), ptx.Float(0), ptx.Float(0), ptx.Float(0)}
		for chain := range e.chains {
			for i, sum := range ptx.LdSharedVec[ptx.F32](mine.At(chain*chainSumsBytes), tile.WarpSums) {
				sums[i] = sums[i].Add(sum)
			}
		}
		e.store(sums)
	})
}

func varsOf(k *ptx.Kernel, of []ptx.U32) []*ptx.Var[ptx.U32] {
	vars := make([]*ptx.Var[ptx.U32], len(of))
	for i, v := range of {
		vars[i] = ptx.NewVar(k, v)
	}
	return vars
}

func valuesOf(vars []*ptx.Var[ptx.U32]) (of []ptx.U32) {
	for _, v := range vars {
		of = append(of, v.Get())
	}
	return of
}

// store writes the thread's sums: those of two neighbouring experts for each of two tokens. The two
// tokens are one group of 8 apart.
func (e *smallBatchLogits) store(acc []ptx.F32) {
	k, bytes := e.k, int(e.written.Bytes())
	for i, sum := range acc {
		token, expert := e.first.Add(e.lane.ShrI(2)).AddI(tokenGroup*(i/2)), e.expert.Add(e.lane.AndI(3).MulI(2)).AddI(i%2)
		k.If(token.Lt(e.tokens).And(expert.LtI(e.NumExperts)), func() {
			if e.Bias && !e.apart {
				sum = sum.Add(biasOf(e.bias, expert, e.NumExperts))
			}
			storeLogit(k, e.written, e.logits.Index(token, bytes*e.NumExperts).Index(expert, bytes), sum)
		})
	}
}

// SmallBatchLogitsKernel is the router product of a small batch.
var SmallBatchLogitsKernel = &registry.Kernel[SmallBatchLogitsArgs]{KernelName: "small-batch-logits", Emit: func(l registry.Layer) (*jit.Kernel[SmallBatchLogitsArgs], error) {
	f := SmallBatchLogits{Router: RouterOf(l.Config), Written: spec.F32}
	if !InRouter(l.Config) {
		f.LogitsOnly, f.Written = true, l.Logits // another kernel chooses from the logits
	}
	return f.Build()
}}

// ChainLogitsKernel is the router's product of up to MaxApart tokens. The up-projection
// chooses their experts.
var ChainLogitsKernel = &registry.Kernel[SmallBatchLogitsArgs]{KernelName: "chain-logits", Only: ChoosesInProducts, Emit: func(l registry.Layer) (*jit.Kernel[SmallBatchLogitsArgs], error) {
	return SmallBatchLogits{Router: RouterOf(l.Config), Written: spec.F32, Apart: true}.Build()
}}
