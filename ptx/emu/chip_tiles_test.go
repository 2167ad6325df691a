package emu_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
	"sonicmoe/driver/emulated"
	"sonicmoe/driver/gpu"
	"sonicmoe/ptx/emu"
	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/ptxas"
)

// alignmentText multiplies a tile of 64 rows by a tile of 8 rows. A row is as wide as the swizzle.
// TMA loads both tiles to addresses that are `offset` bytes after a multiple of 1024. The value
// base is added to both matrix descriptors. The kernel also copies the bytes of both tiles in
// shared memory to the parameter seen.
const alignmentText = `.version 8.0
.target sm_90a
.address_size 64
.visible .entry tile(.param .align 64 .b8 maps[256], .param .u64 out, .param .u64 seen, .param .u64 base, .param .u32 offset)
{
.reg .b32 %r<16>;
.reg .f32 %f<4>;
.reg .b64 %d<12>;
.reg .pred %p<2>;
.shared .align 1024 .b8 tile[10240];
.shared .align 8 .b64 full;
ld.param.u64 %d0, [out];
ld.param.u64 %d1, [seen];
ld.param.u64 %d2, [base];
ld.param.u32 %r0, [offset];
mov.u32 %r1, %tid.x;
mov.u32 %r2, tile;
mov.u32 %r3, full;
add.u32 %r2, %r2, %r0;
setp.ne.u32 %p0, %r1, 0;
@%p0 bra made;
mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
mov.b64 %d3, maps;
cvta.param.u64 %d3, %d3;
add.u64 %d4, %d3, 128;
add.u32 %r4, %r2, A_BYTES;
mov.u32 %r5, 0;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], ALL_BYTES;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d3, {%r5, %r5}], [%r3];
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d4, {%r5, %r5}], [%r3];
made:
bar.sync 0;
wait:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0;
@!%p1 bra wait;
shr.u32 %r6, %r2, 4;
cvt.u64.u32 %d5, %r6;
or.b64 %d5, %d5, DESCRIPTOR;
or.b64 %d5, %d5, %d2;
add.u64 %d6, %d5, A_CHUNKS;
mov.f32 %f0, 0f00000000;
mov.f32 %f1, 0f00000000;
mov.f32 %f2, 0f00000000;
mov.f32 %f3, 0f00000000;
wgmma.fence.sync.aligned;
PRODUCTS
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
mul.wide.u32 %d7, %r1, 16;
add.u64 %d7, %d7, %d0;
st.global.v4.f32 [%d7], {%f0, %f1, %f2, %f3};
mov.u32 %r7, %r1;
copy:
shl.b32 %r8, %r7, 2;
add.u32 %r9, %r2, %r8;
ld.shared.u32 %r10, [%r9];
mul.wide.u32 %d8, %r7, 4;
add.u64 %d8, %d8, %d1;
st.global.u32 [%d8], %r10;
add.u32 %r7, %r7, 128;
setp.lt.u32 %p1, %r7, WORDS;
@%p1 bra copy;
ret;
}
`

// alignmentProgram returns the text of alignmentText for a swizzle.
func alignmentProgram(sw layout.Swizzle) string {
	w := sw.Width()
	products := "setp.ne.u32 %p0, %r3, %r3;\n"
	for step := range w / 32 {
		if step == 1 {
			products += "setp.eq.u32 %p0, %r3, %r3;\n"
		}
		products += "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d5, %d6, %p0, 1, 1, 0, 0;\nadd.u64 %d5, %d5, 2;\nadd.u64 %d6, %d6, 2;\n"
	}
	number := func(n uint32) string { return fmt.Sprint(n) }
	d := layout.MatrixDescriptor{LBO: 16, SBO: 8 * w, Swizzle: sw}
	return strings.NewReplacer("PRODUCTS", products, "A_BYTES", number(64*w), "ALL_BYTES", number(72*w), "A_CHUNKS", number(4*w), "WORDS", number(18*w),
		"DESCRIPTOR", fmt.Sprintf("%#x", d.Encode())).Replace(alignmentText)
}

// bf16Of returns the bits of a small integer as BF16.
func bf16Of(n int) uint16 { return uint16(math.Float32bits(float32(n)) >> 16) }

// TestTileAlignmentOnGPU checks that a swizzled tile may begin at any multiple of 128 bytes: TMA
// and wgmma both compute the swizzle from the bits of the address. The descriptor's base offset
// stays 0.
func TestTileAlignmentOnGPU(t *testing.T) {
	dev := onGPU(t)
	for _, sw := range []layout.Swizzle{layout.Swizzle32, layout.Swizzle64, layout.Swizzle128} {
		for offset := uint32(0); offset < sw.Period(); offset += 128 {
			testTileAlignment(t, dev, sw, offset, 0)
			testTileAlignment(t, dev, sw, offset, offset/128)
		}
	}
}

