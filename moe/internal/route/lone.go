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

// LoneLogits is the router product of a lone token, in FP32: a CTA takes 8
// experts. Nothing hides how long one wgmma waits for the one before, so the
// token is A from registers, which is sooner than from shared memory. The sums are
// Router's, bit by bit.
type LoneLogits struct {
	Hidden, NumExperts, TopK int
	// Element is [Router]'s.
	Element tile.Element
	// Bias is added to the sums.
	Bias bool
}

// LoneLogitsArgs are the arguments of [LoneLogits].
type LoneLogitsArgs struct {
	// X [1, d] is the token, Weights [E, d], both of LoneLogits' Element.
	X       driver.DevicePtr
	Weights driver.DevicePtr
	// Bias [E] f32, where there is one.
	Bias driver.DevicePtr
	// Sums [E] f32 are written, Chosen [K] u32 become 0.
	Sums   driver.DevicePtr
	Chosen driver.DevicePtr
}

const (
	// loneDepth is the k-tiles of a stage.
	loneDepth      = 4
	loneStageBytes = loneDepth * fewWBytes
	loneStages     = 16
	// loneXBytes is the token's part of a stage's depth.
	loneXBytes = loneDepth * tile.RowBytes
)

// loneLogits is the emission of a LoneLogits.
type loneLogits struct {
	LoneLogits
	k          *ptx.Kernel
	tid, lane  ptx.U32
	expert     ptx.U32 // the CTA's first
	x, xFull   ptx.Shared
	zeros      ptx.Shared // a stage's depth of them
	ring       *pipeline.Ring
	w          ptx.TensorMap
	from       ptx.Global // the token
	bias, sums ptx.Global
}

// kTiles is the depth of a sum, stages how many of them are loaded.
func (l LoneLogits) kTiles() int { return l.Hidden / tile.K }
func (l LoneLogits) stages() int { return (l.kTiles() + loneDepth - 1) / loneDepth }

// Build emits the kernel.
func (l LoneLogits) Build() (*jit.Kernel[LoneLogitsArgs], error) {
	k := jit.NewBuilder[LoneLogitsArgs]("moe_lone_logits", fewThreads, 1)
	k.CTAs(func(*LoneLogitsArgs) int { return (l.NumExperts + fewExperts - 1) / fewExperts })
	e := &loneLogits{LoneLogits: l, k: k.Kernel, tid: k.TidX(), expert: k.CtaidX().MulI(fewExperts)}
	e.lane = e.tid.AndI(31)
	e.w = k.Map(&k.Args.Weights, func(a *LoneLogitsArgs) driver.TensorMap {
		return tile.LoadMap(a.Weights, []int{tile.K, fewExperts, loneDepth}, tile.Dim{Extent: tile.K, Stride: 1},
			tile.Dim{Extent: l.NumExperts, Stride: l.Hidden}, tile.Dim{Extent: l.kTiles(), Stride: tile.K})
	})
	e.from, e.sums = k.Ptr(&k.Args.X), k.Ptr(&k.Args.Sums)
	if l.Bias {
		e.bias = k.Ptr(&k.Args.Bias)
	}
	chosen := k.Ptr(&k.Args.Chosen)
	cta := pipeline.NewCTA(k.Kernel)
	e.ring = cta.Ring("w", min(loneStages, l.stages()), loneStageBytes, 1, fewMathWarps)
	e.x, e.zeros = cta.Shared("x", l.stages()*loneXBytes, 16), cta.Shared("zeros", loneXBytes, 16)
	e.xFull = cta.Mbarriers("x.full", 1, 1)
	e.clear()
	cta.Ready(e.tid)
	// Whatever the kernel before this one does to the weights, they may come to
	// the L2 cache.
	k.If(e.tid.LtI(l.stages()), func() { k.TMAPrefetch(e.w, ptx.Uint(0), e.expert, e.tid.MulI(loneDepth)) })
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(k.CtaidX().EqI(0).And(e.tid.LtI(l.TopK)), func() { ptx.StGlobal(chosen.Index(e.tid, 4), ptx.Uint(0)) })
	pipeline.Run(k.Kernel, e.tid.ShrI(7),
		pipeline.Role{Name: "math", First: 0, Count: 1, Body: e.math},
		pipeline.Role{Name: "load", First: 1, Count: 1, Body: func() { k.If(k.ElectOne(), e.load) }},
	)
	return k.Build()
}

// clear writes what lanes of other rows than the token's read, and what lies
// behind the token in its last stage.
func (e *loneLogits) clear() {
	end, last := e.Hidden*tile.ElementBytes, e.stages()*loneXBytes+loneXBytes
	e.k.For(ptx.Uint(end).Add(e.tid.MulI(4)), ptx.Uint(last), ptx.Uint(4*fewThreads), func(at ptx.U32) {
		ptx.StShared(e.x.Plus(at), ptx.Uint(0))
	})
}

