package dw

import (
	"sonicmoe/internal/spec"
	"sonicmoe/jit"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/schedule"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/gradient"
	"sonicmoe/moe/internal/registry"
	"sonicmoe/ptx"
)

// Both is the gradient of a second factor of an adapter, together with the product of the same rows
// with the factor. The rows are read once. U are rows of the adapter's product with the first factor:
//
//	B1  dB1[e] [2n, r] = Σ_p dH[p]ᵀ·U[p]          V[p] = c·dH[p]·B1[e]
//	B2  dB2[e] [d, r]  = Σ_p dO[gather[p]]ᵀ·U[p]  V[p] = c·dO[gather[p]]·B2[e]
//
// The kernel computes the gradient as [DW] does, with U as the rows of X. The first 64 lines hold the
// whole rank. The first math warpgroup computes them, and the second one, which has no lines, computes
// V. A tile has TileN columns of the rows, over which V sums in FP32. The kernel writes these sums for
// each block of TileN columns, and the kernel Sum adds them in the order of the columns.
type Both struct {
	DW
	// Gathers means that the kernel gathers the rows by token. Otherwise the rows are packed.
	Gathers bool
	// Alone means that there is no product. The tensors then have the roles that they have in [DW]: the
	// rows are the gathered rows of X, and U is the packed rows.
	Alone bool
}

const (
	// productWidth is the number of columns of V: one step of wgmma.
	productWidth = 16
	// productStages is the number of stages. A stage has 64 rows: their columns of U, then TileN
	// columns of the rows.
	productStages = 4
	// factorBlockBytes is the size of 64 lines of the factor in shared memory: a K-major tile.
	factorBlockBytes = productWidth * tile.RowBytes
)

// bothTiling is the tiling of these kernels.
var bothTiling = gemm.Tiling{TileN: 256, Stages: productStages, GroupM: 1, ClusterM: 1}

// Blocks returns the number of blocks of columns.
func (b Both) Blocks() int { return b.Tiling.Columns(b.width()) }

// SumsBytes returns the size of the sums of a number of rows. Sums is [Blocks, R, 16] f32.
func (b Both) SumsBytes(rows int) int64 {
	return int64(b.Blocks()) * int64(rows) * productWidth * 4
}

// Build emits the kernel.
func (b Both) Build() (*jit.Kernel[Args], error) {
	name := "moe_lora_both_" + b.Factor + b.Store.Suffix()
	if b.Alone {
		name = b.name()
	}
	k := jit.NewBuilder[Args](name, gemm.Threads, 1)
	k.Persistent(1)

	// Operands.
	in, out := b.bothOperands(k), b.gradient(k)
	work, partial := b.items(k), b.partials(k)
	factor := b.factorPlace(k)
	tid := k.TidX()

	// Ring "ab" holds stages of U and of the rows, and a queue holds the items of work.
	cta := pipeline.NewCTA(k.Kernel)
	store := b.newStore(k.Kernel, cta)
	if !b.Alone {
		factor.memory = cta.Shared("factor", b.Tiling.TileN/tile.K*factorBlockBytes, 1024)
	}
	const loadWarps, bytesOfB = pipeline.WarpgroupThreads / 32, 1
	ring := cta.Ring("ab", productStages, tile.BlockBytes+b.Tiling.TileBBytes(), pipeline.WarpgroupThreads+bytesOfB, gemm.MathWarps)
	queue := schedule.NewQueue[item](k.Kernel, cta, itemWords, gemm.MathWarps+loadWarps, 1)
	cta.Ready(tid)
	k.GridDepWait()
	k.GridDepLaunch()

	shared := role{DW: b.DW, k: k.Kernel, ring: ring, queue: queue, bytesOfA: tile.BlockBytes}
	gemm.RunRoles(k.Kernel, tid,
		bothMath{mathRole{role: shared, store: store, gradient: out, partials: partial}, factor, b.Alone}.run,
		bothLoad{loadRole{role: shared, operands: in, items: work}, b.Gathers}.run)
	return k.Build()
}

func (b Both) bothOperands(k *jit.Builder[Args]) operands {
	u, rows := &k.Args.X, &k.Args.PackedRows
	if b.Alone {
		u, rows = rows, u
	}
	of := operands{x: k.Ptr(u), rows: k.Ptr(rows)}
	if b.Gathers {
		of.gather = k.Ptr(&k.Args.Gather)
	} else {
		of.packedMap = k.Map(&k.Args.PackedRows, b.rowsMap)
	}
	return of
}

// bothLoad fills the ring.
type bothLoad struct {
	loadRole
	gathers bool
}

