package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/driver/gpu"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
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
	e := &dxEpilogue{DX: x, Store: gemm.NewStore(k.Kernel, element.Of(x.Config), cta), k: k.Kernel, to: dx, routerTerm: x.routerTerm(k)}
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: x.Tiling, Element: element.Of(x.Config), KTiles: rows.Elements() / tile.K, Columns: x.Tiling.Columns(x.Hidden),
		BMN: w.MNMajor(),
	})

	// Roles.
	p.Run(gemm.Roles{
		Load: p.TMA(func(ring *pipeline.Cursor, t schedule.Tile) {
			for part := range rows.Parts { // gate, then up
				k.For(ptx.Uint(0), ptx.Uint(rows.Width), ptx.Uint(tile.K), func(neuron ptx.U32) {
					s := ring.Acquire()
					k.MbarrierArriveExpectTx(s.Full, ptx.Uint(p.StageBytes()))
					k.TMALoad(s.Data, dh, s.Full, neuron.AddI(part*rows.Width), t.Row)
					w.Load(p, w1, s, t, func() ptx.U32 { return neuron }, part)
					ring.Advance()
				})
			}
		}),
		Math: e, // the epilogue adds the router's term and stores dX~
	})
	return k.Build()
}

// name returns the name of the kernel's entry, which errors show.
func (x DX) name() string {
	if !x.Router {
		return "moe_dx_given"
	}
	return "moe_dx"
}

// routerTerm has the operands of the router's term: the gradients of the rows' logits, and the
// router's weights.
type routerTerm struct{ dlogit, router ptx.Global }

func (x DX) routerTerm(k *jit.Builder[DXArgs]) (r routerTerm) {
	if x.Router {
		r.dlogit, r.router = k.Ptr(&k.Args.DLogitByRow), k.Ptr(&k.Args.RouterWeights)
	}
	return r
}

// dxEpilogue stores dX~, with the router's term dlogit[row]·W_r[expert].
type dxEpilogue struct {
	DX
	*gemm.Store
	gemm.NoPerKTile
	k  *ptx.Kernel
	to ptx.TensorMap
	routerTerm
}

// UnderLastMMA implements gemm.Epilogue. With Router, it loads the gradients of the
// rows' logits and the router's weights for the first 64 columns. The weights for the
// other columns are loaded while the columns before them are stored.
func (e *dxEpilogue) UnderLastMMA(t gemm.Tile) func(acc []ptx.F32) {
	if !e.Router {
		return func(acc []ptx.F32) {
			e.Tile(e.Tiling.SubTiles(), e.subTiles(t, func(i int) gemm.Values { return gemm.Registers(gemm.OfSubTile(acc, i)) }))
		}
	}
	f := e.fragment()
	var dlogits [2]ptx.F32 // gradients of the logits of the thread's two rows
	for h := range dlogits {
		dlogits[h] = ptx.LdGlobal[ptx.F32](e.dlogit.Index(t.Row(f, h), 4))
	}
	next := e.loadRouter(t, 0)
	return func(acc []ptx.F32) {
		groups := e.Tiling.SubTiles()
		e.TileAndPrefetch(groups, e.subTiles(t, func(i int) gemm.Values {
			sums, router := gemm.OfSubTile(acc, i), next
			return gemm.Computed(func(j int) ptx.F32 { return dlogits[j/2%2].Fma(e.weight(router, j), sums[j]) })
		}), func(i int) {
			if i+1 < groups {
				next = e.loadRouter(t, i+1)
			}
		})
	}
}

// subTiles returns a function that computes the sub-tiles of dX~.
func (e *dxEpilogue) subTiles(t gemm.Tile, values func(i int) gemm.Values) func(i int) gemm.SubTile {
	column := t.Column.MulI(e.Tiling.TileN)
	return func(i int) gemm.SubTile {
		at := column.AddI(i * gemm.SubTileColumns)
		return gemm.SubTile{Values: values(i), To: e.to, At: func() []ptx.U32 { return t.Ragged(at) }}
	}
}

