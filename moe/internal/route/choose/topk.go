package choose

import (
	"math"

	"sonicmoe/internal/spec"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/ptx"
)

// This file is the selection of each token's experts in registers: the running
// top-K first, then the keys that it compares. sortnet.go has the networks.

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
	// total[h] is the sum of all logits' exponentials in row h, with All.
	total [2]ptx.F32
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
		if s.All {
			s.sumRow(h, acc, first)
		}
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
	// Each group is sorted while most logits still wait in registers.
	group := 2
	for group < min(s.TopK, widestSorted) {
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
		experts = append(experts, expertOf(s.key, v.Get()))
		if s.All {
			continue
		}
		if i == 0 {
			sum = p
		} else {
			sum = sum.Add(p)
		}
	}
	if s.All {
		sum = s.total[h]
	} else {
		sum = lanes.Combine(sum, lanes.Add, 1, 2)
	}
	inverse := sum.RcpApprox(".ftz")
	for i := range scores {
		scores[i] = scores[i].Mul(inverse)
	}
	return scores, experts
}

// The exponentials of all logits of a row are summed by pairs of experts: pair p
// after pair p-32, then the sums of the 32 in a tree, over bits 4, 3 and 2 of p and
// last over bits 0 and 1, which are the lane in the quad; so in sumRow, of a
// fragment, and in sumWarp, whose lane has pairs alike modulo 32.

// sumRow sums a row of a fragment.
func (s *selection[K]) sumRow(h int, acc []ptx.F32, first ptx.U32) {
	var values []ptx.F32
	for i := 0; i < len(acc); i += 4 {
		for j, x := range s.compared(acc[i+2*h], acc[i+2*h+1]) {
			if column := 2*i + j; column+8 > s.NumExperts {
				x = ptx.Select(first.AddI(column).LtI(s.NumExperts), x, ptx.Float(math.Inf(-1)))
			}
			values = append(values, x)
		}
	}
	top := values[0]
	for _, x := range values[1:] {
		top = lanes.Larger(top, x)
	}
	pair := pairsBelow(lanes.Combine(top, lanes.Larger, 1, 2))
	var tree func(from, step int) ptx.F32
	tree = func(from, step int) ptx.F32 {
		if step < 8 {
			a := tree(from, 2*step)
			if 2*(from+step) >= len(values) {
				return a
			}
			return a.Add(tree(from+step, 2*step))
		}
		sum := pair(values[2*from:])
		for i := from + 8; 2*i < len(values); i += 8 {
			sum = sum.Add(pair(values[2*i:]))
		}
		return sum
	}
	s.total[h] = lanes.Combine(tree(0, 1), lanes.Add, 1, 2)
}

// sumWarp sums the row of a warp, whose lanes have the keys of two experts of each
// 64.
func (s *selection[K]) sumWarp(keys []K) {
	var values []ptx.F32
	for _, v := range keys {
		is := s.key.equal(v, s.key.none)
		values = append(values, ptx.Select(is, ptx.Float(math.Inf(-1)), s.key.value(v)))
	}
	top := values[0]
	for _, x := range values[1:] {
		top = lanes.Larger(top, x)
	}
	pair := pairsBelow(lanes.Max(top))
	sum := pair(values)
	for i := 2; i < len(values); i += 2 {
		sum = sum.Add(pair(values[i:]))
	}
	s.total[0] = lanes.Combine(sum, lanes.Add, 16, 8, 4, 1, 2)
}

// pairsBelow gives the sum of the exponentials of two logits less the largest.
func pairsBelow(top ptx.F32) func(of []ptx.F32) ptx.F32 {
	less := top.Mul(ptx.Float(-math.Log2E))
	exp := func(x ptx.F32) ptx.F32 { return x.Fma(ptx.Float(math.Log2E), less).Ex2Approx(".ftz") }
	return func(of []ptx.F32) ptx.F32 { return exp(of[0]).Add(exp(of[1])) }
}

// compared is two logits as they are compared: rounded by one instruction, and
// by the one that their keys are made of.
func (s *selection[K]) compared(lo, hi ptx.F32) [2]ptx.F32 {
	if s.Logits == spec.LogitsF32 {
		return [2]ptx.F32{lo, hi}
	}
	of := element.OfLogits(s.Logits)
	lo, hi = of.Unpack(of.Pack(s.k, lo, hi))
	return [2]ptx.F32{lo, hi}
}

// A key is a logit and its expert as one unsigned number: the logit, mapped so
// that unsigned order is numeric order, above the expert's complement. The
// largest key is then the largest logit and, of equal logits, the lower
// expert's. -0 and +0 tie; NaN maps above every number, so that a router gone
// wrong shows in the output, as with torch.topk. Keys are unique and never 0.

// keyMath is what the selection does with keys of one width.
type keyMath[K ptx.Value] struct {
	none     K // below every key
	max, min func(a, b K) K
	xor      func(a K, lanes int) K    // the key of the lane that differs in these bits
	from     func(a K, lane ptx.U32) K // the key of the given lane
	// of is the keys of two logits; codes are the complements of their experts.
	of func(logits [2]ptx.F32, codes [2]int) [2]K
	// missing is the key of an expert that there isn't: below those of all that
	// there are.
	missing func(code int) K
	// beyond is the key with the expert's number raised by experts.
	beyond func(key K, experts ptx.U32) K
	value  func(K) ptx.F32
	code   func(K) ptx.U32
	// warpMax is the largest key of the warp.
	warpMax func(K) K
	equal   func(a, b K) ptx.Pred
}

