package route

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// FewLogits is the router product of few tokens, logits = X·Wrᵀ: a CTA takes 8
// experts and 16 tokens, so that the weights are read by many SMs. One warp
// multiplies, as nothing hides how long a step waits for the one before; the sums
// are Router's, bit by bit.
type FewLogits struct {
	Hidden, NumExperts int
	// Element is [Router]'s.
	Element tile.Element
	// Logits is the format of what is written, Bias is added before.
	Logits spec.Logits
	Bias   bool
	// F32 is [Router]'s.
	F32 bool
	// Clear is how many words of Chosen become 0.
	Clear int
}

const (
	fewThreads = 2 * 32
	// A CTA's experts and tokens, which come in one or two groups of 8.
	fewExperts = tile.WarpColumns
	fewTokens  = tile.WarpRows
	fewGroup   = fewTokens / 2
	// mostFewDepth is how many k-tiles a stage has at most.
	mostFewDepth = 4
	fewWBytes    = fewExperts * tile.RowBytes
	fewXBytes    = fewTokens * tile.RowBytes
	// fewRing bounds the shared memory of the ring: with 60 KB a lone token's pass
	// took 0.2 to 1.1 µs longer, with 200 as long.
	fewRing = 100 << 10
)

// FewLogitsArgs are the arguments of [FewLogits].
type FewLogitsArgs struct {
	// X [T, d] are the tokens, Weights [E, d] or terms, of FewLogits' Element.
	X       driver.DevicePtr
	Weights driver.DevicePtr
	// Bias [E] f32, where there is one.
	Bias driver.DevicePtr
	// Logits [T, E] are written.
	Logits driver.DevicePtr
	// Chosen [Clear] u32 become 0, unless it is 0.
	Chosen driver.DevicePtr
	// Tokens is T.
	Tokens int
}

// fewLogits is the emission of a FewLogits: what its roles share.
type fewLogits struct {
	router
	lane ptx.U32
	// first and expert are the CTA's first token and expert.
	first, expert, tokens ptx.U32
	// box is the bytes of a k-tile's tokens in a stage.
	box ptx.U32
	// zeros are read in place of a second group of tokens that there is not.
	zeros ptx.Shared
	depth int
	deep  tile.Deep
}

// router is that of the same product.
func (r FewLogits) router() Router {
	return Router{Hidden: r.Hidden, NumExperts: r.NumExperts, Element: r.Element, Logits: r.Logits, Bias: r.Bias, F32: r.F32}
}