func (e *loneLogits) load() {
	k, at := e.k, e.ring.Producer()
	bytes := ptx.Uint(e.Hidden * tile.ElementBytes)
	k.MbarrierArriveExpectTx(e.xFull, bytes)
	k.BulkLoad(e.x, e.from, bytes, e.xFull)
	k.For(ptx.Uint(0), ptx.Uint(e.kTiles()), ptx.Uint(loneDepth), func(kt ptx.U32) {
		s := at.Acquire()
		k.MbarrierArriveExpectTx(s.Full, ptx.Uint(loneStageBytes))
		k.TMALoad(s.Data, e.w, s.Full, ptx.Uint(0), e.expert, kt)
		at.Advance()
	})
}

// fragment is the token's part of a stage as A: row 0, of which four lanes have
// pairs.
type fragment [loneDepth * tile.K / tile.KStep * 2]*ptx.Var[ptx.U32]

func (e *loneLogits) newFragment() (f fragment) {
	for i := range f {
		f[i] = ptx.NewVar(e.k, ptx.Uint(0))
	}
	return f
}

// fill loads the pairs of a stage's depth.
func (e *loneLogits) fill(f fragment, stage ptx.U32) {
	hasRow := e.tid.LtI(4)
	at := ptx.SharedAt(ptx.Select(hasRow, e.x.Plus(stage.MulI(loneXBytes)).Addr(), e.zeros.Addr()).Add(e.lane.AndI(3).ShlI(2)))
	for i, v := range f {
		v.Set(ptx.LdShared[ptx.U32](at.At(i * tile.KStep)))
	}
}

func (e *loneLogits) math() {
	k, total := e.k, e.stages()
	acc := k.Accumulators(fewExperts / 2)
	for _, sum := range acc {
		ptx.VarOf(sum).Set(ptx.Float(0))
	}
	at, release := e.ring.Consumer(), pipeline.NewReleaser(k, e.lane, 1)
	a, b, none := e.newFragment(), e.newFragment(), ptx.NewVar(k, ptx.Uint(0)).Get()
	// A stage's products are under way while the next one's token is loaded.
	stage := func(f fragment, kTiles int, meanwhile func()) {
		s := at.Wait()
		k.WgmmaFence()
		for kt := range kTiles {
			w := tile.NewDescriptor(k, s.Data.At(kt*fewWBytes))
			for step := range tile.K / tile.KStep {
				i := 2 * (kt*tile.K/tile.KStep + step)
				e.Element.WgmmaRegisters(k, acc, [4]ptx.U32{f[i].Get(), none, f[i+1].Get(), none}, w.Step(step, 0), ptx.True())
			}
		}
		k.WgmmaCommit()
		meanwhile()
		k.WgmmaWait(0)
		release.Release(s, ptx.True())
		at.Advance()
	}
	pipeline.WaitParity(k, e.xFull, ptx.Uint(0))
	e.fill(a, ptx.Uint(0))
	pairs, last := (total-1)/2, e.kTiles()-(total-1)*loneDepth
	k.Range(ptx.Uint(pairs), func(i ptx.U32) {
		stage(a, loneDepth, func() { e.fill(b, i.MulI(2).AddI(1)) })
		stage(b, loneDepth, func() { e.fill(a, i.MulI(2).AddI(2)) })
	})
	if total%2 == 1 {
		stage(a, last, func() {})
	} else {
		stage(a, loneDepth, func() { e.fill(b, ptx.Uint(total-1)) })
		stage(b, last, func() {})
	}
	k.If(e.tid.LtI(4), func() {
		for i := range 2 {
			expert, sum := e.expert.Add(e.lane.MulI(2)).AddI(i), acc[i]
			k.If(expert.LtI(e.NumExperts), func() {
				if e.Bias {
					sum = sum.Add(biasOf(e.bias, expert, e.NumExperts))
				}
				ptx.StGlobal(e.sums.Index(expert, 4), sum)
			})
		}
	})
}

// HasLone reports whether a layer's products choose a lone token's experts: by
// the router's sums alone, and rows of their weights must be lines.
func HasLone(c spec.Config) bool {
	return InRouter(c) && !c.RouterF32 && !c.ScoreOnInput && c.WeightOrder == spec.OutIn && c.Hidden%tile.K == 0 && c.Intermediate%tile.K == 0
}

// LoneLogitsKernel is the router product of a lone token.
var LoneLogitsKernel = &registry.Kernel[LoneLogitsArgs]{KernelName: "lone-logits", Only: HasLone, Emit: func(l registry.Layer) (*jit.Kernel[LoneLogitsArgs], error) {
	return LoneLogits{Hidden: l.Hidden, NumExperts: l.NumExperts, TopK: l.TopK, Element: element.Of(l.Config), Bias: l.RouterBias}.Build()
}}
