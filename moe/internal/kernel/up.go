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
	"sonicmoe/moe/activation"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/moe/internal/tiles"
	"sonicmoe/moe/internal/weights"
	"sonicmoe/ptx"
)

// Up is the up-projection: H = X[rows]·W1ᵀ + b1, plus U·B1ᵀ with LoRA, and A, the activation of H.
// With ScoreOnInput, A is the activation of H times the row's score. The load role gathers the rows
// of X. The epilogue computes the activation and stores H and A, so one thread must have gate and
// up of a neuron. Usually one half of a tile's columns is gate and the other half is up, whatever
// the layout of W1. If gate and up of a neuron are neighbours in memory (see [weights.InPairs]),
// they are neighbouring columns of the tile. Without a gate, all columns are one part.
type Up struct {
	spec.Config
	// SaveH stores H for the backward pass.
	SaveH bool
	// Beside means that Unpack writes the values of packed weights while Up runs.
	Beside bool
	Tiling gemm.Tiling
}

// UpArgs are the arguments of [Up]. Tensors without a stated type have the layer's
// element type.
type UpArgs struct {
	// X [T, d] are the tokens. Gather [R] u32 is the token of each packed row.
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// W1 [E, 2n, d] are the weights, in the layout of Config. If gate and up are separate tensors,
	// W3 is up's half.
	W1, W3 driver.DevicePtr
	// B1 and B3 are the biases, [E, rows of W1] and [E, rows of W3].
	B1, B3 driver.DevicePtr
	// With LoRA, U has the results of [LoRA], and LoraB1 [E, rows of W1, r] and LoraB3 [E, rows of
	// W3, r] are the second factors.
	U, LoraB1, LoraB3 driver.DevicePtr
	// With ScoreOnInput, Scores [T, K] f32 are the scores, and Pairs [R] u32 is the index
	// in Scores of each packed row.
	Scores, Pairs driver.DevicePtr
	// A is an output: the activation, in the layout of [weights.A].
	A driver.DevicePtr
	// With SaveH, H is an output: [R, 2n] (gate, then up), or [R, n] without a gate.
	H driver.DevicePtr
	// With Beside, Ready [E] u32 counts the parts of W1 and W3 that Unpack has written.
	Ready driver.DevicePtr
	// Rows is R.
	Rows int
	gemm.TileArgs
}

// Build emits the kernel.
func (u Up) Build() (*jit.Kernel[UpArgs], error) {
	k := jit.NewBuilder[UpArgs](u.name(), gemm.Threads, 1)
	k.Persistent(u.Tiling.ClusterM)
	if u.Beside {
		k.SetMaxRegisters(besideUpRegisters)
	}

	// Operands.
	in, out := u.operands(k), u.outputs(k)

	// Ring "ab" holds stages of X and W1, and a queue holds the tiles.
	cta := pipeline.NewCTA(k.Kernel)
	store := gemm.NewStore(k.Kernel, element.Of(u.Config), cta)
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: u.Tiling, Element: element.Of(u.Config), KTiles: tile.Tiles(u.Hidden), Columns: (u.Intermediate + u.neurons() - 1) / u.neurons(),
		Gathered: true, BMN: in.w.MNMajor(), Start: in.b1, Await: in.await,
	})

	// Roles.
	p.Run(gemm.Roles{
		Load: p.Gather(in.x, func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
			in.w.Load(p, in.w1, s, t, func() ptx.U32 { return kt.MulI(tile.K) }, 0)
		}),
		Math:  upEpilogue{Up: u, Store: store, k: k.Kernel, upOutputs: out}, // the epilogue computes A = act(H) and stores H and A
		Extra: in.adapter,
	})
	return k.Build()
}

// name returns the name of the kernel's entry, which errors show.
func (u Up) name() string {
	switch {
	case u.Beside:
		return "moe_up_beside"
	case !u.SaveH:
		return "moe_up_inference"
	}
	return "moe_up"
}

// upOperands are the operands of the product.
type upOperands struct {
	x  gemm.Rows
	w  weights.B
	w1 []ptx.TensorMap // one map, or two maps for gate and for up
	b1 gemm.Start
	// adapter has the operands of the adapter's second factor.
	adapter gemm.Extra
	await   *gemm.Await
}

