package drouter

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/route/training"
	"sonicmoe/ptx"
)

// DRouter is the gradient of the router's weights [E, d], dW_r[e] = Σ_t dlogit[t,e]·X[t].
// It writes FP32 partial sums over ranges of tokens, which [Sum] adds. The experts of a
// token must differ, as they do in the router's choice. Expert ids outside [0, E) add
// nothing.
type DRouter struct {
	Hidden, NumExperts, TopK int
	// Element is the type of the tokens.
	Element tile.Element
	// Extra adds dense gradients of the logits, [T, E].
	Extra bool
	// Rounded rounds the gradients of the logits to the tokens' element type before the
	// product.
	Rounded bool
}

// The tokens are split into ranges. There is one CTA for each range and each tile of 128 x 256 of
// [E, d]. The number of ranges gives about drouterCTAs CTAs, or more if a range would be longer
// than drouterRange. The order of the sum depends on the ranges, so drouterCTAs is a constant and
// does not depend on the device's number of SMs.
const (
	drouterCTAs  = 132
	drouterRange = 8192
)

func (d DRouter) tiles() (m, n int) {
	return (d.NumExperts + gemm.TileM - 1) / gemm.TileM, (d.Hidden + gemm.TwoTermN - 1) / gemm.TwoTermN
}

// Ranges returns the number of ranges and the number of tokens of each; the last range
// may be shorter. Without tokens there are no ranges. The result depends only on the
// layer's shape and the number of tokens.
func (d DRouter) Ranges(total int) (count, tokens int) {
	if total == 0 {
		return 0, tile.K
	}
	m, n := d.tiles()
	count = max(1, drouterCTAs/(m*n), (total+drouterRange-1)/drouterRange)
	tokens = (total + count*tile.K - 1) / (count * tile.K) * tile.K
	return (total + tokens - 1) / tokens, tokens
}

// MostTokens is the largest number of tokens of a range. MostRanges returns the largest number of
// ranges, for any number of tokens up to the given one.
const MostTokens = drouterRange

func (d DRouter) MostRanges(total int) int {
	m, n := d.tiles()
	return max(1, drouterCTAs/(m*n), (total+drouterRange-1)/drouterRange)
}

// PartialBytes returns the size of the partial sums for a number of tokens.
func (d DRouter) PartialBytes(tokens int) int64 {
	count, _ := d.Ranges(tokens)
	return int64(count) * int64(d.NumExperts) * int64(d.Hidden) * 4
}

// Args are the arguments of [DRouter].
type Args struct {
	// X [T, d] are the tokens.
	X driver.DevicePtr
	// DLogits [T, K] f32 are the gradients of the chosen logits, ExpertIDs [T, K] i32 the
	// chosen experts.
	DLogits   driver.DevicePtr
	ExpertIDs driver.DevicePtr
	// With Extra, AddDense [T, E] f32 is added to the gradients of the logits.
	AddDense driver.DevicePtr
	// Partials [ranges, E, d] f32 is the output, see [DRouter.Ranges].
	Partials driver.DevicePtr
	// Tokens is T. PerRange is the number of tokens of a range.
	Tokens   int
	PerRange int
}

// drouter is the state of a DRouter while its code is emitted.
type drouter struct {
	of DRouter
	p  *gemm.TwoTerm
	operands
	// part is the CTA's range of tokens, from first to end - 1. m and column are the tile's
	// first expert and first column.
	part, first, end ptx.U32
	m, column        ptx.U32
}

// Build emits the kernel.
func (d DRouter) Build() (*jit.Kernel[Args], error) {
	name := "moe_dwr"
	if d.Extra {
		name += "_extra"
	}
	k := jit.NewBuilder[Args](name, gemm.Threads, 1)
	m, n := d.tiles()
	k.CTAs(func(a *Args) int { return m * n * ((a.Tokens + a.PerRange - 1) / a.PerRange) })

	// Operands.
	x, in := k.Map(&k.Args.X, d.xMap), d.operands(k)
	partials := k.Ptr(&k.Args.Partials)
	tokens, perRange := k.U32(&k.Args.Tokens), k.U32(&k.Args.PerRange)

	// Ring "ab" holds stages of X and of the terms of the gradients.
	p := gemm.TwoTerm{K: k.Kernel, Element: d.Element, Thread: k.TidX(), AMN: true, Rounded: d.Rounded, B: x, Atoms: d.xAtoms()}.Start()

	// The tile of this CTA has these experts, columns and tokens.
	cta := k.CtaidX()
	part := cta.DivI(m * n)
	inRange := cta.Sub(part.MulI(m * n))
	expert, column := inRange.DivI(n).MulI(gemm.TileM), inRange.RemI(n).MulI(gemm.TwoTermN)
	first := part.Mul(perRange)
	e := &drouter{of: d, p: p, operands: in, part: part, m: expert, column: column, first: first, end: first.Add(perRange).Min(tokens)}

	// Roles.
	p.Run(gemm.TwoTermTile{
		Column: column, First: first, Steps: e.end.Sub(first).AddI(tile.K - 1).DivI(tile.K),
		HasLines: func(wg ptx.U32) ptx.Pred { return expert.Add(wg.MulI(gemm.WarpgroupM)).LtI(d.NumExperts) },
	}, func() gemm.Filler { return newScatter(e) }, // the load role writes the terms of the gradients
		func(wg ptx.U32, acc []ptx.F32) { e.store(partials, wg, acc) }) // math
	return k.Build()
}

// operands has the gradients of the chosen logits with their experts and, with Extra, the dense
// gradients.
type operands struct{ dlogits, ids, extra ptx.Global }

