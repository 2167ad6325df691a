package emu

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tilesPTX sums the values of tiles of 2^SHIFT threads, in the way of nvcc's code for
// cooperative_groups::reduce: each tile has a bit for each of its WARPS warps in a word of the
// reserved bytes of shared memory, and each warp has eight bytes there, from byte 32 on.
const tilesPTX = `.version 8.0
.target sm_90a
.address_size 64
.visible .entry tiles(.param .u64 out, .param .u64 in)
{
	.reg .pred %p<8>;
	.reg .b32 %r<32>;
	.reg .b64 %rd<16>;

	ld.param.u64 %rd3, [out];
	ld.param.u64 %rd4, [in];
	{
	 .reg .u32 start;
	 .reg .u64 extended;
	 mov.u32 start, %reserved_smem_offset_1;
	 cvt.u64.u32 extended, start;
	 cvta.shared.u64 %rd5, extended;
	}
	mov.u32 %r1, %tid.x;
	and.b32 %r2, %r1, 31;
	shr.u32 %r3, %r1, 5;
	setp.ne.s32 %p1, %r2, 0;
	mov.u32 %r4, -2;
	shf.l.wrap.b32 %r4, %r4, %r4, %r3;
	@%p1 bra $L_reset;
	red.and.release.cta.b32 [%rd5], %r4;
$L_reset:
	barrier.sync 0;
	mov.u32 %r5, 1;
	shl.b32 %r6, %r5, %r3;
	shr.u32 %r7, %r1, SHIFT;
	mul.lo.s32 %r8, %r7, WARPS;
	mov.u32 %r9, MASK;
	shl.b32 %r9, %r9, %r8;
	mul.wide.u32 %rd6, %r8, 8;
	add.s64 %rd6, %rd6, %rd5;
	mul.wide.u32 %rd7, %r3, 8;
	add.s64 %rd7, %rd7, %rd5;
	mov.u32 %r10, %ctaid.x;
	mov.u32 %r11, %ntid.x;
	mad.lo.s32 %r12, %r10, %r11, %r1;
	mul.wide.u32 %rd8, %r12, 4;
	add.s64 %rd8, %rd4, %rd8;
	ld.global.u32 %r13, [%rd8];
	mov.u32 %r14, -1;
	redux.sync.add.s32 %r15, %r13, %r14;
	st.u32 [%rd7+32], %r15;
	bar.warp.sync -1;
	mov.u32 %r16, 0;
	@%p1 bra $L_arrived;
	atom.or.acq_rel.cta.b32 %r16, [%rd5], %r6;
$L_arrived:
	shfl.sync.idx.b32 %r16|%p2, %r16, 0, 31, -1;
	or.b32 %r16, %r16, %r6;
	and.b32 %r16, %r16, %r9;
	setp.eq.s32 %p3, %r16, %r9;
	@%p3 bra $L_last;
$L_wait:
	ld.acquire.cta.u32 %r17, [%rd5];
	and.b32 %r17, %r17, %r6;
	setp.ne.s32 %p4, %r17, 0;
	@%p4 bra $L_wait;
	bra.uni $L_done;
$L_last:
	@%p1 bra $L_summed;
	mov.u32 %r18, 0;
	mov.u32 %r19, 0;
	mov.u64 %rd9, %rd6;
$L_add:
	ld.u32 %r20, [%rd9+32];
	add.s32 %r18, %r18, %r20;
	add.s64 %rd9, %rd9, 8;
	add.s32 %r19, %r19, 1;
	setp.lt.s32 %p5, %r19, WARPS;
	@%p5 bra $L_add;
	st.u32 [%rd6+32], %r18;
	not.b32 %r21, %r9;
	red.and.release.cta.b32 [%rd5], %r21;
$L_summed:
	bar.warp.sync -1;
$L_done:
	shl.b32 %r22, %r7, SHIFT;
	setp.ne.s32 %p6, %r1, %r22;
	@%p6 bra $L_end;
	ld.u32 %r23, [%rd6+32];
	shr.u32 %r24, %r11, SHIFT;
	mad.lo.s32 %r24, %r24, %r10, %r7;
	mul.wide.u32 %rd10, %r24, 4;
	add.s64 %rd10, %rd3, %rd10;
	st.global.u32 [%rd10], %r23;
$L_end:
	ret;
}
`

// tilesText returns the PTX for tiles of the given number of warps, 2 or 4.
func tilesText(warps int) string {
	shift := map[int]string{2: "6", 4: "7"}[warps]
	return strings.NewReplacer("SHIFT", shift, "WARPS", strconv.Itoa(warps), "MASK", strconv.Itoa(1<<warps-1)).Replace(tilesPTX)
}