// expertOf is a key's expert.
func expertOf[K ptx.Value](key keyMath[K], of K) ptx.U32 {
	return ptx.Uint(expertMask).Sub(key.code(of))
}

// expertMask is the part of a key that holds the expert's complement.
const expertMask = 0xffff

// shortKeys hold a logit rounded to an element in the upper half of 32 bits: as a
// two's complement number, from which -0 and +0 are the same, and then moved up to
// be unsigned. NaN, which cvt makes 0x7fff, is the largest of all.
func shortKeys(k *ptx.Kernel, e tile.Element) keyMath[ptx.U32] {
	const (
		up        = 0x80000000
		signBit   = 0x80000000
		magnitude = 0x7fffffff
	)
	upper := func(x ptx.U32) ptx.U32 { return x.AndI(^expertMask & 0xffffffff) }
	return keyMath[ptx.U32]{
		none: ptx.Uint(0),
		max:  func(a, b ptx.U32) ptx.U32 { return a.Max(b) },
		min:  func(a, b ptx.U32) ptx.U32 { return a.Min(b) },
		xor:  func(a ptx.U32, lanes int) ptx.U32 { return a.ShflXor(lanes) },
		from: func(a, lane ptx.U32) ptx.U32 { return a.ShflIdx(lane) },
		of: func(logits [2]ptx.F32, codes [2]int) (keys [2]ptx.U32) {
			word := e.Pack(k, logits[0], logits[1])
			for i, bits := range []ptx.U32{word.ShlI(16), upper(word)} {
				sign := bits.Signed().ShrI(31).Bits()
				keys[i] = bits.Xor(sign.AndI(magnitude)).Sub(sign).AddI(up + codes[i])
			}
			return keys
		},
		missing: func(code int) ptx.U32 { return ptx.Uint(code) },
		beyond:  func(key, experts ptx.U32) ptx.U32 { return key.Sub(experts) },
		value: func(key ptx.U32) ptx.F32 {
			number := upper(key).Sub(ptx.Uint(up))
			negative := number.Signed().Lt(ptx.Int(0))
			return e.Upper(ptx.Select(negative, ptx.Uint(signBit).Sub(number), number))
		},
		code:    func(key ptx.U32) ptx.U32 { return key.AndI(expertMask) },
		warpMax: func(key ptx.U32) ptx.U32 { return key.ReduxMax() },
		equal:   func(a, b ptx.U32) ptx.Pred { return a.Eq(b) },
	}
}

// ordered maps a logit to bits whose unsigned order is its numeric order, NaN
// to the largest.
func ordered(f ptx.F32) ptx.U32 {
	bits := f.Add(ptx.Float(0)).Bits() // -0 becomes +0
	flip := bits.Signed().ShrI(31).Bits().OrI(0x80000000)
	return ptx.Select(f.Eq(f), bits.Xor(flip), ptx.Uint(0xffffffff))
}

// unordered is the inverse of ordered.
func unordered(bits ptx.U32) ptx.F32 {
	positive := bits.Signed().Lt(ptx.Int(0))
	return bits.Xor(ptx.Select(positive, ptx.Uint(0x80000000), ptx.Uint(0xffffffff))).AsF32()
}

// longKeys hold an FP32 logit in the upper half of 64 bits.
func longKeys(k *ptx.Kernel) keyMath[ptx.U64] {
	each := func(a ptx.U64, f func(ptx.U32) ptx.U32) ptx.U64 {
		lo, hi := a.Unpack()
		return k.Pack64(f(lo), f(hi))
	}
	return keyMath[ptx.U64]{
		none: ptx.Long(0),
		max:  func(a, b ptx.U64) ptx.U64 { return a.Max(b) },
		min:  func(a, b ptx.U64) ptx.U64 { return a.Min(b) },
		xor: func(a ptx.U64, lanes int) ptx.U64 {
			return each(a, func(x ptx.U32) ptx.U32 { return x.ShflXor(lanes) })
		},
		from: func(a ptx.U64, lane ptx.U32) ptx.U64 {
			return each(a, func(x ptx.U32) ptx.U32 { return x.ShflIdx(lane) })
		},
		of: func(logits [2]ptx.F32, codes [2]int) (keys [2]ptx.U64) {
			for i, f := range logits {
				keys[i] = k.Pack64(ptx.Uint(codes[i]), ordered(f))
			}
			return keys
		},
		missing: func(code int) ptx.U64 { return ptx.Long(uint64(code)) },
		beyond: func(key ptx.U64, experts ptx.U32) ptx.U64 {
			lo, hi := key.Unpack()
			return k.Pack64(lo.Sub(experts), hi)
		},
		value: func(key ptx.U64) ptx.F32 {
			_, hi := key.Unpack()
			return unordered(hi)
		},
		code: func(key ptx.U64) ptx.U32 {
			lo, _ := key.Unpack()
			return lo
		},
		warpMax: func(key ptx.U64) ptx.U64 {
			lo, hi := key.Unpack()
			best := hi.ReduxMax()
			return k.Pack64(ptx.Select(hi.Eq(best), lo, ptx.Uint(0)).ReduxMax(), best)
		},
		equal: func(a, b ptx.U64) ptx.Pred { return a.Eq(b) },
	}
}

// newTopK is the selection for the layer's logit format.
func newTopK(k *ptx.Kernel, r Router, thread ptx.U32) topKSelection {
	if r.Logits == spec.LogitsF32 {
		return newSelection(k, longKeys(k), r, thread)
	}
	return newSelection(k, shortKeys(k, element.OfLogits(r.Logits)), r, thread)
}
