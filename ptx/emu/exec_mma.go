package emu

import (
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/isa"
)

// mma.sync: a warp multiplies from registers, at once, and adds as wgmma does, but
// FP8: Hopper has no such product of a warp, and the assembler makes two of FP16,
// of the elements 0 and 1 of each register and of 2 and 3, from zero, and adds
// their sum to C.

func mmaForms() map[isa.ID]handler {
	forms := map[isa.ID]handler{}
	for _, id := range []isa.ID{isa.MmaF16, isa.MmaBF16, isa.MmaF16K8, isa.MmaBF16K8, isa.MmaTF32, isa.MmaTF32K4, isa.MmaInt8, isa.MmaInt8K16,
		isa.MmaF16Halves, isa.MmaF16K8Halves, isa.MmaFP8, isa.MmaFP8K16, isa.MmaFP8Halves, isa.MmaFP8K16Halves} {
		forms[id] = handler{exec: mmaSync}
	}
	return forms
}

const (
	mmaRows    = 16
	mmaColumns = 8
	mmaDepth   = 32 // at most
)

// mmaSync multiplies 16 rows by 8 columns.
func mmaSync(w *warp, _ *frag, in *inst, mask uint32) outcome {
	if mask != fullMask {
		return w.fault(in, DivergentAligned, mask, "mma.sync needs all 32 lanes")
	}
	format := elementFormats[in.mod("a")]
	size := format.Bytes
	per := 4 / size // elements of a register
	element := func(x uint32, i int) uint32 {
		if size == 4 {
			return x
		}
		return x >> (8 * size * i) & (1<<(8*size) - 1)
	}
	var a [mmaRows][mmaDepth]uint32
	var b [mmaColumns][mmaDepth]uint32
	for l := range warpLanes {
		for i := range per {
			k := l&3*per + i
			for j, s := range in.args[1].list {
				a[l>>2+8*(j&1)][k+4*per*(j>>1)] = element(w.r32[s][l], i)
			}
			for j, s := range in.args[2].list {
				b[l>>2][k+4*per*j] = element(w.r32[s][l], i)
			}
		}
	}
	var sums [4][warpLanes]uint32 // d may be a or b
	for r, s := range in.args[3].list {
		sums[r] = w.r32[s]
		if in.form.Args[0].Type == isa.S32 {
			for l := range warpLanes {
				sums[r][l] = in.dotBytes(sums[r][l], &a[l>>2+8*(r>>1)], &b[l&3*2+r&1])
			}
		}
	}
	for r, s := range in.args[0].list {
		w.r32[s] = sums[r]
	}
	add := mma.Add
	if in.inHalves() {
		add, format = addHalves, format.InHalves()
	}
	d := in.args[0].list
	switch halves := halvesOfFP8[in.mod("a")]; {
	case in.form.Args[0].Type == isa.S32:
	case halves != nil:
		for step := range 2 {
			if in.inHalves() {
				halves = halves.InHalves()
			}
			w.sync.a.Reset(halves)
			w.sync.b.Reset(halvesOfFP8[in.mod("b")], mmaColumns)
			for k := range mmaDepth / 2 {
				from := k/2*4 + 2*step + k%2
				for row := range a {
					w.sync.a.Set(row, k, a[row][from], false)
				}
				for column := range b {
					w.sync.b.Set(column, k, b[column][from])
				}
			}
			add(w.r32, d, &w.sync.a, 0, &w.sync.b, step > 0)
		}
		for r, s := range d {
			for l, c := range sums[r] {
				if in.inHalves() {
					w.r32[s][l] = addF16(w.r32[s][l], c) | addF16(w.r32[s][l]>>16, c>>16)<<16
				} else {
					w.r32[s][l] = addF32(w.r32[s][l], c, false)
				}
			}
		}
	default:
		w.sync.set(format, &a, &b)
		add(w.r32, d, &w.sync.a, 0, &w.sync.b, true)
	}
	return next
}

// addF16 adds the FP16 numbers in the lower halves.
func addF16(a, b uint32) uint32 {
	f := formatOf(isa.F16)
	return uint32(f.encode(f.compute(opAdd, roundNearest, floatOf(isa.F16, uint64(a&0xffff)), floatOf(isa.F16, uint64(b&0xffff)), 0)))
}

// mmaOperands are decoded: the rows of A are those of the first warp of a wgmma.
type mmaOperands struct {
	a mma.A
	b mma.B
}

func (o *mmaOperands) set(format *mma.Format, a *[mmaRows][mmaDepth]uint32, b *[mmaColumns][mmaDepth]uint32) {
	o.a.Reset(format)
	o.b.Reset(format, mmaColumns)
	for k := range format.Depth() {
		for row := range a {
			o.a.Set(row, k, a[row][k], false)
		}
		for column := range b {
			o.b.Set(column, k, b[column][k])
		}
	}
}

// dotBytes is the sum of products of bytes, which wraps around or saturates.
func (in *inst) dotBytes(sum uint32, a, b *[mmaDepth]uint32) uint32 {
	ta, tb := intType{8, in.mod("a") == ".s8"}, intType{8, in.mod("b") == ".s8"}
	total := int64(int32(sum))
	for k := range a {
		total += int64(ta.extend(uint64(a[k])) * tb.extend(uint64(b[k])))
	}
	if in.has(".satfinite") {
		return uint32(intType{32, true}.clamp(total))
	}
	return uint32(total)
}
