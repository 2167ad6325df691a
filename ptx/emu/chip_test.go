package emu_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/cuda"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/emu/internal/mma"
	"sonicmoe/ptx/emu/layout"
)

// These tests compare the emulator's results with a GPU's bits. The GPU tests run if
// SONICMOE_DEVICE is cuda.

// onGPU returns a real device, or skips the test.
func onGPU(t *testing.T) gpu.Device {
	if os.Getenv("SONICMOE_DEVICE") != "cuda" {
		t.Skip("SONICMOE_DEVICE is not cuda: not run on a GPU")
	}
	dev, err := cuda.Open(context.Background(), 0, cuda.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

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

// run multiplies tiles on a device and returns the sums. image has A, B and metadata of all tiles,
// sums their initial accumulators.
func (t tileType) run(tb testing.TB, dev gpu.Device, image, sums []byte) []uint32 {
	bed := &bed{tb, dev}
	a, b := bed.put(image), bed.put(t.pack(sums))
	bed.launch([]byte(t.text()), "tile", gpu.Launch{Grid: gpu.Dim3{X: len(sums) / 4 / tileSums}, Block: gpu.Dim3{X: 128}},
		binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(a)), uint64(b)))
	out := bed.get(b, len(sums))
	words := make([]uint32, len(out)/4)
	require.NoError(tb, binary.Read(bytes.NewReader(out), binary.LittleEndian, words))
	return t.unpack(words)
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

// bed runs kernels on a device.
type bed struct {
	t   testing.TB
	dev gpu.Device
}

func (b *bed) stream(use func(driver.Stream) error) {
	s, err := b.dev.NewStream()
	require.NoError(b.t, err)
	require.NoError(b.t, use(s))
	require.NoError(b.t, s.Synchronize(context.Background()))
	require.NoError(b.t, s.Close())
}

func (b *bed) put(bytes []byte) driver.DevicePtr {
	p, err := b.dev.Alloc(int64(max(len(bytes), 1)))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, b.dev.Free(p)) })
	b.stream(func(s driver.Stream) error { return s.CopyToDevice(p, bytes) })
	return p
}

func (b *bed) get(p driver.DevicePtr, n int) []byte {
	out := make([]byte, n)
	b.stream(func(s driver.Stream) error { return s.CopyToHost(out, p) })
	return out
}

func (b *bed) launch(text []byte, entry string, l gpu.Launch, params []byte) {
	image, err := b.dev.Compile(context.Background(), text, gpu.CompileOptions{})
	require.NoError(b.t, err)
	m, err := b.dev.Load(image.Code)
	require.NoError(b.t, err)
	f, err := m.Function(entry)
	require.NoError(b.t, err)
	if l.SharedBytes > 0 {
		require.NoError(b.t, f.AllowSharedBytes(l.SharedBytes))
	}
	b.stream(func(s driver.Stream) error { return gpu.Enqueue(s, f, &l, params) })
	require.NoError(b.t, m.Unload())
}

// model returns the sum that the emulator's definition gives, with A in format f.
func (t tileType) model(acc uint32, a, b []uint32, f *mma.Format) uint32 {
	if t.a.integer() {
		sum := int64(int32(acc))
		for k := range a {
			x, y := int64(a[k]), int64(b[k])
			if t.a.signed8 {
				x = int64(int8(x))
			}
			if t.b.signed8 {
				y = int64(int8(y))
			}
			sum += x * y
		}
		if t.saturates {
			sum = min(max(sum, math.MinInt32), math.MaxInt32)
		}
		return uint32(sum)
	}
	if t.registersB > 0 && emu.HalvesOfFP8[t.a.format] != nil {
		return t.modelOfFP8(acc, a, b)
	}
	sign := uint32(0)
	if strings.Contains(t.ends, "-1") { // the instruction negates one operand, A or B
		sign = 1 << (t.a.exponent + t.a.fraction)
	}
	x, y := make([]uint32, f.Depth()), make([]uint32, f.Depth())
	for k := range a {
		x[k], y[k] = a[k]^sign, b[k]
	}
	return t.sum(acc, x, y, f, emu.ElementFormats[t.b.format])
}

