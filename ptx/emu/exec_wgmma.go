package emu

import (
	"fmt"

	"sonicmoe/ptx/isa"
)

const (
	wgmmaRows = 64
	allWarps  = 0xf
)

// warpgroup is four warps that multiply together.
type warpgroup struct {
	warps [4]*warp
	ops   []*wgmmaOp // issued by some warp and not yet computed, in order
	base  int        // number of ops[0]

	acc      []uint32
	elements []uint16
	a, b     []slabRow
}

// wgmmaOp is one wgmma of a warpgroup.
type wgmmaOp struct {
	in     *inst
	a, b   uint64 // descriptors
	keep   bool   // scale-d: the accumulator is added
	issued uint8  // warps that have executed it
}

func (g *warpgroup) reset() { g.ops, g.base = nil, 0 }

// mmaState is a warp's view of its warpgroup's products.
type mmaState struct {
	issued  int
	groups  []int // number of wgmma issued when each group was committed
	fenced  bool
	epoch   uint32   // wgmma.fence executed
	touched []uint32 // for each 32-bit slot: 1 + epoch of the latest ordinary access
	flight  []int    // for each 32-bit slot: 1 + number of the latest wgmma on it
	live    []flight
}

// flight is a wgmma that no wait_group has covered.
type flight struct {
	number int
	in     *inst
}

func (s *mmaState) reset(k *Kernel) {
	if s.flight == nil && len(k.isAcc) > 0 {
		s.flight, s.touched = make([]int, len(k.isAcc)), make([]uint32, len(k.isAcc))
	}
	clear(s.flight)
	clear(s.touched)
	s.issued, s.groups, s.fenced, s.epoch, s.live = 0, s.groups[:0], false, 0, s.live[:0]
}

// touch is called for ordinary instructions on accumulators.
func (s *mmaState) touch(w *warp, in *inst) outcome {
	isAcc := w.cta.cluster.grid.kernel.isAcc
	for _, slots := range [2][]int32{in.use[bank32], in.def[bank32]} {
		for _, slot := range slots {
			if !isAcc[slot] {
				continue
			}
			if n := s.flight[slot]; n > 0 {
				return w.fault(in, AccumulatorInFlight, fullMask, "%s is touched by %s while wgmma number %d of the warpgroup may still use it: wgmma.wait_group first",
					w.slotName(bank32, slot), in.form.Op, n)
			}
			s.touched[slot] = s.epoch + 1
		}
	}
	return next
}

func wgmmaForms() map[isa.ID]handler {
	return map[isa.ID]handler{
		isa.WgmmaFence: {exec: func(w *warp, _ *frag, _ *inst, _ uint32) outcome {
			w.mma.fenced = true
			w.mma.epoch++
			return next
		}},
		isa.WgmmaCommit: {exec: func(w *warp, _ *frag, _ *inst, _ uint32) outcome {
			w.mma.groups = append(w.mma.groups, w.mma.issued)
			return next
		}},
		isa.WgmmaWait: {exec: wgmmaWait, waits: waitsForWarpgroup},
		isa.WgmmaBF16: {exec: wgmmaIssue},
	}
}

// wgmmaIssue adds this warp to the warpgroup's next product.
func wgmmaIssue(w *warp, _ *frag, in *inst, mask uint32) outcome {
	if mask != fullMask || w.id/4 >= len(w.cta.groups) {
		return w.fault(in, DivergentAligned, mask, "wgmma needs four whole warps that start at a multiple of four")
	}
	op, out := w.wgmmaOperands(in)
	if out != next {
		return out
	}
	s := &w.mma
	if out := w.checkAccumulators(in, op.keep); out != next {
		return out
	}
	g := w.cta.groups[w.id/4]
	number := s.issued
	s.issued++
	if at := number - g.base; at == len(g.ops) {
		g.ops = append(g.ops, op)
	} else if first := g.ops[at]; first.in != in || first.a != op.a || first.b != op.b || first.keep != op.keep {
		return w.fault(in, DivergentAligned, mask, "warps of the warpgroup execute different wgmma: line %d with descriptors %#x, %#x in one, line %d with %#x, %#x in this one",
			first.in.line, first.a, first.b, in.line, op.a, op.b)
	}
	g.ops[number-g.base].issued |= 1 << (w.id % 4)
	for _, slot := range in.args[0].list {
		s.flight[slot] = number + 1
		w.ok[bank32][slot] = fullMask
	}
	s.live = append(s.live, flight{number, in})
	w.cta.cluster.event()
	if w.cta.cluster.grid.launch.Timing == Early && g.ops[number-g.base].issued == allWarps && !g.completeTo(number+1) {
		return failed
	}
	return next
}

