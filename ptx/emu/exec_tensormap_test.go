package emu

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// madeMap is a kernel that builds a tensor map from zeros in shared memory, copies it to global
// memory and loads with it. It then changes one field of the map in global memory and loads again.
const madeMap = `
	.shared .align 128 .b8 map[128];
	.shared .align 128 .b8 box[256];
	.shared .align 8 .b8 bar[8];
	ld.param.u64 %d0, [out];
	add.u64 %d1, %d0, 1024;
	mov.u32 %r0, %tid.x;
	mul.lo.u32 %r1, %r0, 4;
	mov.u32 %r2, map;
	add.u32 %r2, %r2, %r1;
	st.shared.u32 [%r2], 0;
	setp.eq.u32 %p0, %r0, 0;
	bar.warp.sync 0xffffffff;
	@!%p0 bra copy;
	mbarrier.init.shared::cta.b64 [bar], 1;
	fence.mbarrier_init.release.cluster;
	tensormap.replace.tile.global_address.shared::cta.b1024.b64 [map], %d0;
	tensormap.replace.tile.rank.shared::cta.b1024.b32 [map], 1;
	tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [map], 0, 8;
	tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [map], 1, 4;
	tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [map], 0, 16;
	tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [map], 1, 8;
	tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [map], 0, 64;
	tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [map], 0, 1;
	tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [map], 2;
	tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [map], 0;
	tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [map], 0;
	tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [map], 0;
copy:
	bar.warp.sync 0xffffffff;
	mov.u32 %r3, map;
	tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d1], [%r3], 128;
	fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;
	mov.u32 %r4, box;
	mov.u32 %r5, bar;
	mov.u32 %r6, 0;
again:
	@!%p0 bra wait;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 128;
	cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d1, {8, 4}], [%r5];
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], %r6;
	@!%p1 bra wait;
	mov.u32 %r7, box;
	add.u32 %r7, %r7, %r1;
	ld.shared.u32 %r8, [%r7];
	mul.wide.u32 %d2, %r0, 4;
	add.u64 %d2, %d2, %d1;
	mul.wide.u32 %d3, %r6, 128;
	add.u64 %d2, %d2, %d3;
	st.global.u32 [%d2+128], %r8;
	bar.warp.sync 0xffffffff;
	@!%p0 bra next;
	add.u64 %d4, %d0, 64;
	tensormap.replace.tile.global_address.global.b1024.b64 [%d1], %d4;
	fence.proxy.tensormap::generic.release.gpu;
next:
	bar.warp.sync 0xffffffff;
	fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;
	add.u32 %r6, %r6, 1;
	setp.lt.u32 %p2, %r6, 2;
	@%p2 bra again;
`

func TestMapsMadeInMemory(t *testing.T) {
	p := assemble(t, strings.Replace(body(madeMap), ".version 8.0", ".version 8.3", 1), "k")
	words := make([]uint32, 512)
	for i := range words {
		words[i] = uint32(i)
	}
	out := p.u32s(words...)
	p.params(out, 0)
	p.launch.Races = true
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		require.NoError(t, p.run())
		got := p.read(out+1024+128, 64)
		for i, v := range got {
			row := 4 + i%32/8 + i/32 // the second load starts one row further down
			assert.Equal(t, uint32(16*row+8+i%8), v, "word %d", i)
		}
	})
}

// handedMap is a kernel in which one CTA builds a map field by field in global memory, and another
// CTA uses it.
const handedMap = `
	.shared .align 128 .b8 box[256];
	.shared .align 8 .b8 bar[8];
	ld.param.u64 %d0, [out];
	add.u64 %d1, %d0, 1024;
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r9, 1;
	setp.eq.u32 %p0, %r0, 0;
	setp.eq.u32 %p1, %r1, 0;
	@!%p0 bra end;
	@!%p1 bra use;
	tensormap.replace.tile.global_address.global.b1024.b64 [%d1], %d0;
	tensormap.replace.tile.rank.global.b1024.b32 [%d1], 0;
	tensormap.replace.tile.box_dim.global.b1024.b32 [%d1], 0, 8;
	tensormap.replace.tile.global_dim.global.b1024.b32 [%d1], 0, 16;
	tensormap.replace.tile.element_stride.global.b1024.b32 [%d1], 0, 1;
	tensormap.replace.tile.elemtype.global.b1024.b32 [%d1], 2;
	fence.proxy.tensormap::generic.release.gpu;
	st.release.gpu.global.u32 [%d1+1024], %r9;
	bra end;
use:
	mbarrier.init.shared::cta.b64 [bar], 1;
	fence.mbarrier_init.release.cluster;
flag:
	ld.acquire.gpu.global.u32 %r3, [%d1+1024];
	setp.ne.u32 %p2, %r3, 1;
	@%p2 bra flag;
	fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;
	mov.u32 %r4, box;
	mov.u32 %r5, bar;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 32;
	cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%d1, {8}], [%r5];
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r5], 0;
	@!%p2 bra wait;
end:`

