package dw

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/ptx"
)

// This file has the math role: the main loop, the sum over a heavy expert's splits, and
// the stores.

// mathRole multiplies the warpgroup's 64 lines of each tile. A warpgroup past the last line only
// releases the stages.
type mathRole struct {
	role
	store    *gemm.Store
	stagger  pipeline.NamedBarriers
	gradient gradientPlace
	partials partials
}

// run emits the role.
func (e mathRole) run() {
	k := e.k
	wg, lane := k.Warpgroup(), k.Lane()
	acc := k.Accumulators(e.Tiling.TileN / 2)
	loop := gemm.MainLoop{K: k, Ring: e.ring.Consumer(), Release: pipeline.NewReleaser(k, lane, 1)}
	stagger := gemm.NewStagger(k, e.stagger, wg)
	e.queue.Reader(lane.EqI(0)).Each(func(t item) {
		steps := kTiles(t)
		lead := stagger.Lead(steps.Min(ptx.Uint(e.Tiling.Stages)))
		stagger.WaitForLeader()
		line := t.m.Add(wg.MulI(gemm.WarpgroupM))
		k.IfElse(line.LtI(e.Hidden), func() {
			e.multiply(loop, t, wg, lead.Multiplied, acc)
			last := e.join(t, wg, acc)
			k.If(last, func() { e.write(t, line, acc) })
		}, func() {
			loop.Drain(steps)
			e.join(t, wg, nil)
		})
		stagger.TileDone()
	})
	e.store.Finish()
}

// multiply is the main loop, with both operands MN-major. If the last step is not full, it
// multiplies only the parts of 16 rows that have rows; all others are zeros. multiplied is called when
// a step is issued.
func (e mathRole) multiply(loop gemm.MainLoop, t item, wg ptx.U32, multiplied func(kt ptx.U32), acc []ptx.F32) {
	k := e.k
	operands := func(s pipeline.Stage, step ptx.U32) (a, b tile.Descriptor) {
		s.Data = s.Data.Plus(step.MulI(tile.KStep * tile.RowBytes))
		return tile.NewDescriptorMN(k, s.Data.Plus(wg.MulI(tile.BlockBytes))), tile.NewDescriptorMN(k, s.Data.At(e.bytesOfA))
	}
	full, left := t.rows.DivI(tile.K), t.rows.AndI(tile.K-1)
	sum := loop.Begin()
	sum.Each(full, false, func(s pipeline.Stage, kt ptx.U32) {
		k.FenceProxyAsync(".shared::cta") // the fence makes cp.async's writes visible to wgmma
		a, b := operands(s, ptx.Uint(0))
		gemm.Multiply(k, element.Of(e.Config), acc, a, b, kt.NeI(0), true, true)
		multiplied(kt)
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
			multiplied(full)
		})
	})
	sum.Finish()
}

// roundBits is the number of bits of a slot's state that count splits: 2^31 rows have at most 2^18
// splits. The other bits count the tiles that have used the slot, modulo 4096. Far fewer tiles that
// share a slot are in flight at a time.
const roundBits = 20

// join adds up the splits of a tile, in order, and reports whether this split was the last. If so,
// its accumulators are the tile's sum. Each split waits until the tile's slot holds the sum of the
// splits before it, and writes the sum with its own part there. The state of a slot is the number
// of the tile and of the split that may use the slot next. Each warpgroup has its own half of a
// slot, with a state of its own. A warpgroup without lines in the tile has no accumulators, and
// only advances the state.
func (e mathRole) join(t item, wg ptx.U32, acc []ptx.F32) (last ptx.Pred) {
	k := e.k
	last = t.split.AddI(1).Eq(t.splits)
	k.If(t.splits.GtI(1), func() {
		thread := k.ThreadInWarpgroup()
		first := thread.EqI(0)
		sync := func() { e.store.SyncWarpgroup(wg) }
		round := t.serial.Div(e.partials.slots)
		own := t.serial.Sub(round.Mul(e.partials.slots)).MulI(2).Add(wg)
		next := round.ShlI(roundBits).Or(t.split)
		state := e.partials.state.Index(own, 4)
		part := e.partials.sums.Index(own, e.PartialBytes()/2).Index(thread, 16)
		k.If(first, func() {
			k.Loop(func() { k.BreakIf(ptx.LdGlobalAcquire(state).Eq(next)) })
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
			ptx.StGlobalRelease(state, ptx.Select(last, round.AddI(1).ShlI(roundBits), next.AddI(1)))
		})
	})
	return last
}

