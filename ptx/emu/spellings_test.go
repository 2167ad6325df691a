package emu

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/ptxas"
)

// TestSpellings checks loads and stores by TMA as CUTLASS, nvcc and Triton write them: with a mode,
// cache policies, destinations in .shared::cta, mbarriers with orders, counts and time hints.
func TestSpellings(t *testing.T) {
	const begin = `
	ld.param.u64 %d0, [out];
	mov.u64 %d1, m;
	cvta.param.u64 %d1, %d1;
	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, 0;
	createpolicy.fractional.L2::evict_first.b64 %d2, 1.0;
	setp.ne.u32 %p0, %r1, 0;
	@!%p0 mbarrier.init.shared.b64 [%r0+1024], 33;
	@!%p0 fence.mbarrier_init.release.cluster;
	bar.sync 0;
`
	const end = `
	mad.lo.u32 %r3, %r1, 4, %r0;
	ld.shared.u32 %r4, [%r3];
	add.u32 %r4, %r4, 1;
	st.shared.u32 [%r3], %r4;
	fence.proxy.async.shared::cta;
	bar.sync 0;
	@%p0 bra done;
	STORE
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group 0;
done:
	ret;`
	const load2d = "@!%%p0 cp.async.bulk.tensor.2d%s [%%r0], [%%d1, {%%r2, %%r2}], [%%r0+1024]%s;"
	loads := []string{
		fmt.Sprintf(load2d, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes", ""),
		fmt.Sprintf(load2d, ".shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint", ", %d2"),
		fmt.Sprintf(load2d, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint", ", %d2"),
		fmt.Sprintf(load2d, ".shared::cta.global.tile.mbarrier::complete_tx::bytes", ""),
		fmt.Sprintf(load2d, ".shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint", ", %d2"),
		"mov.b16 %h0, 1;\n\t" + fmt.Sprintf(load2d, ".shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster", ", %h0"),
		"mov.b16 %h0, 1;\n\t" + fmt.Sprintf(load2d, ".shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint", ", %h0, %d2"),
		"@!%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r0], [%d0], 128, [%r0+1024], %d2;",
		"@!%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r0], [%d0], 128, [%r0+1024];",
	}
	arrivals := []string{
		"@!%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+1024], 128;\n\tmbarrier.arrive.shared::cta.b64 _, [%r0+1024];",
		"@!%p0 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %d3, [%r0+1024], 128;\n\t@!%p0 mbarrier.arrive.release.cta.shared::cta.b64 %d3, [%r0+1024], 32;",
		"@!%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0+1024], 128;\n\t@!%p0 mbarrier.arrive.shared::cta.b64 _, [%r0+1024], 33;",
		"@!%p0 mbarrier.expect_tx.shared::cta.b64 [%r0+1024], 128;\n\t@!%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r0+1024], 33;",
		"@!%p0 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r0+1024], 128;\n\t@!%p0 mbarrier.arrive.shared.b64 %d3, [%r0+1024], 32;",
	}
	waits := []string{
		"mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0+1024], 0, 1000;",
		"mbarrier.try_wait.parity.shared.b64 %p1, [%r0+1024], 0;",
		"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r0+1024], 0, 20;",
		"mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r0+1024], 0;",
	}
	stores := []string{
		"cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r2, %r2}], [%r0];",
		"cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%d1, {%r2, %r2}], [%r0], %d2;",
		"cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%d0], [%r0], 128, %d2;",
	}
	for i := range len(loads) * len(arrivals) {
		code := begin + arrivals[i%len(arrivals)] + "\n\t" + loads[i/len(arrivals)] + "\nwait:\n\t" + waits[i%len(waits)] + "\n\t@!%p1 bra wait;" + end
		text := spelled(code, stores[i%len(stores)])
		p := assemble(t, text, "k")
		words := make([]uint32, 32)
		for i := range words {
			words[i] = uint32(i)
		}
		at := p.u32s(words...)
		p.params(layout.TensorMap{Elem: layout.ElemU32, Rank: 2, Address: at, Dims: [5]uint64{8, 4}, Strides: [4]uint64{32}, Box: [5]uint32{8, 4}}, at)
		p.launch.SharedBytes = 2048
		require.NoError(t, p.kernel.Check(t.Context(), p.mem, p.launch, 1), text)
		for j, got := range p.read(at, 32) {
			assert.EqualValues(t, j+1, got, text)
		}
		if i%7 == 0 {
			acceptedByPtxas(t, text)
		}
	}
}

// spelled returns a kernel with parameters m (a tensor map) and out. store replaces STORE in code.
func spelled(code, store string) string {
	text := strings.Replace(body(strings.Replace(code, "STORE", store, 1)), ".param .u64 out, .param .u32 n", ".param .align 64 .b8 m[128], .param .u64 out", 1)
	return strings.Replace(text, ".version 8.5", ".version 8.6", 1)
}

// acceptedByPtxas fails the test if NVIDIA's assembler is installed and refuses the text.
func acceptedByPtxas(t *testing.T, text string) {
	t.Helper()
	_, _, err := ptxas.Assemble(t.Context(), []byte(text))
	if !errors.Is(err, ptxas.ErrNotFound) {
		require.NoError(t, err, text)
	}
}

// TestMovmatrix checks that movmatrix transposes an 8x8 matrix of 16-bit elements.
func TestMovmatrix(t *testing.T) {
	text := body(`
	ld.param.u64 %d0, [out];
	mov.u32 %r0, %laneid;
	mul.lo.u32 %r1, %r0, 0x20002;
	add.u32 %r1, %r1, 0x10000;
	movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1;
	mul.wide.u32 %d1, %r0, 4;
	add.u64 %d0, %d0, %d1;
	st.global.u32 [%d0], %r2;
	ret;`)
	acceptedByPtxas(t, text)
	p := assemble(t, text, "k")
	out := p.u32s(make([]uint32, 32)...)
	p.params(out, 0)
	require.NoError(t, p.run())
	for l, got := range p.read(out, 32) {
		row, col := uint32(l/4), uint32(l%4*2) // before, element (row, col) held 8 * row + col
		assert.Equal(t, 8*col+row|(8*(col+1)+row)<<16, got, "lane %d", l)
	}
}

// TestAtomicSpellings checks atomics as nvcc, libcu++ and Triton write them: the order, scope and
// space stand before or after the operation. Operands are words, 16-bit floats and vectors, in
// global memory and in the shared memory of the cluster.
func TestAtomicSpellings(t *testing.T) {
	const shared = "mov.u32 %r9, smem;\n\tst.shared.u32 [%r9], 5;\n\tst.shared.u32 [%r9+4], 6;\n\t"
	const show = "\n\tld.shared.u32 %r8, [%r9];\n\tst.global.u32 [%d0], %r8;"
	f32 := math.Float32bits
	for _, c := range []struct {
		code   string
		before [2]uint32
		after  [2]uint32
	}{
		{"atom.acq_rel.gpu.global.add.u32 %r5, [%d0], 3;", [2]uint32{4}, [2]uint32{7}},
		{"atom.add.acq_rel.gpu.u32 %r5, [%d0], 3;", [2]uint32{4}, [2]uint32{7}},
		{"atom.global.gpu.acq_rel.add.u32 %r5, [%d0], 3;", [2]uint32{4}, [2]uint32{7}},
		{"atom.cas.release.sys.b32 %r5, [%d0], 4, 9;", [2]uint32{4}, [2]uint32{9}},
		{"atom.relaxed.cluster.global.exch.b32 %r5, [%d0], 3;", [2]uint32{4}, [2]uint32{3}},
		{"red.release.gpu.global.max.s32 [%d0], 30;", [2]uint32{4}, [2]uint32{30}},
		{"red.or.relaxed.sys.b64 [%d0], 3;", [2]uint32{4, 1}, [2]uint32{7, 1}},
		{"mov.b32 %r5, 0x3c004000;\n\tred.add.noftz.f16x2 [%d0], %r5;", [2]uint32{0x3c003c00}, [2]uint32{0x40004200}},
		{"mov.b32 %r5, 0x3f804000;\n\tatom.global.add.noftz.bf16x2 %r6, [%d0], %r5;", [2]uint32{0x3f803f80}, [2]uint32{0x40004040}},
		{"mov.b32 %f0, 0f40000000;\n\tatom.global.add.v2.f32 {%f1, %f2}, [%d0], {%f0, %f0};", [2]uint32{f32(1), f32(2)}, [2]uint32{f32(3), f32(4)}},
		{"mov.b32 %f0, 0f40000000;\n\tred.relaxed.gpu.global.add.v2.f32 [%d0], {%f0, %f0};", [2]uint32{f32(1), f32(2)}, [2]uint32{f32(3), f32(4)}},
		{"ld.relaxed.gpu.global.v2.u32 {%r5, %r6}, [%d0];\n\tst.release.sys.v2.u32 [%d0], {%r6, %r5};", [2]uint32{4, 5}, [2]uint32{5, 4}},
		{"ld.acquire.sys.u32 %r5, [%d0];\n\tst.relaxed.cluster.u32 [%d0+4], %r5;", [2]uint32{4}, [2]uint32{4, 4}},
		{"ld.relaxed.gpu.global.L1::no_allocate.b32 %r5, [%d0];\n\tst.relaxed.sys.global.u32 [%d0+4], %r5;", [2]uint32{4}, [2]uint32{4, 4}},
		{shared + "atom.relaxed.cluster.shared::cluster.add.u32 %r5, [%r9], 3;" + show, [2]uint32{}, [2]uint32{8}},
		{shared + "atom.shared::cluster.cas.b32 %r5, [%r9], 5, 11;" + show, [2]uint32{}, [2]uint32{11}},
		{shared + "red.release.cluster.shared::cluster.add.u32 [%r9], 3;" + show, [2]uint32{}, [2]uint32{8}},
		{shared + "atom.shared::cta.inc.u32 %r5, [%r9], 3;" + show, [2]uint32{}, [2]uint32{0}},
		{shared + "ld.acquire.cluster.shared::cluster.u32 %r5, [%r9+4];\n\tst.release.cluster.shared::cluster.u32 [%r9], %r5;" + show, [2]uint32{}, [2]uint32{6}},
	} {
		text := body("ld.param.u64 %d0, [out];\n\tmov.u32 %r1, %tid.x;\n\tsetp.ne.u32 %p0, %r1, 0;\n\t@%p0 ret;\n\t" + c.code + "\n\tret;")
		acceptedByPtxas(t, text)
		p := assemble(t, text, "k")
		out := p.u32s(c.before[:]...)
		p.params(out, 0)
		p.launch.SharedBytes = 16
		require.NoError(t, p.kernel.Check(t.Context(), p.mem, p.launch, 1), c.code)
		assert.Equal(t, c.after[:], p.read(out, 2), c.code)
	}
}

// TestBulkReductions checks that bulk copies with a reduction add every CTA's numbers to global
// memory, and that they do not race with each other.
func TestBulkReductions(t *testing.T) {
	f32, half, brain := math.Float32bits, uint32(0x3c003c00), uint32(0x3f803f80)
	for _, c := range []struct {
		op         string
		elem       layout.ElemType
		one, after uint32 // a word of each CTA, and the word in memory after three CTAs have added to zero
	}{
		{"cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%d1, {%r2, %r2}], [%r0];", layout.ElemF32, f32(1.5), f32(4.5)},
		{"cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group.L2::cache_hint [%d1, {%r2, %r2}], [%r0], %d2;", layout.ElemU32, 5, 15},
		{"cp.reduce.async.bulk.tensor.2d.global.shared::cta.max.bulk_group [%d1, {%r2, %r2}], [%r0];", layout.ElemS32, 7, 7},
		{"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%r0], 128;", layout.ElemF32, f32(1.5), f32(4.5)},
		{"cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.u64 [%d0], [%r0], 128, %d2;", layout.ElemU32, 5, 15},
		{"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%d0], [%r0], 128;", layout.ElemF32, half, 0x42004200},
		{"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%d0], [%r0], 128;", layout.ElemF32, brain, 0x40404040},
		{"cp.reduce.async.bulk.global.shared::cta.bulk_group.or.b32 [%d0], [%r0], 128;", layout.ElemF32, 6, 6},
	} {
		text := spelled(fmt.Sprintf(`
	ld.param.u64 %%d0, [out];
	mov.u64 %%d1, m;
	cvta.param.u64 %%d1, %%d1;
	mov.u32 %%r0, smem;
	mov.u32 %%r1, %%tid.x;
	mov.u32 %%r2, 0;
	createpolicy.fractional.L2::evict_first.b64 %%d2, 1.0;
	setp.ne.u32 %%p0, %%r1, 0;
	mad.lo.u32 %%r3, %%r1, 4, %%r0;
	st.shared.u32 [%%r3], %#x;
	fence.proxy.async.shared::cta;
	bar.sync 0;
	@%%p0 bra done;
	STORE
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group 0;
done:
	ret;`, c.one), c.op)
		acceptedByPtxas(t, text)
		p := assemble(t, text, "k")
		at := p.u32s(make([]uint32, 32)...)
		p.params(layout.TensorMap{Elem: c.elem, Rank: 2, Address: at, Dims: [5]uint64{8, 4}, Strides: [4]uint64{32}, Box: [5]uint32{8, 4}}, at)
		p.launch.SharedBytes, p.launch.Grid = 2048, [3]int{3}
		require.NoError(t, p.kernel.Check(t.Context(), p.mem, p.launch, 1), c.op)
		for _, got := range p.read(at, 32) {
			assert.Equal(t, c.after, got, c.op)
		}
	}
}

// TestAsyncStores checks that st.async and red.async bring registers of one CTA to the shared
// memory of another, whose mbarrier counts the bytes. Without a wait at the mbarrier it is a race.
func TestAsyncStores(t *testing.T) {
	text := strings.Replace(body(`
	ld.param.u64 %d0, [out];
	mov.u32 %r0, smem;
	mov.u32 %r1, %cluster_ctarank;
	mov.u32 %r2, %tid.x;
	setp.ne.u32 %p0, %r2, 0;
	@%p0 bra made;
	mbarrier.init.shared::cta.b64 [%r0+64], 1;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+64], 20;
	st.shared.u32 [%r0+16], 100;
	fence.mbarrier_init.release.cluster;
made:
	barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;
	@%p0 bra wait;
	xor.b32 %r3, %r1, 1;
	mapa.shared::cluster.u32 %r4, %r0, %r3;
	add.u32 %r5, %r1, 40;
	st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%r4], {%r5, %r5, %r5, %r5}, [%r4+64];
	red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r4+16], %r5, [%r4+64];
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0+64], 0;
	@!%p1 bra wait;
	@%p0 bra done;
	ld.shared.u32 %r6, [%r0+12];
	ld.shared.u32 %r7, [%r0+16];
	mul.wide.u32 %d1, %r1, 8;
	add.u64 %d0, %d0, %d1;
	st.global.v2.u32 [%d0], {%r6, %r7};
done:
	barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;
	ret;`), ".maxntid 512", ".maxntid 512\n.reqnctapercluster 2", 1)
	acceptedByPtxas(t, text)
	for _, c := range []struct{ text, finds string }{{text, ""}, {strings.Replace(text, "@!%p1 bra wait;", "", 1), "st.async|red.async"}} {
		p := assemble(t, c.text, "k")
		out := p.u32s(make([]uint32, 4)...)
		p.params(out, 0)
		p.launch.SharedBytes, p.launch.Grid = 2048, [3]int{2}
		err := p.kernel.Check(t.Context(), p.mem, p.launch, 2)
		if c.finds != "" {
			require.Error(t, err)
			assert.Regexp(t, c.finds, err.Error())
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, []uint32{41, 141, 40, 140}, p.read(out, 4))
	}
}

// TestConversionSpellings checks conversions of bf16 and tf32 that only some compilers write.
func TestConversionSpellings(t *testing.T) {
	f32 := math.Float32bits
	for _, c := range []struct {
		code     string
		in, want uint32
	}{
		{"cvt.rn.bf16.s32 %h0, %r5;", uint32(0xffffffff), 0xbf80},
		{"cvt.rn.bf16.u32 %h0, %r5;", 257, 0x4380}, // 257 lies between the bf16 numbers 256 and 258; ties go to even
		{"cvt.rp.bf16.u32 %h0, %r5;", 257, 0x4381},
		{"cvt.rzi.s32.bf16 %r6, %h1;", 0xc020, uint32(0xfffffffe)}, // -2.5
		{"cvt.rni.u32.bf16 %r6, %h1;", 0x4060, 4},                  // 3.5
		{"cvt.rn.bf16.f16 %h0, %h1;", 0x3c01, 0x3f80},
		{"cvt.rn.f16.bf16 %h0, %h1;", 0x3f81, 0x3c08},
		{"cvt.rn.tf32.f32 %r6, %f1;", f32(1) + 0x1000, f32(1)}, // a tie, to even
		{"cvt.rn.tf32.f32 %r6, %f1;", f32(1) + 0x3000, f32(1) + 0x4000},
		{"cvt.rz.tf32.f32 %r6, %f1;", f32(1) + 0x1fff, f32(1)},
		{"cvt.rn.relu.tf32.f32 %r6, %f1;", f32(-3), 0},
		{"mov.u64 %d1, 0x100000000000400; isspacep.shared::cta %p1, %d1; selp.u32 %r6, 1, 0, %p1;", 0, 1},
		{"mov.u64 %d1, 0x100000001000400; isspacep.shared %p1, %d1; selp.u32 %r6, 1, 0, %p1;", 0, 0},
		{"mov.u64 %d1, 0x100000001000400; isspacep.shared::cluster %p1, %d1; selp.u32 %r6, 1, 0, %p1;", 0, 1},
		{"cp.async.bulk.prefetch.L2.global [%d0], 16; mov.u32 %r6, %envreg1; mov.u32 %r5, %envreg2; or.b32 %r6, %r6, %r5;", 0, 0},
		{"mov.u32 %r6, %clock_hi;", 0, 0},
		{"setp.eq.u32 %p1, %r5, 7; vote.ballot.sync.b32 %r6, %p1, 1;", 7, 1},
		{"bmsk.clamp.b32 %r6, %r5, 3;", 4, 0x70},
		{"bmsk.clamp.b32 %r6, %r5, 40;", 28, 0xf0000000},
		{"bmsk.clamp.b32 %r6, 3, %r5;", 0, 0},
		{"bmsk.clamp.b32 %r6, %r5, 3;", 33, 0},
		{"bmsk.wrap.b32 %r6, %r5, 35;", 33, 14},
	} {
		text := strings.Replace(body("ld.param.u64 %d0, [out];\n\tld.global.u32 %r5, [%d0];\n\tmov.b32 %f1, %r5;\n\tcvt.u16.u32 %h1, %r5;\n\tmov.u16 %h0, 0;\n\tmov.u32 %r6, 0;\n\t"+c.code+
			"\n\tcvt.u32.u16 %r7, %h0;\n\tor.b32 %r6, %r6, %r7;\n\tst.global.u32 [%d0], %r6;\n\tret;"), ".reg .b32 %f", ".reg .f32 %f", 1)
		acceptedByPtxas(t, text)
		p := assemble(t, text, "k")
		out := p.u32s(c.in, 0, 0, 0)
		p.params(out, 0)
		p.launch.Block = [3]int{1}
		require.NoError(t, p.run(), c.code)
		assert.Equal(t, c.want, p.read(out, 1)[0], c.code)
	}
}

// TestCompleteTx checks that mbarrier.complete_tx counts bytes as a completed copy does.
func TestCompleteTx(t *testing.T) {
	text := body(`
	mov.u32 %r0, smem;
	mbarrier.init.shared::cta.b64 [%r0], 1;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 32;
	mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r0], 16;
	mbarrier.complete_tx.shared::cta.b64 [%r0], 16; // last
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0], 0;
	@!%p1 bra wait;
	ret;`)
	for _, c := range []struct{ text, finds string }{{text, ""}, {strings.Replace(text, "16; // last", "8;", 1), "lacks 0 of 1 arrivals and 8 bytes"}} {
		acceptedByPtxas(t, c.text)
		p := assemble(t, c.text, "k")
		p.params(uint64(0), 0)
		p.launch.Block, p.launch.SharedBytes, p.launch.Races = [3]int{1}, 64, true
		if err := p.run(); c.finds == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.finds)
		}
	}
}

