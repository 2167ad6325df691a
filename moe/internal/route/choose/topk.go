package choose

import (
	"math"

	"sonicmoe/internal/spec"
	"sonicmoe/jit/gemm"
	"sonicmoe/jit/tile"
	"sonicmoe/moe/internal/element"
	"sonicmoe/moe/internal/lanes"
	"sonicmoe/moe/internal/route/order"
	"sonicmoe/ptx"
)

// chooseTopK is the epilogue that chooses the K experts of each token and scores them.
type chooseTopK struct {
	logitWriter
	out routerOutputs
	counter
	sel topKSelection
}

func (e chooseTopK) column() ptx.U32 { return e.sel.column() }

func (e chooseTopK) begin() { e.sel.clear() }

func (e chooseTopK) add(logits []ptx.F32, first func() ptx.U32, chunk ptx.U32) rowTotals {
	e.k.If(e.logits.Given(), func() {
		e.write(logits, first().Add(e.sel.row()), chunk.MulI(e.chunk).Add(e.sel.column()))
	})
	return e.sel.merge(logits, chunk)
}

// end stores the scores and expert ids of the warpgroup's 64 tokens, and counts the experts.
func (e chooseTopK) end(first func() ptx.U32, totals rowTotals) {
	k, of := e.k, first()
	for h := range 2 {
		token := of.Add(e.sel.row()).AddI(8 * h)
		score, id := e.sel.finish(h, totals[h])
		k.If(token.Lt(e.to), func() {
			for s := range score {
				slot := e.sel.quadLane().AddI(4 * s)
				k.If(slot.LtI(e.TopK), func() {
					at := token.Mad(ptx.Uint(e.TopK), slot)
					ptx.StGlobal(e.out.scores.Index(at, 4), score[s])
					ptx.StGlobal(e.out.ids.Index(at, 4), id[s])
					k.RedSharedAdd(e.counts.Plus(id[s].ShlI(2)), ptx.Uint(1))
				})
			}
		})
	}
}

// finish stores the CTA's counts.
func (e chooseTopK) finish() {
	e.mathWarps.Sync(ptx.Uint(0))
	order.StoreCounts(e.k, e.out.counts, e.counts, e.NumExperts, e.tid, gemm.MathThreads)
}

// logitWriter stores logits.
type logitWriter struct {
	routerPart
	logits ptx.Global
}

// write stores the thread's logits of a chunk, for the rows token and token+8. The thread has pairs
// of neighbouring experts, the first one at expert and each further one 8 experts on.
func (e logitWriter) write(acc []ptx.F32, token, expert ptx.U32) {
	if e.Logits != spec.F32 && e.NumExperts%4 == 0 && e.chunk%16 == 0 {
		e.writeFours(acc, token, expert)
		return
	}
	bytes := int(e.Logits.Bytes())
	// With an even number of experts, pairs are aligned, and no pair is half past the end.
	together := 2 - e.NumExperts%2
	for h := range 2 {
		token := token.AddI(8 * h)
		e.k.If(token.Lt(e.to), func() {
			row := e.logits.Index(token, bytes*e.NumExperts).Index(expert, bytes)
			for i := 0; i < len(acc); i += 4 {
				for j := 0; j < 2; j += together {
					on := 2*i + j
					store := func() { storeLogit(e.k, e.Logits, row.At(bytes*on), acc[i+2*h+j:][:together]...) }
					if last := 6; (e.count-1)*e.chunk+last+on < e.NumExperts { // last is the largest first column that a lane has
						store()
					} else {
						e.k.If(expert.AddI(on).LtI(e.NumExperts), store)
					}
				}
			}
		})
	}
}

