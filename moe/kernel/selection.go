package kernel

import (
	"sonicmoe/jit/tile"
	"sonicmoe/ptx"
)

// selection is the running top-K of the two rows that a thread shares with
// the other three lanes of its quad.
//
// A logit and its expert are one 32-bit key: the bf16 logit, mapped so that
// unsigned order is numeric order, above the expert's complement, so that the
// largest key is the largest logit and of equal logits the lower expert. NaN
// maps below every number. Keys are unique, so round k of the selection is
// the largest key below that of round k-1.
type selection struct {
	k        *ptx.Kernel
	topK     int
	fragment tile.Fragment
	lane     ptx.U32 // in the quad
	quad     ptx.U32 // the quad's first lane
	// list[h][s] is the key of slot 4s + lane of row h.
	list [2][]*ptx.Var[ptx.U32]
}

// expertMask is the part of a key that holds the expert's complement.
const expertMask = 0xffff

func newSelection(k *ptx.Kernel, topK int, thread ptx.U32) *selection {
	s := &selection{k: k, topK: topK, fragment: tile.NewFragment(thread), lane: thread.AndI(3), quad: thread.AndI(28)}
	for h := range s.list {
		for range (topK + 3) / 4 {
			s.list[h] = append(s.list[h], ptx.NewVar(k, ptx.Uint(0)))
		}
	}
	return s
}

func (s *selection) clear() {
	for h := range s.list {
		for _, v := range s.list[h] {
			v.Set(ptx.Uint(0))
		}
	}
}

// merge takes the logits of a fragment whose column 0 is expert first.
func (s *selection) merge(acc []ptx.F32, first ptx.U32, experts int) {
	for h := range s.list {
		candidates := s.keys(h, acc, first, experts)
		next := make([]*ptx.Var[ptx.U32], len(s.list[h]))
		for i, v := range s.list[h] {
			candidates = append(candidates, v.Copy())
			next[i] = ptx.NewVar(s.k, ptx.Uint(0))
		}
		below := ptx.NewVar(s.k, ptx.Uint(0xffffffff))
		s.k.For(ptx.Uint(0), ptx.Uint(s.topK), ptx.Uint(1), func(round ptx.U32) {
			win := largestBelow(candidates, below.Get())
			win = win.Max(win.ShflXor(1))
			win = win.Max(win.ShflXor(2))
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
func largestBelow(keys []ptx.U32, bound ptx.U32) ptx.U32 {
	level := make([]ptx.U32, len(keys))
	for i, key := range keys {
		level[i] = ptx.Select(key.Lt(bound), key, ptx.Uint(0))
	}
	for len(level) > 1 {
		var up []ptx.U32
		for i := 0; i+1 < len(level); i += 2 {
			up = append(up, level[i].Max(level[i+1]))
		}
		if len(level)%2 == 1 {
			up = append(up, level[len(level)-1])
		}
		level = up
	}
	return level[0]
}

// keys makes the keys of row h from a fragment's logits.
func (s *selection) keys(h int, acc []ptx.F32, first ptx.U32, experts int) (keys []ptx.U32) {
	// code is the complement of the expert of the thread's first column.
	code := ptx.Uint(expertMask).Sub(first).Sub(s.fragment.Column)
	beyond := ptx.Uint(experts).Sub(first).Sub(s.fragment.Column)
	for i := 2 * h; i < len(acc); i += 4 {
		column := i >> 2 * 8
		lo, hi := s.k.PackBF16(acc[i], acc[i+1]).Unpack()
		for j, logit := range []ptx.F32{lo, hi} {
			key := orderedKey(logit, code.SubI(column+j))
			// Columns past the last expert are never chosen.
			valid := beyond.Signed().Gt(ptx.Int(column + j))
			keys = append(keys, ptx.Select(valid, key, ptx.Uint(0)))
		}
	}
	return keys
}

// orderedKey joins a logit, already rounded to bf16, and an expert's code.
func orderedKey(logit ptx.F32, code ptx.U32) ptx.U32 {
	bits := logit.Add(ptx.Float(0)).Bits() // -0 becomes +0: they tie
	flip := bits.Signed().ShrI(31).Bits().OrI(0x80000000)
	key := bits.Xor(flip).AndI(^expertMask & 0xffffffff)
	number := logit.Eq(logit)
	return ptx.Select(number, key, ptx.Uint(0)).Or(code)
}

// finish is the scores and experts of the thread's slots of row h.
func (s *selection) finish(h int) (scores []ptx.F32, experts []ptx.U32) {
	const log2e = 1.4426950408889634
	value := func(key ptx.U32) ptx.F32 {
		// The inverse of orderedKey; NaN's 0 gives a NaN again.
		positive := key.Signed().Lt(ptx.Int(0))
		bits := key.Xor(ptx.Select(positive, ptx.Uint(0x80000000), ptx.Uint(0xffffffff)))
		return bits.AndI(^expertMask & 0xffffffff).AsF32()
	}
	top := value(s.list[h][0].Get().ShflIdx(s.quad))
	sum := ptx.Float(0)
	for i, v := range s.list[h] {
		p := value(v.Get()).Sub(top).Mul(ptx.Float(log2e)).Ex2Approx(".ftz")
		if 4*i+3 >= s.topK {
			p = ptx.Select(s.lane.AddI(4*i).LtI(s.topK), p, ptx.Float(0))
		}
		scores = append(scores, p)
		experts = append(experts, ptx.Uint(expertMask).Sub(v.Get().AndI(expertMask)))
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