func (d DRouter) operands(k *jit.Builder[Args]) (in operands) {
	in.dlogits, in.ids = k.Ptr(&k.Args.DLogits), k.Ptr(&k.Args.ExpertIDs)
	if d.Extra {
		in.extra = k.Ptr(&k.Args.AddDense)
	}
	return in
}

func (d DRouter) xAtoms() tile.Atoms { return tile.Atoms{Width: d.Hidden, Columns: gemm.TwoTermN} }

func (d DRouter) xMap(a *Args) gpu.TensorMap {
	return d.xAtoms().Map(a.X, a.Tokens)
}

// store writes the warpgroup's part of the partial sums.
func (e *drouter) store(partials ptx.Global, wg ptx.U32, acc []ptx.F32) {
	f := tile.NewFragment(e.p.InRole())
	for h := range 2 {
		expert := e.m.Add(wg.MulI(gemm.WarpgroupM)).Add(f.Row).AddI(8 * h)
		row := partials.Index(e.part.MulI(e.of.NumExperts).Add(expert), 4*e.of.Hidden).Index(e.column.Add(f.Column), 4)
		for i := range gemm.TwoTermN / tile.Block {
			e.p.EachEight(e.column, i, e.of.Hidden, expert.LtI(e.of.NumExperts), func(j int) {
				a := gemm.OfSubTile(acc, i)[4*j+2*h:]
				ptx.StGlobal(row.At(4*(i*tile.Block+8*j)), a[0], a[1])
			})
		}
	}
}

// Sum adds [DRouter]'s partial sums in order and writes dW_r [E, d].
type Sum struct {
	Hidden, NumExperts int
	Store              gradient.Mode
	// Element is the type of the gradient if Store is not FP32.
	Element tile.Element
}

const (
	sumThreads  = 256
	sumOfThread = 4 // number of elements that a thread adds
)

// SumArgs are the arguments of [Sum].
type SumArgs struct {
	// Partials [Ranges, E, d] f32 comes from [DRouter].
	Partials driver.DevicePtr
	// DRouter [E, d] is the output, in the format of Store.
	DRouter driver.DevicePtr
	Ranges  int
}

// Build emits the kernel.
func (d Sum) Build() (*jit.Kernel[SumArgs], error) {
	k := jit.NewBuilder[SumArgs]("moe_dwrsum"+d.Store.Suffix(), sumThreads, 1)
	k.CTAs(func(*SumArgs) int { return (d.Hidden*d.NumExperts/sumOfThread + sumThreads - 1) / sumThreads })
	partials, out := k.Ptr(&k.Args.Partials), k.Ptr(&k.Args.DRouter)
	count := k.U32(&k.Args.Ranges)
	size := d.Hidden * d.NumExperts
	at := k.CtaidX().MulI(sumThreads).Add(k.TidX()).MulI(sumOfThread)
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(at.LtI(size), func() {
		var sum []*ptx.Var[ptx.F32]
		for range sumOfThread {
			sum = append(sum, ptx.NewVar(k.Kernel, ptx.Float(0)))
		}
		const inFlight = 8
		k.For(ptx.Uint(0), count, ptx.Uint(inFlight), func(first ptx.U32) {
			var parts [inFlight][]*ptx.Var[ptx.F32]
			for i := range parts {
				for range sumOfThread {
					parts[i] = append(parts[i], ptx.NewVar(k.Kernel, ptx.Float(0)))
				}
				k.If(first.AddI(i).Lt(count), func() {
					for j, v := range ptx.LdGlobalVec[ptx.F32](partials.Index(at, 4).Plus(first.AddI(i).U64().MulI(4*size)), sumOfThread) {
						parts[i][j].Set(v)
					}
				})
			}
			for _, p := range parts {
				for j := range sum {
					sum[j].Set(sum[j].Get().Add(p[j].Get()))
				}
			}
		})
		d.Store.Write(k.Kernel, d.Element, out.Index(at, d.Store.Bytes()), sum[0].Get(), sum[1].Get(), sum[2].Get(), sum[3].Get())
	})
	return k.Build()
}

// Kernel uses the gradients of the chosen logits only. ExtraKernel adds dense gradients.
// SumKernels add the partial sums of either kernel.
var (
	Kernel = &registry.Kernel[Args]{KernelName: "drouter", Backward: true, Only: training.Sparse, Emit: func(l registry.Layer) (*jit.Kernel[Args], error) {
		return Of(l, false).Build()
	}}
	ExtraKernel = &registry.Kernel[Args]{KernelName: "drouter-extra", Backward: true, Emit: func(l registry.Layer) (*jit.Kernel[Args], error) {
		return Of(l, true).Build()
	}}
	SumKernels = gradient.NewSet("drouter-sum", func(*registry.Kernel[SumArgs], gradient.Mode) {}, func(l registry.Layer, g gradient.Mode) (*jit.Kernel[SumArgs], error) {
		return Sum{Hidden: l.Hidden, NumExperts: l.NumExperts, Store: g, Element: element.Of(l.Config)}.Build()
	})
)

// Kernels lists the kernels of this package.
var Kernels = append(registry.Registry{ExtraRowsKernel, Kernel, ExtraKernel}, SumKernels.Kernels()...)

// Of returns the gradient of a layer's router.
func Of(l registry.Layer, extra bool) DRouter {
	return DRouter{Hidden: l.Hidden, NumExperts: l.NumExperts, TopK: l.TopK, Element: element.Of(l.Config), Extra: extra}
}
