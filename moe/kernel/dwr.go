package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// DRouter is the gradient of the router's weights [E, d], dW_r[e] = Σ_t
// dlogit[t,e]·X[t], as FP32 partial sums over ranges of tokens, which
// [DRouterSum] adds. A token's experts must differ, as the router's do; ids
// outside [0, E) add nothing.
type DRouter struct {
	Hidden, Experts, TopK int
	// Extra adds dense gradients of the logits [T, E].
	Extra bool
}

// Ranges of tokens: as many as give each tile of 128 x 256 of [E, d] its
// share of this many CTAs, each at most so many tokens.
const (
	drouterCTAs  = 132
	drouterRange = 8192
)

func (d DRouter) tiles() (m, n int) {
	return (d.Experts + BlockRows - 1) / BlockRows, (d.Hidden + twoTermWidth - 1) / twoTermWidth
}

// Ranges is how the tokens are split: count ranges of tokens each, the last
// one shorter; none without tokens. Nothing but the layer's shape and the
// number of tokens decides.
func (d DRouter) Ranges(total int) (count, tokens int) {
	if total == 0 {
		return 0, tile.K
	}
	m, n := d.tiles()
	count = max(1, drouterCTAs/(m*n), (total+drouterRange-1)/drouterRange)
	tokens = (total + count*tile.K - 1) / (count * tile.K) * tile.K
	return (total + tokens - 1) / tokens, tokens
}

// CTAs is the grid for so many tokens; 0 without tokens, when only the sum
// runs.
func (d DRouter) CTAs(tokens int) int {
	m, n := d.tiles()
	count, _ := d.Ranges(tokens)
	return m * n * count
}

// PartialBytes is the size of the partial sums for so many tokens.
func (d DRouter) PartialBytes(tokens int) int64 {
	count, _ := d.Ranges(tokens)
	return int64(count) * int64(d.Experts) * int64(d.Hidden) * 4
}

// XMap is the load map of X [T, d].
func (d DRouter) XMap(p driver.DevicePtr, tokens int) driver.TensorMap {
	return linesMap(p, d.Hidden, tokens, twoTermWidth)
}

// drouter is the emission of a DRouter.
type drouter struct {
	DRouter
	*twoTerm
	dlogits, ids, extra ptx.Global
	// m is the tile's first expert; the range's tokens go from first up to end.
	m, first, end ptx.U32
}

// Build emits the kernel.
func (d DRouter) Build() (Kernel, error) {
	name := "moe_dwr"
	if d.Extra {
		name = "moe_dwr_extra"
	}
	k := ptx.NewKernel(name)
	e := &drouter{DRouter: d}
	x := k.ParamTensorMap("x")
	e.dlogits, e.ids = k.ParamPtr("dlogits"), k.ParamPtr("experts")
	if d.Extra {
		e.extra = k.ParamPtr("extra")
	}
	partials := k.ParamPtr("partials")
	tokens, perRange := k.ParamU32("tokens"), k.ParamU32("perRange")
	e.twoTerm = newTwoTerm(k, k.Special("%tid.x"))
	e.aMN, e.b = true, x
	m, n := d.tiles()
	cta := k.Special("%ctaid.x")
	part := cta.DivI(m * n)
	in := cta.Sub(part.MulI(m * n))
	e.m, e.n = in.DivI(n).MulI(BlockRows), in.RemI(n).MulI(twoTermWidth)
	e.first = part.Mul(perRange)
	e.end = e.first.Add(perRange).Min(tokens)
	steps := e.end.Sub(e.first).AddI(tile.K - 1).DivI(tile.K)
	active := func(wg ptx.U32) ptx.Pred { return e.m.Add(wg.MulI(warpgroupRows)).LtI(d.Experts) }
	store := func(wg ptx.U32, acc []ptx.F32) { e.store(partials, part, wg, acc) }
	e.run(e.first, steps, active, func() fill { return newScatter(e).step }, store)
	return build(k, name, productThreads, twoTermShared)
}

// store writes the warpgroup's part of the partial sums.
func (e *drouter) store(partials ptx.Global, part, wg ptx.U32, acc []ptx.F32) {
	k := e.twoTerm.k
	f := tile.NewFragment(e.thread())
	for h := range 2 {
		expert := e.m.Add(wg.MulI(warpgroupRows)).Add(f.Row).AddI(8 * h)
		row := partials.Index(part.MulI(e.Experts).Add(expert), 4*e.Hidden).Index(e.n.Add(f.Column), 4)
		for i := range twoTermWidth / tile.Block {
			k.If(expert.LtI(e.Experts).And(e.n.AddI(i*tile.Block).LtI(e.Hidden)), func() {
				for j := range 8 {
					a := acc[32*i+4*j+2*h:]
					ptx.StGlobal(row.At(4*(i*tile.Block+8*j)), a[0], a[1])
				}
			})
		}
	}
}

// DRouterSum adds [DRouter]'s partial sums in order and writes dW_r [E, d].
type DRouterSum struct {
	Hidden, Experts int
	Store           Gradient
}

const (
	sumThreads  = 256
	sumOfThread = 4 // elements
)

// CTAs is the grid.
func (d DRouterSum) CTAs() int {
	return (d.Hidden*d.Experts/sumOfThread + sumThreads - 1) / sumThreads
}

// Build emits the kernel.
func (d DRouterSum) Build() (Kernel, error) {
	name := "moe_dwrsum" + d.Store.suffix()
	k := ptx.NewKernel(name)
	k.SetLaunchBounds(sumThreads, 1)
	partials, out := k.ParamPtr("partials"), k.ParamPtr("dwr")
	count := k.ParamU32("ranges")
	size := d.Hidden * d.Experts
	at := k.Special("%ctaid.x").MulI(sumThreads).Add(k.Special("%tid.x")).MulI(sumOfThread)
	k.GridDepWait()
	k.GridDepLaunch()
	k.If(at.LtI(size), func() {
		var sum []*ptx.Var[ptx.F32]
		for range sumOfThread {
			sum = append(sum, ptx.NewVar(k, ptx.Float(0)))
		}
		const inFlight = 8
		k.For(ptx.Uint(0), count, ptx.Uint(inFlight), func(first ptx.U32) {
			var parts [inFlight][]*ptx.Var[ptx.F32]
			for i := range parts {
				for range sumOfThread {
					parts[i] = append(parts[i], ptx.NewVar(k, ptx.Float(0)))
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
		d.Store.write(k, out.Index(at, d.Store.elem()), sum[0].Get(), sum[1].Get(), sum[2].Get(), sum[3].Get())
	})
	return build(k, name, sumThreads, 0)
}