func (e *dxEpilogue) fragment() tile.Fragment {
	return tile.NewFragment(e.k.TidX().AndI(pipeline.WarpgroupThreads - 1))
}

// routerWeights are the router's weights for a thread's columns of a sub-tile. For each 8
// columns there is one word of two weights or, with RouterF32, two weights.
type routerWeights struct {
	words [gemm.SubTileColumns / 8]ptx.U32
	f32   [gemm.SubTileColumns / 8][2]ptx.F32
}

// loadRouter loads the router's weights for the thread's columns of sub-tile i. Columns
// past the last one repeat other columns; their sums are dropped.
func (e *dxEpilogue) loadRouter(t gemm.Tile, i int) (w routerWeights) {
	column := t.Column.MulI(e.Tiling.TileN).AddI(gemm.SubTileColumns * i).Min(ptx.Uint(e.Hidden - gemm.SubTileColumns)).Add(e.fragment().Column)
	if e.Hidden%gemm.SubTileColumns != 0 {
		return e.loadRouterInPart(t, i)
	}
	if e.RouterF32 {
		group := e.router.Index(t.Expert, 4*e.Hidden).Index(column, 4)
		for j := range w.f32 {
			w.f32[j] = [2]ptx.F32(ptx.LdGlobalVec[ptx.F32](group.At(4*8*j), 2, ".nc"))
		}
		return w
	}
	group := e.router.Index(t.Expert, e.Hidden*tile.ElementBytes).Index(column, tile.ElementBytes)
	for j := range w.words {
		w.words[j] = ptx.LdGlobal[ptx.U32](group.At(8*j*tile.ElementBytes), ".nc")
	}
	return w
}

// loadRouterInPart is loadRouter for a last sub-tile that may have fewer columns, in a
// multiple of 8.
func (e *dxEpilogue) loadRouterInPart(t gemm.Tile, i int) (w routerWeights) {
	first := t.Column.MulI(e.Tiling.TileN).AddI(gemm.SubTileColumns * i)
	bytes := tile.ElementBytes
	if e.RouterF32 {
		bytes = 4
	}
	row := e.router.Index(t.Expert, bytes*e.Hidden).Index(e.fragment().Column, bytes)
	for j := range w.words {
		at := row.Index(first.AddI(8*j).Min(ptx.Uint(e.Hidden-8)), bytes)
		if e.RouterF32 {
			w.f32[j] = [2]ptx.F32(ptx.LdGlobalVec[ptx.F32](at, 2, ".nc"))
		} else {
			w.words[j] = ptx.LdGlobal[ptx.U32](at, ".nc")
		}
	}
	return w
}

// weight returns the router's weight for register j of a sub-tile.
func (e *dxEpilogue) weight(w routerWeights, j int) ptx.F32 {
	if e.RouterF32 {
		return w.f32[j/4][j%2]
	}
	lo, hi := element.Of(e.Config).Unpack(w.words[j/4])
	if j%2 == 1 {
		return hi
	}
	return lo
}

func (x DX) dhMap(a *DXArgs) gpu.TensorMap {
	return tile.RowMap(a.DH, weights.DH(x.Config).Elements(), a.Rows, gemm.TileM)
}

func (x DX) dxMap(a *DXArgs) gpu.TensorMap { return tile.RaggedMap(a.DX, x.Hidden, a.Rows) }

// DXProduct is the product dX~. The wider tiles run without clusters, because clusters
// would leave too few registers for the router's term.
var DXProduct = &registry.Product{
	ID: spec.ProductDX,
	Space: func(t driver.Target) []gemm.Tiling {
		return append(tiles.Deepest(t, registry.StoreBytes, 256, 192), tiles.WholeAtoms(tiles.OrClusters(tiles.Deepest(t, registry.StoreBytes, 128)))...)
	},
	SharedBytes: registry.StoreBytes,
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
