package emu_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"sonicmoe/ptx/emu/layout"
)

// This file has the types of tiles that chip_test.go multiplies, and draws their elements.

// tileType is one wgmma or mma.sync instruction to test. All four warps of a CTA execute it
// together, and so multiply a tile of 64 rows by 8 columns over one k step.
type tileType struct {
	name, version string
	op            string // mnemonic with its modifiers
	a, b          bits
	registersA    int    // number of registers that hold A; 0 if A is in shared memory
	registersB    int    // number of registers that hold B of mma.sync; 0 for wgmma
	ends          string // text of the operands that follow A and B
	saturates     bool
	halves        bool // the sums are FP16
	sparse        *sparseTile
}

// bits describes the layout of an element type. An integer has no exponent and no fraction.
type bits struct {
	format              string
	exponent, fraction  int
	noInfinity, signed8 bool
}

var (
	bf16 = bits{format: ".bf16", exponent: 8, fraction: 7}
	f16  = bits{format: ".f16", exponent: 5, fraction: 10}
	tf32 = bits{format: ".tf32", exponent: 8, fraction: 23}
	e4m3 = bits{format: ".e4m3", exponent: 4, fraction: 3, noInfinity: true}
	e5m2 = bits{format: ".e5m2", exponent: 5, fraction: 2}
	s8   = bits{format: ".s8", signed8: true}
	u8   = bits{format: ".u8"}
)

func (b bits) bytes() int {
	if b.exponent == 0 {
		return 1
	}
	return (1 + b.exponent + b.fraction) / 8
}

func (b bits) integer() bool { return b.exponent == 0 }

// wgmmaOf returns a tile type of wgmma. Parameter registers states that A is in registers.
// Parameter end is the text of the last operands.
func wgmmaOf(a, b bits, registers bool, end string) tileType {
	sums := ".f32"
	if a.integer() {
		sums = ".s32"
	}
	t := tileType{name: "wgmma" + a.format + b.format, version: "8.0", a: a, b: b, ends: ", 1" + end,
		op: fmt.Sprintf("wgmma.mma_async.sync.aligned.m64n8k%d%s%s%s", 32/a.bytes(), sums, a.format, b.format)}
	if a.integer() && a != b {
		t.version = "8.4"
	}
	if registers {
		t.name, t.registersA = t.name+" A in registers", 4
		t.ends = strings.TrimSuffix(t.ends, ", 0") // A in registers has no transpose operand
	}
	return t
}

func saturating(t tileType) tileType {
	t.name, t.op, t.saturates = t.name+" satfinite", strings.Replace(t.op, ".s32", ".satfinite.s32", 1), true
	return t
}

// inHalves returns tile type t with sums in FP16.
func inHalves(t tileType) tileType {
	t.name, t.op, t.halves = t.name+" FP16 sums", strings.ReplaceAll(t.op, ".f32", ".f16"), true
	return t
}

func mmaOf(shape string, a, b bits, registersA int) tileType {
	sums := ".f32"
	if a.integer() {
		sums = ".s32"
	}
	version := "8.0"
	if a.bytes() == 1 && !a.integer() {
		version = "8.7"
	}
	return tileType{name: "mma" + shape + a.format + b.format, version: version, a: a, b: b, registersA: registersA, registersB: registersA / 2,
		op: "mma.sync.aligned" + shape + ".row.col" + sums + a.format + b.format + sums}
}

var tileTypes = slices.Concat(denseTiles, sparseTiles())