func (u Up) operands(k *jit.Builder[UpArgs]) (in upOperands) {
	in.x = gemm.Rows{X: k.Ptr(&k.Args.X), Gather: k.Ptr(&k.Args.Gather), RowBytes: u.Hidden * tile.ElementBytes}
	w := weights.W1(u.Config).Forward(u.Tiling)
	w.Halves = u.Activation.Gated() && !weights.InPairs(u.Config)
	in.w = w
	in.w1 = []ptx.TensorMap{k.Map(&k.Args.W1, func(a *UpArgs) gpu.TensorMap { return w.Map(a.W1) })}
	if w.Maps() > 1 {
		in.w1 = append(in.w1, k.Map(&k.Args.W3, func(a *UpArgs) gpu.TensorMap { return w.Map(a.W3) }))
	}
	in.b1 = u.bias(k)
	in.adapter = u.adapter(k, w.Halves)
	if u.Beside {
		in.await = &gemm.Await{Ready: k.Ptr(&k.Args.Ready), Parts: upParts(u.Config)}
	}
	return in
}

// adapter returns the operands of the adapter's second factor. halves is [weights.B.Halves] of W1.
func (u Up) adapter(k *jit.Builder[UpArgs], halves bool) (none gemm.Extra) {
	if !spec.HasLoRA(u.Config) {
		return none
	}
	b := weights.LoraB1(u.Config).Forward(u.Tiling)
	b.Halves = halves
	of := k.Map(&k.Args.U, func(a *UpArgs) gpu.TensorMap { return weights.UMap(u.Config, a.U, a.Rows) })
	b1 := []ptx.TensorMap{k.Map(&k.Args.LoraB1, func(a *UpArgs) gpu.TensorMap { return b.Map(a.LoraB1) })}
	if b.Maps() > 1 {
		b1 = append(b1, k.Map(&k.Args.LoraB3, func(a *UpArgs) gpu.TensorMap { return b.Map(a.LoraB3) }))
	}
	return weights.Adapter(u.Config, of, b, b1)
}

// bias returns the initial values of the sums: the biases in the columns of a tile.
func (u Up) bias(k *jit.Builder[UpArgs]) gemm.Start {
	if !u.Bias {
		return gemm.NoBias
	}
	bias := weights.B1(u.Config)
	columns := u.Tiling.TileN / bias.Parts // number of columns of each part
	if !bias.IsRows() {
		b1 := k.Ptr(&k.Args.B1)
		return gemm.FromRegisters(func(t gemm.Tile) []ptx.F32 {
			return bias.Sums(b1, t.Expert, t.Column.MulI(columns), columns, t.Fragment())
		})
	}
	rows := []ptx.TensorMap{k.Map(&k.Args.B1, func(a *UpArgs) gpu.TensorMap { return bias.RowMap(a.B1, columns) })}
	if bias.Apart {
		rows = append(rows, k.Map(&k.Args.B3, func(a *UpArgs) gpu.TensorMap { return bias.RowMap(a.B3, columns) }))
	}
	return gemm.FromRow(func(to, full ptx.Shared, t schedule.Tile) {
		bias.LoadRow(k.Kernel, to, full, rows, t.Expert, t.Column.MulI(columns), columns)
	})
}

// upOutputs are the tensors of the epilogue.
type upOutputs struct {
	a, h ptx.TensorMap
	// With ScoreOnInput the epilogue reads scores and pairs.
	scores, pairs ptx.Global
}

func (u Up) outputs(k *jit.Builder[UpArgs]) (out upOutputs) {
	out.a = k.Map(&k.Args.A, u.aMap)
	if u.SaveH {
		out.h = k.Map(&k.Args.H, u.hMap)
	}
	if u.ScoreOnInput {
		out.scores, out.pairs = k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.Pairs)
	}
	return out
}

// neurons returns the number of neurons in a tile.
func (u Up) neurons() int { return u.Tiling.TileN / u.HParts() }

// upEpilogue is the epilogue, which stores H and A.
type upEpilogue struct {
	Up
	*gemm.Store
	gemm.NoPerKTile
	k *ptx.Kernel
	upOutputs
}

// UnderLastMMA implements gemm.Epilogue.
func (e upEpilogue) UnderLastMMA(t gemm.Tile) func(acc []ptx.F32) {
	scores := e.loadScores(t)
	return func(acc []ptx.F32) {
		if weights.InPairs(e.Config) {
			e.storePairs(t, acc, scores)
		} else {
			e.storeHalves(t, acc, scores)
		}
	}
}