// TestRacesOfMaps checks that the use of a map before its changes are visible is a race, and that
// the finding names both accesses.
func TestRacesOfMaps(t *testing.T) {
	const release, acquire = "fence.proxy.tensormap::generic.release.gpu;", "fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;"
	for _, c := range []struct {
		name, code string
		ctas       int
		edit       []string
		want       string
	}{
		{"whole", madeMap, 1, nil, ""},
		{"one lane writes what others may still clear", madeMap, 1, []string{"bar.warp.sync 0xffffffff;\n\t@!%p0 bra copy;", "@!%p0 bra copy;"}, "which warp 0 wrote with st"},
		{"no acquire after the copy", madeMap, 1, []string{acquire, ""}, "which warp 0 wrote with tensormap.cp_fenceproxy"},
		{"no release after the change", madeMap, 1, []string{release, ""}, "which warp 0 wrote with tensormap.replace"},
		{"no acquire after the change", madeMap, 1, []string{"next:\n\tbar.warp.sync 0xffffffff;\n\t" + acquire, "next:\n\tbar.warp.sync 0xffffffff;"}, "without fence.proxy.tensormap in between"},
		{"handed over", handedMap, 2, nil, ""},
		{"no release", handedMap, 2, []string{release, ""}, "without fence.proxy.tensormap in between"},
		{"no acquire", handedMap, 2, []string{acquire, ""}, "without fence.proxy.tensormap in between"},
		{"the acquire before the flag", handedMap, 2, []string{acquire, "", "flag:", "\t" + acquire + "\nflag:"}, "without fence.proxy.tensormap in between"},
		{"a release of ordinary memory", handedMap, 2, []string{release, "fence.acq_rel.gpu;"}, "without fence.proxy.tensormap in between"},
		{"the flag relaxed", handedMap, 2, []string{release, "", "st.release.gpu", "st.relaxed.gpu"}, "and nothing orders the two"},
		{"no flag", handedMap, 2, []string{"ld.acquire.gpu.global.u32 %r3, [%d1+1024];\n\tsetp.ne.u32 %p2, %r3, 1;\n\t@%p2 bra flag;", ""}, "and nothing orders the two"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code := c.code
			for i := 0; i < len(c.edit); i += 2 {
				require.Contains(t, code, c.edit[i])
				code = strings.Replace(code, c.edit[i], c.edit[i+1], 1)
			}
			p := assemble(t, strings.Replace(body(code), ".version 8.0", ".version 8.3", 1), "k")
			p.params(p.u32s(make([]uint32, 1024)...), 0)
			p.launch.Grid[0], p.launch.Races, p.launch.Parallel = c.ctas, true, 1
			eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
				p.launch.Timing, p.launch.Seed = timing, seed
				err := p.run()
				if c.want == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, "(line ")
			})
		})
	}
}

// TestMapOfOneLane checks that it is a note if a warp copies a map that one of its lanes has
// changed, without bar.warp.sync, and an error if other lanes have changed it too.
func TestMapOfOneLane(t *testing.T) {
	for want, edit := range map[Severity][]string{
		Note:  {"copy:\n\tbar.warp.sync 0xffffffff;", "copy:"},
		Error: {"bar.warp.sync 0xffffffff;\n\t@!%p0 bra copy;", "@!%p0 bra copy;", "copy:\n\tbar.warp.sync 0xffffffff;", "copy:"},
	} {
		code := strings.NewReplacer(edit...).Replace(madeMap)
		require.NotEqual(t, madeMap, code)
		p := assemble(t, strings.Replace(body(code), ".version 8.0", ".version 8.3", 1), "k")
		p.params(p.u32s(make([]uint32, 1024)...), 0)
		p.launch.Races = true
		worst := Note
		p.launch.GoOn = func(f *Fault) bool { worst = min(worst, f.Severity); return true }
		require.Error(t, p.kernel.Once(t.Context(), p.mem, p.launch))
		assert.Equal(t, want, worst)
	}
}
