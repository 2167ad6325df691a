package emu

import (
	"fmt"
	"strings"

	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/isa"
)

const wgmmaRows = mma.Rows

func wgmmaForms() handlers {
	forms := handlers{
		isa.WgmmaFence: {do: func(w *warp, _ *inst, _ uint32) {
			w.mma.fenced = true
			w.mma.epoch++
		}},
		isa.WgmmaCommit: {do: func(w *warp, _ *inst, _ uint32) {
			w.mma.groups = append(w.mma.groups, w.mma.issued)
			if id := w.id / 4; id < len(w.cta.groups) {
				w.cta.trace.committed(id, w.mma.issued, w.cta.groups[id].base)
			}
		}},
		isa.WgmmaWait: {exec: wgmmaWait, waits: waitsForWarpgroup},
	}
	for i := range isa.Table {
		if f := &isa.Table[i]; strings.HasPrefix(f.Op, "wgmma.mma_async.") {
			forms[f.ID] = handler{do: wgmmaIssue, prepare: prepareProduct}
		}
	}
	return forms
}

// prepareProduct finds the formats of A and B, which are the last two modifiers.
func prepareProduct(in *inst) {
	for i := len(in.form.Mods) - 2; i < len(in.form.Mods); i++ {
		name := in.form.Mods[i].Alts[max(int(in.mods[i]), 1)-1]
		if in.product == nil {
			in.sparse = newSparsity(in, name)
		}
		f := elementFormats[name]
		if in.inHalves() {
			f = f.InHalves()
		}
		in.product = append(in.product, f)
	}
}

// wgmmaIssue adds this warp to the next wgmma of its warpgroup. The wgmma is issued when all four
// warps have executed it.
func wgmmaIssue(w *warp, in *inst, mask uint32) {
	if mask != fullMask || w.id/4 >= len(w.cta.groups) {
		w.fault(in, DivergentAligned, mask, "wgmma needs four complete warps, the first a multiple of four")
	}
	op := w.wgmmaOperands(in)
	s := &w.mma
	s.issue(w, in, op.keep)
	w.touchOperands(in, op)
	if c := w.cta.cluster.counter; c != nil {
		c.product(in)
	}
	g := w.cta.groups[w.id/4]
	at := s.issued - 1 - g.base
	if at == len(g.ops) {
		g.ops = append(g.ops, op)
		w.cta.trace.product(w.id/4, in)
	} else if first := g.ops[at]; first.in != in || first.desc != op.desc || first.keep != op.keep {
		w.fault(in, DivergentAligned, mask, "warps of the warpgroup execute different wgmma: line %d with descriptors %#x, %#x in one, line %d with %#x, %#x in this warp",
			first.in.line, first.desc[0], first.desc[1], in.line, op.desc[0], op.desc[1])
	}
	if in.sparse != nil {
		if g.ops[at].picks == nil {
			g.ops[at].picks = new(mma.Picks)
		}
		w.deny(in, fullMask, in.sparse.picks(w, in, func(row int) []uint8 { return g.ops[at].picks[w.id%4*mmaRows+row][:] }))
	}
	if in.fromRegisters() {
		if g.ops[at].rows == nil {
			g.ops[at].rows = new([4][4][warpLanes]uint32)
		}
		for j, s := range in.args[1].list {
			g.ops[at].rows[w.id%4][j] = w.r32[s]
		}
	}
	g.ops[at].issued |= 1 << (w.id % 4)
	w.cta.cluster.event()
	if w.cta.cluster.grid.launch.Timing == Early && g.ops[at].issued == allWarps {
		g.completeTo(s.issued)
	}
}

// touchOperands checks wgmma's reads of shared memory for races: of the rows of A that belong to
// this warp, and of all of B.
func (w *warp) touchOperands(in *inst, op *wgmmaOp) {
	r := w.cta.cluster.races
	if r == nil {
		return
	}
	a := r.access(w, in, componentProducts, false)
	a.at, a.async = uint32(w.mma.issued), true
	r.start(fullMask)
	for i, desc := range op.desc {
		if i == 0 && in.fromRegisters() {
			continue
		}
		d, _ := layout.DecodeMatrixDescriptor(desc) // already checked
		w.deny(in, fullMask, w.checkLayout(in, i, d))
		from, to := uint32(0), in.matrixRows(i)
		if i == 0 {
			from = uint32(w.id%4) * wgmmaRows / 4
			to = from + wgmmaRows/4
		}
		for row := from; row < to; row += mma.Group {
			for slab := range in.slabs(i) {
				for _, at := range d.Group(in.major(i), row, slab) {
					if p := r.touch(a, w.cta, at, 16); p != nil {
						p.text = fmt.Sprintf("%c: %s", 'A'+i, p.text)
						w.deny(in, fullMask, p)
					}
				}
			}
		}
	}
}

