package dw

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

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
	lo, hi ptx.F32
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
	if s.ragged() {
		for _, p := range pairs {
			s.k.If(line.AddI(p.line).LtI(s.Hidden).And(neuron.AddI(p.neuron).LtI(s.neurons())), func() {
				s.Store.Write(s.k, at.At(p.offset*s.Store.Bytes()), p.lo, p.hi)
			})
		}
		return
	}
	if s.Store.Accumulate {
		s.addOld(at, pairs)
	}
	for _, p := range pairs {
		s.Store.Store(s.k, at.At(p.offset*s.Store.Bytes()), p.lo, p.hi)
	}
}

// follow: up's columns follow gate's in the gradient as they do in the packed
// rows, so that a column is its own place.
func (d DW) follow() bool {
	of, _, columns := d.matrix()
	return !of.Apart && !d.ragged() && of.Part.Stride == columns.Extent*columns.Stride
}

// neurons is how many columns the gradient has of each part.
func (d DW) neurons() int {
	_, _, columns := d.matrix()
	return columns.Extent
}

// ragged: blocks of 64 x 64 may end past the last line or neuron.
func (d DW) ragged() bool { return d.Hidden%tile.Block != 0 || d.neurons()%tile.Block != 0 }

// addOld adds what the pairs' places hold, all loads in flight at once.
func (s *writer) addOld(at ptx.Global, pairs []pair) {
	old := make([][]ptx.F32, len(pairs))
	for i, p := range pairs {
		old[i] = s.Store.Load(at.At(p.offset*s.Store.Bytes()), 2)
	}
	for i := range pairs {
		pairs[i].lo, pairs[i].hi = old[i][0].Add(pairs[i].lo), old[i][1].Add(pairs[i].hi)
	}
}

// straight gives the pairs along the neurons, and the thread's first neuron.
func (s *writer) straight(f tile.Fragment, neuron ptx.U32, acc []ptx.F32) (ptx.U32, []pair) {
	_, lines, _ := s.matrix()
	var pairs []pair
	for j := range 8 {
		for h := range 2 {
			pairs = append(pairs, pair{8*j + 8*h*lines.Stride, acc[4*j+2*h], acc[4*j+2*h+1], 8 * h, 8 * j})
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
			a, b := acc[4*j+2*h], acc[4*j+2*h+1]
			got := ptx.Select(isOdd, a, b).Bits().ShflXor(4).AsF32()
			pairs = append(pairs, pair{8*j*columns.Stride + 8*h, ptx.Select(isOdd, got, a), ptx.Select(isOdd, b, got), 8 * h, 8 * j})
		}
	}
	return line.Sub(odd), neuron.Add(f.Column).Add(odd), pairs
}
