package emu

import (
	"math"
	"math/bits"
	"strings"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/isa"
)

// mma.sync multiplies fragments in the registers of one warp, and completes at once. It adds floats
// as wgmma does, except for FP8. Hopper has no FP8 mma.sync: the assembler emits two FP16 products,
// one of elements 0 and 1 of each register and one of elements 2 and 3. The second product is added
// to the first, which starts from zero. C is added last.

func mmaForms() handlers {
	forms := wmmaMoves()
	for i := range isa.Table {
		f := &isa.Table[i]
		if strings.HasPrefix(f.Op, "mma.s") || strings.HasPrefix(f.Op, "wmma.mma.") { // matches mma.sync and mma.sp
			forms[f.ID] = handler{do: mmaSync, prepare: prepareWarpProduct}
		}
	}
	return forms
}

const (
	mmaRows    = 16
	mmaColumns = 8
)

// warpProduct describes a product by one warp: its shape, the register layouts of its operands, and
// how its products are summed.
type warpProduct struct {
	m, n, k    int
	a, b, c, d *warpFragment
	sum        func(w *warp, in *inst)
	// steps lists the steps of a float product, in order. If after is true, C is added after the
	// last step. Otherwise the sum starts from C.
	steps []warpStep
	after bool
}

// warpStep is one step of a float product. It multiplies elements of A in format a by elements of B
// in format b. Field k lists their indices along the sum. The index -1 stands for a zero.
type warpStep struct {
	a, b *mma.Format
	k    []int
}

func prepareWarpProduct(in *inst) {
	p := &warpProduct{}
	in.warpProduct = p
	a, b := in.mod("a"), in.mod("b")
	if a == "" { // a wmma of FP16 has no modifier for the element type
		a, b = ".f16", ".f16"
	}
	p.m, p.n, p.k = shapeOf(in.mod("shape"))
	depth := p.k // extent in k of one row of A
	if in.sparse = newSparsity(in, a); in.sparse != nil {
		depth /= sparseShare
	}
	p.a, p.b = operandFragment(p.m, depth, a), operandFragment(p.n, p.k, b)
	d, c := in.form.Args[0].Type, in.form.Args[3].Type
	p.c, p.d = sumsFragment(p.m, p.n, c), sumsFragment(p.m, p.n, d)
	switch {
	case a == ".b1":
		p.sum = sumBits
	case d == isa.S32:
		p.sum = sumIntegers
	case d == isa.F64:
		p.sum = sumDoubles
	default:
		p.sum = sumFloats
		if in.sparse != nil {
			p.sum = sumSparseFloats
		}
		most := depth
		if a == ".tf32" && strings.HasPrefix(in.form.Op, "wmma.") {
			most = 4 // the assembler emits two products for a wmma of k8
		}
		p.steps, p.after = stepsOf(a, b, depth, most), halvesOfFP8[a] != nil
		// If C is FP32, sums are FP32, and D in FP16 is rounded from them. Only with C and D in
		// FP16 does each step round to FP16.
		if in.inHalves() && c == d {
			for i := range p.steps {
				p.steps[i].a = p.steps[i].a.InHalves()
			}
		}
	}
}

// stepsOf returns the steps of a float product with extent k. Each step has at most `most`
// elements.
func stepsOf(a, b string, k, most int) (steps []warpStep) {
	if halves := halvesOfFP8[a]; halves != nil {
		for i := range 2 {
			s := warpStep{a: halves, b: halvesOfFP8[b]}
			for j := range s.a.Depth() {
				if from := j/2*4 + 2*i + j%2; from < k {
					s.k = append(s.k, from)
				} else {
					s.k = append(s.k, -1)
				}
			}
			steps = append(steps, s)
		}
		return steps
	}
	for from := 0; from < k; {
		s := warpStep{a: elementFormats[a], b: elementFormats[b]}
		end := min(from+most, k)
		for range s.a.Depth() {
			if from < end {
				s.k = append(s.k, from)
				from++
			} else {
				s.k = append(s.k, -1)
			}
		}
		steps = append(steps, s)
	}
	return steps
}

