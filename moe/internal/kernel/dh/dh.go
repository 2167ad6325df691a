package dh

import (
	"fmt"

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

// DH is the backward pass through the down-projection and the activation. The main loop
// computes dA' = dO[rows]·W2, and gathers the rows of dO as it loads them. From the saved
// H and each row's score s the epilogue computes
//
//	A = act(H), A' = s·A, dA = s·dA'
//	dH = dA times the derivatives of act with respect to gate and up
//	partials = Σ dA'·A over each 64 neurons, in FP32: parts of the score's gradient
//
// and, in layers with biases, the sums of dH's columns over each 64 rows. With
// ScoreOnInput the derivatives are taken at s·H, and
//
//	A' = act(s·H)
//	partials = Σ H times dA' times the derivatives, over each 64 neurons
//
// TMA loads H. The loads of its first parts start during the main loop.
type DH struct {
	spec.Config
	Tiling gemm.Tiling
}

// Args are the arguments of [DH]. Tensors without a stated type have the layer's
// element type.
type Args struct {
	// DO [T, d] is the gradient of O. Gather [R] u32 is the token of each packed row.
	DO     driver.DevicePtr
	Gather driver.DevicePtr
	// W2 [E, d, n] are the weights, laid out as Config says.
	W2 driver.DevicePtr
	// With LoRA, U are the rows of the adapter's product with dO, and LoraA2 [E, r, n] is the
	// first factor.
	U, LoraA2 driver.DevicePtr
	// H [R, 2n] or [R, n] is the pre-activation.
	H driver.DevicePtr
	// DH and A are outputs: dH in the layout of [weights.DH], and the activation times the
	// score in the layout of [weights.A].
	DH driver.DevicePtr
	A  driver.DevicePtr
	// Scores is [T, K] f32. Pairs [R] u32 is the index in Scores of each packed row.
	Scores driver.DevicePtr
	Pairs  driver.DevicePtr
	// DScorePartials [R, ceil(n/64)] f32 is an output: the partial sums of the scores'
	// gradients.
	DScorePartials driver.DevicePtr
	// ColumnSums [R/64 + E, width of DH] f32 is an output in layers with biases: the sums
	// of dH's columns, see [ColumnSumsOf].
	ColumnSums driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (d DH) Build() (*jit.Kernel[Args], error) {
	if err := d.check("moe_dh"); err != nil {
		return nil, err
	}
	k := jit.NewBuilder[Args]("moe_dh", gemm.Threads, 1)
	k.Persistent(d.Tiling.ClusterM)

	// Operands.
	w := weights.W2(d.Config).Backward(d.Tiling)
	do := gemm.Rows{X: k.Ptr(&k.Args.DO), Gather: k.Ptr(&k.Args.Gather), RowBytes: d.Hidden * tile.ElementBytes}
	w2 := []ptx.TensorMap{k.Map(&k.Args.W2, func(a *Args) gpu.TensorMap { return w.Map(a.W2) })}
	io := d.tensors(k)

	// Ring "ab" holds stages of dO and W2, and a queue holds the tiles. Each warp of the
	// epilogue has two slots for parts of H, each with a barrier.
	cta := pipeline.NewCTA(k.Kernel)
	slots, joined := cta.Shared("slots", epilogueBytes, 1024), d.joined(cta)
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: d.Tiling, Element: element.Of(d.Config), KTiles: d.kTiles(), Columns: d.Tiling.Columns(d.Intermediate),
		Gathered: true, BMN: w.MNMajor(),
	})
	full := cta.Mbarriers("slots.full", mathWarps*slotsOfWarp, 1)

	// Roles.
	p.Run(gemm.Roles{
		Load: p.Gather(do, func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
			w.Load(p, w2, s, t, func() ptx.U32 { return kt.MulI(tile.K) }, 0)
		}),
		Math:  &epilogue{DH: d, k: k.Kernel, element: element.Of(d.Config), tensors: io, slots: slots, full: full, joined: joined},
		Extra: d.adapter(k),
	})
	return k.Build()
}

