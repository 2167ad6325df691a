package kernel

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
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// DX is the gradient of each packed row of X: dX~ = dH·W1. The sum runs over gate and then
// up; if dH has gate and up of a neuron in pairs, it runs over the pairs. With Router, the
// router's own gradient, the rank-1 term DLogitByRow·W_r, is added to the FP32 sums of
// each row before they are rounded.
type DX struct {
	spec.Config
	Router bool
	Tiling gemm.Tiling
}

// DXArgs are the arguments of [DX]. Tensors without a stated type have the layer's
// element type.
type DXArgs struct {
	// DH is the gradient of H, in the layout of [weights.DH].
	DH driver.DevicePtr
	// W1 [E, 2n, d] are the weights, in the layout that Config gives them. If gate and up
	// are separate tensors, W3 is up's half.
	W1, W3 driver.DevicePtr
	// With LoRA, U are the rows of the adapter's product with dH, and LoraA1 [E, r, d] is the
	// first factor.
	U, LoraA1 driver.DevicePtr
	// DX [R, d] is the output: the gradient of each packed row.
	DX driver.DevicePtr
	// With Router, DLogitByRow [R] f32 is the gradient of each row's logit, and
	// RouterWeights [E, d] are the router's weights, of the layer's element type or, with
	// RouterF32, f32.
	DLogitByRow   driver.DevicePtr
	RouterWeights driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (x DX) Build() (*jit.Kernel[DXArgs], error) {
	if err := x.Tiling.CheckAtoms(x.name()); err != nil {
		return nil, err
	}
	if x.Router {
		x = x.withLines()
	}
	k := jit.NewBuilder[DXArgs](x.name(), gemm.Threads, 1)
	k.Persistent(x.Tiling.ClusterM)

	// Operands.
	rows, w := weights.DH(x.Config), weights.W1(x.Config).Backward(x.Tiling)
	dh := k.Map(&k.Args.DH, x.dhMap)
	w1 := []ptx.TensorMap{k.Map(&k.Args.W1, func(a *DXArgs) gpu.TensorMap { return w.Map(a.W1) })}
	if w.Maps() > 1 {
		w1 = append(w1, k.Map(&k.Args.W3, func(a *DXArgs) gpu.TensorMap { return w.Map(a.W3) }))
	}
	dx := k.Map(&k.Args.DX, x.dxMap)

	// Ring "ab" holds stages of dH and W1, and a queue holds the tiles.
	cta := pipeline.NewCTA(k.Kernel)
	outlet := gemm.NewOutlet(k.Kernel, element.Of(x.Config), cta, x.Tiling.SubTiles(), dx, func(t gemm.Tile, i int) []ptx.U32 {
		return t.Ragged(t.Column.MulI(x.Tiling.TileN).AddI(i * gemm.SubTileColumns))
	})
	router := x.routerTerm(k, cta)
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: x.Tiling, Element: element.Of(x.Config), KTiles: x.kTiles(), Columns: x.Tiling.Columns(x.Hidden),
		BMN: w.MNMajor(), Outlet: outlet, Line: router.line,
	})

	// Roles.
	p.Run(gemm.Roles{
		Load: p.TMA(func(t gemm.TileLoad) {
			for part := range rows.Parts { // gate, then up
				k.For(ptx.Uint(0), ptx.Uint(rows.Width), ptx.Uint(tile.K), func(neuron ptx.U32) {
					s := t.Ring.Acquire()
					if last := neuron.EqI(rows.Width - tile.K); x.Router && part == rows.Parts-1 {
						k.MbarrierArriveExpectTx(s.Full, ptx.Select(last, ptx.Uint(p.StageBytes()+router.line.Bytes), ptx.Uint(p.StageBytes())))
						k.If(last, func() { k.TMALoad(t.Line(), router.weights, s.Full, t.Column.MulI(x.Tiling.TileN), t.Expert) })
					} else {
						k.MbarrierArriveExpectTx(s.Full, ptx.Uint(p.StageBytes()))
					}
					k.TMALoad(s.Data, dh, s.Full, neuron.AddI(part*rows.Width), t.Row)
					w.Load(p, w1, s, t.Tile, func() ptx.U32 { return neuron }, part)
					t.Ring.Advance()
				})
			}
		}),
		Math:  dxEpilogue{DX: x, k: k.Kernel, router: router}, // the epilogue adds the router's term and stores dX~
		Extra: x.adapter(k),
	})
	return k.Build()
}