// partialStep is the distance between two 16-byte chunks of one thread in a slot: the
// threads of a warpgroup write their chunks next to each other.
const partialStep = pipeline.WarpgroupThreads * 16

// addPartial adds the slot's sum of the earlier splits to the accumulators, with several
// loads in flight.
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

// write writes the warpgroup's 64 lines of a tile, from the given line on. A 16-bit
// gradient that is overwritten goes through shared memory and TMA. An FP32 gradient, or
// one that is added to old values, is written directly from the accumulators.
func (e mathRole) write(t item, m ptx.U32, acc []ptx.F32) {
	if !e.mapped() {
		for i := range e.Tiling.SubTiles() {
			column := t.n.AddI(i * tile.Block)
			e.k.If(column.LtI(e.width()), func() { e.direct(t, m, column, gemm.OfSubTile(acc, i)) })
		}
		return
	}
	e.store.Tile(e.Tiling.SubTiles(), func(i int) gemm.SubTile {
		neuron, part := e.neuron(t.n.AddI(i * tile.Block))
		to := e.gradient.maps[0]
		if len(e.gradient.maps) > 1 {
			to, part = ptx.SelectMap(part.EqI(0), to, e.gradient.maps[1]), ptx.Uint(0)
		}
		at := []ptx.U32{neuron, m, part, t.expert}
		if e.transposed() {
			at[0], at[1] = at[1], at[0]
		}
		return gemm.SubTile{Values: gemm.Registers(gemm.OfSubTile(acc, i)), To: to, At: func() []ptx.U32 { return at }}
	})
}

// neuron returns the neuron of a column of the packed rows, and its part: gate (0) or up (1). A
// block of 64 columns never has columns of both parts.
func (e mathRole) neuron(column ptx.U32) (neuron, part ptx.U32) {
	if e.packed().Parts == 1 {
		return column, ptx.Uint(0)
	}
	width := e.packed().Width
	up := column.GeI(width)
	return column.Sub(ptx.Select(up, ptx.Uint(width), ptx.Uint(0))), ptx.Select(up, ptx.Uint(1), ptx.Uint(0))
}

// place returns the address of the gradient's element in line m, for the given neuron and part
// (gate or up).
func (e mathRole) place(t item, m, neuron, part ptx.U32) ptx.Global {
	of, lines, columns := e.matrix()
	to := e.gradient.at[0]
	if of.Apart {
		to = ptx.GlobalAt(ptx.Select(part.EqI(0), to.Addr(), e.gradient.at[1].Addr()))
		part, of.Part.Stride = ptx.Uint(0), 0
	}
	// along is the index in the contiguous dimension. across is the index in the other dimension,
	// in which neighbours are pitch elements apart.
	pitch, along, across := lines.Stride, neuron.Add(part.MulI(of.Part.Stride)), m
	if e.transposed() {
		pitch = e.Hidden
		along, across = m, neuron.MulI(columns.Stride/pitch).Add(part.MulI(of.Part.Stride/pitch))
	}
	return to.Index(t.expert.MulI(of.Expert.Stride/pitch).Add(across), pitch*e.Store.Bytes()).Index(along, e.Store.Bytes())
}

// pair is two neighbouring values of the gradient. The thread's place is the address of the
// thread's first value.
type pair struct {
	offset int // distance in elements from the thread's place
	// values emits the code for the values, which all threads of a warp must run.
	values func() (lo, hi ptx.F32)
	// line and neuron are the distances, in lines and in neurons, from the thread's place.
	line, neuron int
}

