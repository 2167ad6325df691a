package kernel

import (
	"sonicmoe/driver"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/registry"
	"sonicmoe/moe/spec"
	"sonicmoe/moe/tiles"
	"sonicmoe/moe/weights"
	"sonicmoe/ptx"
)

// Up is the up-projection: H = X[rows]·W1ᵀ, A = silu(gate)·up. The rows of X
// are gathered as they are loaded; the activation and the stores of H and A
// run in the epilogue. One half of a tile's columns is gate, the other up, so
// that a thread holds both values of a neuron, whatever W1's layout.
type Up struct {
	spec.Config
	// SaveH stores H, which backward needs.
	SaveH  bool
	Tiling gemm.Tiling
}

// UpArgs are the arguments of [Up].
type UpArgs struct {
	// X [T, d] bf16 are the tokens, Gather [R] u32 the token of each packed row.
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// W1 [E, 2n, d] are the weights, as Config has them, W3 their other half.
	W1, W3 driver.DevicePtr
	// A [R, n] bf16 is written: the activation.
	A driver.DevicePtr
	// H [R, 2n] bf16 is written where SaveH is set: gate, then up.
	H driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (u Up) Build() (*jit.Kernel[UpArgs], error) {
	name := "moe_up"
	if !u.SaveH {
		name = "moe_up_inference" // errors go by the name
	}
	k := jit.NewBuilder[UpArgs](name, gemm.Threads, 1)
	k.Persistent(u.Tiling.ClusterM)
	x, gather := k.Ptr(&k.Args.X), k.Ptr(&k.Args.Gather)
	b := weights.W1(u.Config).Forward(u.Tiling)
	b.Halves = true
	w1 := []ptx.TensorMap{k.Map(&k.Args.W1, func(a *UpArgs) driver.TensorMap { return b.Map(a.W1) })}
	if b.Maps() > 1 {
		w1 = append(w1, k.Map(&k.Args.W3, func(a *UpArgs) driver.TensorMap { return b.Map(a.W3) }))
	}
	a := k.Map(&k.Args.A, u.aMap)
	var h ptx.TensorMap
	if u.SaveH {
		h = k.Map(&k.Args.H, u.hMap)
	}
	cta := pipeline.NewCTA(k.Kernel)
	store := gemm.NewStore(k.Kernel, cta)
	half := u.Tiling.TileN / 2 // of a tile's columns: gate, up
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: u.Tiling, KTiles: u.Hidden / tile.K, Columns: (u.Intermediate + half - 1) / half,
		Gathered: true, BMN: b.MNMajor(),
	})
	load := gemm.Gather{Product: p, X: x, Rows: gather, RowBytes: u.Hidden * tile.ElementBytes, LoadB: func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
		b.Load(p, w1, s, t, func() ptx.U32 { return kt.MulI(tile.K) }, 0)
	}}
	p.Run(load.Load, gemm.StoreOnly{Store: store, Each: func(t gemm.Tile, acc []ptx.F32) { u.store(store, t, acc, a, h) }})
	return k.Build()
}

// store stores, for each 64 neurons, gate and up of H and their A.
func (u Up) store(s *gemm.Store, t gemm.Tile, acc []ptx.F32, a, h ptx.TensorMap) {
	half := u.Tiling.TileN / 2
	neuron := t.Column.MulI(half)
	kinds, act := 1, activation.Of(u.Config).Value
	if u.SaveH {
		kinds = 3
	}
	s.Tile(half/64*kinds, func(i int) gemm.SubTile {
		at := i / kinds * 32
		gate, up := acc[at:at+32], acc[len(acc)/2+at:len(acc)/2+at+32]
		column := neuron.AddI(i / kinds * 64)
		switch i%kinds + 3 - kinds {
		case 0:
			return gemm.SubTile{Value: gemm.Registers(gate), To: h, At: func() []ptx.U32 { return t.Ragged(column, ptx.Uint(0)) }}
		case 1:
			return gemm.SubTile{Value: gemm.Registers(up), To: h, At: func() []ptx.U32 { return t.Ragged(column, ptx.Uint(1)) }}
		}
		return gemm.SubTile{Value: func(j int) ptx.F32 { return act(gate[j], up[j]) }, To: a, At: func() []ptx.U32 { return t.Ragged(column) }}
	})
}

// hMap stores clipped boxes of gate or up: dimensions neuron, gate or up, and
// rows as in [tile.RaggedMap].
func (u Up) hMap(a *UpArgs) driver.TensorMap {
	n := u.Intermediate
	return tile.Map(a.H-tile.RaggedBase(2*n), []int{64, 1, tile.RaggedRows, 1},
		tile.Dim{Extent: n, Stride: 1}, tile.Dim{Extent: 2, Stride: n}, tile.Dim{Extent: tile.RaggedRows, Stride: 2 * n}, tile.Dim{Extent: a.Rows + 1, Stride: 2 * n})
}

// aMap stores clipped boxes of A.
func (u Up) aMap(a *UpArgs) driver.TensorMap { return tile.RaggedMap(a.A, u.Intermediate, a.Rows) }

// UpProduct is the up-projection. Half of a tile's columns is gate, half up,
// stored 64 at a time. Clusters cost nothing here, and where the weights of the
// experts at work don't fit the L2 cache they gain 16 %.
var UpProduct = &registry.Product{
	Name: "up",
	Space: func(t driver.Target) []gemm.Tiling {
		return tiles.InClusters(tiles.Deepest(t, registry.StoreBytes, 256, 128))
	},
	SharedBytes: registry.StoreBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), 2*c.Intermediate, c.Hidden, m.UpEpilogueClocks, t)
	},
	Work: spec.Config.UpWork,
}

// UpKernel is for passes that keep H, UpInferenceKernel for those that don't.
var (
	UpKernel          = &registry.Kernel[UpArgs]{KernelName: "up", Of: UpProduct, Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) { return upOf(l, true).Build() }}
	UpInferenceKernel = &registry.Kernel[UpArgs]{KernelName: "up-inference", Of: UpProduct, Roofline: upInferenceWork, Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) { return upOf(l, false).Build() }}
)

func upInferenceWork(c spec.Config, tokens int) []spec.Work {
	return []spec.Work{c.UpInferenceWork(tokens)}
}

func upOf(l registry.Layer, saveH bool) Up {
	return Up{Config: l.Config, SaveH: saveH, Tiling: l.Tiles["up"]}
}