// TestCooperative checks that the CTAs of a cooperative launch can meet at the grid's barrier: word
// 1 of the driver's workspace, whose address is in %envreg1 and %envreg2.
func TestCooperative(t *testing.T) {
	text := body(`
	ld.param.u64 %d0, [out];
	mov.u32 %r1, %envreg1;
	mov.u32 %r2, %envreg2;
	mov.b64 %d1, {%r2, %r1};
	setp.eq.u64 %p0, %d1, 0;
	@%p0 trap;
	ld.global.u32 %r3, [%d1];
	setp.ne.u32 %p0, %r3, 8;
	@%p0 trap;
	mov.u32 %r4, %ctaid.x;
	mov.u32 %r5, %nctaid.x;
	mul.wide.u32 %d2, %r4, 4;
	add.u64 %d2, %d2, %d0;
	st.global.u32 [%d2], %r4; // mine
	red.release.gpu.global.add.u32 [%d1+4], 1;
wait:
	ld.acquire.gpu.global.u32 %r6, [%d1+4];
	setp.ne.u32 %p0, %r6, %r5;
	@%p0 bra wait; // for all
	add.u32 %r7, %r4, 1;
	rem.u32 %r7, %r7, %r5;
	mul.wide.u32 %d3, %r7, 4;
	add.u64 %d3, %d3, %d0;
	ld.global.u32 %r8, [%d3];
	st.global.u32 [%d2+64], %r8;
	ret;`)
	acceptedByPtxas(t, text)
	for _, c := range []struct {
		text, finds string
		cooperative bool
	}{{text, "", true}, {text, "trap", false}, {strings.Replace(text, "@%p0 bra wait; // for all", "", 1), "race", true}} {
		p := assemble(t, c.text, "k")
		out := p.u32s(make([]uint32, 32)...)
		p.params(out, 0)
		p.launch.Block, p.launch.Grid, p.launch.Cooperative = [3]int{1}, [3]int{6}, c.cooperative
		used := p.mem.Used()
		err := p.kernel.Check(t.Context(), p.mem, p.launch, 1)
		assert.Equal(t, used, p.mem.Used(), "the workspace is given back")
		if c.finds != "" {
			require.ErrorContains(t, err, c.finds)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, []uint32{1, 2, 3, 4, 5, 0}, p.read(out+64, 6))
	}
	p := assemble(t, text, "k")
	p.params(uint64(0), 0)
	p.launch.Block, p.launch.Grid, p.launch.Cooperative, p.launch.HostBytes = [3]int{1}, [3]int{1 << 20}, true, 1<<20
	require.ErrorContains(t, p.run(), "runs all 1048576 clusters together")
}
