package kernel

import (
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

// Up is the up-projection: H = X[rows]·W1ᵀ + b1, and A, the activation of H, or
// with ScoreOnInput of H times the row's score. The rows of X are gathered as they are loaded; the activation and the stores of H
// and A run in the epilogue. One half of a tile's columns is gate, the other up,
// so that a thread holds both values of a neuron, whatever W1's layout; without
// a gate all columns are one. Where the two touch in memory columns are in that
// order, and a thread holds both as well.
type Up struct {
	spec.Config
	// SaveH stores H, which backward needs.
	SaveH  bool
	Tiling gemm.Tiling
}

// UpArgs are the arguments of [Up]. Tensors without another type are of the
// layer's.
type UpArgs struct {
	// X [T, d] are the tokens, Gather [R] u32 the token of each packed row.
	X      driver.DevicePtr
	Gather driver.DevicePtr
	// W1 [E, 2n, d] are the weights, as Config has them, W3 their other half.
	W1, W3 driver.DevicePtr
	// B1 and B3 are their biases, [E, rows of W1] and [E, rows of W3].
	B1, B3 driver.DevicePtr
	// Scores [T, K] f32, Pairs [R] u32 the index in it of each packed row: with
	// ScoreOnInput.
	Scores, Pairs driver.DevicePtr
	// A is written, as [weights.A] has it: the activation.
	A driver.DevicePtr
	// H [R, 2n] or [R, n] is written where SaveH is set: gate, then up.
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
	b.Halves = u.Activation.Gated() && !weights.InPairs(u.Config)
	w1 := []ptx.TensorMap{k.Map(&k.Args.W1, func(a *UpArgs) driver.TensorMap { return b.Map(a.W1) })}
	if b.Maps() > 1 {
		w1 = append(w1, k.Map(&k.Args.W3, func(a *UpArgs) driver.TensorMap { return b.Map(a.W3) }))
	}
	var b1 ptx.Global
	bias, rows := weights.B1(u.Config), []ptx.TensorMap(nil)
	columns := u.Tiling.TileN / bias.Parts
	switch {
	case u.Bias && bias.IsRows():
		rows = append(rows, k.Map(&k.Args.B1, func(a *UpArgs) driver.TensorMap { return bias.RowMap(a.B1, columns) }))
		if bias.Apart {
			rows = append(rows, k.Map(&k.Args.B3, func(a *UpArgs) driver.TensorMap { return bias.RowMap(a.B3, columns) }))
		}
	case u.Bias:
		b1 = k.Ptr(&k.Args.B1)
	}
	e := &upEpilogue{Up: u, k: k.Kernel, a: k.Map(&k.Args.A, u.aMap)}
	if u.SaveH {
		e.h = k.Map(&k.Args.H, u.hMap)
	}
	if u.ScoreOnInput {
		e.scores, e.pairs = k.Ptr(&k.Args.Scores), k.Ptr(&k.Args.Pairs)
	}
	cta := pipeline.NewCTA(k.Kernel)
	e.store = gemm.NewStore(k.Kernel, element.Of(u.Config), cta)
	p := gemm.New(k.Kernel, cta, k, &k.Args.TileArgs, gemm.Config{
		Tiling: u.Tiling, Element: element.Of(u.Config), KTiles: tile.Tiles(u.Hidden), Columns: (u.Intermediate + u.neurons() - 1) / u.neurons(),
		Gathered: true, BMN: b.MNMajor(), Row: rows != nil,
	})
	load := gemm.Gather{Product: p, X: x, Rows: gather, RowBytes: u.Hidden * tile.ElementBytes, LoadB: func(s pipeline.Stage, t schedule.Tile, kt ptx.U32) {
		b.Load(p, w1, s, t, func() ptx.U32 { return kt.MulI(tile.K) }, 0)
	}, LoadRow: func(to, full ptx.Shared, t schedule.Tile) {
		bias.LoadRow(k.Kernel, to, full, rows, t.Expert, t.Column.MulI(columns), columns)
	}}
	of := gemm.StoreOnly{Store: e.store, Each: e.tile}
	if u.ScoreOnInput {
		of.Load = func(t gemm.Tile) { e.loadScores(t, p.Fragment()) }
	}
	if u.Bias && rows == nil {
		of.Bias = func(t gemm.Tile) []ptx.F32 {
			return bias.Sums(b1, t.Expert, t.Column.MulI(columns), columns, p.Fragment())
		}
	}
	p.Run(load.Load, of)
	return k.Build()
}

// neurons are those of a tile.
func (u Up) neurons() int { return u.Tiling.TileN / u.HParts() }

// upEpilogue stores H and A.
type upEpilogue struct {
	Up
	k     *ptx.Kernel
	store *gemm.Store
	a, h  ptx.TensorMap
	// scores and pairs are there with ScoreOnInput, and then score those of the
	// thread's two rows.
	scores, pairs ptx.Global
	score         [2]ptx.F32
}

// loadScores loads the scores of the thread's rows.
func (e *upEpilogue) loadScores(t gemm.Tile, f tile.Fragment) {
	for h := range e.score {
		pair := ptx.LdGlobal[ptx.U32](e.pairs.Index(t.Row(f, h), 4))
		e.score[h] = ptx.LdGlobal[ptx.F32](e.scores.Index(pair, 4))
	}
}

// act is the activation of gate and up in a row of the thread's.
func (e *upEpilogue) act(gate, up ptx.F32, row int) ptx.F32 {
	if e.ScoreOnInput {
		gate, up = gate.Mul(e.score[row]), up.Mul(e.score[row])
	}
	return activation.Of(e.Config).Value(gate, up)
}

// inA is a value of A at a neuron so far beyond a column, where a multiple of 4
// are or are not: 0 past the last.
func (e *upEpilogue) inA(column ptx.U32, beyond int, value ptx.F32) ptx.F32 {
	if e.Intermediate%64 == 0 {
		return value
	}
	return ptx.Select(column.AddI(beyond).LtI(e.Intermediate), value, ptx.Float(0))
}

// saved is how many parts of H are stored.
func (e *upEpilogue) saved() int {
	if e.SaveH {
		return e.HParts()
	}
	return 0
}

// tile stores, for each 64 neurons, the parts of H and the A of them.
func (e *upEpilogue) tile(t gemm.Tile, acc []ptx.F32) {
	if weights.InPairs(e.Config) {
		e.pairTile(t, acc)
		return
	}
	neuron := t.Column.MulI(e.neurons())
	parts, saved := e.HParts(), e.saved()
	e.store.Tile(e.neurons()/64*(saved+1), func(i int) gemm.SubTile {
		group, kind := i/(saved+1), i%(saved+1)
		of := make([][]ptx.F32, parts)
		for part := range of {
			of[part] = acc[part*len(acc)/parts+32*group:][:32]
		}
		column := neuron.AddI(64 * group)
		if kind < saved {
			return gemm.SubTile{Value: gemm.Registers(of[kind]), To: e.h, At: func() []ptx.U32 { return t.Ragged(column, ptx.Uint(kind)) }}
		}
		return gemm.SubTile{Value: func(j int) ptx.F32 { return e.inA(column, j/4*8, e.act(of[0][j], of[parts-1][j], j/2%2)) }, To: e.a, At: func() []ptx.U32 { return t.Ragged(column) }}
	})
}

// pairTile is tile where a thread's neighbouring columns are gate and up.
func (e *upEpilogue) pairTile(t gemm.Tile, acc []ptx.F32) {
	neuron, saved := t.Column.MulI(e.neurons()), e.saved()
	e.store.Tile(e.neurons()/64*(saved+1), func(i int) gemm.SubTile {
		group, kind := i/(saved+1), i%(saved+1)
		column, pairs := neuron.AddI(64*group), acc[64*group:][:64]
		sub := gemm.SubTile{To: e.a, At: func() []ptx.U32 { return t.Ragged(column) }}
		value := func(at int) ptx.F32 {
			return e.inA(column, at/8*4, e.act(pairs[at], pairs[at+1], at/2%2))
		}
		if kind < saved {
			sub.To, sub.At = e.h, func() []ptx.U32 { return t.Ragged(column, ptx.Uint(kind)) }
			value = func(at int) ptx.F32 { return pairs[at+kind] }
		}
		sub.Pair = func(i int) ptx.U32 {
			at := i/2*8 + i%2*2 // of the first; the second is 8 columns further
			return e.swapQuads(value(at), value(at+4))
		}
		return sub
	})
}

// swapQuads gives thread q of a quad the values of neurons 2q and 2q + 1, of
// threads that have q and 4 + q: threads change one of theirs with their
// neighbour, and the middle two then both.
func (e *upEpilogue) swapQuads(first, second ptx.F32) ptx.U32 {
	thread := e.k.TidX()
	odd, middle := thread.AndI(1).NeI(0), thread.AddI(1).AndI(2).NeI(0)
	got := ptx.Select(odd, first, second).Bits().ShflXor(1).AsF32()
	word := element.Of(e.Config).Pack(e.k, ptx.Select(odd, got, first), ptx.Select(odd, second, got))
	return ptx.Select(middle, word.ShflXor(3), word)
}

// hMap stores clipped boxes of a part of H: dimensions neuron, part, and rows as
// in [tile.RaggedMap].
func (u Up) hMap(a *UpArgs) driver.TensorMap {
	n, width := u.Intermediate, u.HWidth()
	return tile.Map(a.H-tile.RaggedBase(width), []int{64, 1, tile.RaggedRows, 1},
		tile.Dim{Extent: n, Stride: 1}, tile.Dim{Extent: u.HParts(), Stride: n}, tile.Dim{Extent: tile.RaggedRows, Stride: width}, tile.Dim{Extent: a.Rows + 1, Stride: width})
}

// aMap stores clipped boxes of A.
func (u Up) aMap(a *UpArgs) driver.TensorMap {
	return tile.RaggedMap(a.A, weights.A(u.Config).Elements(), a.Rows)
}

// UpProduct is the up-projection. Half of a tile's columns is gate, half up,
// stored 64 at a time. Clusters cost nothing here, and where the weights of the
// experts at work don't fit the L2 cache they gain 16 %.
var UpProduct = &registry.Product{
	Name: "up",
	Space: func(t driver.Target) []gemm.Tiling {
		return tiles.InClusters(tiles.Deepest(t, registry.RowStoreBytes, 256, 128))
	},
	SharedBytes: registry.RowStoreBytes,
	Clocks: func(m tiles.Model, p gemm.Tiling, c spec.Config, t driver.Target) float64 {
		return m.Grouped(p, registry.EvenLoad(c), c.HWidth(), c.Hidden, m.UpEpilogueClocks, t)
	},
	Work: spec.Config.UpWork,
}

// UpKernel is for passes that keep H, UpInferenceKernel for those that don't.
var (
	UpKernel = &registry.Kernel[UpArgs]{KernelName: "up", Of: UpProduct, ShownBy: registry.Training,
		From: registry.OfExperts,
		Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) { return upOf(l, true).Build() }}
	UpInferenceKernel = &registry.Kernel[UpArgs]{KernelName: "up-inference", Of: UpProduct, ShownBy: registry.Inference, Roofline: upInferenceWork,
		From: registry.OfExperts,
		Emit: func(l registry.Layer) (*jit.Kernel[UpArgs], error) { return upOf(l, false).Build() }}
)

func upInferenceWork(c spec.Config, tokens int) []spec.Work {
	return []spec.Work{c.UpInferenceWork(tokens)}
}

func upOf(l registry.Layer, saveH bool) Up {
	return Up{Config: l.Config, SaveH: saveH, Tiling: l.Tiling(UpProduct)}
}