// adapter returns the operands of the adapter.
func (d DH) adapter(k *jit.Builder[Args]) (none gemm.Extra) {
	if !spec.HasLoRA(d.Config) {
		return none
	}
	a := weights.LoraA2(d.Config).Backward(d.Tiling)
	u := k.Map(&k.Args.U, func(a *Args) gpu.TensorMap { return weights.UMap(d.Config, a.U, a.Rows) })
	return weights.Adapter(d.Config, u, a, []ptx.TensorMap{k.Map(&k.Args.LoraA2, func(of *Args) gpu.TensorMap { return a.Map(of.LoraA2) })})
}

// tensors are the tensors that the epilogue reads and writes.
type tensors struct {
	h                       ptx.TensorMap
	dh, a                   ptx.Global
	scores, pairs, partials ptx.Global
	columnSums              ptx.Global // with Bias
}

func (d DH) tensors(k *jit.Builder[Args]) tensors {
	t := tensors{
		h: k.Map(&k.Args.H, d.hMap), dh: k.Ptr(&k.Args.DH), a: k.Ptr(&k.Args.A),
		scores: k.Ptr(&k.Args.Scores), pairs: k.Ptr(&k.Args.Pairs), partials: k.Ptr(&k.Args.DScorePartials),
	}
	if d.Bias {
		t.columnSums = k.Ptr(&k.Args.ColumnSums)
	}
	return t
}

// joined are the barriers, in layers with biases, at which the warps of a math warpgroup
// wait for each other.
func (d DH) joined(cta *pipeline.CTA) (b pipeline.NamedBarriers) {
	if d.Bias {
		b = cta.NamedBarriers("sums", 2, pipeline.WarpgroupThreads)
	}
	return b
}

// check returns an error if the kernel cannot have the tiling.
func (d DH) check(name string) error {
	if err := d.Tiling.CheckAtoms(name); err != nil {
		return err
	}
	if d.parts()%(2*slotsOfWarp) != 0 {
		return fmt.Errorf("%s: tiling %v: TileN must be a multiple of %d, for its slots' parity", name, d.Tiling, 2*slotsOfWarp*partNeurons)
	}
	return nil
}

// kTiles returns the number of k-tiles of the product, at least two: the loads of H start
// after the second k-tile, which may be all zeros.
func (d DH) kTiles() int { return max(2, tile.Tiles(d.Hidden)) }

// groups returns the number of groups of neurons. Each group has a partial sum of a
// score's gradient.
func groups(neurons int) int { return (neurons + ScoreGroup - 1) / ScoreGroup }

// PartialBytes returns the size of DScorePartials for a number of packed rows.
func (d DH) PartialBytes(rows int) int64 {
	return 4 * int64(rows) * int64(groups(d.Intermediate))
}

// hMap returns the tensor map of H, with boxes of 32 neurons of 16 rows of gate or of up.
// Its dimensions are neuron, row, and part (gate or up).
func (d DH) hMap(a *Args) gpu.TensorMap {
	n := d.Intermediate
	m := tile.LoadMap(a.H, []int{partNeurons, warpRows, d.HParts()},
		tile.Dim{Extent: n, Stride: 1}, tile.Dim{Extent: max(a.Rows, 1), Stride: d.HWidth()}, tile.Dim{Extent: d.HParts(), Stride: n})
	m.Swizzle = gpu.Swizzle64
	return m
}

// Product is the product dA', whose epilogue computes dH. Its tiles have 128 columns, so
// that the ring has enough stages to keep loading during the epilogue. Clusters are faster
// only for long sums.
var Product = &registry.Product{
	ID: spec.ProductDH,
	Space: func(t driver.Target) []gemm.Tiling {
		return tiles.WholeAtoms(tiles.OrClusters(tiles.Deepest(t, sharedBytes, 128)))
	},
	SharedBytes: sharedBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), c.Intermediate, c.Hidden, m.DHEpilogueClocks, t)
	},
}

func sharedBytes(p gemm.Tiling) int { return p.SharedBytes(epilogueBytes) }

