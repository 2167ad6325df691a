package dw

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/ptx"
)

// This file is the math role: the main loop, the sum of a heavy expert's splits,
// and the stores.

// math multiplies the warpgroup's 64 lines of each tile. A warpgroup past the
// last line only gives the stages back.
func (e *dw) math() {
	k := e.k
	wg, lane := e.tid.ShrI(7), e.tid.AndI(31)
	acc := k.Accumulators(e.Tiling.TileN / 2)
	loop := gemm.MainLoop{K: k, Ring: e.ring.Consumer(), Release: pipeline.NewReleaser(k, lane, 1)}
	write := e.newWriter()
	stagger := gemm.NewStagger(k, e.stagger, wg)
	e.queue.Reader(lane.EqI(0)).Each(func(t item) {
		steps := kTiles(t)
		stagger.SetLead(steps.Min(ptx.Uint(e.Tiling.Stages)))
		stagger.WaitForLeader()
		write.m = t.m.Add(wg.MulI(gemm.WarpgroupM))
		k.IfElse(write.m.LtI(e.Hidden), func() {
			e.multiply(loop, t, wg, stagger, acc)
			last := e.join(t, wg, acc)
			k.If(last, func() { write.tile(t, acc) })
		}, func() {
			loop.Drain(steps, nil)
			e.join(t, wg, nil)
		})
		stagger.TileDone()
	})
	e.store.Finish()
}

// multiply is the main loop with both operands MN-major, and the rest of a step:
// as many 16-row parts as have rows. Parts of zeros would change nothing.
func (e *dw) multiply(loop gemm.MainLoop, t item, wg ptx.U32, stagger *gemm.Stagger, acc []ptx.F32) {
	k := e.k
	operands := func(s pipeline.Stage, step ptx.U32) (a, b tile.Descriptor) {
		s.Data = s.Data.Plus(step.MulI(tile.KStep * tile.RowBytes))
		return tile.NewDescriptorMN(k, s.Data.Plus(wg.MulI(tile.BlockBytes))), tile.NewDescriptorMN(k, s.Data.At(gemm.TileABytes))
	}
	full, left := t.rows.DivI(tile.K), t.rows.AndI(tile.K-1)
	sum := loop.Begin()
	sum.Each(full, false, func(s pipeline.Stage, kt ptx.U32) {
		k.FenceProxyAsync(".shared::cta") // wgmma shall see what cp.async has written
		a, b := operands(s, ptx.Uint(0))
		gemm.Multiply(k, element.Of(e.Config), acc, a, b, kt.NeI(0), true, true)
		stagger.Multiplied(kt)
	})
	k.If(left.NeI(0).Or(full.EqI(0)), func() {
		sum.One(full.NeI(0), 0, func(s pipeline.Stage) {
			k.FenceProxyAsync(".shared::cta")
			parts := left.AddI(tile.KStep - 1).DivI(tile.KStep).Max(ptx.Uint(1))
			k.Range(parts, func(i ptx.U32) {
				a, b := operands(s, i)
				k.WgmmaFence()
				element.Of(e.Config).Wgmma(k, acc, a.Step(0, 0), b.Step(0, 0), full.Or(i).NeI(0), true, true)
				k.WgmmaCommit()
				k.WgmmaWait(1)
			})
			stagger.Multiplied(full)
		})
	})
	sum.Finish()
}

// roundBits is the bits of a slot's state that count splits, of which 2^31 rows
// have 2^18 at most; the rest count the tiles that have been joined in the slot,
// modulo 4096: as many tiles of one slot are never under way at a time.
const roundBits = 20

// join adds up the splits of a tile, in order, and reports whether this was
// the last: its accumulators are then the tile's sum. Each split waits for
// the sum of those before it, in one of the slots of partial sums, and leaves
// its own there. A slot's state says which tile and split may have it next.
// The warpgroups have slots and states of their own; one without lines in the
// tile, and so without accumulators, takes its turn all the same.
func (e *dw) join(t item, wg ptx.U32, acc []ptx.F32) (last ptx.Pred) {
	k := e.k
	last = t.split.AddI(1).Eq(t.splits)
	k.If(t.splits.GtI(1), func() {
		thread := e.tid.AndI(pipeline.WarpgroupThreads - 1)
		first := thread.EqI(0)
		sync := func() { e.store.SyncWarpgroup(wg) }
		round := t.serial.Div(e.slots)
		own := t.serial.Sub(round.Mul(e.slots)).MulI(2).Add(wg)
		turn := round.ShlI(roundBits).Or(t.split)
		state := e.state.Index(own, 4)
		part := e.partials.Index(own, e.PartialBytes()/2).Index(thread, 16)
		k.If(first, func() {
			k.Loop(func() { k.BreakIf(ptx.LdGlobalAcquire(state).Eq(turn)) })
		})
		sync()
		k.If(t.split.NeI(0), func() { addPartial(part, acc) })
		k.If(last.Not(), func() {
			for i := 0; i < len(acc); i += 4 {
				ptx.StGlobal(part.At(i/4*partialStep), acc[i:i+4]...)
			}
		})
		sync()
		k.If(first, func() {
			ptx.StGlobalRelease(state, ptx.Select(last, round.AddI(1).ShlI(roundBits), turn.AddI(1)))
		})
	})
	return last
}