// sum adds the products of a and b to acc, as internal/mma defines it.
func (t tileType) sum(acc uint32, a, b []uint32, ofA, ofB *mma.Format) uint32 {
	if t.halves {
		return arith.F16Nearest(mma.DotOf(arith.F32FromF16(uint16(acc)), a, b, ofA.InHalves(), ofB))
	}
	return mma.DotOf(acc, a, b, ofA, ofB)
}

// modelOfFP8 returns the sum of an mma.sync with FP8 elements.
func (t tileType) modelOfFP8(acc uint32, a, b []uint32) uint32 {
	sum := uint32(0)
	for step := 0; step < 4; step += 2 {
		var x, y [16]uint32
		for k := range len(a) / 2 {
			x[k], y[k] = a[k/2*4+step+k%2], b[k/2*4+step+k%2]
		}
		sum = t.sum(sum, x[:], y[:], emu.HalvesOfFP8[t.a.format], emu.HalvesOfFP8[t.b.format])
	}
	if t.halves {
		return emu.AddF16(sum, acc)
	}
	return arith.AddF32(sum, acc, false)
}

// each calls visit for each sum of a tile, with its index, its row and column, and its operands.
func (t tileType) each(image []byte, visit func(i, row, column int, a, b []uint32)) {
	for i := range tileSums {
		row, column := layout.AccumulatorPosition(i%128, i/128)
		a, b := t.operands(image, row, column)
		visit(i, row, column, a, b)
	}
}

// TestTiles checks the sums of tiles of every type against the definition (tileType.model).
func TestTiles(t *testing.T) {
	tiles := 2 * len(tileDraws)
	if testing.Short() {
		tiles = len(tileDraws)
	}
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	for _, ty := range tileTypes {
		t.Run(ty.name, func(t *testing.T) {
			image, sums := ty.inputs(tiles)
			got := ty.run(t, dev, image, sums)
			for tile := range tiles {
				ty.each(image[tile*tileBytes:], func(i, row, column int, a, b []uint32) {
					at := tile*tileSums + i
					want := ty.model(binary.LittleEndian.Uint32(sums[4*at:]), a, b, emu.ElementFormats[ty.a.format])
					if got[at] != want { // a comparison is faster than a call of testify for each sum
						require.Equal(t, want, got[at], "%s tile %d, row %d, column %d", tileKind(tile), tile, row, column)
					}
				})
			}
		})
	}
}

// TestSumsInFP16 checks FP16 sums against the behaviour of an H200: the exact sum is rounded once,
// without an earlier cut; a result that rounds to zero is +0; and a subnormal sum has the exponent
// of the smallest normal number.
func TestSumsInFP16(t *testing.T) {
	ofF16, ofE4M3, ofE5M2 := inHalves(wgmmaOf(f16, f16, false, "")), inHalves(wgmmaOf(e4m3, e4m3, false, "")), inHalves(wgmmaOf(e5m2, e5m2, true, ""))
	for _, c := range []struct {
		of        tileType
		chip, sum uint32
		a, b      string
	}{
		{ofF16, 0x417b, 0xbe00, "3e00 3c00 3c00 be00 a600 3c00 8c00 2600 be00 8c00 a600 0c00 3c00 3c00 be00 3e00", "0c00 bc00 0e00 bc00 be00 0c00 8e00 2400 be00 3e00 bc00 8c00 a600 a600 bc00 a400"},
		{ofF16, 0, 0, "8140 8457 0820 07df 03b0 0394 84ec 0df5 0092 0335 8bd1 0104 12ad 05a2 114f 8efd", "8a36 8543 81fe 0187 0d6a 8324 8279 8181 01d3 83d5 0002 8969 83ef 0bc2 0083 808c"},
		{ofE4M3, 0xf527, 0, "70 df 3d f3 da a6 96 40 b5 c7 12 d4 a7 5a c2 28 9d ef 98 f1 9c 39 9b de ac dd e6 c3 ca f4 4b 36",
			"cf 92 31 96 3a e4 b5 54 95 e8 09 e7 40 8b df b1 2b e1 dd 51 8d a2 ce ac 7c a0 6d 42 bb 6c c0 75"},
		{ofE5M2, 0x838e, 0x8392, "0d 08 91 8c 80 84 80 83 08 12 00 08 05 8a 02 03 91 07 83 81 8a 83 89 87 02 01 81 0c 02 0e 00 0c",
			"0d 83 01 01 11 81 80 08 80 02 06 09 03 01 0e 00 86 80 93 82 03 8d 89 0b 0c 03 04 0b 86 82 8a 00"},
	} {
		words := func(text string) (list []uint32) {
			for _, word := range strings.Fields(text) {
				x, err := strconv.ParseUint(word, 16, 32)
				require.NoError(t, err)
				list = append(list, uint32(x))
			}
			return list
		}
		got := c.of.model(c.sum, words(c.a), words(c.b), emu.ElementFormats[c.of.a.format])
		assert.Equal(t, c.chip, got, "%s of %s by %s", c.of.name, c.a, c.b)
	}
}