// Kernel is the kernel of Product. Tuning compares the outputs of the kernels that read this
// kernel's results: dW2 shows A', dX and dW1 show dH, and dB1 shows the sums of dH's columns.
var Kernel = &registry.Kernel[Args]{KernelName: "dh", Of: Product, Backward: true,
	ShownBy: registry.Pass{Name: "backward", Backward: true, Outputs: []spec.TensorID{spec.TensorDX, spec.TensorDScores, spec.TensorDW1, spec.TensorDW2, spec.TensorDB1}},
	From:    registry.OfExperts,
	Emit: func(l registry.Layer) (*jit.Kernel[Args], error) {
		return DH{Config: l.Config, Tiling: l.Tiling(Product)}.Build()
	}}

// ColumnSumsOf returns the index in ColumnSums of the sums over [ColumnSumRows] rows of an expert.
// The first of these rows is the given packed row. The sums of an expert are consecutive, and
// precede those of the next expert.
func ColumnSumsOf(row, expert ptx.U32) ptx.U32 { return row.DivI(ColumnSumRows).Add(expert) }

// ColumnSumBytes returns the size of ColumnSums for a number of packed rows.
func ColumnSumBytes(c spec.Config, rows int) int64 {
	return 4 * int64(rows/ColumnSumRows+c.NumExperts) * int64(weights.DH(c).Elements())
}

// sumColumns sums the columns of a part of dH over the warp's rows. The part is in its slot. A lane
// gets the sum of one column in each half of the slot.
func (w warp) sumColumns(slot []ptx.Shared) (sums []ptx.F32) {
	// Rows past the expert's end may hold any value, also NaN.
	w.k.If(w.rows.LtI(warpRows), func() {
		for _, half := range slot {
			w.staging.ClearFrom(half, w.lane, w.rows)
		}
		w.sync()
	})
	for _, half := range slot {
		sums = append(sums, w.staging.ColumnSums(w.element, half, w.lane))
	}
	return sums
}

// tileColumns returns the number of columns of dH in a tile.
func (d DH) tileColumns() int { return d.HParts() * d.Tiling.TileN }

// shareColumnSums writes the warp's column sums to its slots, in the order of dH's columns: the
// gate columns of all parts, then their up columns. If gate and up are in pairs, the order is part
// by part.
func (w warp) shareColumnSums(sums [][]ptx.F32) {
	ofPart, ofHalf := partNeurons, w.Tiling.TileN
	if weights.InPairs(w.Config) {
		ofPart, ofHalf = 2*partNeurons, partNeurons
	}
	to := w.mine.Plus(w.lane.AndI(3).ShlI(3).Add(w.lane.ShrI(2)).ShlI(2))
	for part, halves := range sums {
		for i, sum := range halves {
			ptx.StShared(to.At(4*(part*ofPart+i*ofHalf)), sum)
		}
	}
}

// addColumnSums adds the column sums of the warps that have rows, in the order of the warps, and
// stores the results. A thread has every 128th column of the tile.
func (e *epilogue) addColumnSums(t gemm.Tile) {
	const threads, warps = pipeline.WarpgroupThreads, pipeline.WarpgroupThreads / 32
	width, aWidth := weights.DH(e.Config).Elements(), weights.A(e.Config).Elements()
	thread := e.k.TidX().AndI(threads - 1)
	from := e.slots.Plus(e.warpgroup().MulI(warps * warpBytes)).Plus(thread.ShlI(2))
	to := e.columnSums.Index(ColumnSumsOf(t.FirstRow, t.Expert), 4*width)
	for first := 0; first < e.tileColumns(); first += threads {
		sum := ptx.LdShared[ptx.F32](from.At(4 * first))
		for warp := 1; warp < warps; warp++ {
			has := t.ValidRows.GtI(warp * warpRows)
			v := ptx.LdShared[ptx.F32](from.Plus(ptx.Select(has, ptx.Uint(warp*warpBytes), ptx.Uint(0))).At(4 * first))
			sum = sum.Add(ptx.Select(has, v, ptx.Float(0)))
		}
		end, half, within := width, 0, first
		if !weights.InPairs(e.Config) {
			end, half, within = aWidth, first/e.Tiling.TileN, first%e.Tiling.TileN
		}
		column := e.column(t, 0).AddI(within).Add(thread)
		valid := ptx.True()
		if e.Intermediate%e.Tiling.TileN != 0 {
			valid = column.LtI(end)
		}
		e.k.Guarded(valid, func() { ptx.StGlobal(to.Index(column, 4).At(4*half*aWidth), sum) })
	}
}