// writeFours is write for logits of 16 bits. It stores four logits at a time. A lane has two
// of each 8 columns. Two neighbouring lanes exchange pairs, so that each has four neighbouring
// logits. The stores of a quad then fill a sector of 32 bytes. Stores of two logits would fill half
// a sector and take twice the time.
func (e logitWriter) writeFours(acc []ptx.F32, token, expert ptx.U32) {
	of, bytes := element.OfLogits(e.Logits), int(e.Logits.Bytes())
	odd := e.k.TidX().AndI(1)
	isOdd := odd.NeI(0)
	// The lanes of a quad had columns 0, 2, 4, 6. After the exchange, the first columns of the
	// lanes are 0, 8, 4 and 12.
	expert = expert.Add(odd.MulI(6))
	for h := range 2 {
		token := token.AddI(8 * h)
		there := token.Lt(e.to)
		row := e.logits.Index(token, bytes*e.NumExperts).Index(expert, bytes)
		for i := 0; i < len(acc); i += 8 {
			on := 2 * i
			a, b := of.Pack(e.k, acc[i+2*h], acc[i+2*h+1]), of.Pack(e.k, acc[i+4+2*h], acc[i+4+2*h+1])
			other := ptx.Select(isOdd, a, b).ShflXor(1)
			first, second := ptx.Select(isOdd, other, a), ptx.Select(isOdd, b, other)
			stored := there
			if (e.count-1)*e.chunk+on+16 > e.NumExperts {
				stored = there.And(expert.AddI(on).LtI(e.NumExperts))
			}
			e.k.Guarded(stored, func() { ptx.StGlobal(row.At(bytes*on), first, second) })
		}
	}
}

// storeLogit stores one logit, or two neighbouring ones at once.
func storeLogit(k *ptx.Kernel, format spec.Type, at ptx.Global, logits ...ptx.F32) {
	switch {
	case format == spec.F32:
		ptx.StGlobal(at, logits...)
	case len(logits) == 2:
		ptx.StGlobal(at, element.OfLogits(format).Pack(k, logits[0], logits[1]))
	default:
		ptx.StGlobal(at, element.OfLogits(format).Round(logits[0]))
	}
}

// topKSelection keeps the top-K of two rows while logits arrive. The four lanes of a quad share the
// two rows, and each lane has some of the columns.
type topKSelection interface {
	// clear starts new rows. It does nothing if there is only one chunk.
	clear()
	// merge adds the logits of a chunk of experts, given as a fragment.
	merge(acc []ptx.F32, chunk ptx.U32) rowTotals
	// finish returns the scores and experts of the thread's slots of row h (0 or 1). Element s
	// is slot 4s + quadLane. total is the row's element of [rowTotals].
	finish(h int, total ptx.F32) (scores []ptx.F32, experts []ptx.U32)
	// row returns the thread's first row among the 64; its second row is row+8. quadLane returns
	// the number of the lane in its quad.
	row() ptx.U32
	quadLane() ptx.U32
	// column returns the thread's first column.
	column() ptx.U32
}