// TestTilesOnGPU checks that a GPU and the emulator give bit-identical sums. It draws 10,000 tiles
// of each type if SONICMOE_LONG is set, else 400. It counts differences by distribution, and prints
// a few sums with the chip's bits, the emulator's bits, the accumulator, and A and B in the order
// of k.
func TestTilesOnGPU(t *testing.T) {
	chip := onGPU(t)
	tiles := 400
	if os.Getenv("SONICMOE_LONG") != "" {
		tiles = 10000
	}
	for _, ty := range tileTypes {
		t.Run(ty.name, func(t *testing.T) {
			t.Parallel()
			emulator, err := emulated.New(emulated.Options{})
			require.NoError(t, err)
			image, sums := ty.inputs(tiles)
			got, want := ty.run(t, chip, image, sums), ty.run(t, emulator, image, sums)
			different := map[string]int{}
			var lines []string
			f := ty.fits()
			for tile := range tiles {
				from := tile * tileSums
				if slices.Equal(got[from:from+tileSums], want[from:from+tileSums]) && tile >= 4*len(tileDraws) {
					continue
				}
				kind := tileKind(tile)
				ty.each(image[tile*tileBytes:], func(i, row, column int, a, b []uint32) {
					acc := binary.LittleEndian.Uint32(sums[4*(from+i):])
					if tile < 4*len(tileDraws) {
						f.count(acc, a, b, got[from+i])
					}
					if got[from+i] == want[from+i] {
						return
					}
					if different[kind]++; different[kind] <= 3 {
						lines = append(lines, fmt.Sprintf("%s: chip %08x emulator %08x sum %08x A %s B %s", kind, got[from+i], want[from+i], acc,
							ty.a.hex(a), ty.b.hex(b)))
					}
				})
			}
			if len(different) > 0 {
				t.Errorf("of %d sums of %d tiles differ, by kind: %v\n%s\n%s", len(got), tiles, different, strings.Join(lines, "\n"), f)
			}
		})
	}
}

func (b bits) hex(list []uint32) string {
	var s []string
	for _, x := range list {
		s = append(s, fmt.Sprintf("%0*x", 2*b.bytes(), x))
	}
	return strings.Join(s, " ")
}

// fits counts, for each of several models, how many of the chip's sums the model reproduces. The
// models differ in the number of fraction bits and in the cut before rounding ([mma.Format]).
type fits struct {
	t      tileType
	models []*mma.Format
	hits   []int
	of     int
}

func (t tileType) fits() *fits {
	f := &fits{t: t}
	if t.a.integer() {
		return f
	}
	base := emu.ElementFormats[t.a.format]
	for fraction := base.Fraction - 2; fraction <= base.Fraction+2; fraction++ {
		for _, cut := range []int{0, 9, 10, 11} {
			m := *base
			m.Fraction, m.Cut = fraction, cut
			f.models = append(f.models, &m)
		}
	}
	f.hits = make([]int, len(f.models))
	return f
}

func (f *fits) count(acc uint32, a, b []uint32, chip uint32) {
	f.of++
	for i, m := range f.models {
		if f.t.model(acc, a, b, m) == chip {
			f.hits[i]++
		}
	}
}

// String lists each model with the number of sums that it reproduces.
func (f *fits) String() string {
	var s []string
	for i, m := range f.models {
		s = append(s, fmt.Sprintf("fraction %d cut %d: %d of %d", m.Fraction, m.Cut, f.hits[i], f.of))
	}
	return strings.Join(s, "; ")
}