// partialStep is from one of a thread's 16 bytes to its next: a warpgroup
// writes them side by side.
const partialStep = pipeline.WarpgroupThreads * 16

// addPartial adds the sum of the splits before, some loads at a time.
func addPartial(part ptx.Global, acc []ptx.F32) {
	const inFlight = 32
	for i := 0; i < len(acc); i += inFlight {
		n := min(inFlight, len(acc)-i)
		var before []ptx.F32
		for j := 0; j < n; j += 4 {
			before = append(before, ptx.LdGlobalVec[ptx.F32](part.At((i+j)/4*partialStep), 4)...)
		}
		for j, x := range before {
			ptx.VarOf(acc[i+j]).Set(x.Add(acc[i+j]))
		}
	}
}

// writer writes a math warpgroup's 64 lines of a tile of a weight gradient:
// through shared memory and TMA, or, for FP32 and sums with old values,
// straight from the accumulators.
type writer struct {
	*dw
	// m is the warpgroup's first line.
	m ptx.U32
}

func (e *dw) newWriter() *writer {
	if e.transposed() {
		e.store.Transpose()
	}
	return &writer{dw: e}
}

// tile writes a tile.
func (s *writer) tile(t item, acc []ptx.F32) {
	k := s.k
	if s.mapped() {
		s.store.Tile(s.Tiling.TileN/tile.Block, func(i int) gemm.SubTile {
			neuron, part := s.neuron(t.n.AddI(i * tile.Block))
			to := s.outMap[0]
			if len(s.outMap) > 1 {
				to, part = ptx.SelectMap(part.EqI(0), s.outMap[0], s.outMap[1]), ptx.Uint(0)
			}
			at := []ptx.U32{neuron, s.m, part, t.expert}
			if s.transposed() {
				at[0], at[1] = at[1], at[0]
			}
			return gemm.SubTile{Value: gemm.Registers(acc[32*i : 32*i+32]), To: to, At: func() []ptx.U32 { return at }}
		})
		return
	}
	for i := range s.Tiling.TileN / tile.Block {
		column := t.n.AddI(i * tile.Block)
		k.If(column.LtI(s.width()), func() { s.direct(t, column, acc[32*i:32*i+32]) })
	}
}

// neuron is what a column of the packed rows belongs to, and whether to its gate
// (0) or up (1). 64 columns never straddle the two.
func (s *writer) neuron(column ptx.U32) (neuron, part ptx.U32) {
	if s.packed().Parts == 1 {
		return column, ptx.Uint(0)
	}
	width := s.packed().Width
	up := column.GeI(width)
	return column.Sub(ptx.Select(up, ptx.Uint(width), ptx.Uint(0))), ptx.Select(up, ptx.Uint(1), ptx.Uint(0))
}

// place is the address of line m of the gradient at a neuron's gate or up.
func (s *writer) place(t item, m, neuron, part ptx.U32) ptx.Global {
	of, lines, columns := s.matrix()
	to := s.out[0]
	if of.Apart {
		to = ptx.GlobalAt(ptx.Select(part.EqI(0), s.out[0].Addr(), s.out[1].Addr()))
		part, of.Part.Stride = ptx.Uint(0), 0
	}
	// Along the contiguous dimension last: pitch is the distance of what lies
	// across it.
	pitch, along, across := lines.Stride, neuron.Add(part.MulI(of.Part.Stride)), m
	if s.transposed() {
		pitch = s.Hidden
		along, across = m, neuron.MulI(columns.Stride/pitch).Add(part.MulI(of.Part.Stride/pitch))
	}
	return to.Index(t.expert.MulI(of.Expert.Stride/pitch).Add(across), pitch*s.Store.Bytes()).Index(along, s.Store.Bytes())
}