var denseTiles = []tileType{
	wgmmaOf(bf16, bf16, false, ", 1, 1, 0, 0"), wgmmaOf(f16, f16, false, ", 1, 1, 0, 0"),
	wgmmaOf(tf32, tf32, false, ", 1, 1"), wgmmaOf(e4m3, e4m3, false, ", 1, 1"), wgmmaOf(e5m2, e5m2, false, ", 1, 1"),
	wgmmaOf(e4m3, e5m2, false, ", 1, 1"), wgmmaOf(e5m2, e4m3, false, ", 1, 1"),
	wgmmaOf(s8, s8, false, ""), wgmmaOf(u8, u8, false, ""), wgmmaOf(s8, u8, false, ""), wgmmaOf(u8, s8, false, ""),
	saturating(wgmmaOf(s8, s8, false, "")), saturating(wgmmaOf(u8, u8, false, "")),
	wgmmaOf(bf16, bf16, true, ", 1, 1, 0, 0"), wgmmaOf(tf32, tf32, true, ", -1, 1"), wgmmaOf(e4m3, e4m3, true, ", 1, -1"), wgmmaOf(s8, s8, true, ""),
	mmaOf(".m16n8k16", bf16, bf16, 4), mmaOf(".m16n8k16", f16, f16, 4), mmaOf(".m16n8k8", bf16, bf16, 2), mmaOf(".m16n8k8", f16, f16, 2),
	inHalves(wgmmaOf(f16, f16, false, ", 1, 1, 0, 0")), inHalves(wgmmaOf(f16, f16, true, ", -1, 1, 0, 0")),
	inHalves(wgmmaOf(e4m3, e4m3, false, ", 1, 1")), inHalves(wgmmaOf(e5m2, e5m2, true, ", 1, 1")), inHalves(wgmmaOf(e4m3, e5m2, false, ", 1, 1")),
	inHalves(mmaOf(".m16n8k16", f16, f16, 4)), inHalves(mmaOf(".m16n8k8", f16, f16, 2)),
	mmaOf(".m16n8k32", e4m3, e4m3, 4), mmaOf(".m16n8k32", e5m2, e5m2, 4), mmaOf(".m16n8k32", e4m3, e5m2, 4), mmaOf(".m16n8k16", e5m2, e4m3, 2),
	inHalves(mmaOf(".m16n8k32", e4m3, e4m3, 4)), inHalves(mmaOf(".m16n8k16", e5m2, e4m3, 2)),
	mmaOf(".m16n8k8", tf32, tf32, 4), mmaOf(".m16n8k4", tf32, tf32, 2), mmaOf(".m16n8k32", s8, s8, 4), mmaOf(".m16n8k16", u8, s8, 2),
}

const (
	bAt        = 64 * 32          // B follows A
	metadataAt = bAt + 8*64       // metadata follows B; a dense product uses half of B's bytes
	tileBytes  = metadataAt + 512 // after the metadata, which has one word for each thread
	tileSums   = 64 * 8
)

// text returns a kernel in which each CTA multiplies one tile.
func (t tileType) text() string {
	class, typ := "f", "f32"
	registers := 4 // number of registers that hold the sums
	if t.a.integer() {
		class, typ = "s", "s32"
	}
	if t.halves {
		class, typ, registers = "h", "b32", 2
	}
	list := func(name string, n int) string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf("%%%s%d", name, i))
		}
		return "{" + strings.Join(s, ", ") + "}"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `.version %s
.target sm_90a
.address_size 64
.visible .entry tile(.param .u64 image, .param .u64 sums)
{
.reg .b32 %%r<8>, %%a<4>, %%b<4>, %%e;
.reg .f32 %%f<4>;
.reg .s32 %%s<4>;
.reg .b32 %%h<2>;
.reg .b64 %%d<10>;
.reg .b32 %%v<4>;
.reg .pred %%p<2>;
.shared .align 1024 .b8 tile[%d];
ld.param.u64 %%d0, [image];
ld.param.u64 %%d1, [sums];
mov.u32 %%r0, %%tid.x;
mov.u32 %%r1, %%ctaid.x;
mul.wide.u32 %%d2, %%r1, %d;
add.u64 %%d0, %%d0, %%d2;
mul.wide.u32 %%d2, %%r1, %d;
add.u64 %%d1, %%d1, %%d2;
mul.wide.u32 %%d2, %%r0, 4;
add.u64 %%d1, %%d1, %%d2;
mov.u32 %%r2, tile;
mul.wide.u32 %%d3, %%r0, 4;
add.u64 %%d3, %%d3, %%d0;
ld.global.b32 %%e, [%%d3+%d];
`, t.version, tileBytes, tileBytes, 4*tileSums, metadataAt)
	for i := range registers {
		fmt.Fprintf(&b, "ld.global.%s %%%s%d, [%%d1+%d];\n", typ, class, i, 512*i)
	}
	if t.registersA > 0 { // register j of a warp's A comes from word 128*(4*warp+j)+lane
		b.WriteString("shr.u32 %r3, %r0, 5;\nand.b32 %r4, %r0, 31;\nmul.wide.u32 %d3, %r3, 512;\nmul.wide.u32 %d4, %r4, 4;\nadd.u64 %d4, %d4, %d0;\nadd.u64 %d3, %d3, %d4;\n")
		for j := range t.registersA {
			fmt.Fprintf(&b, "ld.global.b32 %%a%d, [%%d3+%d];\n", j, 128*j)
		}
		for j := range t.registersB {
			fmt.Fprintf(&b, "ld.global.b32 %%b%d, [%%d4+%d];\n", j, bAt+128*j)
		}
	}
	if t.registersB > 0 {
		acc := list(class, registers)
		fmt.Fprintf(&b, "%s %s, %s, %s, %s%s;\n", t.op, acc, list("a", t.registersA), list("b", t.registersB), acc, t.sparse.operands())
	} else {
		b.WriteString(`mul.wide.u32 %d3, %r0, 16;
add.u64 %d3, %d3, %d0;
mad.lo.u32 %r3, %r0, 16, %r2;
ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%d3];
st.shared.v4.b32 [%r3], {%v0, %v1, %v2, %v3};
setp.ge.u32 %p0, %r0, 32;
@%p0 bra filled;
ld.global.v4.b32 {%v0, %v1, %v2, %v3}, [%d3+2048];
st.shared.v4.b32 [%r3+2048], {%v0, %v1, %v2, %v3};
filled:
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r4, %r2, 4;
and.b32 %r4, %r4, 0x3fff;
cvt.u64.u32 %d5, %r4;
or.b64 %d5, %d5, 0x1000080000;
add.u64 %d6, %d5, 128;
wgmma.fence.sync.aligned;
`)
		a := "%d5"
		if t.registersA > 0 {
			a = list("a", 4)
		}
		fmt.Fprintf(&b, "%s %s, %s, %%d6%s%s;\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n", t.op, list(class, registers), a, t.sparse.operands(), t.ends)
	}
	for i := range registers {
		fmt.Fprintf(&b, "st.global.%s [%%d1+%d], %%%s%d;\n", typ, 512*i, class, i)
	}
	b.WriteString("ret;\n}\n")
	return b.String()
}

