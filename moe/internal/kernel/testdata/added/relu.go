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
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/ptx"
)

// A new product needs only this file, its row in spec.Products and its name in Kernels.

// Relu computes Z = max(0, X[rows]·W[expert]ᵀ). Loads gather the rows; the epilogue applies the
// activation.
type Relu struct {
	spec.Config
	Tiling gemm.Tiling
}

// ReluArgs are the arguments of [Relu].
type ReluArgs struct {
	// X [T, d] bf16 are the tokens, Gather [R] u32 the token of each row.
	X, Gather driver.DevicePtr
	// W [E, n, d] bf16 are the weights.
	W driver.DevicePtr
	// Z [R, n] bf16 is written.
	Z driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (r Relu) Build() (*jit.Kernel[ReluArgs], error) {
	k := jit.NewBuilder[ReluArgs]("relu", gemm.Threads, 1)
	k.Persistent(r.Tiling.ClusterM)
	x, gather := k.Ptr(&k.Args.X), k.Ptr(&k.Args.Gather)
	w, z := k.Map(&k.Args.W, r.wMap), k.Map(&k.Args.Z, r.zMap)
	cta := pipeline.NewCTA(k.Kernel)
	store := gemm.NewStore(k.Kernel, tile.BF16, cta)
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: r.Tiling, KTiles: r.Hidden / tile.K, Columns: r.Tiling.Columns(r.Intermediate), Gathered: true,
	})
	p.Run(gemm.Roles{
		Load: p.Gather(gemm.Rows{X: x, Gather: gather, RowBytes: r.Hidden * tile.ElementBytes}, func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
			p.LoadB(s, t, func(half ptx.U32) []gemm.Box {
				return []gemm.Box{{Map: w, At: []ptx.U32{kt.MulI(tile.K), t.Column.MulI(2).Add(half).MulI(r.Tiling.TileN / 2), t.Expert}}}
			})
		}),
		Math: gemm.StoreOnly{Store: store, Each: func(t gemm.Tile, acc []ptx.F32) {
			store.Tile(r.Tiling.SubTiles(), func(i int) gemm.SubTile {
				at, sums := t.Column.MulI(r.Tiling.TileN).AddI(gemm.SubTileColumns*i), gemm.OfSubTile(acc, i)
				return gemm.SubTile{Values: gemm.Computed(func(j int) ptx.F32 { return sums[j].Max(ptx.Float(0)) }), To: z,
					At: func() []ptx.U32 { return t.Ragged(at) }}
			})
		}},
	})
	return k.Build()
}

func (r Relu) wMap(a *ReluArgs) gpu.TensorMap {
	d, n := r.Hidden, r.Intermediate
	return tile.LoadMap(a.W, []int{tile.K, r.Tiling.TileN / 2, 1},
		tile.Dim{Extent: d, Stride: 1}, tile.Dim{Extent: n, Stride: d}, tile.Dim{Extent: r.NumExperts, Stride: n * d})
}

func (r Relu) zMap(a *ReluArgs) gpu.TensorMap { return tile.RaggedMap(a.Z, r.Intermediate, a.Rows) }

// ReluProduct has the tilings of the product.
var ReluProduct = &registry.Product{
	ID: spec.ProductRelu,
	Space: func(t driver.Target) []gemm.Tiling {
		return tiles.OrClusters(tiles.Deepest(t, registry.StoreBytes, 256, 128))
	},
	SharedBytes: registry.StoreBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), c.Intermediate, c.Hidden, m.DownEpilogueClocks, t)
	},
}

// ReluKernel is the product's kernel. Tuning checks it by the layer's output O.
var ReluKernel = &registry.Kernel[ReluArgs]{KernelName: "relu", Of: ReluProduct, ShownBy: registry.Training,
	Emit: func(l registry.Layer) (*jit.Kernel[ReluArgs], error) {
		return Relu{Config: l.Config, Tiling: l.Tiling(ReluProduct)}.Build()
	}}
