package route

import (
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// topKSelection is the running top-K of the two rows that a thread shares
// with the other three lanes of its quad.
type topKSelection interface {
	// clear starts new rows, where merge takes them in several chunks.
	clear()
	// merge takes the logits of a fragment, a chunk of experts.
	merge(acc []ptx.F32, chunk ptx.U32)
	// finish is the scores and experts of the thread's slots of row h (0 or
	// 1): slot 4s + lane.
	finish(h int) (scores []ptx.F32, experts []ptx.U32)
	// row is the thread's first row of 64, the second is 8 below; quadLane is its
	// place in the quad.
	row() ptx.U32
	quadLane() ptx.U32
	// column is the thread's first column.
	column() ptx.U32
}

// selection is a topKSelection with keys of one width.
type selection[K ptx.Value] struct {
	Router
	k      *ptx.Kernel
	key    keyMath[K]
	thread ptx.U32 // of the warpgroup
	lane   ptx.U32 // in the quad
	quad   ptx.U32 // the quad's first lane
	// list[h][s] is the key of slot 4s + lane of row h.
	list [2][]*ptx.Var[K]
}

func newSelection[K ptx.Value](k *ptx.Kernel, key keyMath[K], r Router, thread ptx.U32) *selection[K] {
	s := &selection[K]{Router: r, k: k, key: key, thread: thread, lane: thread.AndI(3), quad: thread.AndI(28)}
	for h := range s.list {
		for range (r.TopK + 3) / 4 {
			s.list[h] = append(s.list[h], ptx.NewVar(k, key.none))
		}
	}
	return s
}

func (s *selection[K]) row() ptx.U32      { return tile.NewFragment(s.thread).Row }
func (s *selection[K]) quadLane() ptx.U32 { return s.lane }
func (s *selection[K]) column() ptx.U32   { return tile.NewFragment(s.thread).Column }

func (s *selection[K]) clear() {
	if count, _ := s.chunks(); count == 1 {
		return
	}
	for h := range s.list {
		for _, v := range s.list[h] {
			v.Set(s.key.none)
		}
	}
}

// merge sorts the thread's own keys, of which any K may be the row's largest,
// and then merges the lists of the quad's lanes.
func (s *selection[K]) merge(acc []ptx.F32, chunk ptx.U32) {
	count, width := s.chunks()
	first := chunk.MulI(width).Add(s.column())
	for h := range s.list {
		top := s.own(h, acc, first)
		for i := range top {
			top[i] = s.key.beyond(top[i], first)
		}
		if count > 1 {
			var before []K
			for _, v := range s.list[h] {
				before = append(before, v.Copy())
			}
			top = largest(s.key, top, before, s.TopK)
		}
		for lanes := 1; lanes <= 2; lanes *= 2 {
			others := make([]K, len(top))
			for i, key := range top {
				others[i] = s.key.xor(key, lanes)
			}
			top = largest(s.key, top, others, s.TopK)
		}
		s.keep(h, top)
	}
}

// keep takes the thread's slots of a row's top-K.
func (s *selection[K]) keep(h int, top []K) {
	for i, v := range s.list[h] {
		mine := s.key.none
		for lane, key := range top[4*i : min(4*i+4, len(top))] {
			mine = ptx.Select(s.lane.EqI(lane), key, mine)
		}
		v.Set(mine)
	}
}

// own is the K largest keys of the thread's columns of row h, or all where they
// are fewer. Their experts count from first, the thread's first column, so that
// codes are constants.
func (s *selection[K]) own(h int, acc []ptx.F32, first ptx.U32) (top []K) {
	// Wider groups take as many comparisons and spill more: each is sorted while
	// most logits still wait in registers.
	const widest = 8
	group := 2
	for group < min(s.TopK, widest) {
		group *= 2
	}
	columns := len(acc) / 2
	for from := 0; from < columns; from += group {
		var keys []K
		for i := from; i < min(from+group, columns); i += 2 {
			pair := s.pair(acc[2*i+2*h], acc[2*i+2*h+1], i/2*8, first)
			keys = append(keys, pair[:]...)
		}
		keys = sorted(s.key, keys)
		top = largest(s.key, top, keys[:min(len(keys), s.TopK)], s.TopK)
	}
	return top
}

// pair is the sort keys of two neighbouring logits, column columns to the right
// of first. Past the last expert they are below every other.
func (s *selection[K]) pair(lo, hi ptx.F32, column int, first ptx.U32) [2]K {
	codes := [2]int{expertMask - column, expertMask - column - 1}
	keys := s.key.of([2]ptx.F32{lo, hi}, codes)
	count, width := s.chunks()
	if (count-1)*width+column+8 <= s.NumExperts {
		return keys
	}
	for i := range keys {
		valid := first.AddI(column + i).LtI(s.NumExperts)
		keys[i] = ptx.Select(valid, keys[i], s.key.missing(codes[i]))
	}
	return keys
}

func (s *selection[K]) finish(h int) (scores []ptx.F32, experts []ptx.U32) {
	const log2e = 1.4426950408889634
	top := s.key.value(s.key.from(s.list[h][0].Get(), s.quad))
	sum := ptx.Float(0)
	for i, v := range s.list[h] {
		p := s.key.value(v.Get()).Sub(top).Mul(ptx.Float(log2e)).Ex2Approx(".ftz")
		if 4*i+3 >= s.TopK {
			p = ptx.Select(s.lane.AddI(4*i).LtI(s.TopK), p, ptx.Float(0))
		}
		scores = append(scores, p)
		experts = append(experts, ptx.Uint(expertMask).Sub(s.key.code(v.Get())))
		if i == 0 {
			sum = p
		} else {
			sum = sum.Add(p)
		}
	}
	sum = sum.Add(sum.Bits().ShflXor(1).AsF32())
	sum = sum.Add(sum.Bits().ShflXor(2).AsF32())
	inverse := sum.RcpApprox(".ftz")
	for i := range scores {
		scores[i] = scores[i].Mul(inverse)
	}
	return scores, experts
}
