package drouter

import (
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// scatter writes operand A of a step in the load role of DRouter. A is [64 tokens][128 experts],
// mostly zeros. Two neighbouring lanes handle the line of a token. Each warp has 16 lines of its
// own, so the warps need not synchronise. The slots of a step (expert and gradient of each chosen
// logit) are loaded one step ahead. Without dense gradients, only the elements that the previous
// use of the stage wrote are set to zero.
type scatter struct {
	*drouter
	k *ptx.Kernel
	// line is the thread's line. half tells which half of the line's slots the thread
	// handles.
	line, half ptx.U32
	// live is the number of experts in the tile.
	live ptx.U32
	// ids and values have the thread's slots of the next step. The id is NoRow where the thread has
	// no slot.
	ids    []*ptx.Var[ptx.U32]
	values []*ptx.Var[ptx.F32]
	// written has the positions in a stage that the thread wrote in the latest steps, one step for
	// each stage, the latest first. The position is empty for a slot outside the tile.
	written [gemm.TwoTermStages][]*ptx.Var[ptx.U32]
}

const (
	linesOfWarp = tile.K / 4
	nowhere     = order.NoRow
	// chunksOfLine is the number of 16-byte chunks, of 8 experts each, in a line of a term.
	chunksOfLine = gemm.TileM / 8
)

// newScatter loads the slots of the first step.
func newScatter(e *drouter) *scatter {
	k := e.p.K
	s := &scatter{drouter: e, k: k, line: e.p.InRole().ShrI(1), half: e.p.InRole().AndI(1)}
	s.live = ptx.Uint(e.of.NumExperts).Sub(e.m).Min(ptx.Uint(gemm.TileM))
	for range s.slots() {
		s.ids = append(s.ids, ptx.NewVar(k, ptx.Uint(order.NoRow)))
		s.values = append(s.values, ptx.NewVar(k, ptx.Float(0)))
		if e.of.Extra {
			continue
		}
		for i := range s.written {
			s.written[i] = append(s.written[i], ptx.NewVar(k, ptx.Uint(nowhere)))
		}
	}
	s.fetch(ptx.Uint(0))
	return s
}

// slots returns the largest number of slots that a thread handles.
func (s *scatter) slots() int { return (s.of.TopK + 1) / 2 }

// together returns the number of slots that one load reads.
func (s *scatter) together() int {
	for _, n := range []int{4, 2} {
		if s.of.TopK%(2*n) == 0 {
			return n
		}
	}
	return 1
}

// token returns the thread's token in step kt.
func (s *scatter) token(kt ptx.U32) ptx.U32 { return s.first.Add(kt.MulI(tile.K)).Add(s.line) }

// fetch loads the thread's slots of step kt, which may be past the last step.
func (s *scatter) fetch(kt ptx.U32) {
	k := s.k
	t := s.token(kt)
	for _, id := range s.ids {
		id.Set(ptx.Uint(order.NoRow))
	}
	first := t.MulI(s.of.TopK).Add(s.half.MulI(s.slots()))
	ids, values := s.drouter.ids.Index(first, 4), s.dlogits.Index(first, 4)
	n := s.together()
	load := func(i int) {
		ptx.SetAll(s.ids[i:i+n], ptx.LdGlobalVec[ptx.U32](ids.At(4*i), n))
		ptx.SetAll(s.values[i:i+n], ptx.LdGlobalVec[ptx.F32](values.At(4*i), n))
	}
	there, all := t.Lt(s.end), s.slots()
	if s.of.TopK%2 != 0 {
		all--
	}
	k.If(there, func() {
		for i := 0; i < all; i += n {
			load(i)
		}
	})
	if all < s.slots() { // with an odd number of slots the second half has one less
		k.If(there.And(s.half.EqI(0)), func() { load(all) })
	}
}

// Fill writes a step's A and loads the next step's slots.
func (s *scatter) Fill(kt ptx.U32, stage func() ptx.Shared) {
	k := s.k
	var dense [linesOfWarp / linesOfPass][]ptx.F32
	if s.of.Extra {
		dense = s.dense(kt)
	}
	places := s.places(kt)
	s.fetch(kt.AddI(1))
	a := stage()
	if s.of.Extra {
		s.eachChunk(a, func(i int, to ptx.Shared) { s.p.StoreEight(to, dense[i]) })
	} else {
		s.clear(kt, a)
		s.remember(places)
	}
	k.BarWarpSync(ptx.Uint(ptx.FullMask))
	for _, p := range places {
		to := a.Plus(p.offset)
		k.Guarded(p.there, func() { ptx.StShared(to, p.upper) })
		if !s.of.Rounded {
			k.Guarded(p.there, func() { ptx.StShared(to.At(gemm.TermBytes), p.lower) })
		}
	}
}

// place is the position of a slot in a stage, with the terms of its gradient to write there.
type place struct {
	offset       ptx.U32
	there        ptx.Pred
	upper, lower ptx.B16
}

// places returns a place for each slot that the thread handles in step kt.
func (s *scatter) places(kt ptx.U32) []place {
	k := s.k
	var list []place
	lineAt, swap := s.line.MulI(tile.RowBytes), s.line.AndI(7)
	for i, id := range s.ids {
		expert := id.Get().Sub(s.m)
		there, value := expert.Lt(s.live), s.values[i].Copy()
		if s.of.Extra {
			sum := ptx.NewVar(k, value)
			k.If(there, func() {
				sum.Set(value.Add(ptx.LdGlobal[ptx.F32](s.extra.Index(s.token(kt), 4*s.of.NumExperts).Index(id.Get(), 4))))
			})
			value = sum.Get()
		}
		upper, lower := s.p.Terms(value, ptx.Float(0))
		in := expert.AndI(63)
		offset := lineAt.Add(expert.ShrI(6).MulI(tile.BlockBytes)).Add(in.ShrI(3).Xor(swap).ShlI(4)).Add(in.AndI(7).MulI(tile.ElementBytes))
		list = append(list, place{ptx.Select(there, offset, ptx.Uint(nowhere)), there, upper.B16(), lower.B16()})
	}
	return list
}

// clear sets the warp's lines of a stage to zero: entire lines at the stage's first use,
// later only the elements that the stage's previous use wrote.
func (s *scatter) clear(kt ptx.U32, a ptx.Shared) {
	k := s.k
	k.If(kt.LtI(gemm.TwoTermStages), func() {
		zero := ptx.Uint(0)
		s.eachChunk(a, func(_ int, to ptx.Shared) {
			ptx.StShared(to, zero, zero, zero, zero)
			if !s.of.Rounded {
				ptx.StShared(to.At(gemm.TermBytes), zero, zero, zero, zero)
			}
		})
	})
	zero := ptx.Materialize(k, ptx.Uint(0)).B16()
	for _, w := range s.written[gemm.TwoTermStages-1] {
		to := a.Plus(w.Get())
		k.Guarded(w.Get().NeI(nowhere), func() { ptx.StShared(to, zero) })
	}
	if s.of.Rounded {
		return
	}
	for _, w := range s.written[gemm.TwoTermStages-1] {
		to := a.Plus(w.Get())
		k.Guarded(w.Get().NeI(nowhere), func() { ptx.StShared(to.At(gemm.TermBytes), zero) })
	}
}

// remember keeps the positions of this step and drops the positions of the oldest step.
func (s *scatter) remember(places []place) {
	for i := len(s.written) - 1; i > 0; i-- {
		for j, w := range s.written[i] {
			w.Set(s.written[i-1][j].Get())
		}
	}
	for j, w := range s.written[0] {
		w.Set(places[j].offset)
	}
}

// A warp stores its lines chunk by chunk, linesOfPass of them at a time.
const linesOfPass = 32 / chunksOfLine

// chunk returns the index within a line of the chunk that the thread stores, and the first
// line in which the thread stores it.
func (s *scatter) chunk() (chunk, first ptx.U32) {
	lane := ptx.LaneOf(s.p.InRole())
	return lane.AndI(chunksOfLine - 1), ptx.WarpOf(s.p.InRole()).MulI(linesOfWarp).Add(lane.DivI(chunksOfLine))
}

// eachChunk calls store for each chunk of the warp's lines that the thread stores.
func (s *scatter) eachChunk(a ptx.Shared, store func(i int, to ptx.Shared)) {
	chunk, first := s.chunk()
	block := chunk.DivI(8).MulI(tile.BlockBytes)
	for i := range linesOfWarp / linesOfPass {
		store(i, a.Plus(block.Add(tile.Swizzled(first.AddI(i*linesOfPass), chunk.AndI(7)))))
	}
}

// dense loads the dense gradients that the thread stores in step kt.
func (s *scatter) dense(kt ptx.U32) (values [linesOfWarp / linesOfPass][]ptx.F32) {
	chunk, first := s.chunk()
	for i := range values {
		t := s.first.Add(kt.MulI(tile.K)).Add(first).AddI(i * linesOfPass)
		values[i] = s.p.LoadEight(s.extra, t, s.m.Add(chunk.MulI(8)), s.of.NumExperts, t.Lt(s.end))
	}
	return values
}