// wgmmaOperands returns the operands. It checks that they are the same in the whole warp, and that
// the descriptors are valid.
func (w *warp) wgmmaOperands(in *inst) *wgmmaOp {
	op := &wgmmaOp{in: in}
	var same [2]bool
	for i := range op.desc {
		if i == 0 && in.fromRegisters() {
			same[i] = true
			continue
		}
		op.desc[i], same[i] = uniform(&w.r64[in.slot[1+i]], fullMask)
	}
	if !same[0] || !same[1] {
		w.fault(in, IllegalDescriptor, fullMask, "the matrix descriptors differ between lanes of the warp")
	}
	keep := w.pred(&in.args[in.scaleD()])
	if keep != 0 && keep != fullMask {
		w.fault(in, DivergentAligned, keep, "scale-d differs between lanes of the warp")
	}
	op.keep = keep != 0
	for i, d := range op.desc {
		if i == 0 && in.fromRegisters() {
			continue
		}
		m, err := layout.DecodeMatrixDescriptor(d)
		if err == nil {
			err = m.CheckSlabs(in.major(i), in.matrixRows(i), in.slabs(i))
		}
		if err != nil {
			w.fault(in, IllegalDescriptor, fullMask, "%c: %v", 'A'+i, err)
		}
	}
	return op
}

// scaleD returns the index of the operand scale-d. After it come the scales of A and B
// (imm-scale-a, imm-scale-b) and the transpose flags.
func (in *inst) scaleD() int {
	if in.sparse != nil {
		return in.sparse.at + 2
	}
	return 3
}

// major returns the major order of an operand in shared memory. Operand 0 is A, operand 1 is B.
func (in *inst) major(operand int) layout.Major {
	first := in.scaleD() + 3
	at := first + operand
	if in.fromRegisters() { // A in registers has no transpose operand
		at--
	}
	if at < first || at >= len(in.args) { // elements of 8 or 32 bits have no transpose operand
		return layout.KMajor
	}
	return layout.Major(in.args[at].imm & 1)
}

// slabs returns the extent in k of an operand, as a multiple of the k step of a dense product.
func (in *inst) slabs(operand int) uint32 {
	if operand == 1 && in.sparse != nil {
		return sparseShare
	}
	return 1
}

// negates reports whether the product changes the sign of an operand. Operand 0 is A, operand 1 is
// B.
func (in *inst) negates(operand int) bool {
	at := in.scaleD() + 1 + operand
	return at < len(in.args) && in.args[at].imm < 0
}

// fromRegisters reports whether A is in registers.
func (in *inst) fromRegisters() bool { return in.args[1].bank == bank32 }

// inHalves reports whether the sums are FP16. A register then holds two sums.
func (in *inst) inHalves() bool { return in.form.Args[0].Type == isa.F16x2 }

func (in *inst) matrixRows(operand int) uint32 {
	if operand == 0 {
		return wgmmaRows
	}
	n := uint32(2 * len(in.args[0].list))
	if in.inHalves() {
		n *= 2
	}
	return n
}

// wgmmaWait executes wgmma.wait_group n: it finishes all groups except the latest n.
func wgmmaWait(w *warp, _ *frag, in *inst, mask uint32) outcome {
	s := &w.mma
	n := len(s.groups) - int(in.args[0].imm)
	if n <= 0 {
		return next
	}
	if w.id/4 >= len(w.cta.groups) {
		return w.fault(in, DivergentAligned, mask, "wgmma.wait_group needs four complete warps")
	}
	g, upTo := w.cta.groups[w.id/4], s.groups[n-1]
	for i := g.base; i < upTo; i++ {
		if g.ops[i-g.base].issued != allWarps {
			return waiting
		}
	}
	g.completeTo(upTo)
	s.groups = append(s.groups[:0], s.groups[n:]...)
	s.land(upTo)
	if r := w.cta.cluster.races; r != nil {
		r.done(w, componentProducts, uint32(upTo))
		// On an H200 the wait of one warp covers the reads of the whole warpgroup. The wait does
		// not return before all four warps have issued the products. A test that overwrote a tile
		// after the wait of one warp saw no sum change.
		for _, other := range g.warps {
			r.know(w).Seen.Set(r.component(other, componentProducts), uint32(upTo))
		}
	}
	return next
}

func waitsForWarpgroup(w *warp, _ *frag, _ *inst) need {
	g := w.cta.groups[w.id/4]
	for i, op := range g.ops {
		if op.issued == allWarps {
			continue
		}
		var n need
		for k, x := range g.warps {
			if op.issued>>k&1 == 0 {
				n.from = append(n.from, x)
			}
		}
		n.what = fmt.Sprintf("waits for wgmma number %d of its warpgroup (line %d), which %s must execute", g.base+i+1, op.in.line, w.cta.cluster.warpNames(n.from))
		return n
	}
	return need{what: "waits for its warpgroup's wgmma"}
}
