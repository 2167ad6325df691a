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

// Down is the down-projection: Y = A·W2ᵀ + b2 of each expert's packed rows.
type Down struct {
	spec.Config
	Tiling gemm.Tiling
}

// DownArgs are the arguments of [Down]. Tensors are of the layer's type.
type DownArgs struct {
	// A is the activation by packed row, as [weights.A] has it.
	A driver.DevicePtr
	// W2 [E, d, n] are the weights, as Config has them.
	W2 driver.DevicePtr
	// B2 [E, d] is its bias.
	B2 driver.DevicePtr
	// Y [R, d] is written.
	Y driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (d Down) Build() (*jit.Kernel[DownArgs], error) {
	k := jit.NewBuilder[DownArgs]("moe_down", gemm.Threads, 1)
	k.Persistent(d.Tiling.ClusterM)
	b := weights.W2(d.Config).Forward(d.Tiling)
	a, w2 := k.Map(&k.Args.A, d.aMap), k.Map(&k.Args.W2, func(a *DownArgs) driver.TensorMap { return b.Map(a.W2) })
	bias, b2 := weights.B2(d.Config), []ptx.TensorMap(nil)
	if d.Bias {
		b2 = append(b2, k.Map(&k.Args.B2, func(a *DownArgs) driver.TensorMap { return bias.RowMap(a.B2, d.Tiling.TileN) }))
	}
	y := k.Map(&k.Args.Y, d.yMap)
	cta := pipeline.NewCTA(k.Kernel)
	store := gemm.NewStore(k.Kernel, element.Of(d.Config), cta)
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: d.Tiling, Element: element.Of(d.Config), KTiles: tile.Tiles(d.Intermediate), Columns: (d.Hidden + d.Tiling.TileN - 1) / d.Tiling.TileN,
		BMN: b.MNMajor(), Row: d.Bias,
	})
	load := func(ring *pipeline.Cursor, t schedule.Tile) {
		k.Range(ptx.Uint(p.KTiles), func(kt ptx.U32) {
			s := ring.Acquire()
			p.Expect(s, kt, p.StageBytes(), func() {
				bias.LoadRow(k.Kernel, p.RowOf(ring), s.Full, b2, t.Expert, t.Column.MulI(d.Tiling.TileN), d.Tiling.TileN)
			})
			k.TMALoad(s.Data, a, s.Full, kt.MulI(tile.K), t.Row)
			b.Load(p, []ptx.TensorMap{w2}, s, t, func() ptx.U32 { return kt.MulI(tile.K) }, 0)
			ring.Advance()
		})
	}
	each := func(t gemm.Tile, acc []ptx.F32) {
		column := t.Column.MulI(d.Tiling.TileN)
		store.Tile(d.Tiling.TileN/64, func(i int) gemm.SubTile {
			at := column.AddI(64 * i)
			return gemm.SubTile{Value: gemm.Registers(acc[32*i : 32*i+32]), To: y, At: func() []ptx.U32 { return t.Ragged(at) }}
		})
	}
	p.Run(func() { p.LoadTMA(load) }, gemm.StoreOnly{Store: store, Each: each})
	return k.Build()
}

func (d Down) aMap(a *DownArgs) driver.TensorMap {
	return tile.RowMap(a.A, weights.A(d.Config).Elements(), a.Rows, gemm.TileM)
}

func (d Down) yMap(a *DownArgs) driver.TensorMap { return tile.RaggedMap(a.Y, d.Hidden, a.Rows) }

// DownProduct is the down-projection. Where its sums are short (n below 1024)
// waiting for each other costs clusters more than they save; 192 columns lose 2
// to 15 %.
var DownProduct = &registry.Product{
	Name: "down",
	Space: func(t driver.Target) []gemm.Tiling {
		return tiles.OrClusters(tiles.Deepest(t, registry.RowStoreBytes, 256, 128))
	},
	SharedBytes: registry.RowStoreBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), c.Hidden, c.Intermediate, m.DownEpilogueClocks, t)
	},
	Work: spec.Config.DownWork,
}

// DownKernel is the down-projection's.
var DownKernel = &registry.Kernel[DownArgs]{KernelName: "down", Of: DownProduct, ShownBy: registry.Training, From: registry.OfExperts, Emit: func(l registry.Layer) (*jit.Kernel[DownArgs], error) {
	return Down{Config: l.Config, Tiling: l.Tiling(DownProduct)}.Build()
}}