// run emits the role.
func (e bothLoad) run() {
	k := e.k
	thread := k.ThreadInWarpgroup()
	elected := k.ElectOne().And(thread.LtI(32))
	at := e.ring.Producer()
	var publisher *publisher
	k.If(elected, func() { publisher = e.items.publisher(e.queue) })
	copier := tile.NewRowCopy(k, thread, tile.LanesOfRow)
	wide := e.newWideGather(thread)
	e.queue.Reader(ptx.LaneOf(thread).EqI(0)).Each(func(t item) {
		k.If(elected, publisher.publish)
		wide.start(t)
		steps := kTiles(t)
		k.For(ptx.Uint(0), steps, ptx.Uint(1), func(kt ptx.U32) {
			token := wide.next(t, kt)
			s := at.Acquire()
			left := t.rows.Sub(kt.MulI(tile.K))
			if e.gathers {
				k.If(elected, func() { k.MbarrierArrive(s.Full) })
				wide.copy(s, token, left)
			} else {
				k.IfElse(left.GeI(tile.K), func() {
					k.If(elected, func() {
						k.MbarrierArriveExpectTx(s.Full, ptx.Uint(e.Tiling.TileBBytes()))
						e.rowsAtoms().Load(k, s.Data.At(e.bytesOfA), e.packedMap, s.Full, t.row.Add(kt.MulI(tile.K)), t.n)
					})
				}, func() {
					k.If(elected, func() { k.MbarrierArrive(s.Full) })
					e.copyTail(s, t, kt, left, thread)
				})
			}
			e.copyU(copier, s, t, kt, left)
			k.CpAsyncMbarrierArriveNoInc(s.Full)
			at.Advance()
			k.If(elected.And(kt.LeI(2)), func() { publisher.within(kt, steps) })
		})
	})
}

// copyU copies U's rows of a step. Columns past the rank, and rows past the split's end, become 0.
func (e bothLoad) copyU(c tile.RowCopy, s pipeline.Stage, t item, kt, left ptx.U32) {
	const rowsOfPass = pipeline.WarpgroupThreads / tile.LanesOfRow
	column := c.Chunk.LtI(e.Hidden / tile.CopyElements)
	chunk := ptx.Select(column, c.Chunk, ptx.Uint(0))
	for i := range tile.K / rowsOfPass {
		row := c.Row().AddI(i * rowsOfPass)
		there := row.Lt(left)
		src := e.x.Index(t.row.Add(kt.MulI(tile.K)).Add(ptx.Select(there, row, ptx.Uint(0))), e.Hidden*tile.ElementBytes).Index(chunk, tile.CopyBytes)
		c.Copy(s.Data.Plus(c.Swizzled(row)), src, tile.BytesIf(there.And(column)))
	}
}

// wideGather is a thread's part in gathering TileN columns of 64 rows: one chunk of every fourth row.
// The 32 threads of a warp copy a row at a time. Half of the lanes load the tokens of the warp's rows,
// one step ahead.
type wideGather struct {
	bothLoad
	tile.RowCopy
	warp, lane ptx.U32
	token      *ptx.Var[ptx.U32]
	from       *ptx.Var[ptx.U64]
	bytes      *ptx.Var[ptx.U32]
}

// wideRows is the number of rows of which a thread copies chunks.
const wideRows = tile.K / 4

// newWideGather returns nil if the rows are packed.
func (e bothLoad) newWideGather(thread ptx.U32) *wideGather {
	if !e.gathers {
		return nil
	}
	k := e.k
	return &wideGather{bothLoad: e, RowCopy: tile.NewRowCopy(k, thread, e.Tiling.TileN/tile.CopyElements), warp: ptx.WarpOf(thread), lane: ptx.LaneOf(thread),
		token: ptx.NewVar(k, ptx.Uint(0)), from: ptx.NewVar(k, e.rows.Addr()), bytes: ptx.NewVar(k, ptx.Uint(tile.CopyBytes))}
}

// start prepares the loads of an item.
func (g *wideGather) start(t item) {
	if g == nil {
		return
	}
	column := t.n.Add(g.Chunk.MulI(tile.CopyElements))
	inside := column.LtI(g.neurons())
	g.bytes.Set(tile.BytesIf(inside))
	g.from.Set(g.rows.Index(ptx.Select(inside, column, ptx.Uint(0)), tile.ElementBytes).Addr())
	g.fetch(t, ptx.Uint(0))
}

// fetch loads the lane's token for step kt. Past the split's end the token is 0.
func (g *wideGather) fetch(t item, kt ptx.U32) {
	row := kt.MulI(tile.K).Add(g.lane.AndI(wideRows - 1).MulI(4)).Add(g.warp)
	g.token.Set(ptx.Uint(0))
	g.bothLoad.k.If(row.Lt(t.rows), func() {
		g.token.Set(ptx.LdGlobal[ptx.U32](g.gather.Index(t.row.Add(row), 4), ".nc"))
	})
}