// wgmmaOperands reads the operands, which the whole warp must agree on, and
// checks the descriptors.
func (w *warp) wgmmaOperands(in *inst) (*wgmmaOp, outcome) {
	op := &wgmmaOp{in: in}
	var same [2]bool
	op.a, same[0] = w.uniform64(in.slot[1], fullMask)
	op.b, same[1] = w.uniform64(in.slot[2], fullMask)
	if !same[0] || !same[1] {
		return nil, w.fault(in, IllegalDescriptor, fullMask, "lanes of the warp give different matrix descriptors")
	}
	keep := w.pred(&in.args[3])
	if keep != 0 && keep != fullMask {
		return nil, w.fault(in, DivergentAligned, keep, "lanes of the warp give different scale-d")
	}
	op.keep = keep != 0
	for i, d := range [2]uint64{op.a, op.b} {
		m, err := DecodeMatrixDescriptor(d)
		if err == nil {
			err = m.Check(in.major(i), in.matrixRows(i))
		}
		if err != nil {
			return nil, w.fault(in, IllegalDescriptor, fullMask, "%c: %v", 'A'+i, err)
		}
	}
	return op, next
}

// major and matrixRows describe operand 0, A, or 1, B.
func (in *inst) major(operand int) Major { return Major(in.args[6+operand].imm & 1) }

func (in *inst) matrixRows(operand int) uint32 {
	if operand == 0 {
		return wgmmaRows
	}
	return uint32(2 * len(in.args[0].list))
}

func (w *warp) checkAccumulators(in *inst, keep bool) outcome {
	s := &w.mma
	if !s.fenced {
		return w.fault(in, MissingFence, fullMask, "the first wgmma needs a wgmma.fence before it")
	}
	for _, slot := range in.args[0].list {
		if s.touched[slot] == s.epoch+1 {
			return w.fault(in, MissingFence, fullMask, "%s was touched since the latest wgmma.fence", w.slotName(bank32, slot))
		}
		if keep && w.ok[bank32][slot] != fullMask {
			return w.fault(in, UninitializedRegister, ^w.ok[bank32][slot], "%s is added to, but was never written", w.slotName(bank32, slot))
		}
		if n := s.flight[slot]; n > 0 {
			if other := s.number(n - 1); other != nil && len(other.args[0].list) != len(in.args[0].list) {
				return w.fault(in, AccumulatorInFlight, fullMask, "%s is in flight in a wgmma of another shape", w.slotName(bank32, slot))
			}
		}
	}
	return next
}

func (s *mmaState) number(n int) *inst {
	for i := len(s.live) - 1; i >= 0; i-- {
		if s.live[i].number == n {
			return s.live[i].in
		}
	}
	return nil
}

// wgmmaWait finishes all but the latest groups.
func wgmmaWait(w *warp, _ *frag, in *inst, mask uint32) outcome {
	s := &w.mma
	n := len(s.groups) - int(in.args[0].imm)
	if n <= 0 {
		return next
	}
	if w.id/4 >= len(w.cta.groups) {
		return w.fault(in, DivergentAligned, mask, "wgmma.wait_group needs four whole warps")
	}
	g, upTo := w.cta.groups[w.id/4], s.groups[n-1]
	for i := g.base; i < upTo; i++ {
		if g.ops[i-g.base].issued != allWarps {
			return waiting
		}
	}
	if !g.completeTo(upTo) {
		return failed
	}
	s.groups = append(s.groups[:0], s.groups[n:]...)
	kept := s.live[:0]
	for _, f := range s.live {
		if f.number >= upTo {
			kept = append(kept, f)
			continue
		}
		for _, slot := range f.in.args[0].list {
			if s.flight[slot] == f.number+1 {
				s.flight[slot] = 0
			}
		}
	}
	s.live = kept
	return next
}