// depth returns the extent in k of B.
func (t tileType) depth() int {
	if t.registersB > 0 {
		return 4 / t.a.bytes() * 4 * t.registersB
	}
	return 32 / t.a.bytes() * t.sparse.share()
}

// operands returns the elements of A and B that are multiplied for one sum, in the order of k. If A
// is sparse, result b has only the elements of B that the kept elements of A multiply.
func (t tileType) operands(image []byte, row, column int) (a, b []uint32) {
	size := t.a.bytes()
	element := func(at int) uint32 {
		var x [4]byte
		copy(x[:], image[at:at+size])
		return binary.LittleEndian.Uint32(x[:])
	}
	chunk := func(row, k int) int { return row/8*256 + k*size/16*128 + row%8*16 + k*size%16 }
	a, b = make([]uint32, t.depth()/t.sparse.share()), make([]uint32, t.depth())
	if t.registersA == 0 {
		for k := range a {
			a[k] = element(chunk(row, k))
		}
	}
	if t.registersB == 0 {
		for k := range b {
			b[k] = element(bAt + chunk(column, k))
		}
	}
	per := 4 / size
	for lane := range 32 {
		for i := range per {
			for j := range t.registersA {
				if r, k := layout.APosition(row/16*32+lane, j, i, per); r == row {
					a[k] = element((row/16*4+j)*128 + lane*4 + i*size)
				}
			}
			for j := range t.registersB {
				if lane/4 == column {
					b[per*(4*j+lane&3)+i] = element(bAt + j*128 + lane*4 + i*size)
				}
			}
		}
	}
	return a, pick(t.sparse, image[metadataAt:], row, b)
}

// tileDraws names the distributions from which a tile's elements are drawn (see bits.draw).
var tileDraws = []string{"near", "spread", "wide", "tiny", "tiny by large", "zeros", "special", "cancel"}