// selection is the topKSelection with keys of one width.
type selection[K ptx.Value] struct {
	Router
	k          *ptx.Kernel
	key        keyMath[K]
	thread     ptx.U32 // number of the thread in its warpgroup
	lane, quad ptx.U32 // number of the lane in its quad, and the quad's first lane
	// list[h][s] is the key of slot 4s + lane in row h.
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

func (s *selection[K]) row() ptx.U32 { return tile.NewFragment(s.thread).Row }

func (s *selection[K]) quadLane() ptx.U32 { return s.lane }

func (s *selection[K]) column() ptx.U32 { return tile.NewFragment(s.thread).Column }

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

// merge sorts the thread's own keys, and then merges the sorted lists of the lanes of a
// quad. A thread keeps K keys, because all of the row's largest keys may be its own.
func (s *selection[K]) merge(acc []ptx.F32, chunk ptx.U32) (totals rowTotals) {
	count, width := s.chunks()
	first := chunk.MulI(width).Add(s.column())
	for h := range s.list {
		if s.All {
			totals[h] = s.sumRow(h, acc, first)
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
	return totals
}

// keep stores the slots of a row's top-K that belong to this thread.
func (s *selection[K]) keep(h int, top []K) {
	for i, v := range s.list[h] {
		mine := s.key.none
		for lane, key := range top[4*i : min(4*i+4, len(top))] {
			mine = ptx.Select(s.lane.EqI(lane), key, mine)
		}
		v.Set(mine)
	}
}

// own returns the K largest keys of the thread's columns in row h, or all if there are fewer.
// Experts are counted from first, the thread's first column, so that their codes are constants.
func (s *selection[K]) own(h int, acc []ptx.F32, first ptx.U32) (top []K) {
	// The groups are sorted one after another, so that only one group's keys need registers
	// besides the logits.
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

// pair returns the keys of two neighbouring logits, at first + column and the expert after it. Past
// the last expert the keys are below all others.
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

func (s *selection[K]) finish(h int, total ptx.F32) (scores []ptx.F32, experts []ptx.U32) {
	top := s.key.value(s.key.from(s.list[h][0].Get(), s.quad))
	sum := ptx.Float(0)
	for i, v := range s.list[h] {
		p := s.key.value(v.Get()).Sub(top).Mul(ptx.Float(math.Log2E)).Ex2Approx(".ftz")
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
		sum = total
	} else {
		sum = lanes.Combine(sum, lanes.Add, 1, 2)
	}
	inverse := sum.RcpApprox(".ftz")
	for i := range scores {
		scores[i] = scores[i].Mul(inverse)
	}
	return scores, experts
}

// sumRow sums the exponentials of all logits of row h of a fragment. sumRow and sumWarp add in the
// same order: first the pairs of experts p, p+32, p+64 and so on one after another, which gives 32
// sums. Then a tree adds these sums over bits 4, 3 and 2 of p, and last over bits 0 and 1, which
// are the number of the lane in the quad.
func (s *selection[K]) sumRow(h int, acc []ptx.F32, first ptx.U32) ptx.F32 {
	var values []ptx.F32
	for i := 0; i < len(acc); i += 4 {
		for j, x := range s.compared(acc[i+2*h], acc[i+2*h+1]) {
			if column := 2*i + j; column+8 > s.NumExperts {
				x = ptx.Select(first.AddI(column).LtI(s.NumExperts), x, ptx.Float(math.Inf(-1)))
			}
			values = append(values, x)
		}
	}
	pair := pairsBelow(lanes.Combine(largestValue(values), lanes.Larger, 1, 2))
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
	return lanes.Combine(tree(0, 1), lanes.Add, 1, 2)
}

// sumWarp is sumRow for a row that is spread over a warp: a lane has two of each 64 experts.
func (s *selection[K]) sumWarp(keys []K) ptx.F32 {
	var values []ptx.F32
	for _, v := range keys {
		is := s.key.equal(v, s.key.none)
		values = append(values, ptx.Select(is, ptx.Float(math.Inf(-1)), s.key.value(v)))
	}
	pair := pairsBelow(lanes.Max(largestValue(values)))
	sum := pair(values)
	for i := 2; i < len(values); i += 2 {
		sum = sum.Add(pair(values[i:]))
	}
	return lanes.Combine(sum, lanes.Add, 16, 8, 4, 1, 2)
}

// largestValue returns the largest of a thread's values.
func largestValue(values []ptx.F32) ptx.F32 {
	top := values[0]
	for _, x := range values[1:] {
		top = lanes.Larger(top, x)
	}
	return top
}

// pairsBelow returns a function that adds the exponentials of two logits, after it has subtracted
// top, the largest logit, from each.
func pairsBelow(top ptx.F32) func(of []ptx.F32) ptx.F32 {
	less := top.Mul(ptx.Float(-math.Log2E))
	exp := func(x ptx.F32) ptx.F32 { return x.Fma(ptx.Float(math.Log2E), less).Ex2Approx(".ftz") }
	return func(of []ptx.F32) ptx.F32 { return exp(of[0]).Add(exp(of[1])) }
}

// compared returns two logits rounded as the keys round them: one instruction converts both.
func (s *selection[K]) compared(lo, hi ptx.F32) [2]ptx.F32 {
	if s.Logits == spec.F32 {
		return [2]ptx.F32{lo, hi}
	}
	of := element.OfLogits(s.Logits)
	lo, hi = of.Unpack(of.Pack(s.k, lo, hi))
	return [2]ptx.F32{lo, hi}
}

// newTopK returns the selection for the format of the router's logits.
func newTopK(k *ptx.Kernel, r Router, thread ptx.U32) topKSelection {
	if r.Logits == spec.F32 {
		return newSelection(k, longKeys(k), r, thread)
	}
	return newSelection(k, shortKeys(k, element.OfLogits(r.Logits)), r, thread)
}
