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
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// LoRA is the product of rows with the first factor of an adapter, times the adapter's scale c. It
// computes U = c·X[rows]·A1ᵀ before [Up] or, with OfDown, U = c·A·A2ᵀ before [Down]. Up and Down
// then add U·B1ᵀ and U·B2ᵀ to their sums, see [gemm.Extra].
type LoRA struct {
	spec.Config
	OfDown bool
}

// LoRAArgs are the arguments of [LoRA]. Tensors have the layer's element type.
type LoRAArgs struct {
	// X [T, d] has the tokens, and Gather [R] u32 the token of each packed row. With OfDown, X is
	// the activation by packed row, in the layout of [weights.A].
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// Factor is A1 [E, r, d] or A2 [E, r, n], in the layout of Config.
	Factor driver.DevicePtr
	// U is the output, in the layout of [weights.U].
	U driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (l LoRA) Build() (*jit.Kernel[LoRAArgs], error) {
	k := jit.NewBuilder[LoRAArgs](l.name(), gemm.Threads, 1)
	k.Persistent(1)

	// Operands.
	tiling, factor, width := l.tiling(), weights.LoraA1(l.Config), l.Hidden
	if l.OfDown {
		factor, width = weights.LoraA2(l.Config), l.Intermediate
	}
	w := factor.Forward(tiling)
	a := []ptx.TensorMap{k.Map(&k.Args.Factor, func(a *LoRAArgs) gpu.TensorMap { return w.Map(a.Factor) })}
	u := k.Map(&k.Args.U, func(a *LoRAArgs) gpu.TensorMap { return tile.RaggedMap(a.U, weights.U(l.Config).Elements(), a.Rows) })

	// Ring "ab" holds stages of the rows and the factor, and a queue holds the tiles.
	cta := pipeline.NewCTA(k.Kernel)
	store := gemm.NewStore(k.Kernel, element.Of(l.Config), cta)
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: tiling, Element: element.Of(l.Config), KTiles: tile.Tiles(width), Columns: 1, Gathered: !l.OfDown, BMN: w.MNMajor(),
	})
	factorOf := func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
		w.Load(p, a, s, t, func() ptx.U32 { return kt.MulI(tile.K) }, 0)
	}

	// Roles.
	p.Run(gemm.Roles{
		Load: l.load(k, p, factorOf),
		Math: gemm.StoreOnly{Store: store, Each: func(t gemm.Tile, acc []ptx.F32) {
			store.Tile(tiling.SubTiles(), func(i int) gemm.SubTile {
				sums, scale := gemm.OfSubTile(acc, i), ptx.Float(float64(spec.LoRAScale(l.Config)))
				return gemm.SubTile{Values: gemm.Computed(func(j int) ptx.F32 { return sums[j].Mul(scale) }),
					To: u, At: func() []ptx.U32 { return t.Ragged(ptx.Uint(i * gemm.SubTileColumns)) }}
			})
		}},
	})
	return k.Build()
}

// name returns the name of the kernel's entry, which errors show.
func (l LoRA) name() string {
	if l.OfDown {
		return "moe_lora_down"
	}
	return "moe_lora_up"
}

// tiling returns the kernel's only tiling. One tile has all columns of the rank.
func (l LoRA) tiling() gemm.Tiling {
	t := gemm.Tiling{TileN: weights.U(l.Config).Elements(), Stages: 8, GroupM: 1, ClusterM: 1}
	if t.TileN > tile.Block {
		t.Stages = 6
	}
	return t
}

// load returns the function of the load role. It gathers the rows of the tokens, or loads rows of
// the activation.
func (l LoRA) load(k *jit.Builder[LoRAArgs], p *gemm.Product, factor func(s pipeline.Stage, t schedule.Tile, kt ptx.U32)) func() {
	if !l.OfDown {
		return p.Gather(gemm.Rows{X: k.Ptr(&k.Args.X), Gather: k.Ptr(&k.Args.Gather), RowBytes: l.Hidden * tile.ElementBytes}, factor)
	}
	rows := k.Map(&k.Args.X, func(a *LoRAArgs) gpu.TensorMap {
		return tile.RowMap(a.X, weights.A(l.Config).Elements(), a.Rows, gemm.TileM)
	})
	return p.TMA(func(ring *pipeline.Cursor, t schedule.Tile) {
		k.Range(ptx.Uint(p.KTiles), func(kt ptx.U32) {
			s := ring.Acquire()
			p.Expect(ring, s, t, kt, p.StageBytes())
			k.TMALoad(s.Data, rows, s.Full, kt.MulI(tile.K), t.Row)
			factor(s, t, kt)
			ring.Advance()
		})
	})
}

// adapter returns the second factor as the extra operands of a product. u maps the rows of U. b has
// the maps of the second factor, whose columns are the columns of the product.
func adapter(p *gemm.Product, c spec.Config, u ptx.TensorMap, second weights.B, b []ptx.TensorMap) gemm.Extra {
	return gemm.Extra{Steps: (c.LoRARank + tile.KStep - 1) / tile.KStep, Load: func(s pipeline.Stage, t schedule.Tile, i int) {
		at := ptx.Uint(i * tile.K)
		p.K.TMALoad(s.Data, u, s.Full, at, t.Row)
		second.Load(p, b, s, t, func() ptx.U32 { return at }, 0)
	}}
}

// uMap returns the map with which a product loads the rows of U.
func uMap(c spec.Config, u driver.DevicePtr, rows int) gpu.TensorMap {
	return tile.RowMap(u, weights.U(c).Elements(), rows, gemm.TileM)
}

// LoRAUpKernel and LoRADownKernel are for layers with an adapter.
var (
	LoRAUpKernel = &registry.Kernel[LoRAArgs]{KernelName: "lora-up", Only: spec.HasLoRA, From: registry.OfExperts,
		Emit: func(l registry.Layer) (*jit.Kernel[LoRAArgs], error) { return LoRA{Config: l.Config}.Build() }}
	LoRADownKernel = &registry.Kernel[LoRAArgs]{KernelName: "lora-down", Only: spec.HasLoRA, From: registry.OfExperts,
		Emit: func(l registry.Layer) (*jit.Kernel[LoRAArgs], error) {
			return LoRA{Config: l.Config, OfDown: true}.Build()
		}}
)