// draw returns a random element of the distribution that kind names.
func (b bits) draw(r *rand.Rand, kind string) uint32 {
	if b.integer() {
		return []uint32{r.Uint32() & 0xff, []uint32{0, 0x7f, 0x80, 0xff}[r.IntN(4)]}[r.IntN(2)]
	}
	bias, top := 1<<(b.exponent-1)-1, 1<<b.exponent-1
	last := top - 1
	if b.noInfinity {
		last = top
	}
	exponent, fraction := bias-r.IntN(4), r.Uint32()&(1<<b.fraction-1)
	switch kind {
	case "spread", "special":
		exponent = min(max(bias+r.IntN(25)-12, 1), last)
	case "wide":
		exponent = 1 + r.IntN(last)
	case "tiny":
		exponent = max(0, r.IntN(8)-3)
	case "tiny by large":
		if exponent = r.IntN(3); r.IntN(2) == 0 {
			exponent = last - r.IntN(4)
		}
	case "zeros":
		if r.IntN(3) > 0 {
			exponent, fraction = 0, 0
		}
	case "cancel":
		exponent, fraction = max(bias-[]int{0, 0, 0, 6, 12}[r.IntN(5)], 1), uint32(r.IntN(2))<<(b.fraction-1)
	}
	x := uint32(exponent)<<b.fraction | fraction
	if b.noInfinity && x == 1<<(b.exponent+b.fraction)-1 {
		x--
	}
	if kind == "special" && r.IntN(60) == 0 { // an infinity or any NaN
		x = uint32(top)<<b.fraction | fraction
		if r.IntN(2) == 0 {
			x &^= 1<<b.fraction - 1
		}
		if b.noInfinity {
			x |= 1<<b.fraction - 1
		}
	}
	return x | uint32(r.IntN(2))<<(b.exponent+b.fraction)
}

// drawSum returns a random initial accumulator for a tile of the given distribution.
func (t tileType) drawSum(r *rand.Rand, kind string) uint32 {
	if t.a.integer() {
		return []uint32{r.Uint32(), 0x7fffffff - r.Uint32()&0xffff, 0x80000000 + r.Uint32()&0xffff}[r.IntN(3)]
	}
	// The accumulator is as large as a product, except that its exponent is shifted by a random
	// number of up to 15.
	exponentOf := func(b bits) int {
		return int(b.draw(r, kind)>>b.fraction)&(1<<b.exponent-1) - (1<<(b.exponent-1) - 1)
	}
	if t.halves {
		x := f16.draw(r, kind)
		if r.IntN(8) == 0 {
			x &= 1 << 15
		}
		return x
	}
	if r.IntN(8) == 0 {
		return uint32(r.IntN(2)) << 31
	}
	exponent := min(max(127+exponentOf(t.a)+exponentOf(t.b)+r.IntN(30)-15, 0), 254)
	if kind == "special" && r.IntN(60) == 0 {
		exponent = 255
	}
	x := uint32(exponent)<<23 | r.Uint32()&0x7fffff
	if kind == "cancel" || r.IntN(8) == 0 {
		x &^= 0x3fffff
	}
	return x | uint32(r.IntN(2))<<31
}

// tileKind returns the distribution from which tile i is drawn.
func tileKind(i int) string { return tileDraws[i%len(tileDraws)] }

// inputs returns random tiles, with A, B and metadata of each, and their initial accumulators.
func (t tileType) inputs(tiles int) (image, sums []byte) {
	r := rand.New(rand.NewPCG(20, uint64(len(t.op))))
	for i := range tiles {
		kind := tileKind(i)
		for at := 0; at < metadataAt; at += t.a.bytes() {
			b := t.a
			if at >= bAt {
				b = t.b
			}
			image = append(image, binary.LittleEndian.AppendUint32(nil, b.draw(r, kind))[:b.bytes()]...)
		}
		for range 128 {
			image = binary.LittleEndian.AppendUint32(image, t.sparse.draw(r))
		}
		for range tileSums {
			sums = binary.LittleEndian.AppendUint32(sums, t.drawSum(r, kind))
		}
	}
	return image, sums
}

// pack packs FP16 sums, which come one per word, into pairs of neighbouring columns, as registers
// hold them. The other words of a tile stay unused.
func (t tileType) pack(sums []byte) []byte {
	if !t.halves {
		return sums
	}
	out := make([]byte, len(sums))
	for at := range len(sums) / 4 {
		i := at % tileSums
		copy(out[at/tileSums*4*tileSums+i/256*512+i%128*4+i/128%2*2:], sums[4*at:4*at+2])
	}
	return out
}

// unpack is the inverse of pack: it returns one FP16 sum per word.
func (t tileType) unpack(words []uint32) []uint32 {
	if !t.halves {
		return words
	}
	out := make([]uint32, len(words))
	for at := range out {
		i := at % tileSums
		out[at] = words[at/tileSums*tileSums+i/256*128+i%128] >> (i / 128 % 2 * 16) & 0xffff
	}
	return out
}
