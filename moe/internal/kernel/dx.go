package kernel

import (
	"sonicmoe/driver"
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

// DX is the gradient of each packed row of X: dX~ = dH·W1, gate then up along
// the sum, or neurons in pairs where dH has them so. With Router the router's own
// gradient rides along: DLogitByRow·W_r, a rank-1 term, is added to each row's FP32
// sums before they are rounded.
type DX struct {
	spec.Config
	Router bool
	Tiling gemm.Tiling
}

// DXArgs are the arguments of [DX]. Tensors without another type are of the
// layer's.
type DXArgs struct {
	// DH is the gradient of H, as [weights.DH] has it.
	DH driver.DevicePtr
	// W1 [E, 2n, d] are the weights, as Config has them, W3 their other half.
	W1, W3 driver.DevicePtr
	// DX [R, d] is written: the gradient of each packed row.
	DX driver.DevicePtr
	// With Router: DLogitByRow [R] f32 is the gradient of each row's logit,
	// RouterWeights [E, d], f32 with RouterF32.
	DLogitByRow   driver.DevicePtr
	RouterWeights driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (x DX) Build() (*jit.Kernel[DXArgs], error) {
	name := "moe_dx"
	if !x.Router {
		name = "moe_dx_given"
	}
	if err := x.Tiling.CheckAtoms(name); err != nil {
		return nil, err
	}
	k := jit.NewBuilder[DXArgs](name, gemm.Threads, 1)
	k.Persistent(x.Tiling.ClusterM)
	b := weights.W1(x.Config).Backward(x.Tiling)
	dh, w1 := k.Map(&k.Args.DH, x.dhMap), []ptx.TensorMap{k.Map(&k.Args.W1, func(a *DXArgs) driver.TensorMap { return b.Map(a.W1) })}
	if b.Maps() > 1 {
		w1 = append(w1, k.Map(&k.Args.W3, func(a *DXArgs) driver.TensorMap { return b.Map(a.W3) }))
	}
	dx := k.Map(&k.Args.DX, x.dxMap)
	cta := pipeline.NewCTA(k.Kernel)
	e := &dxEpilogue{store: gemm.NewStore(k.Kernel, element.Of(x.Config), cta), k: k.Kernel, of: x, to: dx}
	if x.Router {
		e.dlogit, e.router = k.Ptr(&k.Args.DLogitByRow), k.Ptr(&k.Args.RouterWeights)
	}
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: x.Tiling, Element: element.Of(x.Config), KTiles: weights.DH(x.Config).Elements() / tile.K, Columns: (x.Hidden + x.Tiling.TileN - 1) / x.Tiling.TileN,
		BMN: b.MNMajor(),
	})
	load := func(ring *pipeline.Cursor, t schedule.Tile) {
		rows := weights.DH(x.Config)
		for part := range rows.Parts { // gate's part of the sum first
			k.For(ptx.Uint(0), ptx.Uint(rows.Width), ptx.Uint(tile.K), func(neuron ptx.U32) {
				s := ring.Acquire()
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(p.StageBytes()))
				k.TMALoad(s.Data, dh, s.Full, neuron.AddI(part*rows.Width), t.Row)
				b.Load(p, w1, s, t, func() ptx.U32 { return neuron }, part)
				ring.Advance()
			})
		}
	}
	p.Run(func() { p.LoadTMA(load) }, e)
	return k.Build()
}

// dxEpilogue stores dX~, with the router's term dlogit[row]·W_r[expert].
type dxEpilogue struct {
	k              *ptx.Kernel
	store          *gemm.Store
	of             DX
	to             ptx.TensorMap
	dlogit, router ptx.Global
}

// Begin implements gemm.Epilogue.
func (e *dxEpilogue) Begin(t gemm.Tile) gemm.TileEpilogue { return &dxTile{dxEpilogue: e, t: t} }

// Finish implements gemm.Epilogue.
func (e *dxEpilogue) Finish() { e.store.Finish() }

// dxTile is the epilogue of a tile. What a thread needs of the router's term for
// the first 64 columns is loaded under the last products, what it needs for the
// others while those before are stored.
type dxTile struct {
	*dxEpilogue
	gemm.NoLoads
	t     gemm.Tile
	scale [2]ptx.F32
	// weights are of the next 64 columns, or wide, with RouterF32.
	weights [8]ptx.U32
	wide    [8][2]ptx.F32
}

// UnderLastMMA loads the rows' factors and the first weights.
func (e *dxTile) UnderLastMMA() {
	if !e.of.Router {
		return
	}
	f := e.fragment()
	for h := range e.scale {
		e.scale[h] = ptx.LdGlobal[ptx.F32](e.dlogit.Index(e.t.Row(f, h), 4))
	}
	e.fetch(0)
}

func (e *dxTile) fragment() tile.Fragment {
	return tile.NewFragment(e.k.TidX().AndI(pipeline.WarpgroupThreads - 1))
}