// next returns the lane's token for step kt, and loads its token of the step after it.
func (g *wideGather) next(t item, kt ptx.U32) ptx.U32 {
	if g == nil {
		return ptx.U32{}
	}
	token := g.token.Copy()
	g.fetch(t, kt.AddI(1))
	return token
}

// copy starts the copies of the first `rows` rows of the step, and fills the other rows with zeros.
func (g *wideGather) copy(s pipeline.Stage, token, rows ptx.U32) {
	to := []ptx.Shared{s.Data.At(g.bytesOfA).Plus(g.Swizzled(g.warp)), s.Data.At(g.bytesOfA).Plus(g.Swizzled(g.warp.AddI(4)))}
	for i := range wideRows {
		src := ptx.GlobalAt(g.from.Get()).Index(token.ShflIdx(ptx.Uint(i)), g.neurons()*tile.ElementBytes)
		g.Copy(to[i%2].At(i/2*8*tile.RowBytes), src, ptx.Select(g.warp.AddI(4*i).Lt(rows), g.bytes.Get(), ptx.Uint(0)))
	}
}

// factorPlace is the factor, in memory and in shared memory, and the sums of the product.
type factorPlace struct {
	tensors []ptx.Global
	memory  ptx.Shared
	sums    ptx.Global
	rows    ptx.U32
}

func (b Both) factorPlace(k *jit.Builder[Args]) (f factorPlace) {
	if b.Alone {
		return f
	}
	f.tensors, f.sums, f.rows = []ptx.Global{k.Ptr(&k.Args.Factor)}, k.Ptr(&k.Args.Sums), k.U32(&k.Args.Rows)
	if m, _, _ := b.matrix(); m.Apart {
		f.tensors = append(f.tensors, k.Ptr(&k.Args.Factor3))
	}
	return f
}

// bothMath has the gradient in its first warpgroup, and the product in its second.
type bothMath struct {
	mathRole
	factor factorPlace
	alone  bool
}

// run emits the role.
func (e bothMath) run() {
	k := e.k
	wg, lane := k.Warpgroup(), k.Lane()
	acc, sums := k.Accumulators(e.Tiling.TileN/2), k.Accumulators(productWidth/2)
	loop := gemm.MainLoop{K: k, Ring: e.ring.Consumer(), Release: pipeline.NewReleaser(k, lane, 1)}
	e.queue.Reader(lane.EqI(0)).Each(func(t item) {
		k.IfElse(wg.EqI(0), func() {
			e.multiply(loop, t, wg, func(ptx.U32) {}, acc)
			last := e.join(t, wg, acc)
			k.If(last, func() { e.write(t, t.m, acc) })
		}, func() {
			if e.alone {
				loop.Drain(kTiles(t))
				return
			}
			e.loadFactor(t, wg)
			k.Range(kTiles(t), func(kt ptx.U32) { e.product(loop, t, kt, sums) })
		})
	})
	e.store.Finish()
}

// product multiplies the 64 rows of a step with the factor's lines of the tile's columns, and writes
// the sums.
func (e bothMath) product(loop gemm.MainLoop, t item, kt ptx.U32, acc []ptx.F32) {
	k := e.k
	s := loop.Ring.Wait()
	k.FenceProxyAsync(".shared::cta")
	k.WgmmaFence()
	for i := range e.Tiling.TileN / tile.KStep {
		block, step := i/(tile.K/tile.KStep), i%(tile.K/tile.KStep)
		keep := ptx.True()
		if i == 0 {
			keep = ptx.False()
		}
		rows, lines := tile.NewDescriptor(k, s.Data.At(e.bytesOfA+block*tile.BlockBytes)), tile.NewDescriptor(k, e.factor.memory.At(block*factorBlockBytes))
		element.Of(e.Config).Wgmma(k, acc, rows.Step(step, 0), lines.Step(step, 0), keep, false, false)
	}
	k.WgmmaCommit()
	k.WgmmaWait(0)
	loop.Release.Release(s, ptx.True())
	loop.Ring.Advance()
	f := tile.NewFragment(k.ThreadInWarpgroup())
	first := t.n.DivI(e.Tiling.TileN).Mul(e.factor.rows).Add(t.row)
	for h := range 2 {
		row := kt.MulI(tile.K).Add(f.Row).AddI(8 * h)
		k.If(row.Lt(t.rows), func() {
			at := e.factor.sums.Index(first.Add(row), productWidth*4).Index(f.Column, 4)
			for j := range productWidth / 8 {
				ptx.StGlobal(at.At(8*j*4), acc[4*j+2*h], acc[4*j+2*h+1])
			}
		})
	}
}