func testTileAlignment(t *testing.T, dev gpu.Device, sw layout.Swizzle, offset, base uint32) {
	b := &bed{t, dev}
	const rows, columns = 64, 8
	k := int(sw.Width() / 2)
	element := func(row, col int) int { return (row*7+col*3+row*col)%15 - 7 }
	var image []byte
	for row := range rows + columns {
		for col := range k {
			image = binary.LittleEndian.AppendUint16(image, bf16Of(element(row, col)))
		}
	}
	from := b.put(image)
	params := make([]byte, 48) // parameters begin at byte 0x210 of the constant bank, so maps after 48 bytes are aligned to 64
	for i, n := range []uint32{rows, columns} {
		m, err := dev.EncodeTensorMap(gpu.TensorMap{Elem: gpu.BF16, Rank: 2, Address: from + driver.DevicePtr(i*rows*k*2), Dims: [5]uint64{uint64(k), uint64(n)},
			Strides: [4]uint64{uint64(2 * k)}, Box: [5]uint32{uint32(k), n}, Swizzle: gpu.Swizzle(sw)})
		require.NoError(t, err)
		params = append(params, m[:]...)
	}
	out, seen := b.put(make([]byte, 128*16)), b.put(make([]byte, len(image)))
	for _, v := range []uint64{uint64(out), uint64(seen), uint64(base) << 49, uint64(offset)} {
		params = binary.LittleEndian.AppendUint64(params, v)
	}
	b.launch([]byte(alignmentProgram(sw)), "tile", gpu.Launch{Grid: gpu.Dim3{X: 1}, Block: gpu.Dim3{X: 128}}, params[:len(params)-4])
	sums := make([]float32, 512)
	require.NoError(t, binary.Read(bytes.NewReader(b.get(out, 2048)), binary.LittleEndian, sums))
	wrong := 0
	for thread := range 128 {
		for i := range 4 {
			row, col := thread/32*16+thread%32/4+i/2*8, thread%4*2+i%2
			want := 0
			for x := range k {
				want += element(row, x) * element(rows+col, x)
			}
			if sums[4*thread+i] != float32(want) {
				wrong++
			}
		}
	}
	moved := 0 // number of bytes that are not where the address bits say
	tile := b.get(seen, len(image))
	for at := range tile {
		y := int(sw.Apply(1024+offset+uint32(at))) - 1024 - int(offset)
		if y < 0 || y >= len(image) || tile[y] != image[at] {
			moved++
		}
	}
	t.Logf("%v, offset %d, base offset %d: %d of 512 sums wrong, %d of %d bytes not at their swizzled address", sw, offset, base, wrong, moved, len(image))
	if base == 0 {
		assert.Zero(t, wrong+moved, "%v, offset %d", sw, offset)
	}
}

// releaseText returns a kernel in which a warpgroup multiplies ones by ones. Warp 3 spins for
// 20,000 cycles at the place of the kernel with the given number. After its own wait_group, thread
// 0 overwrites B with twos.
func releaseText(place int, products int) string {
	spin := func(at int) string {
		if at != place {
			return ""
		}
		return fmt.Sprintf("@!%%p2 bra go%d;\nmov.u64 %%d8, %%clock64;\nspin%d:\nmov.u64 %%d9, %%clock64;\nsub.u64 %%d9, %%d9, %%d8;\nsetp.lt.u64 %%p3, %%d9, 20000;\n@%%p3 bra spin%d;\ngo%d:\n", at, at, at, at)
	}
	var b strings.Builder
	b.WriteString(`.version 8.0
.target sm_90a
.address_size 64
.visible .entry release(.param .u64 out)
{
.reg .b32 %r<16>;
.reg .f32 %f<4>;
.reg .b64 %d<12>;
.reg .pred %p<5>;
.shared .align 1024 .b8 tile[2304];
ld.param.u64 %d0, [out];
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, tile;
mad.lo.u32 %r3, %r0, 16, %r2;
mov.u32 %r4, 0x3f803f80;
mov.u32 %r5, 0x40004000;
st.shared.v4.b32 [%r3], {%r4, %r4, %r4, %r4};
setp.lt.u32 %p0, %r0, 16;
@%p0 st.shared.v4.b32 [%r3+2048], {%r4, %r4, %r4, %r4};
fence.proxy.async.shared::cta;
bar.sync 0;
setp.ge.u32 %p2, %r0, 96;
setp.eq.u32 %p1, %r0, 0;
setp.ne.u32 %p0, %r2, %r2;
setp.eq.u32 %p4, %r2, %r2;
shr.u32 %r6, %r2, 4;
cvt.u64.u32 %d5, %r6;
or.b64 %d5, %d5, 0x1000080000;
add.u64 %d6, %d5, 128;
mov.f32 %f0, 0f00000000;
mov.f32 %f1, 0f00000000;
mov.f32 %f2, 0f00000000;
mov.f32 %f3, 0f00000000;
`)
	b.WriteString(spin(0) + "wgmma.fence.sync.aligned;\n" + spin(1))
	for i := range products {
		if i == products/2 && i > 0 {
			b.WriteString(spin(4))
		}
		fmt.Fprintf(&b, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%%f0, %%f1, %%f2, %%f3}, %%d5, %%d6, %s, 1, 1, 0, 0;\n", []string{"%p0", "%p4"}[min(i, 1)])
	}
	b.WriteString(spin(2) + "wgmma.commit_group.sync.aligned;\n" + spin(3) + `wgmma.wait_group.sync.aligned 0;
mov.u64 %d10, %clock64;
@!%p1 bra kept;
add.u32 %r7, %r2, 2048;
`)
	for i := range 16 {
		fmt.Fprintf(&b, "st.shared.v4.b32 [%%r7+%d], {%%r5, %%r5, %%r5, %%r5};\n", 16*i)
	}
	b.WriteString(`fence.proxy.async.shared::cta;
kept:
mad.lo.u32 %r8, %r1, 128, %r0;
mul.wide.u32 %d7, %r8, 16;
add.u64 %d7, %d7, %d0;
st.global.f32 [%d7], %f0;
st.global.f32 [%d7+4], %f3;
st.global.u64 [%d7+8], %d10;
ret;
}
`)
	return b.String()
}