// depth is the k-tiles of a stage: a part of all, so that stages are alike.
func (r FewLogits) depth() int {
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
	k := jit.NewBuilder[FewLogitsArgs]("moe_few_logits", fewThreads, 1)
	k.CTAs(func(a *FewLogitsArgs) int { return r.groups() * ((a.Tokens + fewTokens - 1) / fewTokens) })
	e := fewLogits{router: router{Router: r.router(), k: k.Kernel}, depth: r.depth(), deep: r.deep()}
	e.x, e.w = k.Map(&k.Args.X, r.xMap), k.Map(&k.Args.Weights, r.wMap)
	e.logits = k.Ptr(&k.Args.Logits)
	if r.Bias {
		e.bias = k.Ptr(&k.Args.Bias)
	}
	var chosen ptx.Global
	if r.Clear > 0 {
		chosen = k.Ptr(&k.Args.Chosen)
	}
	e.tokens, e.tid = k.U32(&k.Args.Tokens), k.TidX()
	e.lane = e.tid.AndI(31)
	block := k.CtaidX().DivI(r.groups())
	e.first, e.expert = block.MulI(fewTokens), k.CtaidX().Sub(block.MulI(r.groups())).MulI(fewExperts)
	e.box = ptx.Select(e.tokens.LeI(fewGroup), ptx.Uint(fewGroup*tile.RowBytes), ptx.Uint(fewXBytes))
	cta := pipeline.NewCTA(k.Kernel)
	stageBytes := e.depth * (fewXBytes + fewWBytes)
	e.ring = cta.Ring("ab", min(fewRing/stageBytes, e.stages()), stageBytes, 1, 1)
	e.zeros = cta.Shared("zeros", fewGroup*tile.RowBytes, 1024)
	k.For(e.tid.MulI(16), ptx.Uint(fewGroup*tile.RowBytes), ptx.Uint(16*fewThreads), func(at ptx.U32) {
		ptx.StShared(e.zeros.Plus(at), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
	})
	cta.Ready(e.tid)
	// Whatever the kernel before this one does to the weights, they may come to
	// the L2 cache. Terms come from there.
	if !r.F32 {
		k.If(e.tid.LtI(e.stages()), func() {
			e.deep.Each(e.tid.MulI(e.depth), e.expert, func(_ int, at []ptx.U32) { k.TMAPrefetch(e.w, at...) })
		})
	}
	k.GridDepWait()
	k.GridDepLaunch()
	if r.Clear > 0 {
		k.If(k.CtaidX().EqI(0).And(e.tid.LtI(r.Clear)).And(chosen.Given()), func() { ptx.StGlobal(chosen.Index(e.tid, 4), ptx.Uint(0)) })
	}
	pipeline.Run(k.Kernel, e.tid.ShrI(5),
		pipeline.Role{Name: "math", First: 0, Count: 1, Body: e.math},
		pipeline.Role{Name: "load", First: 1, Count: 1, Body: func() { k.If(k.ElectOne(), e.load) }},
	)
	return k.Build()
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
	return r.stageMap(a.Weights, r.router().lines(), fewExperts)
}

// stageMap loads a stage's k-tiles of so many rows.
func (r FewLogits) stageMap(at driver.DevicePtr, lines, rows int) driver.TensorMap {
	return r.deep().Map(at, []int{rows}, tile.Dim{Extent: lines, Stride: r.Hidden})
}

func (r FewLogits) deep() tile.Deep { return tile.Deep{Width: r.Hidden, Tiles: r.depth()} }

// stages is how many the product has.
func (e *fewLogits) stages() int { return e.kTiles() / e.depth }

func (e *fewLogits) load() {
	k, at := e.k, e.ring.Producer()
	bytes := e.box.AddI(fewWBytes).MulI(e.depth)
	e.eachKTile(e.depth, func(column ptx.U32, line int) {
		kt := column.DivI(tile.K)
		s := at.Acquire()
		k.MbarrierArriveExpectTx(s.Full, bytes)
		e.deep.Each(kt, e.expert.AddI(line), func(first int, at []ptx.U32) {
			k.TMALoad(s.Data.At(first*fewWBytes), e.w, s.Full, at...)
		})
		e.deep.Each(kt, e.first, func(first int, at []ptx.U32) {
			k.TMALoad(s.Data.At(e.depth*fewWBytes).Plus(e.box.MulI(first)), e.x, s.Full, at...)
		})
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
	load := func(s pipeline.Stage, kt int) (x, w []ptx.U32) {
		first := s.Data.At(e.depth * fewWBytes).Plus(e.box.MulI(kt))
		second := ptx.SharedAt(ptx.Select(e.box.EqI(fewXBytes), first.At(fewGroup*tile.RowBytes).Addr(), e.zeros.Addr()))
		return product.A(first, second), product.B(s.Data.At(kt * fewWBytes))
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
	k.Range(ptx.Uint(e.stages()-1), func(ptx.U32) { stage(true) })
	stage(false)
	e.store(acc)
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
	k, bytes := e.k, int(e.Logits.Type().Bytes())
	for i, sum := range acc {
		token, expert := e.first.Add(e.lane.ShrI(2)).AddI(fewGroup*(i/2)), e.expert.Add(e.lane.AndI(3).MulI(2)).AddI(i%2)
		k.If(token.Lt(e.tokens).And(expert.LtI(e.NumExperts)), func() {
			if e.Bias {
				sum = sum.Add(biasOf(e.bias, expert, e.NumExperts))
			}
			e.writeLogit(e.logits.Index(token, bytes*e.NumExperts).Index(expert, bytes), []ptx.F32{sum})
		})
	}
}

// FewLogitsKernel is the router product of few tokens.
var FewLogitsKernel = &registry.Kernel[FewLogitsArgs]{KernelName: "few-logits", Emit: func(l registry.Layer) (*jit.Kernel[FewLogitsArgs], error) {
	f := FewLogits{Hidden: l.Hidden, NumExperts: l.NumExperts, Element: element.Of(l.Config), Logits: spec.LogitsF32, Bias: l.RouterBias, F32: l.RouterF32}
	if !InRouter(l.Config) {
		f.Logits = l.Logits // for Select
	}
	if HasLone(l.Config) {
		f.Clear = l.TopK
	}
	return f.Build()
}}
