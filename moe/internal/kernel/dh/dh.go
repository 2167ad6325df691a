package dh

import (
	"fmt"

	"sonicmoe/driver"
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// DH is the backward pass through the down-projection and the activation:
// dA' = dO[rows]·W2, the rows of dO gathered as they are loaded, and in its
// epilogue, from the stored H and each row's score s,
//
//	A = act(H), A' = s·A, dA = s·dA'
//	dH = dA times the derivatives of act by gate and up
//	partials = Σ dA'·A over each 64 neurons, in FP32: the score's gradient
//
// and in layers with biases the sums of dH's columns over each 64 rows. With ScoreOnInput the derivatives are those at s·H, and
//
//	A' = act(s·H)
//	partials = Σ H times dA' times the derivatives, over each 64 neurons
//
// H comes by TMA, the first of it under the main loop.
type DH struct {
	spec.Config
	Tiling gemm.Tiling
}

// Args are the arguments of [DH]. Tensors without another type are of the
// layer's.
type Args struct {
	// DO [T, d] is the gradient of O, Gather [R] u32 the token of each
	// packed row.
	DO     driver.DevicePtr
	Gather driver.DevicePtr
	// W2 [E, d, n] are the weights, as Config has them.
	W2 driver.DevicePtr
	// H [R, 2n] or [R, n] is the pre-activation.
	H driver.DevicePtr
	// DH and A are written, as [weights.DH] and [weights.A] have them: dH, and the
	// activation times score.
	DH driver.DevicePtr
	A  driver.DevicePtr
	// Scores [T, K] f32, Pairs [R] u32 the index in it of each packed row.
	Scores driver.DevicePtr
	Pairs  driver.DevicePtr
	// DScorePartials [R, n/64, rounded up] f32 is written.
	DScorePartials driver.DevicePtr
	// ColumnSums [R/64 + E, 2n] or [.., n] f32 is written in layers with biases: the
	// sums of dH's columns, see [ColumnSumsOf].
	ColumnSums driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (d DH) Build() (*jit.Kernel[Args], error) {
	const name = "moe_dh"
	if err := d.check(name); err != nil {
		return nil, err
	}
	k := jit.NewBuilder[Args](name, gemm.Threads, 1)
	k.Persistent(d.Tiling.ClusterM)
	b := weights.W2(d.Config).Backward(d.Tiling)
	do, gather, w2 := k.Ptr(&k.Args.DO), k.Ptr(&k.Args.Gather), k.Map(&k.Args.W2, func(a *Args) driver.TensorMap { return b.Map(a.W2) })
	e := &dhEpilogue{
		act: activation.Of(d.Config).Gradient, onInput: d.ScoreOnInput,
		k: k.Kernel, element: element.Of(d.Config), groups: d.Tiling.TileN / ScoreGroup, neurons: d.Intermediate, hParts: d.HParts(), inPairs: weights.InPairs(d.Config),
		width: weights.DH(d.Config).Elements(), aWidth: weights.A(d.Config).Elements(),
		h: k.Map(&k.Args.H, d.hMap), dh: k.Ptr(&k.Args.DH), a: k.Ptr(&k.Args.A),
		scores: k.Ptr(&k.Args.Scores), pairs: k.Ptr(&k.Args.Pairs), partials: k.Ptr(&k.Args.DScorePartials),
		bias: d.Bias,
	}
	if d.Bias {
		e.columns = k.Ptr(&k.Args.ColumnSums)
	}
	cta := pipeline.NewCTA(k.Kernel)
	e.slots = cta.Shared("slots", dhEpilogueBytes, 1024)
	if d.Bias {
		e.joined = cta.NamedBarriers("sums", 2, pipeline.WarpgroupThreads)
	}
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: d.Tiling, Element: element.Of(d.Config), KTiles: d.kTiles(), Columns: (d.Intermediate + d.Tiling.TileN - 1) / d.Tiling.TileN,
		Gathered: true, BMN: b.MNMajor(),
	})
	e.full = cta.Mbarriers("slots.full", dhSlotBarriers, 1)
	load := gemm.Gather{Product: p, X: do, Rows: gather, RowBytes: d.Hidden * tile.ElementBytes, LoadB: func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
		b.Load(p, []ptx.TensorMap{w2}, s, t, func() ptx.U32 { return kt.MulI(tile.K) }, 0)
	}}
	p.Run(load.Load, e)
	return k.Build()
}

// check refuses what the kernel cannot be built for.
func (d DH) check(name string) error {
	if err := d.Tiling.CheckAtoms(name); err != nil {
		return err
	}
	if parts := d.Tiling.TileN / dhPart; parts%(2*dhSlots) != 0 {
		return fmt.Errorf("%s: tiling %v: TileN must be a multiple of %d, for its slots' parity", name, d.Tiling, 2*dhSlots*dhPart)
	}
	return nil
}

// kTiles is the depth of the product: two at least, the second one's all zeros if
// need be, as H is loaded behind that.
func (d DH) kTiles() int { return max(2, tile.Tiles(d.Hidden)) }

// groups is how many groups of neurons have a partial sum of a score's gradient.
func groups(neurons int) int { return (neurons + ScoreGroup - 1) / ScoreGroup }

// PartialBytes is the size of the scores' partial gradients for packed rows.
func (d DH) PartialBytes(rows int) int64 {
	return 4 * int64(rows) * int64(groups(d.Intermediate))
}

// hMap loads boxes of 16 rows of 32 neurons' parts of H: dimensions neuron,
// row, part.
func (d DH) hMap(a *Args) driver.TensorMap {
	n := d.Intermediate
	m := tile.LoadMap(a.H, []int{dhPart, dhRows, d.HParts()},
		tile.Dim{Extent: n, Stride: 1}, tile.Dim{Extent: max(a.Rows, 1), Stride: d.HWidth()}, tile.Dim{Extent: d.HParts(), Stride: n})
	m.Swizzle = driver.Swizzle64
	return m
}

// Product is the product dA', whose epilogue makes dH: half of the widest
// tile, so that the ring has stages enough to go on under it. Clusters are good
// for long sums.
var Product = &registry.Product{
	Name: "dh", Backward: true,
	Space: func(t driver.Target) []gemm.Tiling {
		return tiles.WholeAtoms(tiles.OrClusters(tiles.Deepest(t, dhBytes, 128)))
	},
	SharedBytes: dhBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), c.Intermediate, c.Hidden, m.DHEpilogueClocks, t)
	},
	Work: spec.Config.DHWork,
}

func dhBytes(p gemm.Tiling) int { return p.SharedBytes(dhEpilogueBytes) }

// Kernel is Product's. A' shows in dW2, dH in dX and dW1, its sums beside the
// tiles in dB1.
var Kernel = &registry.Kernel[Args]{KernelName: "dh", Of: Product, Backward: true,
	ShownBy: registry.Pass{Name: "backward", Backward: true, Outputs: []string{"DX", "DScores", "DW1", "DW2", "DB1"}},
	From:    registry.OfExperts,
	Emit: func(l registry.Layer) (*jit.Kernel[Args], error) {
		return DH{Config: l.Config, Tiling: l.Tiling(Product)}.Build()
	}}