// direct writes 64 columns of the lines from m on, directly from the accumulators.
func (e mathRole) direct(t item, m, column ptx.U32, acc []ptx.F32) {
	neuron, part := column, ptx.Uint(0)
	if !e.follow() {
		neuron, part = e.neuron(column)
	}
	// The place is computed again for each 64 columns, because the accumulators leave no
	// registers free.
	f := tile.NewFragment(ptx.InWarpgroup(e.k.TidX()))
	line := m.Add(f.Row)
	var pairs []pair
	if e.transposed() {
		line, neuron, pairs = e.transpose(f, line, neuron, acc)
	} else {
		neuron, pairs = e.straight(f, neuron, acc)
	}
	at := e.place(t, line, neuron, part)
	if e.inPart() {
		e.directInPart(at, line, neuron, pairs)
		return
	}
	// All loads of old values are in flight at once. The new values are computed pair by
	// pair, because no registers are left for all of them.
	old := make([][]ptx.F32, len(pairs))
	if e.Store.Accumulate {
		for i, p := range pairs {
			old[i] = e.Store.Load(element.Of(e.Config), at.At(p.offset*e.Store.Bytes()), 2)
		}
	}
	for i, p := range pairs {
		lo, hi := p.values()
		if e.Store.Accumulate {
			lo, hi = old[i][0].Add(lo), old[i][1].Add(hi)
		}
		e.Store.Store(e.k, element.Of(e.Config), at.At(p.offset*e.Store.Bytes()), lo, hi)
	}
}

// inPart reports whether blocks of 64 x 64 may reach past the last line or neuron.
func (d DW) inPart() bool { return d.Hidden%tile.Block != 0 || d.neurons()%tile.Block != 0 }

// neurons returns the number of columns of each part of the gradient.
func (d DW) neurons() int {
	_, _, columns := d.matrix()
	return columns.Extent
}

// directInPart writes a tile at the edge of the gradient: only the pairs that are inside the
// gradient.
func (e mathRole) directInPart(at ptx.Global, line, neuron ptx.U32, pairs []pair) {
	for _, p := range pairs {
		lo, hi := p.values()
		e.k.If(line.AddI(p.line).LtI(e.Hidden).And(neuron.AddI(p.neuron).LtI(e.neurons())), func() {
			e.Store.Write(e.k, element.Of(e.Config), at.At(p.offset*e.Store.Bytes()), lo, hi)
		})
	}
}

// follow reports whether up's columns directly follow gate's in the gradient, as they do
// in the packed rows. A column then has the same index in both.
func (d DW) follow() bool {
	of, _, columns := d.matrix()
	return !of.Apart && !d.inPart() && of.Part.Stride == columns.Extent*columns.Stride
}

// straight returns the thread's pairs along the neurons, and its first neuron.
func (e mathRole) straight(f tile.Fragment, neuron ptx.U32, acc []ptx.F32) (ptx.U32, []pair) {
	_, lines, _ := e.matrix()
	var pairs []pair
	for j := range 8 {
		for h := range 2 {
			pairs = append(pairs, pair{8*j + 8*h*lines.Stride, func() (lo, hi ptx.F32) { return acc[4*j+2*h], acc[4*j+2*h+1] }, 8 * h, 8 * j})
		}
	}
	return neuron.Add(f.Column), pairs
}

// transpose exchanges sums between threads, so that each has pairs of values that are neighbours
// along d. A thread has two neurons of one line (an index along d), and the thread four lanes away
// has the same neurons of the next line. Each gives the other one value. Then each has one neuron of
// both lines. It returns the thread's first line, its neuron and its pairs.
func (e mathRole) transpose(f tile.Fragment, line, neuron ptx.U32, acc []ptx.F32) (ptx.U32, ptx.U32, []pair) {
	_, _, columns := e.matrix()
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