// kTiles is the depth of the sum.
func (x DX) kTiles() int { return weights.DH(x.Config).Elements() / tile.K }

// dxBytes returns the shared memory of a tiling: two lines of FP32 weights of the
// router follow the slots of the outlet.
func dxBytes(t gemm.Tiling) int { return registry.StoreBytes(t) + lineRoom(t) }

func lineRoom(t gemm.Tiling) int { return 2 * 4 * t.TileN }

// withLines returns x with fewer stages if the sum is so short that its lines need more
// room than dxBytes counts.
func (x DX) withLines() DX {
	room, line := lineRoom(x.Tiling), x.Tiling.TileN*x.routerBytes()
	for n := x.Tiling.Lines(x.kTiles()); n > gemm.MostLines || n*line > room; n = x.Tiling.Lines(x.kTiles()) {
		x.Tiling.Stages--
		room += x.Tiling.StageBytes()
	}
	return x
}

// adapter returns the operands of the adapter.
func (x DX) adapter(k *jit.Builder[DXArgs]) (none gemm.Extra) {
	if !spec.HasLoRA(x.Config) {
		return none
	}
	a := weights.LoraA1(x.Config).Backward(x.Tiling)
	u := k.Map(&k.Args.U, func(of *DXArgs) gpu.TensorMap { return weights.UMap(x.Config, of.U, of.Rows) })
	return weights.Adapter(x.Config, u, a, []ptx.TensorMap{k.Map(&k.Args.LoraA1, func(of *DXArgs) gpu.TensorMap { return a.Map(of.LoraA1) })})
}

// name returns the name of the kernel's entry, which errors show.
func (x DX) name() string {
	if !x.Router {
		return "moe_dx_given"
	}
	return "moe_dx"
}

// routerTerm has the operands of the router's term dlogit[row]·W_r[expert]. It is empty without
// Router.
type routerTerm struct {
	dlogit  ptx.Global
	weights ptx.TensorMap
	line    *gemm.Line // the router's weights of a tile's columns
}

func (x DX) routerTerm(k *jit.Builder[DXArgs], cta *pipeline.CTA) (none routerTerm) {
	if !x.Router {
		return none
	}
	return routerTerm{
		dlogit: k.Ptr(&k.Args.DLogitByRow), weights: k.Map(&k.Args.RouterWeights, x.routerMap),
		line: gemm.NewLine(cta, x.Tiling.TileN*x.routerBytes(), x.kTiles(), x.Tiling),
	}
}

// dxEpilogue stores dX~, with the router's term.
type dxEpilogue struct {
	DX
	gemm.ByOutlet
	k      *ptx.Kernel
	router routerTerm
}

// UnderLastMMA implements gemm.Epilogue. With Router, it loads the gradients of the
// rows' logits.
func (e dxEpilogue) UnderLastMMA(t gemm.Tile) func(acc []ptx.F32) {
	if !e.Router {
		return t.StoreSums
	}
	f := t.Fragment()
	var dlogits [2]ptx.F32 // gradients of the logits of the thread's two rows
	for h := range dlogits {
		dlogits[h] = ptx.LdGlobal[ptx.F32](e.router.dlogit.Index(t.Row(f, h), 4))
	}
	return func(acc []ptx.F32) {
		line := t.Line().Plus(f.Column.MulI(e.routerBytes()))
		t.Store(func(i int) gemm.Values {
			sums, weights := gemm.OfSubTile(acc, i), line.At(i*gemm.SubTileColumns*e.routerBytes())
			var some [someWeights][2]ptx.F32 // few at a time: most registers hold sums
			return gemm.Computed(func(j int) ptx.F32 {
				if j%(4*someWeights) == 0 {
					some = e.weights(weights.At(j / 4 * 8 * e.routerBytes()))
				}
				return dlogits[j/2%2].Fma(some[j/4%someWeights][j%2], sums[j])
			})
		})
	}
}

