package emu

import (
	"strings"
)

// This file has kernels with one mistake each. fault_test.go runs them.

// planted is a kernel with one mistake. The line with the mistake ends with the comment "here".
type planted struct {
	name    string
	kind    FaultKind
	code    string
	threads int
	shared  int
	says    []string
}

const wgmmaFrame = `
	mov.u64 %d0, 0x4000004000010040;
	mov.u64 %d1, 0x4000004000010240;
	mov.u32 %r1, smem;
	mov.u32 %r0, %tid.x;
fill:
	mad.lo.u32 %r2, %r0, 4, %r1;
	st.shared.u32 [%r2], 0;
	add.u32 %r0, %r0, 128;
	setp.lt.u32 %p0, %r0, 4096;
	@%p0 bra fill;
	fence.proxy.async.shared::cta;
	bar.sync 0;
	`

const (
	wgmma     = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d1, 0, 1, 1, 0, 0;"
	wgmmaKeep = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d1, 1, 1, 1, 0, 0;"
	// wgmmaA is a wgmma with A in registers.
	wgmmaA = `
	mov.u32 %r7, 0;
	mov.u32 %r8, 0;
	mov.u32 %r9, 0;
	mov.u32 %r10, 0;
	` + fenceMMA + "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, {%r7, %r8, %r9, %r10}, %d1, 0, 1, 1, 0;"
	fenceMMA = "wgmma.fence.sync.aligned;\n\t"
)

