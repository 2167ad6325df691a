package emu

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/emu/layout"
)

// tiled loads two boxes of a tensor map by TMA, one after the other in shared memory. A wgmma then
// multiplies them: one descriptor reads the boxes as A, another reads their first rows as B.
const tiled = `.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 a, .param .u64 b, .param .u32 bytes, .param .u32 column)
{
.reg .b32 %%r<10>;
.reg .f32 %%f<4>;
.reg .b64 %%d<4>;
.reg .pred %%p<2>;
.shared .align 1024 .b8 tile[16384];
.shared .align 8 .b8 full[8];
ld.param.u64 %%d0, [a];
ld.param.u64 %%d1, [b];
ld.param.u32 %%r2, [bytes];
ld.param.u32 %%r4, [column];
mov.u32 %%r0, full;
mov.u32 %%r1, tile;
mov.u32 %%r3, %%tid.x;
setp.ne.u32 %%p0, %%r3, 0;
@%%p0 bra made;
mbarrier.init.shared::cta.b64 [%%r0], 1;
fence.mbarrier_init.release.cluster;
mov.u64 %%d2, map;
cvta.param.u64 %%d2, %%d2;
shl.b32 %%r5, %%r2, 1;
add.u32 %%r6, %%r1, %%r2;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%%r0], %%r5;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%%r1], [%%d2, {0, 0}], [%%r0]; // first
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%%r6], [%%d2, {%%r4, 0}], [%%r0]; // second
made:
bar.sync 0;
full:
mbarrier.try_wait.parity.shared::cta.b64 %%p1, [%%r0], 0;
@!%%p1 bra full;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%%f0, %%f1, %%f2, %%f3}, %%d0, %%d1, 0, 1, 1, %d, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
ret;
}
`

// TestLayoutMistakes checks that a descriptor that does not match what TMA wrote is a fault, and
// that the fault describes the box.
func TestLayoutMistakes(t *testing.T) {
	right := layout.MatrixDescriptor{Start: sharedBase, LBO: 16, SBO: 1024, Swizzle: layout.Swizzle128}
	for _, c := range []struct {
		name    string
		trans   int
		swizzle layout.Swizzle // swizzle of the map; a row of a box is as wide as the swizzle
		rows    uint32
		a       func(d *layout.MatrixDescriptor)
		says    string
	}{
		{name: "K-major", swizzle: layout.Swizzle128, rows: 64},
		{name: "K-major, the second k step", swizzle: layout.Swizzle128, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Start += 32 }},
		{name: "K-major, a row late", swizzle: layout.Swizzle128, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Start += 128 },
			says: "it starts at row 1 of the box, want a multiple of 8"},
		{name: "another swizzle in the descriptor", swizzle: layout.Swizzle128, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Swizzle, d.SBO = layout.Swizzle64, 512 },
			says: `A: matrix descriptor .* \(K-major, 64B swizzle\) reads what cp.async.bulk.tensor \(line \d+\) wrote to shared memory \w+ \(0x400\) with 128B swizzle, box 64 x 64 of 2 bytes each: want the same swizzle in both`},
		{name: "no swizzle in the map", swizzle: layout.SwizzleNone, rows: 64, says: "with no swizzle, box 8 x 64 .* the same swizzle"},
		{name: "half the stride", swizzle: layout.Swizzle128, rows: 64, a: func(d *layout.MatrixDescriptor) { d.SBO = 512 },
			says: `reads row 8 at \w+ \+ 576 \(0x640\), which is row 4 of the box, want row 8 of the box: the stride byte offset is 512 bytes, want 1024`},
		{name: "twice the stride", swizzle: layout.Swizzle128, rows: 64, a: func(d *layout.MatrixDescriptor) { d.SBO = 2048 },
			says: "row 16 of the box, want row 8 of the box: the stride byte offset is 2048 bytes, want 1024"},
		{name: "the strides exchanged", swizzle: layout.Swizzle64, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Swizzle, d.LBO, d.SBO = layout.Swizzle64, 512, 16 },
			says: "the stride byte offset is 16 bytes, want 512"},
		{name: "without swizzle", swizzle: layout.SwizzleNone, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Swizzle, d.LBO, d.SBO = layout.SwizzleNone, 1024, 128 }},
		{name: "without swizzle, another stride", swizzle: layout.SwizzleNone, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Swizzle, d.LBO, d.SBO = layout.SwizzleNone, 128, 256 },
			says: "the stride byte offset is 256 bytes, want 128"},
		{name: "MN-major", trans: 1, swizzle: layout.Swizzle128, rows: 64},
		{name: "MN-major, the second k step", trans: 1, swizzle: layout.Swizzle128, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Start += 2048 }},
		{name: "MN-major, another stride", trans: 1, swizzle: layout.Swizzle128, rows: 64, a: func(d *layout.MatrixDescriptor) { d.SBO = 4096 },
			says: `reads k 8 at \w+ \+ 4096 \(0x1400\), which is row 32 of the box, want row 8 of the box: the stride byte offset is 4096 bytes, want 1024`},
		{name: "MN-major, two blocks", trans: 1, swizzle: layout.Swizzle64, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Swizzle, d.LBO, d.SBO = layout.Swizzle64, 4096, 512 }},
		{name: "MN-major, another leading offset", trans: 1, swizzle: layout.Swizzle64, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Swizzle, d.LBO, d.SBO = layout.Swizzle64, 2048, 512 },
			says: "reads m or n 32 from row 32 of a box, but m or n 0 from row 0: the leading byte offset is 2048 bytes, want the distance between blocks"},
		{name: "MN-major, no leading offset", trans: 1, swizzle: layout.Swizzle64, rows: 64, a: func(d *layout.MatrixDescriptor) { d.Swizzle, d.LBO, d.SBO = layout.Swizzle64, 0, 512 },
			says: "reads m or n 32 at the address of m or n 0: the leading byte offset is 0 bytes, want the distance between blocks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := assemble(t, fmt.Sprintf(tiled, c.trans), "k")
			columns := c.swizzle.Width() / 2
			m := layout.TensorMap{Elem: layout.ElemBF16, Rank: 2, Address: p.u32s(make([]uint32, 64*64)...), Dims: [5]uint64{uint64(2 * columns), 64},
				Strides: [4]uint64{uint64(4 * columns)}, Box: [5]uint32{columns, c.rows}, Swizzle: c.swizzle}
			a := right
			if c.a != nil {
				c.a(&a)
			}
			b := a
			b.SBO = right.SBO // an operand of 8 rows does not use the stride byte offset
			if c.says != "" {
				b = layout.MatrixDescriptor{Start: sharedBase, LBO: m.BoxBytes(), SBO: 8 * c.swizzle.Width(), Swizzle: c.swizzle}
			}
			p.params(m, a.Encode(), b.Encode(), m.BoxBytes(), columns)
			p.launch.Block, p.launch.Races = [3]int{128}, true
			err := p.run()
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			var f *Fault
			require.True(t, errors.As(err, &f), "%v", err)
			require.Equal(t, IllegalDescriptor, f.Kind, f.Error())
			require.Regexp(t, c.says, f.Error())
		})
	}
}