// inexact matches instructions whose result a chip may compute with another rounding, or fuse with
// a following instruction.
var inexact = regexp.MustCompile(`\.approx|\.full|\b(add|sub|mul)\.(ftz\.)?f(16|32|64)`)

// halves matches kernels that add, subtract or multiply FP16 numbers. A chip may round these
// operations differently, or fuse them.
var halves = regexp.MustCompile(`\b(add|sub|mul)\.f16`)

// near reports whether two words hold the same FP32 number, or the same pair of FP16 numbers, up to
// about one rounding.
func near(x, y uint32, pair bool) bool {
	if !pair {
		u, v := float64(math.Float32frombits(x)), float64(math.Float32frombits(y))
		return math.Abs(u-v) <= 1e-4*math.Max(math.Abs(u), 1e-2)
	}
	half := func(bits uint32) float64 { // half returns the value of an FP16 number; subnormal numbers need only be near 0
		v := math.Ldexp(float64(1<<10|bits&(1<<10-1)), int(bits>>10&31)-25)
		if bits>>15&1 != 0 {
			return -v
		}
		return v
	}
	for shift := 0; shift < 32; shift += 16 {
		u, v := half(x>>shift), half(y>>shift)
		if !(math.Abs(u-v) <= 0x1p-9*math.Max(math.Abs(u), 1)) {
			return false
		}
	}
	return true
}

var versionLine = regexp.MustCompile(`(?m)^\.version \d+\.\d+`)

// TestForeignOnGPU checks that kernels from other compilers leave the same bytes in a GPU's memory
// as in the emulator's.
func TestForeignOnGPU(t *testing.T) {
	chip := onGPU(t)
	launches, same, kernels := 0, 0, map[string]bool{}
	emu.OnForeign = func(t testing.TB, l emu.ForeignLaunch) {
		b := &bed{t, chip}
		params := append([]byte(nil), l.Launch.Params...)
		at := map[uint64]driver.DevicePtr{}
		for i := 0; i+8 <= len(params); i += 8 {
			x := binary.LittleEndian.Uint64(params[i:])
			for base, bytes := range l.Before {
				if x >= base && x-base < uint64(len(bytes)) {
					if at[base] == 0 {
						at[base] = b.put(bytes)
					}
					binary.LittleEndian.PutUint64(params[i:], uint64(at[base])+x-base)
				}
			}
		}
		text := l.Text
		if most := chip.MaxPTXVersion(); most != 0 && most < l.Version { // the driver is older than the text's version, but knows every instruction of the kernel
			text = versionLine.ReplaceAll(text, fmt.Appendf(nil, ".version %d.%d", most/10, most%10))
		}
		dim := func(d [3]int) gpu.Dim3 { return gpu.Dim3{X: d[0], Y: d[1], Z: d[2]} }
		b.launch(text, l.Kernel.Name(), gpu.Launch{Grid: dim(l.Launch.Grid), Block: dim(l.Launch.Block), Cluster: dim(l.Launch.Cluster),
			SharedBytes: l.Launch.SharedBytes}, params)
		words, differ, far := 0, 0, 0
		for base, p := range at {
			want := l.After[base]
			got := b.get(p, len(want))
			for i := 0; i+4 <= len(want); i += 4 {
				x, y := binary.LittleEndian.Uint32(got[i:]), binary.LittleEndian.Uint32(want[i:])
				if words++; x == y {
					continue
				}
				differ++
				if !inexact.Match(l.Text) || !near(x, y, halves.Match(l.Text)) {
					if far++; far <= 3 {
						t.Errorf("word %d of the buffer at %#x: chip %08x, emulator %08x", i/4, base, x, y)
					}
				}
			}
		}
		launches++
		if differ == 0 {
			same++
		}
		kernels[l.Kernel.Name()] = true
		t.Logf("%s: %d of %d words differ from the chip's, %d by more than approximation and fusing may", t.Name(), differ, words, far)
	}
	defer func() { emu.OnForeign = nil }()
	emu.RunForeign(t)
	t.Logf("%d launches of %d kernels on %s: %d leave the same bits", launches, len(kernels), chip.Target().Name, same)
	assert.GreaterOrEqual(t, len(kernels), 20)
}