// mmaSync executes mma.sync.
func mmaSync(w *warp, in *inst, mask uint32) {
	if mask != fullMask {
		w.fault(in, DivergentAligned, mask, "%s needs all 32 lanes of the warp", in.form.Op)
	}
	p, s := in.warpProduct, &w.sync
	s.elements[0] = sized(s.elements[0], p.m*p.a.columns)
	s.elements[1] = sized(s.elements[1], p.n*p.b.columns)
	s.sums = sized(s.sums, p.m*p.n)
	p.a.gather(w, &in.args[1], s.elements[0])
	p.b.gather(w, &in.args[2], s.elements[1])
	p.c.gather(w, &in.args[3], s.sums)
	if in.sparse != nil {
		s.picks = sized(s.picks, p.m*p.a.columns)
		w.deny(in, mask, in.sparse.picks(w, in, func(row int) []uint8 { return s.picks[row*p.a.columns:][:p.a.columns] }))
	}
	p.sum(w, in)
	p.d.scatter(w, &in.args[0], s.sums)
}

// sumFloats computes a dense float product, in tiles of 16 rows by 8 columns.
func sumFloats(w *warp, in *inst) {
	p, s := in.warpProduct, &w.sync
	for row := 0; row < p.m; row += mmaRows {
		for column := 0; column < p.n; column += mmaColumns {
			var tile [4][warpLanes]uint32 // has the register layout of an m16n8 accumulator
			place := func(r, l int) *uint64 {
				i, j := row+l>>2+8*(r>>1), column+l&3*2+r&1
				if i >= p.m {
					return nil
				}
				return &s.sums[i*p.n+j]
			}
			each := func(visit func(sum *uint64, x *uint32)) {
				for r := range tile {
					for l := range tile[r] {
						if sum := place(r, l); sum != nil {
							visit(sum, &tile[r][l])
						}
					}
				}
			}
			each(func(sum *uint64, x *uint32) { *x = in.startSum(*sum) })
			for i := range p.steps {
				w.multiplyStep(p, &tile, &p.steps[i], row, column)
			}
			each(func(sum *uint64, x *uint32) { *sum = in.endSum(*x, *sum) })
		}
	}
}

// startSum returns the value from which a sum starts. c is the element of C.
func (in *inst) startSum(c uint64) uint32 {
	switch {
	case in.warpProduct.after:
		return 0
	case in.form.Args[3].Type == isa.F16x2:
		return arith.F32FromF16(uint16(c))
	}
	return uint32(c)
}

// endSum returns the element of D. c is the element of C.
func (in *inst) endSum(sum uint32, c uint64) uint64 {
	if in.inHalves() {
		sum = arith.F16Nearest(sum)
	}
	switch {
	case !in.warpProduct.after:
	case in.inHalves():
		sum = addF16(sum, uint32(c))
	default:
		sum = arith.AddF32(sum, uint32(c), false)
	}
	return uint64(sum)
}

// sumSparseFloats computes a float product with a sparse A.
func sumSparseFloats(w *warp, in *inst) {
	p := in.warpProduct
	w.sync.dots(in, func(c uint64, a, b []uint64) uint64 {
		sum := in.startSum(c)
		for i := range p.steps {
			step := &p.steps[i]
			var x, y [mma.MaxDepth]uint32
			for i, k := range step.k {
				if k >= 0 {
					x[i], y[i] = uint32(a[k]), uint32(b[k])
				}
			}
			sum = mma.DotOf(sum, x[:len(step.k)], y[:len(step.k)], step.a, step.b)
		}
		return in.endSum(sum, c)
	})
}

// multiplyStep adds the products of one step to a tile of sums, which begins at the given row and
// column.
func (w *warp) multiplyStep(p *warpProduct, tile *[4][warpLanes]uint32, step *warpStep, row, column int) {
	s := &w.sync
	s.a.Reset(step.a)
	s.b.Reset(step.b, mmaColumns)
	for i, k := range step.k {
		for r := range mmaRows {
			x := uint32(0)
			if at := (row + r) * p.k; k >= 0 && row+r < p.m {
				x = uint32(s.elements[0][at+k])
			}
			s.a.Set(r, i, x, false)
		}
		for c := range mmaColumns {
			x := uint32(0)
			if k >= 0 {
				x = uint32(s.elements[1][(column+c)*p.k+k])
			}
			s.b.Set(c, i, x)
		}
	}
	mma.Add(tile[:], []int32{0, 1, 2, 3}, &s.a, 0, &s.b, true)
}