// routerBytes is the size of a weight of the router.
func (x DX) routerBytes() int {
	if x.RouterF32 {
		return 4
	}
	return tile.ElementBytes
}

// someWeights is the number of pairs of the router's weights that a thread loads at a time.
const someWeights = 4

// weights loads the router's weights for a thread's columns: two of each 8 columns.
func (e dxEpilogue) weights(line ptx.Shared) (w [someWeights][2]ptx.F32) {
	for j := range w {
		at := line.At(8 * j * e.routerBytes())
		if e.RouterF32 {
			w[j] = [2]ptx.F32(ptx.LdSharedVec[ptx.F32](at, 2))
		} else {
			w[j][0], w[j][1] = element.Of(e.Config).Unpack(ptx.LdShared[ptx.U32](at))
		}
	}
	return w
}

// routerMap loads lines of TileN weights of an expert. Weights past the last column are 0.
func (x DX) routerMap(a *DXArgs) gpu.TensorMap {
	m := tile.LoadMap(a.RouterWeights, []int{x.Tiling.TileN, 1}, tile.Dim{Extent: x.Hidden, Stride: 1}, tile.Dim{Extent: x.NumExperts, Stride: x.Hidden})
	m.Swizzle = gpu.SwizzleNone
	if x.RouterF32 {
		m.Elem, m.Strides[0] = gpu.F32, uint64(4*x.Hidden)
	}
	return m
}

func (x DX) dhMap(a *DXArgs) gpu.TensorMap {
	return tile.RowMap(a.DH, weights.DH(x.Config).Elements(), a.Rows, gemm.TileM)
}

func (x DX) dxMap(a *DXArgs) gpu.TensorMap { return tile.RaggedMap(a.DX, x.Hidden, a.Rows) }

// DXProduct is the product dX~.
var DXProduct = &registry.Product{
	ID: spec.ProductDX,
	Space: func(t driver.Target) []gemm.Tiling {
		return tiles.WholeAtoms(tiles.OrClusters(tiles.Deepest(t, dxBytes, 256, 192, 128)))
	},
	SharedBytes: dxBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), c.Hidden, c.HWidth(), m.DXEpilogueClocks, t)
	},
}

// DXKernel adds the router's term. DXGivenKernel does not: it is for passes whose routing
// comes from elsewhere.
var (
	DXKernel = &registry.Kernel[DXArgs]{KernelName: "dx", Of: DXProduct, Backward: true,
		ShownBy: registry.Pass{Name: "backward to X", Backward: true, RoutedOnly: true, Outputs: []spec.TensorID{spec.TensorDX}},
		Emit:    func(l registry.Layer) (*jit.Kernel[DXArgs], error) { return dxOf(l, true).Build() }}
	DXGivenKernel = &registry.Kernel[DXArgs]{KernelName: "dx-given", Of: DXProduct, Backward: true,
		ShownBy: registry.Pass{Name: "backward of the experts to X", Backward: true, Given: true, Outputs: []spec.TensorID{spec.TensorDX}},
		From:    registry.OfExperts,
		Emit:    func(l registry.Layer) (*jit.Kernel[DXArgs], error) { return dxOf(l, false).Build() }}
)

func dxOf(l registry.Layer, router bool) DX {
	return DX{Config: l.Config, Router: router, Tiling: l.Tiling(DXProduct)}
}