// TestReleaseByOneWarpOnGPU checks on a GPU that the wait_group of one warp covers the reads of the
// whole warpgroup: this warp then overwrites a tile, and no sum changes, wherever another warp is
// delayed.
func TestReleaseByOneWarpOnGPU(t *testing.T) { testRelease(t, onGPU(t), 132*4) }

// TestReleaseByOneWarp checks that the race checks accept a tile that one warp overwrites after its
// wait_group, and refuse one that it overwrites before.
func TestReleaseByOneWarp(t *testing.T) {
	text := releaseText(3, 64)
	const wait = "wgmma.wait_group.sync.aligned 0;\n"
	for _, c := range []struct{ text, finds string }{
		{text, ""},
		{strings.Replace(strings.Replace(text, wait, "", 1), "kept:\n", "kept:\n"+wait, 1), "wgmma.wait_group by the warps that multiply"},
	} {
		m, err := emu.Load([]byte(c.text))
		require.NoError(t, err)
		kernel, err := m.Kernel("release")
		require.NoError(t, err)
		memory := emu.NewMemory(1 << 20)
		out, err := memory.Alloc(128 * 16)
		require.NoError(t, err)
		err = kernel.Check(t.Context(), memory, emu.Launch{Block: [3]int{128}, Params: binary.LittleEndian.AppendUint64(nil, out)}, 2)
		if c.finds == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.finds)
		}
	}
}

func testRelease(t *testing.T, dev gpu.Device, ctas int) {
	b := &bed{t, dev}
	names := []string{"before wgmma.fence", "before wgmma", "before commit_group", "before wait_group", "between two wgmma", "nowhere"}
	for place, name := range names {
		for _, products := range []int{1, 64} {
			if place == 4 && products == 1 {
				continue
			}
			out := b.put(make([]byte, 128*16*ctas))
			b.launch([]byte(releaseText(place, products)), "release", gpu.Launch{Grid: gpu.Dim3{X: ctas}, Block: gpu.Dim3{X: 128}}, binary.LittleEndian.AppendUint64(nil, uint64(out)))
			type result struct {
				F0, F3 float32
				At     uint64
			}
			got := make([]result, 128*ctas)
			require.NoError(t, binary.Read(bytes.NewReader(b.get(out, 128*16*ctas)), binary.LittleEndian, got))
			changed := [4]int{} // number of threads with a wrong sum, by warp
			late, first := 0, int64(1<<62)
			for i, x := range got {
				if want := float32(16 * products); x.F0 != want || x.F3 != want {
					changed[i%128/32]++
				}
				if i%128 == 96 {
					ahead := int64(x.At - got[i-96].At)
					first = min(first, ahead)
					if ahead > 10000 {
						late++
					}
				}
			}
			assert.Zero(t, changed, "warp 3 delayed %s, %d wgmma", name, products)
			t.Logf("warp 3 delayed %s, %d wgmma: threads with changed sums, by warp: %v of %d; warp 3 passes its wait over 10000 cycles after warp 0 in %d of %d CTAs (least difference %d)",
				name, products, changed, 32*ctas, late, ctas, first)
		}
	}
}

// TestTilesOnEmulator checks that the emulator passes the two tests above as the chip does: the one
// about the alignment of tiles, and the one about the release of a tile by one warp.
func TestTilesOnEmulator(t *testing.T) {
	dev, err := emulated.New(emulated.Options{})
	require.NoError(t, err)
	testRelease(t, dev, 1)
	for _, sw := range []layout.Swizzle{layout.Swizzle32, layout.Swizzle64, layout.Swizzle128} {
		testTileAlignment(t, dev, sw, 0, 0)
		testTileAlignment(t, dev, sw, sw.Period()-128, 0)
	}
	for _, text := range []string{alignmentProgram(layout.Swizzle128), releaseText(4, 64)} {
		_, _, err := ptxas.Assemble(t.Context(), []byte(text))
		if errors.Is(err, ptxas.ErrNotFound) {
			t.Skip(err)
		}
		require.NoError(t, err)
	}
}