// TestTilesOfSeveralWarps sums over tiles whose barriers lie in the reserved bytes of shared
// memory. It checks the sums in several orders, and that a line without which the sum is wrong or
// unordered leads to a finding.
func TestTilesOfSeveralWarps(t *testing.T) {
	for name, c := range map[string]struct {
		warps, threads int
		drop, want     string
	}{
		"64 of 64":             {2, 64, "", ""},
		"64 of 256":            {2, 256, "", ""},
		"128 of 256":           {4, 256, "", ""},
		"bits not cleared":     {2, 64, "red.and.release.cta.b32 [%rd5], %r4;", "reserved shared memory"},
		"the last is too late": {2, 64, "@%p4 bra $L_wait;", "reserved shared memory"},
		"no order of a warp":   {2, 64, "bar.warp.sync -1;", "reserved shared memory"},
	} {
		t.Run(name, func(t *testing.T) {
			text := tilesText(c.warps)
			if c.drop != "" {
				require.Contains(t, text, c.drop)
				text = strings.ReplaceAll(text, c.drop, "")
			}
			p := assemble(t, text, "tiles")
			const ctas = 2
			in, want := make([]uint32, ctas*c.threads), make([]uint32, ctas*c.threads/(32*c.warps))
			for i := range in {
				in[i] = uint32(i*i + 1)
				want[i/(32*c.warps)] += in[i]
			}
			out := p.u32s(make([]uint32, len(want))...)
			p.params(out, p.u32s(in...))
			p.launch.Grid, p.launch.Block, p.launch.SpinLimit = [3]int{ctas}, [3]int{c.threads}, 1<<14
			err := p.kernel.Check(t.Context(), p.mem, p.launch, 4)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, want, p.read(out, len(want)))
		})
	}
}

// TestReservedShared checks the values of the special registers that describe the reserved bytes,
// and which addresses a kernel may access. The variable v is the first of the kernel's own.
func TestReservedShared(t *testing.T) {
	const own = ".shared .align 4 .b8 v[4]; ld.param.u64 %d0, [out]; mov.u32 %r0, v; "
	for name, c := range map[string]struct {
		code, fault string
		want        uint32
	}{
		"begin":                {"mov.u32 %r1, %reserved_smem_offset_begin;", "", 0},
		"end":                  {"mov.u32 %r1, %reserved_smem_offset_end;", "", 288},
		"cap":                  {"mov.b32 %r1, %reserved_smem_offset_cap;", "", 1024},
		"first offset":         {"mov.b32 %r1, %reserved_smem_offset_0;", "", 0},
		"second offset":        {"mov.u32 %r1, %reserved_smem_offset_1;", "", 0},
		"own begins after":     {"mov.u32 %r2, %reserved_smem_offset_cap; sub.u32 %r1, %r0, %r2;", "", 0},
		"size leaves them out": {"mov.u32 %r2, %reserved_smem_offset_end; mov.u32 %r1, %total_smem_size;", "", 128},
		"size with them":       {"mov.u32 %r1, %aggr_smem_size;", "", 1024 + 16},
		"last word":            {"mov.u32 %r2, %reserved_smem_offset_end; mov.u32 %r3, 7; st.shared.u32 [%r2+-4], %r3; ld.shared.u32 %r1, [%r2+-4];", "", 7},
		"content at the start": {"mov.u32 %r2, %reserved_smem_offset_1; ld.shared.u32 %r1, [%r2];", "", 0xffffffff},
		"without a register":   {"mov.u32 %r2, 736; ld.shared.u32 %r1, [%r2];", "4 bytes at shared address 0x2e0, but the CTA has 0x400 to 0x404", 0},
		"own, never written":   {"mov.u32 %r2, %reserved_smem_offset_cap; ld.shared.u32 %r1, [%r2];", "v (0x400): byte 0x400 was never written", 0},
		"past the end":         {"mov.u32 %r2, %reserved_smem_offset_cap; ld.shared.u32 %r1, [%r2+4];", "but the CTA has 0x0 to 0x404", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := assemble(t, body(own+c.code+" st.global.u32 [%d0], %r1; ret;"), "k")
			out := p.u32s(12345)
			p.params(out, 0)
			p.launch.Block = [3]int{1}
			err := p.run()
			if c.fault != "" {
				require.ErrorContains(t, err, c.fault)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.want, p.read(out, 1)[0])
		})
	}
}

// TestReservedSharedLimit checks that the reserved bytes do not count towards the largest size of
// shared memory.
func TestReservedSharedLimit(t *testing.T) {
	for _, over := range []int{0, 1} {
		t.Run(fmt.Sprintf("%d bytes over", over), func(t *testing.T) {
			p := assemble(t, body("ld.param.u64 %d0, [out]; mov.u32 %r1, %reserved_smem_offset_cap; st.global.u32 [%d0], %r1; ret;"), "k")
			out := p.u32s(12345)
			p.params(out, 0)
			p.launch.SharedBytes = 227<<10 + over
			if err := p.run(); over > 0 {
				require.ErrorContains(t, err, "want at most 232448")
				return
			} else {
				require.NoError(t, err)
			}
			assert.Equal(t, uint32(1024), p.read(out, 1)[0])
		})
	}
}