// rowScores are the scores of the thread's two rows, with ScoreOnInput.
type rowScores [2]ptx.F32

// loadScores loads the scores of the thread's rows.
func (e upEpilogue) loadScores(t gemm.Tile) (scores rowScores) {
	if !e.ScoreOnInput {
		return scores
	}
	f := t.Fragment()
	for h := range scores {
		pair := ptx.LdGlobal[ptx.U32](e.pairs.Index(t.Row(f, h), 4))
		scores[h] = ptx.LdGlobal[ptx.F32](e.scores.Index(pair, 4))
	}
	return scores
}

// act returns the activation of gate and up in the thread's row h.
func (e upEpilogue) act(gate, up ptx.F32, scores rowScores, h int) ptx.F32 {
	if e.ScoreOnInput {
		gate, up = gate.Mul(scores[h]), up.Mul(scores[h])
	}
	return activation.Of(e.Config).Value(gate, up)
}

// inA returns value, or 0 if the neuron at column + offset is past the last neuron. A caller may
// give the offset of the value's group of 4 or 8 neurons instead of the value's own offset, because
// the number of neurons is a multiple of 16.
func (e upEpilogue) inA(column ptx.U32, offset int, value ptx.F32) ptx.F32 {
	if e.Intermediate%gemm.SubTileColumns == 0 {
		return value
	}
	return ptx.Select(column.AddI(offset).LtI(e.Intermediate), value, ptx.Float(0))
}

// saved returns the number of parts of H that are stored.
func (e upEpilogue) saved() int {
	if e.SaveH {
		return e.HParts()
	}
	return 0
}

// eachSubTile stores the parts of H and then A, for each group of 64 neurons. The function build
// returns one sub-tile of the group whose first neuron is column: part number kind of H if kind is
// less than saved(), else A.
func (e upEpilogue) eachSubTile(t gemm.Tile, build func(group, kind int, column ptx.U32) gemm.SubTile) {
	neuron, kinds := t.Column.MulI(e.neurons()), e.saved()+1
	e.Tile(e.neurons()/gemm.SubTileColumns*kinds, func(i int) gemm.SubTile {
		group, kind := i/kinds, i%kinds
		column := neuron.AddI(gemm.SubTileColumns * group)
		sub := build(group, kind, column)
		sub.To, sub.At = e.a, func() []ptx.U32 { return t.Ragged(column) }
		if kind < e.saved() {
			sub.To, sub.At = e.h, func() []ptx.U32 { return t.Ragged(column, ptx.Uint(kind)) }
		}
		return sub
	})
}

// storeHalves stores a tile whose halves are gate and up, or that has only one part.
func (e upEpilogue) storeHalves(t gemm.Tile, acc []ptx.F32, scores rowScores) {
	e.eachSubTile(t, func(group, kind int, column ptx.U32) gemm.SubTile {
		parts := make([][]ptx.F32, e.HParts())
		for part := range parts {
			parts[part] = gemm.OfSubTile(acc[part*len(acc)/len(parts):], group)
		}
		if kind < e.saved() {
			return gemm.SubTile{Values: gemm.Registers(parts[kind])}
		}
		gate, up := parts[0], parts[len(parts)-1]
		return gemm.SubTile{Values: gemm.Computed(func(j int) ptx.F32 {
			h := j / 2 % 2
			return e.inA(column, j/4*8, e.act(gate[j], up[j], scores, h))
		})}
	})
}

// storePairs stores a tile whose neighbouring columns are gate and up.
func (e upEpilogue) storePairs(t gemm.Tile, acc []ptx.F32, scores rowScores) {
	e.eachSubTile(t, func(group, kind int, column ptx.U32) gemm.SubTile {
		pairs := acc[2*gemm.SubTileRegisters*group:][:2*gemm.SubTileRegisters]
		value := func(at int) ptx.F32 {
			h := at / 2 % 2
			return e.inA(column, at/8*4, e.act(pairs[at], pairs[at+1], scores, h))
		}
		if kind < e.saved() {
			value = func(at int) ptx.F32 { return pairs[at+kind] }
		}
		return gemm.SubTile{Values: gemm.Packed(func(i int) ptx.U32 {
			at := i/2*8 + i%2*2 // first column of a pair; its second column is 8 further
			return e.swapQuads(value(at), value(at+4))
		})}
	})
}