// loadFactor brings the factor's lines of the tile's columns to shared memory, as K-major tiles of 16
// rows. Each thread loads whole lines.
func (e bothMath) loadFactor(t item, wg ptx.U32) {
	k := e.k
	thread := k.ThreadInWarpgroup()
	e.store.SyncWarpgroup(wg) // all warps have multiplied with the tiles of the item before
	for first := 0; first < e.Tiling.TileN; first += pipeline.WarpgroupThreads {
		line := thread.AddI(first)
		for r, x := range e.factorLine(t, t.n.Add(line)) {
			in := line.RemI(tile.K)
			to := e.factor.memory.Plus(line.DivI(tile.K).MulI(factorBlockBytes)).Plus(tile.Swizzled(ptx.Uint(r), in.DivI(tile.CopyElements))).Plus(in.RemI(tile.CopyElements).MulI(tile.ElementBytes))
			ptx.StShared(to, x)
		}
	}
	k.FenceProxyAsync(".shared::cta")
	e.store.SyncWarpgroup(wg)
}

// factorLine loads the line of the factor for a column of the rows: 16 values, with zeros past the
// rank. A column past the end of its part has zeros.
func (e bothMath) factorLine(t item, column ptx.U32) (values []ptx.B16) {
	of, ranks, lines := e.matrix()
	neuron, part := e.neuron(column)
	inside := column.LtI(e.width()).And(neuron.LtI(e.neurons()))
	tensor := e.factor.tensors[0]
	if of.Apart {
		tensor = ptx.GlobalAt(ptx.Select(part.EqI(0), tensor.Addr(), e.factor.tensors[1].Addr()))
		part, of.Part.Stride = ptx.Uint(0), 0
	}
	at := tensor.Index(ptx.Select(inside, t.expert.MulI(of.Expert.Stride).Add(part.MulI(of.Part.Stride)).Add(neuron.MulI(lines.Stride)), ptx.Uint(0)), tile.ElementBytes)
	zero := ptx.Uint(0)
	if ranks.Stride == 1 {
		for r := 0; r < e.Hidden; r += tile.CopyElements {
			for _, word := range ptx.LdGlobalVec[ptx.U32](at.At(r*tile.ElementBytes), 4, ".nc") {
				word = ptx.Select(inside, word, zero)
				values = append(values, word.B16(), word.ShrI(16).B16())
			}
		}
	} else {
		for r := range e.Hidden {
			word := ptx.LdGlobal[ptx.B16](at.At(r*ranks.Stride*tile.ElementBytes), ".nc").U32()
			values = append(values, ptx.Select(inside, word, zero).B16())
		}
	}
	for len(values) < productWidth {
		values = append(values, zero.B16())
	}
	return values
}

// BothB1 returns the kernel of a layer for its factor B1.
func BothB1(c spec.Config, g gradient.Mode) Both {
	return Both{DW: DW{Config: factorOf(c, W1, true), Of: W1, Factor: "b1", IsPacked: true, Store: g, Tiling: bothTiling}}
}

// BothB2 returns the kernel of a layer for its factor B2, which has the layout of W1 of a smaller layer
// without gates.
func BothB2(c spec.Config, g gradient.Mode) Both {
	c.Intermediate, c.Activation, c.GateUp = c.Hidden, spec.ReLU, spec.Concatenated
	return Both{Gathers: true, DW: DW{Config: factorOf(c, W1, true), Of: W1, Factor: "b2", IsPacked: true, Store: g, Tiling: bothTiling}}
}

// mostBlocks is the largest number of blocks of columns of a layer that has these kernels.
const mostBlocks = 24

// ReadsOnce reports whether a layer has the kernels of [Both]. The number of experts must not matter,
// because the layers of ranks have the bits of the whole layer.
func ReadsOnce(c spec.Config) bool {
	return spec.HasLoRA(c) && spec.PaddedRank(c) <= productWidth && max(BothB1(c, gradient.Mode{}).Blocks(), BothB2(c, gradient.Mode{}).Blocks()) <= mostBlocks
}

// ReadsTwice reports whether a layer with an adapter has other kernels in the place of [Both].
func ReadsTwice(c spec.Config) bool { return spec.HasLoRA(c) && !ReadsOnce(c) }

// BothB1Kernels and BothB2Kernels are the kernels for the factors B1 and B2.
var (
	BothB1Kernels = bothKernels("b1", BothB1)
	BothB2Kernels = bothKernels("b2", BothB2)
)

func bothKernels(name string, of func(spec.Config, gradient.Mode) Both) gradient.Set[Args] {
	return gradient.NewSet("lora-both-"+name, func(k *registry.Kernel[Args], _ gradient.Mode) {
		k.From, k.Only = registry.OfExperts, ReadsOnce
	}, func(l registry.Layer, g gradient.Mode) (*jit.Kernel[Args], error) { return of(l.Config, g).Build() })
}
