package kernel

import (
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// topKSelection is the running top-K of the two rows that a thread shares
// with the other three lanes of its quad.
type topKSelection interface {
	// clear starts new rows.
	clear()
	// merge takes the logits of a fragment whose column 0 is expert first.
	merge(acc []ptx.F32, first ptx.U32, experts int)
	// finish is the scores and experts of the thread's slots of row h (0 or
	// 1): slot 4s + lane.
	finish(h int) (scores []ptx.F32, experts []ptx.U32)
	// row is the thread's first row of 64, the second is 8 below; lane is its
	// place in the quad.
	row() ptx.U32
	quadLane() ptx.U32
}

// selection is a topKSelection with keys of one width. Keys are unique, so
// round k of the selection is the largest key below that of round k-1.
type selection[K ptx.Value] struct {
	k        *ptx.Kernel
	key      keyMath[K]
	topK     int
	fragment tile.Fragment
	lane     ptx.U32 // in the quad
	quad     ptx.U32 // the quad's first lane
	// round gives two logits the format in which they are compared.
	round func(a, b ptx.F32) (ptx.F32, ptx.F32)
	// list[h][s] is the key of slot 4s + lane of row h.
	list [2][]*ptx.Var[K]
}

func newSelection[K ptx.Value](k *ptx.Kernel, key keyMath[K], topK int, thread ptx.U32, round func(a, b ptx.F32) (ptx.F32, ptx.F32)) *selection[K] {
	s := &selection[K]{k: k, key: key, topK: topK, fragment: tile.NewFragment(thread), lane: thread.AndI(3), quad: thread.AndI(28), round: round}
	for h := range s.list {
		for range (topK + 3) / 4 {
			s.list[h] = append(s.list[h], ptx.NewVar(k, key.none))
		}
	}
	return s
}

func (s *selection[K]) row() ptx.U32      { return s.fragment.Row }
func (s *selection[K]) quadLane() ptx.U32 { return s.lane }

func (s *selection[K]) clear() {
	for h := range s.list {
		for _, v := range s.list[h] {
			v.Set(s.key.none)
		}
	}
}

func (s *selection[K]) merge(acc []ptx.F32, first ptx.U32, experts int) {
	for h := range s.list {
		candidates := s.keys(h, acc, first, experts)
		next := make([]*ptx.Var[K], len(s.list[h]))
		for i, v := range s.list[h] {
			candidates = append(candidates, v.Copy())
			next[i] = ptx.NewVar(s.k, s.key.none)
		}
		below := ptx.NewVar(s.k, s.key.all)
		s.k.For(ptx.Uint(0), ptx.Uint(s.topK), ptx.Uint(1), func(round ptx.U32) {
			win := s.largestBelow(candidates, below.Get())
			win = s.key.max(win, s.key.xor(win, 1))
			win = s.key.max(win, s.key.xor(win, 2))
			for i, v := range next {
				mine := round.Eq(s.lane.AddI(4 * i))
				v.Set(ptx.Select(mine, win, v.Get()))
			}
			below.Set(win)
		})
		for i, v := range s.list[h] {
			v.Set(next[i].Get())
		}
	}
}

// largestBelow is the largest key below a bound, by a tree.
func (s *selection[K]) largestBelow(keys []K, bound K) K {
	level := make([]K, len(keys))
	for i, key := range keys {
		level[i] = ptx.Select(s.key.less(key, bound), key, s.key.none)
	}
	for len(level) > 1 {
		var up []K
		for i := 0; i+1 < len(level); i += 2 {
			up = append(up, s.key.max(level[i], level[i+1]))
		}
		if len(level)%2 == 1 {
			up = append(up, level[len(level)-1])
		}
		level = up
	}
	return level[0]
}

// keys makes the keys of row h from a fragment's logits.
func (s *selection[K]) keys(h int, acc []ptx.F32, first ptx.U32, experts int) (keys []K) {
	// code is the complement of the expert of the thread's first column.
	code := ptx.Uint(expertMask).Sub(first).Sub(s.fragment.Column)
	beyond := ptx.Uint(experts).Sub(first).Sub(s.fragment.Column)
	for i := 2 * h; i < len(acc); i += 4 {
		column := i >> 2 * 8
		lo, hi := s.round(acc[i], acc[i+1])
		for j, logit := range []ptx.F32{lo, hi} {
			key := s.key.of(logit, code.SubI(column+j))
			// Columns past the last expert are never chosen.
			valid := beyond.Signed().Gt(ptx.Int(column + j))
			keys = append(keys, ptx.Select(valid, key, s.key.none))
		}
	}
	return keys
}

func (s *selection[K]) finish(h int) (scores []ptx.F32, experts []ptx.U32) {
	const log2e = 1.4426950408889634
	top := s.key.value(s.key.from(s.list[h][0].Get(), s.quad))
	sum := ptx.Float(0)
	for i, v := range s.list[h] {
		p := s.key.value(v.Get()).Sub(top).Mul(ptx.Float(log2e)).Ex2Approx(".ftz")
		if 4*i+3 >= s.topK {
			p = ptx.Select(s.lane.AddI(4*i).LtI(s.topK), p, ptx.Float(0))
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
