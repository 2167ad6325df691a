package emu

import (
	"math"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/emu/layout"
)

// bf16Elements is the format of bf16 operands of wgmma and mma. Package internal/mma defines how
// products are added.
var bf16Elements = &mma.Format{Bytes: 2, Fraction: 25, LeastExponent: -126}

// f16Elements is the format of f16 operands. Their products are added by the same rule as bf16.
var f16Elements = &mma.Format{Bytes: 2, Fraction: 25, LeastExponent: -14,
	ToF32: func(x uint32) uint32 { return arith.F32FromF16(uint16(x)) }}

// tf32Elements is the format of TF32 operands: FP32 numbers whose lower 13 bits the chip ignores.
var tf32Elements = &mma.Format{Bytes: 4, Fraction: 25, LeastExponent: -126, ToF32: func(x uint32) uint32 { return x &^ 0x1fff }}

// e4m3Elements and e5m2Elements are the formats of FP8 operands. Their sums keep 13 fraction bits.
var (
	e4m3Elements = fp8Elements(arith.FormatE4M3)
	e5m2Elements = fp8Elements(arith.FormatE5M2)
)

// halvesOfFP8 has the formats of FP8 operands of mma.sync, which first converts them to FP16.
var halvesOfFP8 = map[string]*mma.Format{".e4m3": asF16(e4m3Elements), ".e5m2": asF16(e5m2Elements)}

func asF16(f *mma.Format) *mma.Format {
	h := *f16Elements
	h.ToF32 = f.ToF32
	return &h
}

func fp8Elements(f arith.Format) *mma.Format {
	var values [256]uint32
	for x := range values {
		values[x] = math.Float32bits(float32(arith.FromFP8(f, uint64(x))))
	}
	return &mma.Format{Bytes: 1, Fraction: 13, Cut: 10, LeastExponent: f.Least, ToF32: func(x uint32) uint32 { return values[x] }}
}

// s8Elements and u8Elements are the formats of 8-bit integer operands.
var (
	s8Elements = &mma.Format{Bytes: 1, ToF32: func(x uint32) uint32 { return uint32(int8(x)) }}
	u8Elements = &mma.Format{Bytes: 1, ToF32: func(x uint32) uint32 { return x }}
)

// elementFormats maps the name of an element type in wgmma's modifiers to its format.
var elementFormats = map[string]*mma.Format{".bf16": bf16Elements, ".f16": f16Elements, ".tf32": tf32Elements, ".e4m3": e4m3Elements, ".e5m2": e5m2Elements,
	".s8": s8Elements, ".u8": u8Elements}

// warpgroup is a group of four warps that execute wgmma together.
type warpgroup struct {
	warps [4]*warp
	ops   []*wgmmaOp // products that at least one warp has issued and that are not computed yet, in order
	base  int        // number of ops[0] among the warpgroup's products
}

// wgmmaOp is one wgmma product of a warpgroup.
type wgmmaOp struct {
	in     *inst
	desc   [2]uint64 // descriptors of A and B
	keep   bool      // scale-d is set: the product is added to the accumulator
	issued uint8     // mask of the warps that have issued the product
	// rows[w] holds the registers of A of warp w, copied when warp w executed the instruction.
	rows *[4][4][warpLanes]uint32
	// picks says which elements a sparse A keeps, decoded from the metadata when a warp executed
	// the instruction.
	picks *mma.Picks
}

const allWarps = 0xf

func (g *warpgroup) reset() { g.ops, g.base = nil, 0 }

// completeTo computes all products whose number is below the given one, in order.
func (g *warpgroup) completeTo(number int) {
	for len(g.ops) > 0 && g.base < number {
		g.compute(g.ops[0])
		g.ops[0] = nil
		g.ops = g.ops[1:]
		g.base++
		g.warps[0].cta.cluster.progress()
	}
	g.warps[0].cta.trace.multiplied(g.warps[0].id/4, g.base)
}

// compute reads the product's operands from shared memory as it is now, and multiplies them.
func (g *warpgroup) compute(op *wgmmaOp) {
	n := int(op.in.matrixRows(1))
	p := newProduct(op)
	p.a.Reset(op.in.product[0])
	for slab := range op.in.slabs(1) {
		p.b[slab].Reset(op.in.product[1], n)
	}
	for i := range op.desc {
		if i == 0 && op.in.fromRegisters() {
			op.loadRows(&p.a)
		} else {
			g.loadSlabs(op, i, p)
		}
	}
	for _, w := range g.warps {
		w.multiply(p)
	}
}

// loadRows decodes A from the registers that were copied at issue.
func (op *wgmmaOp) loadRows(a *mma.A) {
	negate, f := op.in.negates(0), op.in.product[0]
	per := 4 / f.Bytes // elements per register
	for w := range op.rows {
		for j := range op.rows[w] {
			for l, v := range op.rows[w][j] {
				for i := range per {
					row, k := layout.APosition(w*warpLanes+l, j, i, per)
					a.Set(row, k, uint32(uint64(v)>>(8*f.Bytes*i)&(1<<(8*f.Bytes)-1)), negate)
				}
			}
		}
	}
}

// loadSlabs reads an operand from shared memory and decodes it. Operand 0 is A, operand 1 is B.
func (g *warpgroup) loadSlabs(op *wgmmaOp, operand int, p *product) {
	s := g.warps[0].cta.shared
	d, _ := layout.DecodeMatrixDescriptor(op.desc[operand]) // the descriptor was checked when the wgmma was issued
	major, negate := op.in.major(operand), op.in.negates(operand)
	fenced := uint64(0)
	for _, w := range g.warps {
		fenced = max(fenced, w.latestFence(fullMask))
	}
	var tile mma.Tile
	for slab := range op.in.slabs(operand) {
		for row := uint32(0); row < op.in.matrixRows(operand); row += mma.Group {
			for i, at := range d.Group(major, row, slab) {
				if bad := s.checkChunk(at, fenced); bad != nil {
					g.warps[0].fault(op.in, bad.kind, fullMask, "wgmma reads %c through descriptor %#x (%v, %v): %s",
						'A'+operand, op.desc[operand], major, d.Swizzle, bad.text)
				}
				*(*[16]byte)(tile[16*i:]) = [16]byte(s.bytes[at:])
			}
			if operand == 0 {
				p.a.Decode(int(row), &tile, major == layout.MNMajor, negate)
			} else {
				p.b[slab].Decode(int(row), &tile, major == layout.MNMajor, negate)
			}
		}
	}
}

// checkChunk returns nil if the async proxy may read 16 bytes at an address, which is a multiple of
// 16. Otherwise it returns the reason. fenced is the warpgroup's latest proxy fence.
func (s *sharedMemory) checkChunk(at uint32, fenced uint64) *problem {
	const n = 16
	if uint64(at)+n <= uint64(len(s.bytes)) && at >= s.start &&
		s.written[at>>6]>>(at&63)&(1<<n-1) == 1<<n-1 &&
		s.barriers[at>>9]>>(at>>3&63)&3 == 0 &&
		(!s.proxy.on || [4]uint64(s.proxy.words[at/4:]) == [4]uint64{}) {
		return nil
	}
	if bad := s.checkRead(at, n, 1); bad != nil {
		return bad
	}
	return s.proxy.check("reads", at, n, fenced)
}
