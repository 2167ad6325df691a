package kernel

import (
	"sonicmoe/jit/pipeline"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/spec"
	"sonicmoe/ptx"
)

// dwStore writes a math warpgroup's 64 lines of a tile of a weight gradient:
// through shared memory and TMA, or, for FP32 and sums with old values,
// straight from the accumulators.
type dwStore struct {
	*dw
	*storer
	fragment tile.Fragment
	// m is the warpgroup's first line.
	m ptx.U32
}

func (e *dw) newDWStore(wg ptx.U32) *dwStore {
	s := &dwStore{dw: e, storer: newStorer(e.product)}
	thread := e.tid.AndI(pipeline.WarpgroupThreads - 1)
	if e.Of == W1 {
		s.newStaging = tile.NewTransposedStaging
	}
	s.whole = true
	s.fragment = tile.NewFragment(thread)
	return s
}

// put writes a tile.
func (s *dwStore) put(t dwItem, acc []ptx.F32) {
	k := s.storer.k
	if s.mapped() {
		s.storer.put(s.point.TileN/tile.Block, func(i int) subTile {
			column := t.n.AddI(i * tile.Block)
			at := []ptx.U32{column, s.m, ptx.Uint(0), t.expert}
			if s.Of == W1 {
				neuron, part := s.neuron(column)
				at = []ptx.U32{s.m, neuron, part, t.expert}
			}
			return subTile{value: registers(acc[32*i : 32*i+32]), to: s.outMap, lead: at}
		})
		return
	}
	for i := range s.point.TileN / tile.Block {
		column := t.n.AddI(i * tile.Block)
		k.If(column.LtI(s.width()), func() { s.direct(t, column, acc[32*i:32*i+32]) })
	}
}

// neuron is what a column of dH [R, 2n] is the gradient of, and whether of
// its gate (0) or up (1). 64 columns never straddle the two.
func (s *dwStore) neuron(column ptx.U32) (neuron, part ptx.U32) {
	up := column.GeI(s.Intermediate)
	return column.Sub(ptx.Select(up, ptx.Uint(s.Intermediate), ptx.Uint(0))), ptx.Select(up, ptx.Uint(1), ptx.Uint(0))
}

// dwPair is two neighbours of a line of the gradient.
type dwPair struct {
	offset int // in elements from the thread's place
	lo, hi ptx.F32
}

// direct writes 64 columns from the accumulators.
func (s *dwStore) direct(t dwItem, column ptx.U32, acc []ptx.F32) {
	var at ptx.Global
	var pairs []dwPair
	if s.Of == W1 {
		at, pairs = s.transposed(t, column, acc)
	} else {
		at = s.out.Index(t.expert.MulI(s.Hidden).Add(s.m).Add(s.fragment.Row), s.width()*s.Store.elem()).Index(column.Add(s.fragment.Column), s.Store.elem())
		for j := range 8 {
			for h := range 2 {
				pairs = append(pairs, dwPair{8*j + 8*h*s.width(), acc[4*j+2*h], acc[4*j+2*h+1]})
			}
		}
	}
	if s.Store.Accumulate {
		s.addOld(at, pairs)
	}
	for _, p := range pairs {
		s.Store.store(s.storer.k, at.At(p.offset*s.Store.elem()), p.lo, p.hi)
	}
}

// addOld adds what the pairs' places hold, all loads in flight at once.
func (s *dwStore) addOld(at ptx.Global, pairs []dwPair) {
	old := make([][]ptx.F32, len(pairs))
	for i, p := range pairs {
		old[i] = s.Store.load(at.At(p.offset*s.Store.elem()), 2)
	}
	for i := range pairs {
		pairs[i].lo, pairs[i].hi = old[i][0].Add(pairs[i].lo), old[i][1].Add(pairs[i].hi)
	}
}

// transposed gives the pairs along d of dW1. A thread holds two neurons of
// one column of d, its neighbour four lanes away the same two of the next
// column: they swap, and each has one neuron of both.
func (s *dwStore) transposed(t dwItem, column ptx.U32, acc []ptx.F32) (ptx.Global, []dwPair) {
	odd := s.fragment.Row.AndI(1)
	isOdd := odd.NeI(0)
	neuron, part := s.neuron(column)
	own := s.fragment.Column.Add(odd)
	line, step := column.Add(own), 1
	if s.Layout == spec.Interleaved {
		line, step = neuron.Add(own).MulI(2).Add(part), 2
	}
	at := s.out.Index(t.expert.MulI(s.width()).Add(line), s.Hidden*s.Store.elem()).Index(s.m.Add(s.fragment.Row).Sub(odd), s.Store.elem())
	var pairs []dwPair
	for j := range 8 {
		for h := range 2 {
			a, b := acc[4*j+2*h], acc[4*j+2*h+1]
			got := ptx.Select(isOdd, a, b).Bits().ShflXor(4).AsF32()
			pairs = append(pairs, dwPair{8*j*step*s.Hidden + 8*h, ptx.Select(isOdd, got, a), ptx.Select(isOdd, b, got)})
		}
	}
	return at, pairs
}