// fetch loads W_r in the thread's columns of 64-column group i. Groups past
// the last column repeat it: they are dropped.
func (e *dxTile) fetch(i int) {
	column := e.t.Column.MulI(e.of.Tiling.TileN).AddI(64 * i).Min(ptx.Uint(e.of.Hidden - 64)).Add(e.fragment().Column)
	if e.of.Hidden%64 != 0 {
		e.fetchInPart(i)
		return
	}
	if e.of.RouterF32 {
		group := e.router.Index(e.t.Expert, 4*e.of.Hidden).Index(column, 4)
		for j := range e.wide {
			e.wide[j] = [2]ptx.F32(ptx.LdGlobalVec[ptx.F32](group.At(4*8*j), 2, ".nc"))
		}
		return
	}
	group := e.router.Index(e.t.Expert, e.of.Hidden*tile.ElementBytes).Index(column, tile.ElementBytes)
	for j := range e.weights {
		e.weights[j] = ptx.LdGlobal[ptx.U32](group.At(8*j*tile.ElementBytes), ".nc")
	}
}

// fetchInPart is fetch where the last 64 columns may end early, at a multiple of 8.
func (e *dxTile) fetchInPart(i int) {
	first := e.t.Column.MulI(e.of.Tiling.TileN).AddI(64 * i)
	bytes := tile.ElementBytes
	if e.of.RouterF32 {
		bytes = 4
	}
	row := e.router.Index(e.t.Expert, bytes*e.of.Hidden).Index(e.fragment().Column, bytes)
	for j := range e.weights {
		at := row.Index(first.AddI(8*j).Min(ptx.Uint(e.of.Hidden-8)), bytes)
		if e.of.RouterF32 {
			e.wide[j] = [2]ptx.F32(ptx.LdGlobalVec[ptx.F32](at, 2, ".nc"))
		} else {
			e.weights[j] = ptx.LdGlobal[ptx.U32](at, ".nc")
		}
	}
}

// Store stores the tile's sums.
func (e *dxTile) Store(acc []ptx.F32) {
	column := e.t.Column.MulI(e.of.Tiling.TileN)
	groups := e.of.Tiling.TileN / 64
	e.store.Tile(groups, func(i int) gemm.SubTile {
		at := column.AddI(64 * i)
		sub := gemm.SubTile{Value: gemm.Registers(acc[32*i : 32*i+32]), To: e.to, At: func() []ptx.U32 { return e.t.Ragged(at) }}
		if e.of.Router {
			sub.Value = e.withRouter(sub.Value)
			if i+1 < groups {
				sub.Staged = func() { e.fetch(i + 1) }
			}
		}
		return sub
	})
}

// withRouter adds the router's term to the values of a 64-column group.
func (e *dxTile) withRouter(sum func(int) ptx.F32) func(int) ptx.F32 {
	return func(j int) ptx.F32 {
		if e.of.RouterF32 {
			return e.scale[j/2%2].Fma(e.wide[j/4][j%2], sum(j))
		}
		lo, hi := element.Of(e.of.Config).Unpack(e.weights[j/4])
		if j%2 == 1 {
			lo = hi
		}
		return e.scale[j/2%2].Fma(lo, sum(j))
	}
}

func (x DX) dhMap(a *DXArgs) driver.TensorMap {
	return tile.RowMap(a.DH, weights.DH(x.Config).Elements(), a.Rows, gemm.TileM)
}

func (x DX) dxMap(a *DXArgs) driver.TensorMap { return tile.RaggedMap(a.DX, x.Hidden, a.Rows) }

// DXProduct is the product dX~. In clusters the widest tile's router term finds
// no registers.
var DXProduct = &registry.Product{
	Name: "dx", Backward: true,
	Space: func(t driver.Target) []gemm.Tiling {
		return append(tiles.Deepest(t, registry.StoreBytes, 256, 192), tiles.WholeAtoms(tiles.OrClusters(tiles.Deepest(t, registry.StoreBytes, 128)))...)
	},
	SharedBytes: registry.StoreBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), c.Hidden, c.HWidth(), m.DXEpilogueClocks, t)
	},
	Work: spec.Config.DXWork,
}

// DXKernel is for layers that route themselves, DXGivenKernel leaves the router
// out.
var (
	DXKernel = &registry.Kernel[DXArgs]{KernelName: "dx", Of: DXProduct, Backward: true,
		ShownBy: registry.Pass{Name: "backward to X", Backward: true, RoutedOnly: true, Outputs: []string{"DX"}},
		Emit:    func(l registry.Layer) (*jit.Kernel[DXArgs], error) { return dxOf(l, true).Build() }}
	DXGivenKernel = &registry.Kernel[DXArgs]{KernelName: "dx-given", Of: DXProduct, Backward: true,
		ShownBy: registry.Pass{Name: "backward of the experts to X", Backward: true, Given: true, Outputs: []string{"DX"}},
		From:    registry.OfExperts,
		Emit:    func(l registry.Layer) (*jit.Kernel[DXArgs], error) { return dxOf(l, false).Build() }}
)

func dxOf(l registry.Layer, router bool) DX {
	return DX{Config: l.Config, Router: router, Tiling: l.Tiling(DXProduct)}
}