func waitsForWarpgroup(w *warp, _ *frag, _ *inst) string {
	g := w.cta.groups[w.id/4]
	for i, op := range g.ops {
		if op.issued != allWarps {
			missing := ""
			for k := range 4 {
				if op.issued>>k&1 == 0 {
					missing += fmt.Sprintf(" %d", g.warps[k].id)
				}
			}
			return fmt.Sprintf("waits for wgmma number %d of its warpgroup (line %d), which warps%s have not executed", g.base+i+1, op.in.line, missing)
		}
	}
	return "waits for its warpgroup's wgmma"
}

// completeTo computes the products up to a number, in order.
func (g *warpgroup) completeTo(number int) bool {
	for len(g.ops) > 0 && g.base < number {
		if !g.compute(g.ops[0]) {
			return false
		}
		g.ops[0] = nil
		g.ops = g.ops[1:]
		g.base++
		g.warps[0].cta.cluster.progress()
	}
	return true
}

// compute multiplies: it reads the tiles and the accumulators as they are now.
func (g *warpgroup) compute(op *wgmmaOp) bool {
	in := op.in
	n := int(in.matrixRows(1))
	if cap(g.acc) < wgmmaRows*n {
		g.acc, g.elements = make([]uint32, wgmmaRows*n), make([]uint16, max(wgmmaRows, n)*slabDepth)
		g.a, g.b = make([]slabRow, wgmmaRows), make([]slabRow, n)
	}
	acc, a, b := g.acc[:wgmmaRows*n], g.a, g.b[:n]
	if !g.loadSlab(op, 0, op.a, a) || !g.loadSlab(op, 1, op.b, b) {
		return false
	}
	if op.keep {
		g.eachAccumulator(in, n, func(reg *uint32, at int) { acc[at] = *reg })
	} else {
		clear(acc)
	}
	mma(acc, a, b)
	g.eachAccumulator(in, n, func(reg *uint32, at int) { *reg = acc[at] })
	return true
}

func (g *warpgroup) eachAccumulator(in *inst, n int, visit func(reg *uint32, at int)) {
	for t, w := range g.warps {
		for i, slot := range in.args[0].list {
			regs := &w.r32[slot]
			for l := range regs {
				row, col := accumulatorPosition(t*warpLanes+l, i)
				visit(&regs[l], row*n+col)
			}
		}
	}
}

// loadSlab reads and decodes operand 0, A, or 1, B.
func (g *warpgroup) loadSlab(op *wgmmaOp, operand int, desc uint64, rows []slabRow) bool {
	w, s := g.warps[0], &g.warps[0].cta.shared
	d, _ := DecodeMatrixDescriptor(desc) // checked when it was issued
	major, mn := op.in.major(operand), uint32(len(rows))
	var bad *problem
	fenced := uint64(0)
	for _, x := range g.warps {
		fenced = max(fenced, x.latestFence(fullMask))
	}
	d.chunks(major, mn, func(address, _, _ uint32) {
		if bad == nil {
			bad = s.checkRead(address, 16, 1)
		}
		if bad == nil {
			bad = s.proxy.check("reads", address, 16, fenced)
		}
	})
	if bad != nil {
		w.fault(op.in, bad.kind, fullMask, "wgmma reads %c through descriptor %#x (%v, %v): %s", 'A'+operand, desc, major, d.Swizzle, bad.text)
		return false
	}
	elements := g.elements[:int(mn)*slabDepth]
	if err := d.load(elements, s.bytes, major, mn); err != nil {
		w.fault(op.in, OutOfBounds, fullMask, "%c: %v", 'A'+operand, err)
		return false
	}
	bf16Slab.decode(rows, elements, op.in.args[4+operand].imm < 0)
	return true
}