// swapQuads reorders the values of A in a quad of threads, from the order of H's columns to the
// order of A's. Thread q of a quad has the values of neurons q and 4 + q, and gets the packed values
// of neurons 2q and 2q + 1. Neighbours first exchange one value each. Then the two threads in the
// middle exchange their words.
func (e upEpilogue) swapQuads(first, second ptx.F32) ptx.U32 {
	thread := e.k.TidX()
	odd, middle := thread.AndI(1).NeI(0), thread.AddI(1).AndI(2).NeI(0)
	got := ptx.Select(odd, first, second).Bits().ShflXor(1).AsF32()
	word := element.Of(e.Config).Pack(e.k, ptx.Select(odd, got, first), ptx.Select(odd, second, got))
	return ptx.Select(middle, word.ShflXor(3), word)
}

// hMap returns the map of one part of H, clipped to the expert's rows. Its dimensions are
// neuron, part, and the two row dimensions of [tile.RaggedMap].
func (u Up) hMap(a *UpArgs) gpu.TensorMap {
	n, width := u.Intermediate, u.HWidth()
	return tile.Map(a.H-tile.RaggedBase(width), []int{gemm.SubTileColumns, 1, tile.RaggedRows, 1},
		tile.Dim{Extent: n, Stride: 1}, tile.Dim{Extent: u.HParts(), Stride: n}, tile.Dim{Extent: tile.RaggedRows, Stride: width}, tile.Dim{Extent: a.Rows + 1, Stride: width})
}

// aMap returns the map of A, clipped to the expert's rows.
func (u Up) aMap(a *UpArgs) gpu.TensorMap {
	return tile.RaggedMap(a.A, weights.A(u.Config).Elements(), a.Rows)
}

// UpProduct is the up-projection. It always runs in clusters. They cost nothing in the
// up-projection, and help most if the L2 cache cannot hold the weights of the experts in
// progress.
var UpProduct = &registry.Product{
	ID: spec.ProductUp,
	Space: func(t driver.Target) []gemm.Tiling {
		return tiles.InClusters(tiles.Deepest(t, registry.RowStoreBytes, 256, 128))
	},
	SharedBytes: registry.RowStoreBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), c.HWidth(), c.Hidden, m.UpEpilogueClocks, t)
	},
}

// UpKernel saves H for the backward pass. UpInferenceKernel does not save it, and neither does
// UpBesideKernel, which runs next to Unpack.
var (
	UpKernel = &registry.Kernel[UpArgs]{KernelName: "up", Of: UpProduct, ShownBy: registry.Training,
		From: registry.OfExperts,
		Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) { return upOf(l, true).Build() }}
	UpInferenceKernel = &registry.Kernel[UpArgs]{KernelName: "up-inference", Of: UpProduct, ShownBy: registry.Inference, Roofline: registry.Works{spec.UpInferenceWork},
		From: registry.OfExperts,
		Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) { return upOf(l, false).Build() }}
	UpBesideKernel = &registry.Kernel[UpArgs]{KernelName: "up-beside", Of: UpProduct, ShownBy: registry.Inference, Only: HasBeside, Roofline: registry.Works{spec.UpInferenceWork},
		From: func(c spec.Config) spec.Config {
			of := registry.OfExperts(c)
			of.Weights = c.Weights
			return of
		},
		Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) {
			up := upOf(l, false)
			up.Beside = true
			return up.Build()
		}}
)

// besideExperts is the most experts of a layer whose Up runs next to Unpack: the list of Unpack takes
// shared memory that Up leaves.
const besideExperts = 384

// HasBeside reports whether a layer's Up can run next to Unpack. Rows of biases take the shared memory
// that Unpack needs. The kernels of an adapter would run between the two, or need H.
func HasBeside(c spec.Config) bool {
	return spec.IsPacked(c) && !c.Bias && c.LoRARank == 0 && c.NumExperts <= besideExperts
}

func upOf(l registry.Layer, saveH bool) Up {
	return Up{Config: l.Config, SaveH: saveH, Tiling: l.Tiling(UpProduct)}
}
