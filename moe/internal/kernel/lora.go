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
	"sonicmoe/moe/internal/kernel/dw"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// LoRA is the product of rows with one factor of an adapter, times the adapter's scale c. It
// runs ahead of a product of the layer, which adds U times the other factor to its sums (see
// [gemm.Extra]):
//
//	FactorA1  U = c·X[rows]·A1ᵀ   ahead of Up
//	FactorA2  U = c·A·A2ᵀ         ahead of Down; backward has A' in the place of A
//	FactorB2  U = c·dO[rows]·B2   ahead of DH
//	FactorB1  U = c·dH·B1         ahead of DX
type LoRA struct {
	spec.Config
	Factor Factor
}

// Factor is a factor of an adapter.
type Factor uint8

// The factors.
const (
	FactorA1 Factor = iota
	FactorA2
	FactorB2
	FactorB1
)

// LoRAArgs are the arguments of [LoRA]. Tensors have the layer's element type.
type LoRAArgs struct {
	// With FactorA1 and FactorB2, X [T, d] are tokens or their dO, and Gather [R] u32 is the
	// token of each packed row. Otherwise X has packed rows, in the layout of [weights.A] or
	// [weights.DH].
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// Factor is the factor, laid out as Config says. If gate and up are separate tensors, B1 is
	// gate's part and Factor3 is up's.
	Factor, Factor3 driver.DevicePtr
	// U is the output, in the layout of [weights.U].
	U driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (l LoRA) Build() (*jit.Kernel[LoRAArgs], error) {
	k := jit.NewBuilder[LoRAArgs]("moe_lora_"+l.name(), gemm.Threads, 1)
	k.Persistent(1)

	// Operands.
	tiling := l.tiling()
	w, rows := l.factor(tiling), l.packed()
	maps := []ptx.TensorMap{k.Map(&k.Args.Factor, func(a *LoRAArgs) gpu.TensorMap { return w.Map(a.Factor) })}
	if w.Maps() > 1 {
		maps = append(maps, k.Map(&k.Args.Factor3, func(a *LoRAArgs) gpu.TensorMap { return w.Map(a.Factor3) }))
	}
	u := k.Map(&k.Args.U, func(a *LoRAArgs) gpu.TensorMap { return tile.RaggedMap(a.U, weights.U(l.Config).Elements(), a.Rows) })

	// Ring "ab" holds stages of the rows and the factor, and a queue holds the tiles.
	cta := pipeline.NewCTA(k.Kernel)
	store := gemm.NewStore(k.Kernel, element.Of(l.Config), cta)
	c := gemm.Config{Tiling: tiling, Element: element.Of(l.Config), KTiles: tile.Tiles(l.Hidden), Columns: 1, Gathered: l.gathers(), BMN: w.MNMajor()}
	if !l.gathers() {
		c.KTiles = rows.Elements() / tile.K
	}
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, c)
	load := func(s pipeline.Stage, t schedule.Tile, at ptx.U32, part int) {
		w.Load(p, maps, s, t, func() ptx.U32 { return at }, part)
	}

	// Roles.
	p.Run(gemm.Roles{
		Load: l.load(k, p, load),
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

// name returns the end of the name of the kernel's entry.
func (l LoRA) name() string { return [...]string{"a1", "a2", "b2", "b1"}[l.Factor] }

// gathers reports whether the rows are gathered by token.
func (l LoRA) gathers() bool { return l.Factor == FactorA1 || l.Factor == FactorB2 }

// packed returns the layout of packed rows.
func (l LoRA) packed() weights.Rows {
	if l.Factor == FactorB1 {
		return weights.DH(l.Config)
	}
	return weights.A(l.Config)
}

// factor returns the factor as an operand with r columns.
func (l LoRA) factor(t gemm.Tiling) weights.B {
	switch l.Factor {
	case FactorA1:
		return weights.LoraA1(l.Config).Forward(t)
	case FactorA2:
		return weights.LoraA2(l.Config).Forward(t)
	case FactorB2:
		return weights.LoraB2(l.Config).Backward(t)
	}
	return weights.LoraB1(l.Config).Backward(t)
}

// tiling returns the kernel's only tiling: one tile covers the rank.
func (l LoRA) tiling() gemm.Tiling {
	t := gemm.Tiling{TileN: tile.Tiles(l.LoRARank) * tile.Block, Stages: 8, GroupM: 1, ClusterM: 1}
	if t.TileN > tile.Block {
		t.Stages = 6
	}
	return t
}

// load returns the load role: it gathers tokens, or loads packed rows. factor starts the loads
// of the factor from an index of its sum on, in a part.
func (l LoRA) load(k *jit.Builder[LoRAArgs], p *gemm.Product, factor func(s pipeline.Stage, t schedule.Tile, at ptx.U32, part int)) gemm.LoadRole {
	if l.gathers() {
		from := gemm.Rows{X: k.Ptr(&k.Args.X), Gather: k.Ptr(&k.Args.Gather), RowBytes: l.Hidden * tile.ElementBytes}
		return p.Gather(from, func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) { factor(s, t, kt.MulI(tile.K), 0) })
	}
	rows := l.packed()
	x := k.Map(&k.Args.X, func(a *LoRAArgs) gpu.TensorMap { return tile.RowMap(a.X, rows.Elements(), a.Rows, gemm.TileM) })
	return p.TMA(func(t gemm.TileLoad) {
		for part := range rows.Parts { // of dH: gate, then up
			k.For(ptx.Uint(0), ptx.Uint(rows.Width), ptx.Uint(tile.K), func(neuron ptx.U32) {
				s := t.Ring.Acquire()
				k.MbarrierArriveExpectTx(s.Full, ptx.Uint(p.StageBytes()))
				k.TMALoad(s.Data, x, s.Full, neuron.AddI(part*rows.Width), t.Row)
				factor(s, t.Tile, neuron, part)
				t.Ring.Advance()
			})
		}
	})
}

// The kernels of a layer with an adapter. LoRAA1Kernel and LoRAA2Kernel run in both passes.
// The other two run in layers without the kernels of [dw.Both].
var (
	LoRAA1Kernel = loraKernel(FactorA1, false, spec.HasLoRA)
	LoRAA2Kernel = loraKernel(FactorA2, false, spec.HasLoRA)
	LoRAB2Kernel = loraKernel(FactorB2, true, dw.ReadsTwice)
	LoRAB1Kernel = loraKernel(FactorB1, true, dw.ReadsTwice)
)

func loraKernel(f Factor, backward bool, only func(spec.Config) bool) *registry.Kernel[LoRAArgs] {
	return &registry.Kernel[LoRAArgs]{KernelName: "lora-" + LoRA{Factor: f}.name(), Only: only, From: registry.OfExperts, Backward: backward,
		Emit: func(l registry.Layer) (*jit.Kernel[LoRAArgs], error) {
			return LoRA{Config: l.Config, Factor: f}.Build()
		}}
}