// pair is two neighbours of the gradient.
type pair struct {
	offset int // in elements from the thread's place
	// values gives them; all threads of a warp ask.
	values func() (lo, hi ptx.F32)
	// line and neuron are how far they are from the thread's place.
	line, neuron int
}

// direct writes 64 columns from the accumulators.
func (s *writer) direct(t item, column ptx.U32, acc []ptx.F32) {
	neuron, part := column, ptx.Uint(0)
	if !s.follow() {
		neuron, part = s.neuron(column)
	}
	// Made anew for each 64 columns: beside the sums no register is left.
	f := tile.NewFragment(s.k.TidX().AndI(pipeline.WarpgroupThreads - 1))
	line := s.m.Add(f.Row)
	var pairs []pair
	if s.transposed() {
		line, neuron, pairs = s.transpose(f, line, neuron, acc)
	} else {
		neuron, pairs = s.straight(f, neuron, acc)
	}
	at := s.place(t, line, neuron, part)
	if s.inPart() {
		s.directInPart(at, line, neuron, pairs)
		return
	}
	// All loads of what is there are in flight at once; the sums come one by one,
	// as no register is left for those of 64 columns beside them.
	old := make([][]ptx.F32, len(pairs))
	if s.Store.Accumulate {
		for i, p := range pairs {
			old[i] = s.Store.Load(element.Of(s.Config), at.At(p.offset*s.Store.Bytes()), 2)
		}
	}
	for i, p := range pairs {
		lo, hi := p.values()
		if s.Store.Accumulate {
			lo, hi = old[i][0].Add(lo), old[i][1].Add(hi)
		}
		s.Store.Store(s.k, element.Of(s.Config), at.At(p.offset*s.Store.Bytes()), lo, hi)
	}
}

// inPart: blocks of 64 x 64 may end past the last line or neuron.
func (d DW) inPart() bool { return d.Hidden%tile.Block != 0 || d.neurons()%tile.Block != 0 }

// neurons is how many columns the gradient has of each part.
func (d DW) neurons() int {
	_, _, columns := d.matrix()
	return columns.Extent
}

// directInPart writes the pairs that are there, from a line and neuron on.
func (s *writer) directInPart(at ptx.Global, line, neuron ptx.U32, pairs []pair) {
	for _, p := range pairs {
		lo, hi := p.values()
		s.k.If(line.AddI(p.line).LtI(s.Hidden).And(neuron.AddI(p.neuron).LtI(s.neurons())), func() {
			s.Store.Write(s.k, element.Of(s.Config), at.At(p.offset*s.Store.Bytes()), lo, hi)
		})
	}
}

// follow: up's columns follow gate's in the gradient as they do in the packed
// rows, so that a column is its own place.
func (d DW) follow() bool {
	of, _, columns := d.matrix()
	return !of.Apart && !d.inPart() && of.Part.Stride == columns.Extent*columns.Stride
}

// straight gives the pairs along the neurons, and the thread's first neuron.
func (s *writer) straight(f tile.Fragment, neuron ptx.U32, acc []ptx.F32) (ptx.U32, []pair) {
	_, lines, _ := s.matrix()
	var pairs []pair
	for j := range 8 {
		for h := range 2 {
			pairs = append(pairs, pair{8*j + 8*h*lines.Stride, func() (lo, hi ptx.F32) { return acc[4*j+2*h], acc[4*j+2*h+1] }, 8 * h, 8 * j})
		}
	}
	return neuron.Add(f.Column), pairs
}

// transpose gives the pairs along d, and the thread's first line and neuron. A
// thread holds two neurons of one line, its neighbour four lanes away the same
// two of the next line: they swap, and each has one neuron of both.
func (s *writer) transpose(f tile.Fragment, line, neuron ptx.U32, acc []ptx.F32) (ptx.U32, ptx.U32, []pair) {
	_, _, columns := s.matrix()
	odd := f.Row.AndI(1)
	isOdd := odd.NeI(0)
	var pairs []pair
	for j := range 8 {
		for h := range 2 {
			swap := func() (lo, hi ptx.F32) {
				a, b := acc[4*j+2*h], acc[4*j+2*h+1]
				got := ptx.Select(isOdd, a, b).Bits().ShflXor(4).AsF32()
				return ptx.Select(isOdd, got, a), ptx.Select(isOdd, b, got)
			}
			pairs = append(pairs, pair{8*j*columns.Stride + 8*h, swap, 8 * h, 8 * j})
		}
	}
	return line.Sub(odd), neuron.Add(f.Column).Add(odd), pairs
}
