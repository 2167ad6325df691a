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

// Down is the down-projection of each expert's packed rows: Y = A·W2ᵀ + b2, plus U·B2ᵀ with LoRA.
type Down struct {
	spec.Config
	Tiling gemm.Tiling
}

// DownArgs are the arguments of [Down]. Tensors have the layer's element type.
type DownArgs struct {
	// A is the activation by packed row, in the layout of [weights.A].
	A driver.DevicePtr
	// W2 [E, d, n] are the weights, in the layout of Config.
	W2 driver.DevicePtr
	// B2 [E, d] is the bias.
	B2 driver.DevicePtr
	// With LoRA, U has the results of [LoRA], and LoraB2 [E, d, r] is the second factor.
	U, LoraB2 driver.DevicePtr
	// Y [R, d] is the output.
	Y driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (d Down) Build() (*jit.Kernel[DownArgs], error) {
	k := jit.NewBuilder[DownArgs]("moe_down", gemm.Threads, 1)
	k.Persistent(d.Tiling.ClusterM)

	// Operands.
	w := weights.W2(d.Config).Forward(d.Tiling)
	a := k.Map(&k.Args.A, d.aMap)
	w2 := []ptx.TensorMap{k.Map(&k.Args.W2, func(a *DownArgs) gpu.TensorMap { return w.Map(a.W2) })}
	b2 := d.bias(k)
	y := k.Map(&k.Args.Y, d.yMap)

	// Ring "ab" holds stages of A and W2, and a queue holds the tiles.
	cta := pipeline.NewCTA(k.Kernel)
	store := gemm.NewOutlet(k.Kernel, element.Of(d.Config), cta, d.Tiling.SubTiles(), y, func(t gemm.Tile, i int) []ptx.U32 {
		return t.Ragged(t.Column.MulI(d.Tiling.TileN).AddI(i * gemm.SubTileColumns))
	})
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: d.Tiling, Element: element.Of(d.Config), KTiles: tile.Tiles(d.Intermediate), Columns: d.Tiling.Columns(d.Hidden),
		BMN: w.MNMajor(), Start: b2, Outlet: store,
	})

	// Roles.
	p.Run(gemm.Roles{
		Load: p.TMA(func(t gemm.TileLoad) {
			k.Range(ptx.Uint(p.KTiles), func(kt ptx.U32) {
				s := t.Ring.Acquire()
				p.Expect(t.Ring, s, t.Tile, kt, p.StageBytes())
				k.TMALoad(s.Data, a, s.Full, kt.MulI(tile.K), t.Row)
				w.Load(p, w2, s, t.Tile, func() ptx.U32 { return kt.MulI(tile.K) }, 0)
				t.Ring.Advance()
			})
		}),
		Math:  gemm.Sums{}, // the epilogue stores Y
		Extra: d.adapter(k),
	})
	return k.Build()
}

// adapter returns the operands of the adapter's second factor.
func (d Down) adapter(k *jit.Builder[DownArgs]) (none gemm.Extra) {
	if !spec.HasLoRA(d.Config) {
		return none
	}
	b := weights.LoraB2(d.Config).Forward(d.Tiling)
	u := k.Map(&k.Args.U, func(a *DownArgs) gpu.TensorMap { return weights.UMap(d.Config, a.U, a.Rows) })
	return weights.Adapter(d.Config, u, b, []ptx.TensorMap{k.Map(&k.Args.LoraB2, func(a *DownArgs) gpu.TensorMap { return b.Map(a.LoraB2) })})
}

// bias returns the initial values of the sums: b2 in the columns of a tile.
func (d Down) bias(k *jit.Builder[DownArgs]) gemm.Start {
	if !d.Bias {
		return gemm.NoBias
	}
	bias, columns := weights.B2(d.Config), d.Tiling.TileN
	b2 := []ptx.TensorMap{k.Map(&k.Args.B2, func(a *DownArgs) gpu.TensorMap { return bias.RowMap(a.B2, columns) })}
	return gemm.FromRow(func(to, full ptx.Shared, t schedule.Tile) {
		bias.LoadRow(k.Kernel, to, full, b2, t.Expert, t.Column.MulI(columns), columns)
	})
}

func (d Down) aMap(a *DownArgs) gpu.TensorMap {
	return tile.RowMap(a.A, weights.A(d.Config).Elements(), a.Rows, gemm.TileM)
}

func (d Down) yMap(a *DownArgs) gpu.TensorMap { return tile.RaggedMap(a.Y, d.Hidden, a.Rows) }

// DownProduct is the down-projection. Clusters are faster for long sums: in short ones the
// CTAs of a cluster lose more time waiting for each other than they save. Tiles of 192
// columns are never the fastest.
var DownProduct = &registry.Product{
	ID: spec.ProductDown,
	Space: func(t driver.Target) []gemm.Tiling {
		return tiles.OrClusters(tiles.Deepest(t, registry.RowStoreBytes, 256, 128))
	},
	SharedBytes: registry.RowStoreBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), c.Hidden, c.Intermediate, m.DownEpilogueClocks, t)
	},
}

// DownKernel is the kernel of the down-projection.
var DownKernel = &registry.Kernel[DownArgs]{KernelName: "down", Of: DownProduct, ShownBy: registry.Training, From: registry.OfExperts, Emit: func(l registry.Layer) (*jit.Kernel[DownArgs], error) {
	return Down{Config: l.Config, Tiling: l.Tiling(DownProduct)}.Build()
}}
