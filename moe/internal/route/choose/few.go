package choose

import (
	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// FewLogits is the router product of few tokens, logits = X·Wrᵀ: a CTA takes 8
// experts and 16 tokens, so that the weights are read by many SMs. A warp
// multiplies for each chain of sums, as nothing hides how long a step waits for the
// one before; the sums are Router's, bit by bit. The chains of up to [MostApart] tokens
// have CTAs of their own, on more SMs, and who chooses adds them up, see [ByChains].
type FewLogits struct {
	// Router is that of the same product.
	Router
	// Written is the format of what is written.
	Written spec.Logits
	// Apart: there are no more tokens than MostApart, and each chain's sums are written.
	Apart bool
}

const (
	// MostApart is the tokens whose chains have CTAs of their own: a group of them.
	MostApart = fewGroup
	// A CTA's experts and tokens, which come in one or two groups of 8.
	fewExperts = tile.WarpColumns
	fewTokens  = tile.WarpRows
	fewGroup   = fewTokens / 2
	fewWBytes  = fewExperts * tile.RowBytes
	fewXBytes  = fewTokens * tile.RowBytes
	// fewRing bounds the shared memory of the ring: with 60 KB a lone token's pass
	// took 0.2 to 1.1 µs longer, with 200 as long.
	fewRing = 100 << 10
	// mostFewDepth is how many k-tiles of a chain a stage has at most.
	mostFewDepth = 4
)

// FewLogitsArgs are the arguments of [FewLogits].
type FewLogitsArgs struct {
	// X [T, d] are the tokens, Weights [E, d] or terms, of FewLogits' Element.
	X       driver.DevicePtr
	Weights driver.DevicePtr
	// Bias [E] f32, where there is one.
	Bias driver.DevicePtr
	// Logits [T, E] are written, where chains are apart [chains, T, E] f32, without biases.
	Logits driver.DevicePtr
	// Chosen [K+1] and Tickets [2] u32 become 0 where chains are apart.
	Chosen  driver.DevicePtr
	Tickets driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// fewLogits is the emission of a FewLogits: what its roles share.
type fewLogits struct {
	router
	written spec.Logits
	lane    ptx.U32
	// first, expert and chain are the CTA's first token, expert and chain.
	first, expert, chain, tokens ptx.U32
	// box is the bytes of a k-tile's tokens in a stage.
	box ptx.U32
	// zeros are read in place of a second group of tokens that there is not.
	zeros ptx.Shared
	deep  tile.Deep
	// A stage has so many k-tiles of each of the CTA's chains. The chains, all of them,
	// have stages of them, the last one lastStages.
	depth, chains, all, stages, lastStages int
	// partial are the chains' sums, where there are several; meet joins those who
	// write and read them.
	partial ptx.Shared
	meet    pipeline.NamedBarriers
}

// fewDepth is the k-tiles of a chain in a stage: a part of all, so that stages are
// alike.
func (r Router) fewDepth() int {
	depth := mostFewDepth
	for tile.Tiles(r.Hidden)%depth != 0 {
		depth--
	}
	return depth
}

// groups is how many CTAs all experts take.
func (r FewLogits) groups() int { return (r.NumExperts + fewExperts - 1) / fewExperts }

// Build emits the kernel.
func (r FewLogits) Build() (*jit.Kernel[FewLogitsArgs], error) {
	all, chainDepth := r.chains()
	name, chains := "moe_few_logits", all
	if r.Apart {
		name, chains = "moe_chain_logits", 1
	}
	threads := (chains + 1) * 32
	k := jit.NewBuilder[FewLogitsArgs](name, threads, 1)
	k.CTAs(func(a *FewLogitsArgs) int {
		return r.groups() * ((a.Tokens + fewTokens - 1) / fewTokens) * all / chains
	})
	e := fewLogits{router: router{Router: r.Router, k: k.Kernel, apart: r.Apart}, written: r.Written, depth: r.fewDepth(), deep: r.deep(), chains: chains, all: all}
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
	e.lane = e.tid.AndI(31)
	block := k.CtaidX().DivI(r.groups())
	e.first, e.expert = block.MulI(fewTokens), k.CtaidX().Sub(block.MulI(r.groups())).MulI(fewExperts)
	if r.Apart {
		e.first, e.chain = ptx.Uint(0), block
		e.logits = e.logits.Index(e.chain.Mul(e.tokens), 4*r.NumExperts)
	}
	e.box = ptx.Select(e.tokens.LeI(fewGroup), ptx.Uint(fewGroup*tile.RowBytes), ptx.Uint(fewXBytes))
	cta := pipeline.NewCTA(k.Kernel)
	stageBytes := e.chains * e.chainBytes()
	e.ring = cta.Ring("ab", min(fewRing/stageBytes, e.stages), stageBytes, 1, e.chains)
	e.zeros = cta.Shared("zeros", fewGroup*tile.RowBytes, 1024)
	k.For(e.tid.MulI(16), ptx.Uint(fewGroup*tile.RowBytes), ptx.Uint(16*threads), func(at ptx.U32) {
		ptx.StShared(e.zeros.Plus(at), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
	})
	if e.chains > 1 {
		e.partial = cta.Shared("partial", e.chains*fewSumsBytes, 16)
		e.meet = cta.NamedBarriers("partial", 1, e.chains*32)
	}
	cta.Ready(e.tid)
	// Whatever the kernel before this one does to the weights, they may come to
	// the L2 cache. Terms come from there.
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
	pipeline.Run(k.Kernel, e.tid.ShrI(5),
		pipeline.Role{Name: "math", First: 0, Count: e.chains, Body: e.math},
		pipeline.Role{Name: "load", First: e.chains, Count: 1, Body: func() { k.If(k.ElectOne(), e.load) }},
	)
	return k.Build()
}

// ChainBytes is how much room a token's sums by chains take.
func ChainBytes(c spec.Config) int {
	chains, _ := RouterOf(c).chains()
	return 4 * chains * c.NumExperts
}

// xMap loads a group of 8 tokens, or two: a box of 64 rows takes as long to load
// whether they are there or not. Rows past the last token are 0.
func (r FewLogits) xMap(a *FewLogitsArgs) driver.TensorMap {
	rows := fewTokens
	if a.Tokens <= fewGroup {
		rows = fewGroup
	}
	return r.stageMap(a.X, a.Tokens, rows)
}

func (r FewLogits) wMap(a *FewLogitsArgs) driver.TensorMap {
	return r.stageMap(a.Weights, r.lines(), fewExperts)
}

// stageMap loads a stage's k-tiles of so many rows.
func (r FewLogits) stageMap(at driver.DevicePtr, lines, rows int) driver.TensorMap {
	return r.deep().Map(at, []int{rows}, tile.Dim{Extent: lines, Stride: r.Hidden})
}

func (r FewLogits) deep() tile.Deep { return tile.Deep{Width: r.Hidden, Tiles: r.fewDepth()} }

// chainBytes is a chain's part of a stage.
func (e *fewLogits) chainBytes() int { return e.depth * (fewWBytes + fewXBytes) }

// stagesOf is the stages of a chain.
func (e *fewLogits) stagesOf(chain ptx.U32) ptx.U32 {
	if e.lastStages == e.stages {
		return ptx.Uint(e.stages)
	}
	return ptx.Select(chain.EqI(e.all-1), ptx.Uint(e.lastStages), ptx.Uint(e.stages))
}

// kTile is the first k-tile of stage i of one of the CTA's chains.
func (e *fewLogits) kTile(chain int, i ptx.U32) ptx.U32 {
	i = i.AddI(chain * e.stages)
	if e.apart {
		i = e.chain.Mad(ptx.Uint(e.stages), i)
	}
	return i.MulI(e.depth)
}

func (e *fewLogits) load() {
	k, at := e.k, e.ring.Producer()
	bytes := e.box.AddI(fewWBytes).MulI(e.depth)
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
					k.TMALoad(to.At(first*fewWBytes), e.w, s.Full, at...)
				})
				e.deep.Each(kt, e.first, func(first int, at []ptx.U32) {
					k.TMALoad(to.At(e.depth*fewWBytes).Plus(e.box.MulI(first)), e.x, s.Full, at...)
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

func (e *fewLogits) math() {
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
		first := part.At(e.depth * fewWBytes).Plus(e.box.MulI(kt))
		second := ptx.SharedAt(ptx.Select(e.box.EqI(fewXBytes), first.At(fewGroup*tile.RowBytes).Addr(), e.zeros.Addr()))
		return product.A(first, second), product.B(part.At(kt * fewWBytes))
	}
	at, release := e.ring.Consumer(), pipeline.NewReleaser(k, e.lane, 1)
	firstX, firstW := load(at.Wait(), 0)
	carriedX, carriedW := varsOf(k, firstX), varsOf(k, firstW)
	// Each k-tile is loaded among the products of the one before.
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
	k.Range(ptx.Uint(e.stages).Sub(stages), func(ptx.U32) { // of the last chain
		release.Release(at.Wait(), ptx.True())
		at.Advance()
	})
	e.join(acc, chain)
}

// fewSumsBytes are a chain's sums.
const fewSumsBytes = 32 * tile.WarpSums * 4

// join adds the chains' sums in the first one's warp, and stores.
func (e *fewLogits) join(acc []ptx.F32, chain ptx.U32) {
	k := e.k
	mine := e.partial.Plus(e.lane.MulI(tile.WarpSums * 4))
	ptx.StShared(mine.Plus(chain.MulI(fewSumsBytes)), acc...)
	e.meet.Sync(ptx.Uint(0))
	k.If(chain.EqI(0), func() {
		sums := []ptx.F32{ptx.Float(0), ptx.Float(0), ptx.Float(0), ptx.Float(0)}
		for chain := range e.chains {
			for i, sum := range ptx.LdSharedVec[ptx.F32](mine.At(chain*fewSumsBytes), tile.WarpSums) {
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

// store writes the sums: tokens a group apart, of two experts that touch.
func (e *fewLogits) store(acc []ptx.F32) {
	k, bytes := e.k, int(e.written.Type().Bytes())
	for i, sum := range acc {
		token, expert := e.first.Add(e.lane.ShrI(2)).AddI(fewGroup*(i/2)), e.expert.Add(e.lane.AndI(3).MulI(2)).AddI(i%2)
		k.If(token.Lt(e.tokens).And(expert.LtI(e.NumExperts)), func() {
			if e.Bias && !e.apart {
				sum = sum.Add(biasOf(e.bias, expert, e.NumExperts))
			}
			storeLogit(k, e.written, e.logits.Index(token, bytes*e.NumExperts).Index(expert, bytes), sum)
		})
	}
}

// FewLogitsKernel is the router product of few tokens.
var FewLogitsKernel = &registry.Kernel[FewLogitsArgs]{KernelName: "few-logits", Emit: func(l registry.Layer) (*jit.Kernel[FewLogitsArgs], error) {
	f := FewLogits{Router: RouterOf(l.Config), Written: spec.LogitsF32}
	if !InRouter(l.Config) {
		f.LogitsOnly, f.Written = true, l.Logits // for Select
	}
	return f.Build()
}}

// ChainLogitsKernel is that of the fewest, for products that choose.
var ChainLogitsKernel = &registry.Kernel[FewLogitsArgs]{KernelName: "chain-logits", Only: ChoosesInProducts, Emit: func(l registry.Layer) (*jit.Kernel[FewLogitsArgs], error) {
	return FewLogits{Router: RouterOf(l.Config), Written: spec.LogitsF32, Apart: true}.Build()
}}