// plantedFaults has at least one kernel for each rule that the emulator checks.
var plantedFaults = []planted{
	{name: "global past the end", kind: OutOfBounds, code: `
	ld.param.u64 %d0, [out];
	mov.u32 %r0, %tid.x;
	mad.wide.u32 %d0, %r0, 16, %d0;
	ld.global.u32 %r1, [%d0]; // here`, says: []string{"lane 4", "0 bytes past the end of the allocation of 64 bytes"}},
	{name: "global before the beginning", kind: OutOfBounds, code: `
	ld.param.u64 %d0, [out];
	ld.global.u32 %r1, [%d0+-8]; // here`, says: []string{", 8 bytes before the allocation at"}},
	{name: "global address 0", kind: OutOfBounds, code: "mov.u64 %d0, 0; st.global.u32 [%d0], 1; // here", says: []string{"in no allocation"}},
	{name: "shared past the end", kind: OutOfBounds, shared: 256, code: `
	mov.u32 %r0, smem;
	st.shared.u32 [%r0+256], 1; // here`, says: []string{"0x500"}},
	{name: "shared address 0", kind: OutOfBounds, shared: 256, code: "mov.u32 %r0, 0; ld.shared.u32 %r1, [%r0]; // here"},
	{name: "misaligned vector", kind: Misaligned, code: `
	ld.param.u64 %d0, [out];
	ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%d0+8]; // here`, says: []string{"want a multiple of 16"}},
	{name: "misaligned copy", kind: Misaligned, shared: 256, code: `
	mov.u32 %r0, smem;
	ld.param.u64 %d0, [out];
	cp.async.cg.shared.global [%r0], [%d0+4], 16; // here`, says: []string{"want a multiple of 16"}},
	{name: "copy from past the end", kind: OutOfBounds, shared: 256, code: `
	mov.u32 %r0, smem;
	ld.param.u64 %d0, [out];
	cp.async.cg.shared.global [%r0], [%d0+64], 16; // here`, says: []string{"past the end of the allocation of 64 bytes"}},
	{name: "matrix that was never written", kind: UninitializedShared, shared: 1024, code: `
	mov.u32 %r0, smem;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r0]; // here`},
	{name: "matrix whose row 3 is not aligned", kind: Misaligned, shared: 1024, code: `
	mov.u32 %r0, %laneid;
	setp.eq.u32 %p0, %r0, 3;
	mov.u32 %r0, smem;
	mov.u32 %r1, 1;
	st.shared.v4.u32 [%r0], {%r1, %r1, %r1, %r1};
	@%p0 add.u32 %r0, %r0, 8;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r0]; // here`, says: []string{"lane 3"}},
	{name: "misaligned shared", kind: Misaligned, shared: 256, code: `
	mov.u32 %r0, smem;
	st.shared.u64 [%r0+4], 1; // here`},
	{name: "misaligned mbarrier", kind: Misaligned, shared: 256, code: "mov.u32 %r0, smem; mbarrier.init.shared::cta.b64 [%r0+4], 1; // here"},
	{name: "register never written", kind: UninitializedRegister, code: "add.u32 %r0, %r7, 1; // here", says: []string{"register %r7"}},
	{name: "register written in some lanes", kind: UninitializedRegister, code: `
	mov.u32 %r0, %laneid;
	setp.lt.u32 %p0, %r0, 9;
	@%p0 mov.u32 %r1, 5;
	mov.u32 %r3, smem;
	mad.lo.u32 %r3, %r0, 4, %r3;
	st.shared.u32 [%r3], %r1; // here`, shared: 256, says: []string{"lanes 9-31"}},
	{name: "guard never written", kind: UninitializedRegister, code: "@%p5 mov.u32 %r0, 1; // here", says: []string{"%p5"}},
	{name: "shared never written", kind: UninitializedShared, shared: 256, code: `
	mov.u32 %r0, smem;
	st.shared.u32 [%r0], 1;
	ld.shared.u64 %d0, [%r0]; // here`, says: []string{"byte 0x404"}},
	{name: "cp.async not waited for", kind: UninitializedShared, shared: 256, code: `
	mov.u32 %r0, smem;
	ld.param.u64 %d0, [out];
	cp.async.cg.shared.global [%r0], [%d0], 16;
	cp.async.commit_group;
	cp.async.wait_group 1;
	ld.shared.u32 %r1, [%r0]; // here`},
	{name: "accumulator read in flight", kind: AccumulatorInFlight, threads: 128, shared: 16384, code: wgmmaFrame + fenceMMA + wgmma + `
	wgmma.commit_group.sync.aligned;
	add.rn.f32 %f8, %f2, %f2; // here`, says: []string{"%f2", "wait_group"}},
	{name: "accumulator read after a wait for an uncommitted group", kind: AccumulatorInFlight, threads: 128, shared: 16384, code: wgmmaFrame + fenceMMA + wgmma + `
	wgmma.wait_group.sync.aligned 0;
	add.rn.f32 %f8, %f2, %f2; // here`},
	{name: "accumulator written in flight", kind: AccumulatorInFlight, threads: 128, shared: 16384, code: wgmmaFrame + fenceMMA + wgmma + `
	mov.f32 %f1, 0f00000000; // here`},
	{name: "no wgmma.fence", kind: MissingFence, threads: 128, shared: 16384, code: wgmmaFrame + wgmma + " // here"},
	{name: "no wgmma.fence after a write", kind: MissingFence, threads: 128, shared: 16384, code: wgmmaFrame + fenceMMA + `
	mov.f32 %f3, 0f00000000;
	` + wgmma + " // here", says: []string{"%f3"}},
	{name: "A's register written in flight", kind: AccumulatorInFlight, threads: 128, shared: 16384, code: wgmmaFrame + wgmmaA + `
	wgmma.commit_group.sync.aligned;
	add.u32 %r11, %r8, 1;
	mov.u32 %r9, 0; // here`, says: []string{"%r9", "A", "wait_group"}},
	{name: "A's register written by a later wgmma", kind: AccumulatorInFlight, threads: 128, shared: 16384, code: wgmmaFrame + wgmmaA + `
	wgmma.commit_group.sync.aligned;
	` + fenceMMA + strings.Replace(wgmma, "%f2", "%r9", 1) + " // here", says: []string{"%r9 is written by wgmma.mma_async", "may still read A from it", "wait_group"}},
	{name: "accumulator never written", kind: UninitializedRegister, threads: 128, shared: 16384, code: wgmmaFrame + fenceMMA + wgmmaKeep + " // here"},
	{name: "wgmma of one warp", kind: DivergentAligned, threads: 32, shared: 16384, code: wgmmaFrame + fenceMMA + wgmma + " // here"},
	{name: "descriptors that differ in the warpgroup", kind: DivergentAligned, threads: 128, shared: 16384, code: wgmmaFrame + fenceMMA + `
	mov.u32 %r0, %tid.x;
	shr.u32 %r0, %r0, 6;
	mad.wide.u32 %d1, %r0, 2, %d1;
	` + wgmma + " // here", says: []string{"different wgmma"}},
	{name: "descriptor into a row", kind: IllegalDescriptor, threads: 128, shared: 16384, code: wgmmaFrame + fenceMMA + `
	add.u64 %d0, %d0, 7;
	` + wgmma + " // here", says: []string{"run past its 128 bytes"}},
	{name: "descriptor with rank bits", kind: IllegalDescriptor, threads: 128, shared: 16384, code: wgmmaFrame + fenceMMA + `
	or.b64 %d0, %d0, 0x8000;
	` + wgmma + " // here", says: []string{"reserved bits"}},
	{name: "wgmma of memory that is not the CTA's", kind: OutOfBounds, threads: 128, shared: 16384, code: wgmmaFrame + fenceMMA + `
	add.u64 %d0, %d0, 1024;
	` + wgmma + ` // here
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;`},
	{name: "wgmma before the proxy fence", kind: ProxyRace, threads: 128, shared: 16384, code: wgmmaFrame + `
	mov.u32 %r1, smem;
	st.shared.u32 [%r1], 1;
	bar.sync 0;
	` + fenceMMA + wgmma + ` // here
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;`, says: []string{"0x400", "fence.proxy.async"}},
	{name: "bulk copy over a store before the proxy fence", kind: ProxyRace, threads: 1, shared: 256, code: `
	mov.u32 %r0, smem;
	mbarrier.init.shared::cta.b64 [%r0+128], 1;
	st.shared.u32 [%r0+16], 1;
	ld.shared.u32 %r1, [%r0+16];
	ld.param.u64 %d0, [out];
	mov.u32 %r1, 32;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+128], %r1;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], %r1, [%r0+128]; // here`,
		says: []string{"overwrites", "0x410", "fence.proxy.async"}},
	{name: "TMA of no map", kind: IllegalDescriptor, threads: 1, shared: 256, code: `
	mov.u32 %r0, smem;
	mbarrier.init.shared::cta.b64 [%r0+128], 1;
	ld.param.u64 %d0, [out];
	cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0, {%tidx}], [%r0+128]; // here`, says: []string{"cvta.param"}},
	{name: "TMA store through no map", kind: IllegalDescriptor, threads: 1, shared: 256, code: `
	mov.u32 %r0, smem;
	ld.param.u64 %d0, [out];
	cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d0, {%tidx}], [%r0]; // here`, says: []string{"cvta.param"}},
	{name: "bulk copy that is not waited for", kind: AsyncPending, threads: 1, shared: 256, code: `
	mov.u32 %r0, smem;
	mbarrier.init.shared::cta.b64 [%r0+128], 1;
	ld.param.u64 %d0, [out];
	mov.u32 %r1, 32;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+128], %r1;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], %r1, [%r0+128]; // here`},
	{name: "bulk copy of 8 bytes", kind: Misaligned, threads: 1, shared: 256, code: `
	mov.u32 %r0, smem;
	ld.param.u64 %d0, [out];
	mov.u32 %r1, 8;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], %r1, [%r0+128]; // here`},
	{name: "part of a warp at a barrier", kind: DivergentAligned, code: `
	mov.u32 %r0, %laneid;
	setp.lt.u32 %p0, %r0, 16;
	@%p0 bar.sync 0; // here`, says: []string{"lanes 0-15", "lanes 16-31 did not execute it"}},
	{name: "part of a warp in a branch with a barrier", kind: DivergentAligned, code: `
	mov.u32 %r0, %laneid;
	setp.lt.u32 %p0, %r0, 16;
	@%p0 bra over;
	bar.sync 0; // here
over:`},
	{name: "shuffle without a named lane", kind: DivergentAligned, code: `
	mov.u32 %r0, %laneid;
	setp.lt.u32 %p0, %r0, 16;
	@%p0 shfl.sync.idx.b32 %r1, %r0, 0, 31, 0xffffffff; // here`},
	{name: "two counts at one barrier", kind: BarrierMisuse, threads: 96, code: `
	mov.u32 %r0, %tid.x;
	setp.lt.u32 %p0, %r0, 32;
	@%p0 bra one;
	bar.sync 2, 96; // here
	bra end;
one:
	bar.sync 2, 64;
end:`, says: []string{"barrier 2 for 96 threads", "began with 64 (warp 0)"}},
	{name: "mbarrier that was never initialised", kind: BarrierMisuse, shared: 64, code: `
	mov.u32 %r0, smem;
	mbarrier.arrive.shared::cta.b64 _, [%r0]; // here`, says: []string{"mbarrier.init has not run"}},
	{name: "more arrivals than the mbarrier counts", kind: BarrierMisuse, threads: 2, shared: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r1, 16;
	mov.u32 %r2, %tid.x;
	setp.eq.u32 %p0, %r2, 0;
	@%p0 mbarrier.init.shared::cta.b64 [%r0], 1;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], %r1; // here`},
	{name: "ordinary read of an mbarrier", kind: BarrierMisuse, threads: 1, shared: 64, code: `
	mov.u32 %r0, smem;
	mbarrier.init.shared::cta.b64 [%r0], 1;
	ld.shared.u32 %r1, [%r0+4]; // here`},
	{name: "two warps that wait for each other", kind: Deadlock, threads: 64, shared: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	setp.eq.u32 %p0, %r1, 0;
	@%p0 mbarrier.init.shared::cta.b64 [%r0], 32;
	@%p0 mbarrier.init.shared::cta.b64 [%r0+8], 32;
	bar.sync 0;
	shr.u32 %r1, %r1, 5;
	mad.lo.u32 %r0, %r1, 8, %r0;
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0], 0; // here
	@!%p1 bra wait;`, says: []string{
		"warp 0 (line", "warp 1 (line", "waits at mbarrier smem (0x400) for the phase of parity 0",
		"waits at mbarrier smem + 8 (0x408)", "phase 0 lacks 32 of 32 arrivals"}},
	{name: "transaction bytes that never come", kind: Deadlock, threads: 1, shared: 256, code: `
	mov.u32 %r0, smem;
	mbarrier.init.shared::cta.b64 [%r0+128], 1;
	ld.param.u64 %d0, [out];
	mov.u32 %r1, 48;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+128], %r1; // here
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 32, [%r0+128];
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0+128], 0;
	@!%p1 bra wait;`, says: []string{"0 of 1 arrivals and 16 bytes", "warp 0 announced 48 bytes", "brought 32: announce 32 bytes, or copy 16 more"}},
	{name: "transaction bytes whose copy comes after another wait", kind: Deadlock, threads: 64, shared: 256, code: `
	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	setp.eq.u32 %p0, %r1, 0;
	@%p0 mbarrier.init.shared::cta.b64 [%r0+128], 1;
	@%p0 mbarrier.init.shared::cta.b64 [%r0+136], 1;
	bar.sync 0;
	setp.ge.u32 %p0, %r1, 32;
	@%p0 bra consumer;
	setp.ne.u32 %p0, %r1, 0;
	@%p0 exit;
	ld.param.u64 %d0, [out];
	mov.u32 %r1, 48;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+128], %r1;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 32, [%r0+128];
other:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0+136], 0; // here
	@!%p1 bra other;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0+32], [%d0], 16, [%r0+128];
	exit;
consumer:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0+128], 0;
	@!%p1 bra consumer;`, says: []string{"no warp is left that could arrive there", "warp 1 (line", "0 of 1 arrivals and 16 bytes", "warp 0 should copy bytes there"}},
	{name: "barrier that an exited warp misses", kind: Deadlock, threads: 64, code: `
	mov.u32 %r1, %tid.x;
	setp.lt.u32 %p0, %r1, 32;
	@%p0 exit;
	bar.sync 0; // here`, says: []string{"named barrier 0: 32 of 64 threads", "warp 0 has exited"}},
	{name: "spinning", kind: Deadlock, threads: 1, code: `
	ld.param.u64 %d0, [out];
spin:
	ld.relaxed.gpu.global.u32 %r0, [%d0]; // here
	setp.ne.u32 %p0, %r0, 77;
	@%p0 bra spin;
	ret;`, says: []string{"each warp repeats the same instructions", "polls with ld (line"}},
	{name: "a lock that the lane itself holds", kind: Deadlock, threads: 64, code: `
	ld.param.u64 %d0, [out];
	mov.u32 %r3, %tid.x;
	atom.global.or.b32 %r0, [%d0], 1;
lock:
	atom.global.cas.b32 %r0, [%d0], 0, 1; // here
	setp.ne.u32 %p0, %r0, 0;
	nanosleep.u32 20;
	@%p0 bra lock;
	st.global.u32 [%d0], 0;`, says: []string{"each warp repeats the same instructions", "warps 0-1", "polls with atom"}},
	{name: "an endless loop", kind: Deadlock, threads: 32, code: `
	mov.u32 %r0, 7;
again:
	xor.b32 %r0, %r0, 1;
	bra again; // here`, says: []string{"each warp repeats the same instructions"}},
	{name: "a loop that counts while it polls", kind: Deadlock, threads: 1, code: `
	ld.param.u64 %d0, [out];
	mov.u32 %r1, 0;
spin:
	ld.relaxed.gpu.global.u32 %r0, [%d0]; // here
	add.u32 %r1, %r1, 1;
	setp.ne.u32 %p0, %r0, 77;
	@%p0 bra spin;`, says: []string{"no store, barrier or copy"}},
	{name: "registers beyond the pool", kind: IllegalInstruction, threads: 128, code: "setmaxnreg.dec.sync.aligned.u32 232; // here", says: []string{"has 128 registers"}},
	{name: "registers that no warpgroup releases", kind: Deadlock, threads: 128, code: "setmaxnreg.inc.sync.aligned.u32 232; // here", says: []string{"pool has 0"}},
	{name: "registers that a waiting warpgroup would release", kind: Deadlock, threads: 256, code: `
	mov.u32 %r0, %tid.x;
	setp.lt.u32 %p0, %r0, 128;
	@%p0 bra more;
	bar.sync 1, 256;
	setmaxnreg.dec.sync.aligned.u32 24;
	bra end;
more:
	setmaxnreg.inc.sync.aligned.u32 232; // here
	bar.sync 1, 256;
end:`, says: []string{"pool has 0", "in a cycle", "(warps 4-7) (line 18) waits at named barrier 1"}},
	{name: "wgmma that one warp does not reach", kind: Deadlock, threads: 128, shared: 16384, code: wgmmaFrame + `
	mov.u32 %r0, %tid.x;
	setp.ge.u32 %p0, %r0, 96;
	` + fenceMMA + wgmma + `
	@%p0 bra apart;
	` + wgmmaKeep + `
apart:
	wgmma.commit_group.sync.aligned;
	@%p0 bar.sync 1, 128;
	wgmma.wait_group.sync.aligned 0; // here`, says: []string{"warps 0-2 (line 37) waits for wgmma number 2 of its warpgroup (line 33), which warp 3 must execute"}},
	{name: "cluster barrier twice", kind: BarrierMisuse, code: `
	barrier.cluster.arrive.aligned;
	barrier.cluster.arrive.aligned; // here`},
	{name: "rank outside the cluster", kind: OutOfBounds, code: "mov.u32 %r0, 1024; mapa.shared::cluster.u32 %r1, %r0, 1; // here"},
	{name: "trap", kind: Trap, code: "trap; // here"},
}