// addF16 adds the FP16 numbers in the lower halves of a and b.
func addF16(a, b uint32) uint32 {
	f := arith.FormatOf(isa.F16)
	return uint32(f.Encode(f.Compute(arith.OpAdd, arith.RoundNearest, arith.FloatOf(isa.F16, uint64(a&0xffff)), arith.FloatOf(isa.F16, uint64(b&0xffff)), 0)))
}

// mmaOperands holds the elements of A and B of a warp's product, and the decoded operands of one
// step. Package internal/mma decodes the 64 rows of a wgmma, 16 for each of four warps. The 16 rows
// of A are decoded as the rows of warp 0.
type mmaOperands struct {
	elements [2][]uint64 // elements of A and of B
	sums     []uint64
	picks    []uint8  // k of each element of a sparse A
	picked   []uint64 // the elements of a column of B at the k of a sparse A's elements
	a        mma.A
	b        mma.B
}

// sumIntegers computes a product of integers. Sums wrap around, or saturate with .satfinite.
func sumIntegers(w *warp, in *inst) {
	p := in.warpProduct
	ta, tb := arith.Int{Bits: uint(p.a.bits), Signed: in.mod("a")[1] == 's'}, arith.Int{Bits: uint(p.b.bits), Signed: in.mod("b")[1] == 's'}
	w.sync.dots(in, func(sum uint64, a, b []uint64) uint64 {
		total := int64(int32(sum))
		for k := range a {
			total += int64(ta.Extend(a[k]) * tb.Extend(b[k]))
		}
		if in.has(".satfinite") {
			return arith.Int{Bits: 32, Signed: true}.Clamp(total)
		}
		return uint64(uint32(total))
	})
}

// sumBits computes a product of 1-bit elements: it adds the number of set bits of a^b or a&b.
func sumBits(w *warp, in *inst) {
	and := in.has(".and") || in.form.ID == isa.WmmaBitsAnd
	w.sync.dots(in, func(sum uint64, a, b []uint64) uint64 {
		for k := range a {
			x := a[k] ^ b[k]
			if and {
				x = a[k] & b[k]
			}
			sum += uint64(bits.OnesCount64(x))
		}
		return uint64(uint32(sum))
	})
}

// sumDoubles computes an FP64 product: one fused multiply-add for each k, in order.
func sumDoubles(w *warp, in *inst) {
	mode := in.roundMode()
	w.sync.dots(in, func(sum uint64, a, b []uint64) uint64 {
		x := math.Float64frombits(sum)
		for k := range a {
			if a, b := math.Float64frombits(a[k]), math.Float64frombits(b[k]); mode == arith.RoundNearest {
				x = math.FMA(a, b, x)
			} else {
				x = arith.Format64.Compute(arith.OpFma, mode, a, b, x)
			}
		}
		return arith.Format64.Encode(x)
	})
}

// dots replaces each sum by the result of dot, to which it passes the sum, a row of A and a column
// of B. If A is sparse, argument b of dot has only the elements of the column that A's kept
// elements multiply.
func (s *mmaOperands) dots(in *inst, dot func(sum uint64, a, b []uint64) uint64) {
	p := in.warpProduct
	depth := p.a.columns
	for i := range s.sums {
		row, column := i/p.n*depth, i%p.n*p.b.columns
		a, b := s.elements[0][row:row+depth], s.elements[1][column:column+p.b.columns]
		if in.sparse != nil {
			s.picked = s.picked[:0]
			for _, k := range s.picks[row : row+depth] {
				s.picked = append(s.picked, b[k])
			}
			b = s.picked
		}
		s.sums[i] = dot(s.sums[i], a, b)
	}
}
