package route

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// FewLogits is the router product of few tokens, logits = X·Wrᵀ: a CTA takes 8
// experts and 64 tokens, so that the weights are read by many SMs. The sums are
// Router's, bit by bit.
type FewLogits struct {
	Hidden, NumExperts int
	// Element is [Router]'s.
	Element tile.Element
	// Logits is the format of what is written, Bias is added before.
	Logits spec.Logits
	Bias   bool
	// F32 is [Router]'s.
	F32 bool
}

const (
	fewThreads   = pipeline.WarpgroupThreads + 32
	fewExperts   = 8
	fewXBytes    = gemm.WarpgroupM * tile.RowBytes
	fewRows      = 8 // of tokens, which a box has whole groups of
	fewWBytes    = fewExperts * tile.RowBytes
	fewStages    = 20
	fewMathWarps = pipeline.WarpgroupThreads / 32
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
	// Tokens is T.
	Tokens int
}

// fewLogits is the emission of a FewLogits: what its roles share.
type fewLogits struct {
	router
	// first and expert are the CTA's first token and expert, box the bytes of its
	// tokens in a stage.
	first, expert, box, tokens ptx.U32
}

// router is that of the same product.
func (r FewLogits) router() Router {
	return Router{Hidden: r.Hidden, NumExperts: r.NumExperts, Element: r.Element, Logits: r.Logits, Bias: r.Bias, F32: r.F32}
}

// Build emits the kernel.
func (r FewLogits) Build() (*jit.Kernel[FewLogitsArgs], error) {
	k := jit.NewBuilder[FewLogitsArgs]("moe_few_logits", fewThreads, 1)
	groups := (r.NumExperts + fewExperts - 1) / fewExperts
	k.CTAs(func(a *FewLogitsArgs) int { return groups * ((a.Tokens + gemm.WarpgroupM - 1) / gemm.WarpgroupM) })
	e := fewLogits{router: router{Router: r.router(), k: k.Kernel}}
	e.x, e.w = k.Map(&k.Args.X, r.xMap), k.Map(&k.Args.Weights, r.wMap)
	e.logits = k.Ptr(&k.Args.Logits)
	if r.Bias {
		e.bias = k.Ptr(&k.Args.Bias)
	}
	e.tokens, e.tid = k.U32(&k.Args.Tokens), k.TidX()
	block := k.CtaidX().DivI(groups)
	e.first, e.expert = block.MulI(gemm.WarpgroupM), k.CtaidX().Sub(block.MulI(groups)).MulI(fewExperts)
	cta := pipeline.NewCTA(k.Kernel)
	// Stages start on 1024 bytes, as both of their tiles must.
	e.ring = cta.Ring("ab", min(fewStages, r.Hidden/tile.K), fewXBytes+fewWBytes, 1, fewMathWarps)
	e.clear()
	cta.Ready(e.tid)
	// Whatever the kernel before this one does to the weights, they may come to
	// the L2 cache. Terms come from there.
	if !r.F32 {
		k.If(e.tid.LtI(r.Hidden/tile.K), func() { k.TMAPrefetch(e.w, e.tid.MulI(tile.K), e.expert) })
	}
	k.GridDepWait()
	k.GridDepLaunch()
	pipeline.Run(k.Kernel, e.tid.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: 1, Body: e.math},
		pipeline.Role{Name: "load", First: 1, Count: 1, Body: e.load},
	)
	return k.Build()
}

func (r FewLogits) xMap(a *FewLogitsArgs) driver.TensorMap {
	return tile.RowMap(a.X, r.Hidden, a.Tokens, min((a.Tokens+fewRows-1)/fewRows*fewRows, gemm.WarpgroupM))
}

func (r FewLogits) wMap(a *FewLogitsArgs) driver.TensorMap {
	return tile.RowMap(a.Weights, r.Hidden, r.router().lines(), fewExperts)
}

// clear writes the zeros of tokens that there are not. A box has no more rows than
// there are tokens, in groups of 8: one of 64 takes as long to load whether they
// are there or not.
func (e *fewLogits) clear() {
	k := e.k
	e.box = e.tokens.AddI(fewRows - 1).DivI(fewRows).MulI(fewRows * tile.RowBytes).Min(ptx.Uint(fewXBytes))
	k.For(e.box.Add(e.tid.MulI(16)), ptx.Uint(fewXBytes), ptx.Uint(16*fewThreads), func(at ptx.U32) {
		for i := range e.ring.Stages {
			ptx.StShared(e.ring.Data(i).Plus(at), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0), ptx.Uint(0))
		}
	})
	k.FenceProxyAsync(".shared::cta") // wgmma shall see the zeros
}

func (e *fewLogits) math() {
	k, bytes := e.k, int(e.Logits.Type().Bytes())
	acc := k.Accumulators(fewExperts / 2)
	loop := gemm.MainLoop{K: k, Ring: e.ring.Consumer(), Release: pipeline.NewReleaser(k, e.tid.AndI(31), 1)}
	loop.Run(ptx.Uint(e.kTiles()), func(s pipeline.Stage, kt ptx.U32) {
		a, b := tile.NewDescriptor(k, s.Data), tile.NewDescriptor(k, s.Data.At(fewXBytes))
		gemm.Multiply(k, e.Element, acc, a, b, kt.NeI(0), false, false)
	}, nil)
	f := tile.NewFragment(e.tid)
	for i, sum := range acc {
		token, expert := e.first.Add(f.Row).AddI(8*(i/2)), e.expert.Add(f.Column).AddI(i%2)
		k.If(token.Lt(e.tokens).And(expert.LtI(e.NumExperts)), func() {
			if e.Bias {
				sum = sum.Add(biasOf(e.bias, expert, e.NumExperts))
			}
			e.writeLogit(e.logits.Index(token, bytes*e.NumExperts).Index(expert, bytes), []ptx.F32{sum})
		})
	}
}

func (e *fewLogits) load() {
	k := e.k
	k.If(k.ElectOne(), func() {
		at := e.ring.Producer()
		e.eachKTile(func(column ptx.U32, line int) {
			s := at.Acquire()
			k.MbarrierArriveExpectTx(s.Full, e.box.AddI(fewWBytes))
			k.TMALoad(s.Data, e.x, s.Full, column, e.first)
			k.TMALoad(s.Data.At(fewXBytes), e.w, s.Full, column, e.expert.AddI(line))
			at.Advance()
		})
	})
}

// FewLogitsKernel is the router product of few tokens.
var FewLogitsKernel = &registry.Kernel[FewLogitsArgs]{KernelName: "few-logits", Emit: func(l registry.Layer) (*jit.Kernel[FewLogitsArgs], error) {
	f := FewLogits{Hidden: l.Hidden, NumExperts: l.NumExperts, Element: element.Of(l.Config), Logits: spec.LogitsF32, Bias: l.RouterBias, F32: l.RouterF32}
	if !InRouter(l.Config) {
		f.Logits = l.Logits // for Select
	}
	return f.Build()
}}
