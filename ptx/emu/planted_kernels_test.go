package emu

// This file has correct kernels. planted_test.go plants mistakes in them.

var plantedKernels = []whole{
	{name: "a ring of bulk copies", block: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	shr.u32 %r1, %r3, 5;
	setp.eq.u32 %p0, %r1, 0;
	setp.eq.u32 %p1, %r3, 0;
	ld.param.u64 %d0, [out];
	mov.u32 %r10, 0;
	@!%p1 bra made;
	mbarrier.init.shared::cta.b64 [%r0+1024], 1;
	mbarrier.init.shared::cta.b64 [%r0+1032], 1;
	mbarrier.init.shared::cta.b64 [%r0+1040], 32;
	mbarrier.init.shared::cta.b64 [%r0+1048], 32;
	fence.mbarrier_init.release.cluster;
made:
	bar.sync 0;
	@!%p0 bra consumer;
	@!%p1 bra end;
produce:
	and.b32 %r11, %r10, 1;
	shr.u32 %r12, %r10, 1;
	xor.b32 %r12, %r12, 1;
	and.b32 %r12, %r12, 1;
	mad.lo.u32 %r13, %r11, 8, %r0;
	mad.lo.u32 %r14, %r11, 256, %r0;
empty:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r13+1040], %r12;
	@!%p2 bra empty;
	mov.u32 %r15, 256;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r13+1024], %r15;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r14], [%d0], %r15, [%r13+1024];
	add.u64 %d0, %d0, 256;
	add.u32 %r10, %r10, 1;
	setp.lt.u32 %p3, %r10, 6;
	@%p3 bra produce;
	bra end;
consumer:
	and.b32 %r11, %r10, 1;
	shr.u32 %r12, %r10, 1;
	and.b32 %r12, %r12, 1;
	mad.lo.u32 %r13, %r11, 8, %r0;
	mad.lo.u32 %r14, %r11, 256, %r0;
full:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r13+1024], %r12;
	@!%p2 bra full;
	and.b32 %r16, %r3, 31;
	mad.lo.u32 %r17, %r16, 8, %r14;
	ld.shared.v2.u32 {%r18, %r19}, [%r17];
	mbarrier.arrive.shared::cta.b64 _, [%r13+1040];
	add.u32 %r10, %r10, 1;
	setp.lt.u32 %p4, %r10, 6;
	@%p4 bra consumer;
end:`, bugs: []bug{
		{classMbarrier, "the full wait dropped", []string{"@!%p2 bra full;", ""}},
		{classMbarrier, "the full wait gone", []string{"mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r13+1024], %r12;\n\t@!%p2 bra full;", ""}},
		{classMbarrier, "the empty wait gone", []string{"mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r13+1040], %r12;\n\t@!%p2 bra empty;", ""}},
		{classMbarrier, "the full parity inverted", []string{"consumer:\n\tand.b32 %r11, %r10, 1;\n\tshr.u32 %r12, %r10, 1;", "consumer:\n\tand.b32 %r11, %r10, 1;\n\tshr.u32 %r12, %r10, 1;\n\txor.b32 %r12, %r12, 1;"}},
		{classMbarrier, "the empty parity inverted", []string{"xor.b32 %r12, %r12, 1;", ""}},
		{classMbarrier, "the full parity stays 0", []string{"@!%p2 bra full;", "@!%p2 bra full; // ", "[%r13+1024], %r12;\n\t@!%p2", "[%r13+1024], 0;\n\t@!%p2"}},
		{classMbarrier, "the empty parity stays 1", []string{"[%r13+1040], %r12", "[%r13+1040], 1"}},
		{classMbarrier, "the parity changes each pass", []string{"shr.u32 %r12, %r10, 1;\n\tand.b32 %r12, %r12, 1;\n\tmad.lo.u32 %r13, %r11, 8, %r0;\n\tmad.lo.u32 %r14, %r11, 256, %r0;\nfull", "mov.u32 %r12, %r10;\n\tand.b32 %r12, %r12, 1;\n\tmad.lo.u32 %r13, %r11, 8, %r0;\n\tmad.lo.u32 %r14, %r11, 256, %r0;\nfull"}},
		{classMbarrier, "the empty count one too few", []string{"[%r0+1040], 32", "[%r0+1040], 31"}},
		{classMbarrier, "the empty count one", []string{"[%r0+1040], 32", "[%r0+1040], 1"}},
		{classMbarrier, "the empty count one too many", []string{"[%r0+1048], 32", "[%r0+1048], 33"}},
		{classMbarrier, "the full count two", []string{"[%r0+1024], 1;", "[%r0+1024], 2;"}},
		{classMbarrier, "too few bytes expected", []string{"[%r13+1024], %r15;\n", "[%r13+1024], 128;\n"}},
		{classMbarrier, "too many bytes expected", []string{"[%r13+1024], %r15;\n", "[%r13+1024], 512;\n"}},
		{classMbarrier, "no bytes expected", []string{"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r13+1024], %r15;", "mbarrier.arrive.shared::cta.b64 _, [%r13+1024];"}},
		{classMbarrier, "an init dropped", []string{"mbarrier.init.shared::cta.b64 [%r0+1048], 32;", ""}},
		{classMbarrier, "an init twice", []string{"[%r0+1032], 1;", "[%r0+1024], 1;"}},
		{classMbarrier, "inits without a barrier", []string{"bar.sync 0;", ""}},
		{classMbarrier, "the empty arrival dropped", []string{"mbarrier.arrive.shared::cta.b64 _, [%r13+1040];", ""}},
		{classMbarrier, "the empty arrival by some lanes", []string{"mbarrier.arrive.shared::cta.b64 _, [%r13+1040];", "setp.gt.u32 %p5, %r16, 0;\n\t@%p5 mbarrier.arrive.shared::cta.b64 _, [%r13+1040];"}},
		{classMbarrier, "the arrival at the full barrier", []string{"_, [%r13+1040];", "_, [%r13+1024];"}},
		{classMbarrier, "the arrival at the first stage always", []string{"_, [%r13+1040];", "_, [%r0+1040];"}},
		{classMbarrier, "the copy completes the first stage's barrier", []string{"%r15, [%r13+1024];\n\tadd", "%r15, [%r0+1024];\n\tadd"}},
		{classMbarrier, "the copy completes the empty barrier", []string{"%r15, [%r13+1024];\n\tadd", "%r15, [%r13+1040];\n\tadd"}},
		{classMbarrier, "the consumer waits for the other stage", []string{"[%r13+1024], %r12;\n\t@!%p2 bra full", "[%r0+1024], %r12;\n\t@!%p2 bra full"}},
		{classMbarrier, "the producer waits for the first stage always", []string{"[%r13+1040], %r12", "[%r0+1040], %r12"}},
		{classMbarrier, "the barrier is a word further", []string{"[%r13+1040], %r12", "[%r13+1044], %r12"}},
		{classDeadlock, "the consumer's passes one too many", []string{"setp.lt.u32 %p4, %r10, 6", "setp.lt.u32 %p4, %r10, 7"}},
		{classDeadlock, "the producer's passes one too few", []string{"setp.lt.u32 %p3, %r10, 6", "setp.lt.u32 %p3, %r10, 5"}},
		{classDeadlock, "the producer leaves before the barrier", []string{"made:\n\tbar.sync 0;", "made:\n\t@%p0 bra end;\n\tbar.sync 0;"}},
		{classWaits, "the consumer's passes one too few", []string{"setp.lt.u32 %p4, %r10, 6", "setp.lt.u32 %p4, %r10, 5"}},
		{classWaits, "the producer's passes one too many", []string{"setp.lt.u32 %p3, %r10, 6", "setp.lt.u32 %p3, %r10, 7"}},
		{classShared, "released before the stage is read", []string{"\tmbarrier.arrive.shared::cta.b64 _, [%r13+1040];", "", "\tand.b32 %r16, %r3, 31;", "\tmbarrier.arrive.shared::cta.b64 _, [%r13+1040];\n\tand.b32 %r16, %r3, 31;"}},
		{classShared, "every copy to the first stage", []string{"mad.lo.u32 %r14, %r11, 256, %r0;\nempty", "mov.u32 %r14, %r0;\nempty"}},
		{classShared, "the other stage read", []string{"mad.lo.u32 %r14, %r11, 256, %r0;\nfull", "xor.b32 %r11, %r11, 1;\n\tmad.lo.u32 %r14, %r11, 256, %r0;\nfull"}},
		{classShared, "stages overlap", []string{"mad.lo.u32 %r14, %r11, 256, %r0;\nempty", "mad.lo.u32 %r14, %r11, 128, %r0;\nempty"}},
		{classShared, "a copy over the next stage", []string{"mov.u32 %r15, 256;", "mov.u32 %r15, 272;"}},
		{classShared, "the consumer writes the released stage", []string{"_, [%r13+1040];", "_, [%r13+1040];\n\tst.shared.u32 [%r17], 0;"}},
		{classProxy, "the inits unfenced", []string{"fence.mbarrier_init.release.cluster;", ""}},
		{classBounds, "a copy to a misaligned address", []string{"[%r14], [%d0]", "[%r14+8], [%d0]"}},
		{classBounds, "a copy from a misaligned address", []string{"add.u64 %d0, %d0, 256", "add.u64 %d0, %d0, 260"}},
		{classBounds, "a copy of 250 bytes", []string{"mov.u32 %r15, 256", "mov.u32 %r15, 250"}},
		{classBounds, "a copy past the end", []string{"add.u64 %d0, %d0, 256", "add.u64 %d0, %d0, 1024"}},
		{classBounds, "a copy over a barrier", []string{"[%r14], [%d0]", "[%r14+768], [%d0]"}},
		{classBounds, "a read past what was copied", []string{"[%r17];", "[%r17+512];"}},
		{classBounds, "a read past shared memory", []string{"[%r17];", "[%r17+16384];"}},
		{classBounds, "a register that was never written", []string{"mov.u32 %r15, 256;", ""}},
	}},
	{name: "stages by cp.async", block: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	ld.param.u64 %d0, [out];
	mad.lo.u32 %r2, %r3, 16, %r0;
	xor.b32 %r4, %r3, 32;
	mad.lo.u32 %r4, %r4, 16, %r0;
	mad.wide.u32 %d0, %r3, 16, %d0;
	mov.u32 %r10, 0;
	mov.u32 %r11, 0;
	cp.async.cg.shared.global [%r2], [%d0], 16;
	cp.async.commit_group;
loop:
	xor.b32 %r12, %r11, 1024;
	add.u32 %r5, %r2, %r12;
	cp.async.cg.shared.global [%r5], [%d0+1024], 16;
	cp.async.commit_group;
	cp.async.wait_group 1;
	bar.sync 0;
	add.u32 %r6, %r4, %r11;
	ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r6];
	bar.sync 1;
	mov.u32 %r11, %r12;
	add.u32 %r10, %r10, 1;
	setp.lt.u32 %p0, %r10, 3;
	@%p0 bra loop;
	cp.async.wait_group 0;
	bar.sync 2;
	add.u32 %r6, %r4, %r11;
	ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r6];
	`, bugs: []bug{
		{classWaits, "the wait dropped", []string{"cp.async.wait_group 1;", ""}},
		{classWaits, "the wait one too lax", []string{"cp.async.wait_group 1;", "cp.async.wait_group 2;"}},
		{classWaits, "the last wait dropped", []string{"cp.async.wait_group 0;", ""}},
		{classWaits, "the last wait one too lax", []string{"cp.async.wait_group 0;", "cp.async.wait_group 1;"}},
		{classWaits, "the wait after the barrier", []string{"cp.async.wait_group 1;\n\tbar.sync 0;", "bar.sync 0;\n\tcp.async.wait_group 1;"}},
		{classWaits, "a commit dropped", []string{"[%r5], [%d0+1024], 16;\n\tcp.async.commit_group;", "[%r5], [%d0+1024], 16;"}},
		{classWaits, "the first commit dropped", []string{"[%r2], [%d0], 16;\n\tcp.async.commit_group;", "[%r2], [%d0], 16;"}},
		{classShared, "the barrier after the wait dropped", []string{"bar.sync 0;", ""}},
		{classShared, "the barrier before the next copy dropped", []string{"bar.sync 1;", ""}},
		{classShared, "the last barrier dropped", []string{"bar.sync 2;", ""}},
		{classShared, "each warp at a barrier of its own", []string{"bar.sync 0;", "shr.u32 %r7, %r3, 5; add.u32 %r7, %r7, 4; bar.sync %r7, 32;"}},
		{classShared, "the next copy to the stage that is read", []string{"xor.b32 %r12, %r11, 1024;", "mov.u32 %r12, %r11;"}},
		{classShared, "a store into the stage", []string{"bar.sync 0;", "st.shared.u32 [%r5], 0;\n\tbar.sync 0;"}},
		{classShared, "the stage that is loaded is read", []string{"add.u32 %r6, %r4, %r11;", "add.u32 %r6, %r4, %r12;"}},
		{classDeadlock, "a barrier for more threads than arrive", []string{"bar.sync 1;", "bar.sync 1, 64;\n\tsetp.lt.u32 %p1, %r3, 32; @%p1 bar.sync 3, 64;"}},
		{classDeadlock, "a warp skips the barrier", []string{"bar.sync 0;", "setp.lt.u32 %p1, %r3, 32;\n\t@%p1 bar.sync 0;"}},
		{classDeadlock, "a warp's passes one too few", []string{"setp.lt.u32 %p0, %r10, 3;", "shr.u32 %r7, %r3, 5; add.u32 %r7, %r7, 2; setp.lt.u32 %p0, %r10, %r7;"}},
		{classDeadlock, "half a warp at the barrier", []string{"bar.sync 1;", "setp.lt.u32 %p1, %r3, 16;\n\t@%p1 bar.sync 1;"}},
		{classBounds, "a copy to a misaligned address", []string{"[%r5], [%d0+1024]", "[%r5+4], [%d0+1024]"}},
		{classBounds, "a copy from a misaligned address", []string{"[%d0+1024]", "[%d0+1028]"}},
		{classBounds, "a copy past the end", []string{"[%d0+1024]", "[%d0+3584]"}},
		{classBounds, "fewer threads copy than are read", []string{"cp.async.cg.shared.global [%r5]", "setp.lt.u32 %p1, %r3, 48;\n\t@%p1 cp.async.cg.shared.global [%r5]"}},
	}},
	{name: "a product of wgmma", block: 128, code: wgmmaFrame + `
	wgmma.fence.sync.aligned;
	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d1, 0, 1, 1, 0, 0;
	wgmma.commit_group.sync.aligned;
	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f4, %f5, %f6, %f7}, %d0, %d1, 0, 1, 1, 0, 0;
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 1;
	mov.b32 %r10, %f0;
	wgmma.wait_group.sync.aligned 0;
	mov.b32 %r11, %f4;
	bar.sync 1;
	mov.u32 %r0, %tid.x;
	mad.lo.u32 %r2, %r0, 4, %r1;
	st.shared.u32 [%r2], %r10;
	bar.sync 2;
	xor.b32 %r0, %r0, 64;
	mad.lo.u32 %r2, %r0, 4, %r1;
	ld.shared.u32 %r12, [%r2];
	`, bugs: []bug{
		{classProxy, "the proxy fence dropped", []string{"fence.proxy.async.shared::cta;", ""}},
		{classProxy, "the proxy fence of global memory", []string{"fence.proxy.async.shared::cta", "fence.proxy.async.global"}},
		{classProxy, "the proxy fence before the stores", []string{"fence.proxy.async.shared::cta;", "", "fill:", "fence.proxy.async.shared::cta;\nfill:"}},
		{classProxy, "the proxy fence by one warp", []string{"fence.proxy.async.shared::cta;", "mov.u32 %r9, %tid.x; setp.lt.u32 %p6, %r9, 32;\n\t@%p6 fence.proxy.async.shared::cta;"}},
		{classWgmma, "the fence dropped", []string{"wgmma.fence.sync.aligned;", ""}},
		{classWgmma, "the fence after the product", []string{"wgmma.fence.sync.aligned;\n\twgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d1, 0, 1, 1, 0, 0;", "mov.b32 %f0, 0; mov.b32 %f1, 0; mov.b32 %f2, 0; mov.b32 %f3, 0;\n\twgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d1, 1, 1, 1, 0, 0;\n\twgmma.fence.sync.aligned;"}},
		{classWgmma, "the first commit dropped", []string{"wgmma.commit_group.sync.aligned;", ""}},
		{classWgmma, "both commits dropped", []string{"wgmma.commit_group.sync.aligned;", "", "wgmma.commit_group.sync.aligned;", ""}},
		{classWgmma, "the first wait dropped", []string{"wgmma.wait_group.sync.aligned 1;", ""}},
		{classWgmma, "the last wait dropped", []string{"wgmma.wait_group.sync.aligned 0;", ""}},
		{classWgmma, "the first wait one too lax", []string{"wgmma.wait_group.sync.aligned 1;", "wgmma.wait_group.sync.aligned 2;"}},
		{classWgmma, "the last wait one too lax", []string{"wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;"}},
		{classWgmma, "an accumulator read in flight", []string{"mov.b32 %r10, %f0;", "mov.b32 %r10, %f5;"}},
		{classWgmma, "an accumulator written in flight", []string{"mov.b32 %r10, %f0;", "mov.b32 %f6, 0; mov.b32 %r10, %f0;"}},
		{classWgmma, "adding to accumulators that were never written", []string{"%d0, %d1, 0, 1, 1, 0, 0;", "%d0, %d1, 1, 1, 1, 0, 0;"}},
		{classWgmma, "three warps multiply", []string{"\twgmma.fence.sync.aligned;", "mov.u32 %r9, %tid.x; setp.ge.u32 %p6, %r9, 96; @%p6 exit;\n\twgmma.fence.sync.aligned;"}},
		{classWgmma, "half a warp multiplies", []string{"\twgmma.fence.sync.aligned;", "mov.u32 %r9, %tid.x; setp.ge.u32 %p6, %r9, 16; @%p6 bra skip;\n\twgmma.fence.sync.aligned;", "\tbar.sync 1;", "skip:\n\tbar.sync 1;"}},
		{classShared, "the barrier before the product dropped", []string{"bar.sync 0;", ""}},
		{classShared, "the tile stored to in flight", []string{"mov.b32 %r10, %f0;", "mov.u32 %r9, %tid.x; mad.lo.u32 %r9, %r9, 4, %r1; st.shared.u32 [%r9], 0; mov.b32 %r10, %f0;"}},
		{classShared, "the exchange without a barrier", []string{"bar.sync 2;", ""}},
		{classLayout, "A where nothing was written", []string{"0x4000004000010040", "0x4000004000010440"}},
		{classLayout, "B where nothing was written", []string{"0x4000004000010240", "0x4000004000010440"}},
		{classLayout, "A past shared memory", []string{"0x4000004000010040", "0x4000004000013f40"}},
		{classLayout, "an invalid layout", []string{"0x4000004000010040", "0x2000004000010040"}},
		{classLayout, "a stride past what was written", []string{"0x4000004000010040", "0x4000040000010040"}},
		{classBounds, "half the tile filled", []string{"%r0, 4096", "%r0, 1024"}},
		{classBounds, "an accumulator without a product", []string{"mov.b32 %r11, %f4;", "mov.b32 %r11, %f9;"}},
	}},
	{name: "a reduction in shared memory", block: 128, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	ld.param.u64 %d0, [out];
	mul.wide.u32 %d1, %r3, 4;
	add.u64 %d1, %d0, %d1;
	ld.global.u32 %r4, [%d1];
	mad.lo.u32 %r2, %r3, 4, %r0;
	st.shared.u32 [%r2], %r4;
	bar.sync 0;
	setp.lt.u32 %p0, %r3, 64;
	@!%p0 bra half;
	ld.shared.u32 %r5, [%r2+256];
	ld.shared.u32 %r6, [%r2];
	add.u32 %r6, %r5, %r6;
	st.shared.u32 [%r2], %r6;
half:
	bar.sync 1;
	setp.lt.u32 %p0, %r3, 32;
	@!%p0 bra end;
	ld.shared.u32 %r5, [%r2+128];
	ld.shared.u32 %r6, [%r2];
	add.u32 %r6, %r5, %r6;
	shfl.sync.bfly.b32 %r7, %r6, 16, 31, -1;
	add.u32 %r6, %r7, %r6;
	setp.eq.u32 %p1, %r3, 0;
	@%p1 st.global.u32 [%d0], %r6;
end:`, bugs: []bug{
		{classShared, "the first barrier dropped", []string{"bar.sync 0;", ""}},
		{classShared, "the second barrier dropped", []string{"bar.sync 1;", ""}},
		{classShared, "each warp at a barrier of its own", []string{"bar.sync 0;", "shr.u32 %r8, %r3, 5; bar.sync %r8, 32;"}},
		{classShared, "pairs of warps at a barrier", []string{"bar.sync 1;", "shr.u32 %r8, %r3, 5; and.b32 %r8, %r8, 1; add.u32 %r8, %r8, 1; bar.sync %r8, 64;"}},
		{classShared, "arriving warps go on", []string{"bar.sync 0;", "setp.ge.u32 %p2, %r3, 64; @%p2 bra w; bar.arrive 0, 128; bra on;\nw:\n\tbar.sync 0;\non:"}},
		{classShared, "one word for all warps", []string{"[%r2], %r4", "[%r0], %r3"}},
		{classShared, "a stride too small", []string{"mad.lo.u32 %r2, %r3, 4, %r0", "mad.lo.u32 %r2, %r3, 2, %r0", "st.shared.u32 [%r2], %r4", "st.shared.u16 [%r2], %h0", "ld.global.u32 %r4, [%d1];", "cvt.u16.u32 %h0, %r3;"}},
		{classShared, "the sum stored over words that others still read", []string{"[%r2], %r6;\nhalf", "[%r0], %r6;\nhalf"}},
		{classDeadlock, "the barrier within the branch", []string{"half:\n\tbar.sync 1;", "bar.sync 1;\nhalf:"}},
		{classDeadlock, "a barrier for 96 threads", []string{"bar.sync 0;", "bar.sync 0, 96;"}},
		{classDeadlock, "a barrier for 160 threads", []string{"bar.sync 0;", "bar.sync 0, 160;"}},
		{classDeadlock, "a barrier for 100 threads", []string{"bar.sync 0;", "mov.u32 %r8, 100; bar.sync 0, %r8;"}},
		{classDeadlock, "barrier 16", []string{"bar.sync 1;", "mov.u32 %r8, 16; bar.sync %r8;"}},
		{classDeadlock, "counts that differ", []string{"bar.sync 1;", "shr.u32 %r8, %r3, 5; mad.lo.u32 %r8, %r8, 32, 32; bar.sync 1, %r8;"}},
		{classDeadlock, "threads leave before the barrier", []string{"bar.sync 0;", "setp.ge.u32 %p2, %r3, 96; @%p2 exit; bar.sync 0;"}},
		{classDeadlock, "lanes leave before the shuffle", []string{"shfl.sync", "setp.lt.u32 %p2, %r3, 16; @!%p2 bra end;\n\tshfl.sync"}},
		{classDeadlock, "a shuffle's mask without its lane", []string{"31, -1", "31, 65535"}},
		{classDeadlock, "an endless loop", []string{"half:\n", "half:\n\tsetp.eq.u32 %p2, %r3, 200; @%p2 bra half; ld.volatile.global.u32 %r9, [%d1]; setp.ne.u32 %p2, %r9, 1; @%p2 bra half;\n"}},
		{classBounds, "a thread's word past the end", []string{"mul.wide.u32 %d1, %r3, 4", "mul.wide.u32 %d1, %r3, 64"}},
		{classBounds, "an index before the beginning", []string{"mul.wide.u32 %d1, %r3, 4", "add.u32 %r8, %r3, -64; mul.wide.s32 %d1, %r8, 4"}},
		{classBounds, "a misaligned address", []string{"add.u64 %d1, %d0, %d1;", "add.u64 %d1, %d0, %d1; add.u64 %d1, %d1, 2;"}},
		{classBounds, "words that were never stored", []string{"ld.shared.u32 %r5, [%r2+128];", "ld.shared.u32 %r5, [%r2+512];"}},
		{classBounds, "a shared address that is 0", []string{"mov.u32 %r0, smem;", "mov.u32 %r0, 0;"}},
		{classBounds, "a misaligned shared address", []string{"[%r2+256]", "[%r2+254]"}},
		{classBounds, "a register of a branch not taken", []string{"@!%p0 bra end;\n\tld.shared.u32 %r5", "@!%p0 bra end;\n\tld.shared.u32 %r8", "add.u32 %r6, %r5, %r6;\n\tshfl", "add.u32 %r6, %r9, %r6;\n\tshfl"}},
	}},
	{name: "a cluster", grid: 2, block: 32, cluster: 2, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	mov.u32 %r1, %cluster_ctarank;
	setp.eq.u32 %p1, %r3, 0;
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 32;
	fence.mbarrier_init.release.cluster;
	mad.lo.u32 %r2, %r3, 4, %r0;
	st.shared.u32 [%r2], %r1;
	barrier.cluster.arrive.release.aligned;
	barrier.cluster.wait.acquire.aligned;
	xor.b32 %r4, %r1, 1;
	mapa.shared::cluster.u32 %r5, %r2, %r4;
	mapa.shared::cluster.u32 %r6, %r0, %r4;
	ld.shared::cluster.u32 %r7, [%r5];
	st.shared::cluster.u32 [%r5+256], %r7;
	mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6+1024];
w:
	mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r0+1024], 0;
	@!%p2 bra w;
	ld.shared.u32 %r8, [%r2+256];
	barrier.cluster.arrive.release.aligned;
	barrier.cluster.wait.acquire.aligned;
	`, bugs: []bug{
		{classGlobal, "no barrier of the cluster before the load", []string{"\tbarrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;", ""}},
		{classGlobal, "a CTA's barrier instead of the cluster's", []string{"\tbarrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;", "bar.sync 0;"}},
		{classGlobal, "a relaxed arrival", []string{"barrier.cluster.arrive.release.aligned", "barrier.cluster.arrive.relaxed.aligned", "fence.mbarrier_init.release.cluster;", ""}},
		{classGlobal, "no wait for the peer's store", []string{"@!%p2 bra w;", ""}},
		{classGlobal, "the wait gone", []string{"mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r0+1024], 0;\n\t@!%p2 bra w;", ""}},
		{classGlobal, "a wait for the previous phase", []string{"[%r0+1024], 0;", "[%r0+1024], 1;"}},
		{classGlobal, "the arrival before the store", []string{"\tmbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6+1024];", "", "\tst.shared::cluster.u32", "\tmbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6+1024];\n\tst.shared::cluster.u32"}},
		{classGlobal, "an arrival at the CTA's own barrier", []string{"[%r6+1024]", "[%r0+1024]"}},
		{classGlobal, "the peer's words overwritten", []string{"[%r5+256]", "[%r5]"}},
		{classGlobal, "a third CTA", []string{"xor.b32 %r4, %r1, 1", "add.u32 %r4, %r1, 2"}},
		{classGlobal, "the peer's address instead of its own", []string{"ld.shared.u32 %r8, [%r2+256]", "ld.shared.u32 %r8, [%r5+256]"}},
		{classDeadlock, "half the lanes arrive", []string{"\tmbarrier.arrive.release.cluster.shared", "setp.lt.u32 %p3, %r3, 16;\n\t@%p3 mbarrier.arrive.release.cluster.shared"}},
		{classDeadlock, "one CTA does not arrive", []string{"\tmbarrier.arrive.release.cluster.shared", "setp.eq.u32 %p3, %r1, 0;\n\t@%p3 mbarrier.arrive.release.cluster.shared"}},
		{classGlobal, "no barrier before the end", []string{"%r8, [%r2+256];\n\tbarrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;", "%r8, [%r2+256];", "\tmbarrier.arrive.release", "\tsetp.eq.u32 %p3, %r1, 0; @%p3 bra end;\n\tmbarrier.arrive.release", "%r8, [%r2+256];", "%r8, [%r2+256];\nend:"}},
		{classDeadlock, "an arrival without a wait", []string{"ld.shared.u32 %r8", "barrier.cluster.arrive;\n\tld.shared.u32 %r8"}},
		{classMbarrier, "a count of 33", []string{"[%r0+1024], 32", "[%r0+1024], 33"}},
		{classMbarrier, "a count of 31", []string{"[%r0+1024], 32", "[%r0+1024], 31"}},
		{classMbarrier, "no init", []string{"@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 32;", ""}},
	}},
	{name: "CTAs that hand over by a flag", grid: 2, block: 64, code: ctas + `
	@!%p6 bra other;
	st.global.u32 [%d1+1024], %r3;
	bar.sync 0;
	mov.u32 %r9, 1;
	@%p1 st.release.gpu.global.u32 [%d0], %r9;
	bra end;
other:
	setp.ge.u32 %p3, %r3, 32;
	@%p3 bra met;
spin:
	ld.acquire.gpu.global.u32 %r4, [%d0];
	setp.ne.u32 %p2, %r4, 1;
	@%p2 bra spin;
met:
	bar.sync 0;
	ld.global.u32 %r6, [%d1+1024];
	red.global.add.u32 [%d0+4], 1;
	st.global.u32 [%d1+2048], %r6;
end:`, bugs: []bug{
		{classGlobal, "the flag relaxed", []string{"st.release", "st.relaxed"}},
		{classGlobal, "the flag read relaxed", []string{"ld.acquire", "ld.relaxed"}},
		{classGlobal, "the flag of a CTA's scope", []string{"st.release.gpu", "st.release.cta"}},
		{classGlobal, "the flag read at a CTA's scope", []string{"ld.acquire.gpu", "ld.acquire.cta"}},
		{classGlobal, "the flag a plain store", []string{"st.release.gpu.global", "st.global"}},
		{classGlobal, "the flag a plain load", []string{"ld.acquire.gpu.global", "ld.global"}},
		{classGlobal, "the flag volatile", []string{"st.release.gpu.global", "st.volatile.global"}},
		{classGlobal, "the fence of a CTA's scope", []string{"@%p1 st.release.gpu", "fence.acq_rel.cta;\n\t@%p1 st.relaxed.gpu"}},
		{classGlobal, "the fence after the flag", []string{"@%p1 st.release.gpu.global.u32 [%d0], %r9;", "@%p1 st.relaxed.gpu.global.u32 [%d0], %r9; fence.acq_rel.gpu;"}},
		{classGlobal, "no barrier before the flag", []string{"[%d1+1024], %r3;\n\tbar.sync 0;", "[%d1+1024], %r3;"}},
		{classGlobal, "no barrier after the flag", []string{"met:\n\tbar.sync 0;", "met:"}},
		{classGlobal, "the flag before the words", []string{"@%p1 st.release.gpu.global.u32 [%d0], %r9;", "", "\tst.global.u32 [%d1+1024], %r3;", "\tmov.u32 %r9, 1; @%p1 st.release.gpu.global.u32 [%d0], %r9;\n\tst.global.u32 [%d1+1024], %r3;"}},
		{classGlobal, "words read before the flag", []string{"other:", "other: ld.global.u32 %r6, [%d1+1024];"}},
		{classGlobal, "words read through the .nc cache", []string{"ld.global.u32 %r6", "ld.global.nc.u32 %r6"}},
		{classGlobal, "a counter without atomics", []string{"red.global.add.u32 [%d0+4], 1;", "ld.global.u32 %r7, [%d0+4]; add.u32 %r7, %r7, 1; st.global.u32 [%d0+4], %r7;"}},
		{classGlobal, "an atomic and a store", []string{"\tmov.u32 %r9, 1;", "\tmov.u32 %r9, 1;\n\tst.global.u32 [%d0+4], 0;\n"}},
		{classGlobal, "another flag read", []string{"ld.acquire.gpu.global.u32 %r4, [%d0];\n\tsetp.ne.u32 %p2, %r4, 1;", "ld.acquire.gpu.global.u32 %r4, [%d0+8];\n\tsetp.ne.u32 %p2, %r4, 0;"}},
		{classGlobal, "the reader's words are the writer's", []string{"[%d1+2048], %r6", "[%d1+1024], %r6;\n\tbra end;\nend2:\n\tst.global.u32 [%d1+2048], %r6", "\tbra end;\nother:", "\tst.global.u32 [%d1+1024], %r3;\n\tbra end;\nother:"}},
		{classDeadlock, "the flag never set", []string{"@%p1 st.release.gpu.global.u32 [%d0], %r9;", ""}},
		{classDeadlock, "another value waited for", []string{"setp.ne.u32 %p2, %r4, 1", "setp.ne.u32 %p2, %r4, 2"}},
	}},
	{name: "a bulk store of what threads wrote", block: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	setp.eq.u32 %p1, %r3, 0;
	ld.param.u64 %d0, [out];
	mad.lo.u32 %r2, %r3, 4, %r0;
	st.shared.u32 [%r2], %r3;
	fence.proxy.async.shared::cta;
	bar.sync 0;
	mov.u32 %r8, 256;
	@!%p1 bra on;
	cp.async.bulk.global.shared::cta.bulk_group [%d0+1024], [%r0], %r8;
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group.read 0;
on:
	bar.sync 1;
	st.shared.u32 [%r2], %r8;
	fence.proxy.async.shared::cta;
	bar.sync 2;
	@!%p1 bra end;
	cp.async.bulk.global.shared::cta.bulk_group [%d0+2048], [%r0], %r8;
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group 0;
	ld.global.u32 %r9, [%d0+2048];
end:`, bugs: []bug{
		{classProxy, "the first proxy fence dropped", []string{"fence.proxy.async.shared::cta;", ""}},
		{classProxy, "the second proxy fence dropped", []string{"fence.proxy.async.shared::cta;\n\tbar.sync 2;", "bar.sync 2;"}},
		{classProxy, "the proxy fence before the store", []string{"st.shared.u32 [%r2], %r3;\n\tfence.proxy.async.shared::cta;", "fence.proxy.async.shared::cta;\n\tst.shared.u32 [%r2], %r3;"}},
		{classProxy, "the proxy fence of global memory", []string{"fence.proxy.async.shared::cta", "fence.proxy.async.global"}},
		{classProxy, "a fence that is not a proxy fence", []string{"fence.proxy.async.shared::cta", "fence.acq_rel.cta"}},
		{classProxy, "the proxy fence by the second warp only", []string{"fence.proxy.async.shared::cta;", "setp.ge.u32 %p2, %r3, 32; @%p2 fence.proxy.async.shared::cta;"}},
		{classWaits, "the wait before the staging is written again dropped", []string{"cp.async.bulk.wait_group.read 0;", ""}},
		{classWaits, "the wait one too lax", []string{"cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group.read 1;"}},
		{classWaits, "the last wait dropped", []string{"cp.async.bulk.wait_group 0;", ""}},
		{classWaits, "the last wait for the reads only", []string{"cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group.read 0;"}},
		{classWaits, "the commit dropped", []string{"cp.async.bulk.commit_group;", ""}},
		{classWaits, "the last commit dropped", []string{"cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group 0;"}},
		{classWaits, "another thread waits", []string{"cp.async.bulk.wait_group.read 0;\non:", "on:\n\tsetp.eq.u32 %p2, %r3, 1; @%p2 cp.async.bulk.wait_group.read 0;"}},
		{classShared, "the barrier before the copy dropped", []string{"bar.sync 0;", ""}},
		{classShared, "the barrier after the wait dropped", []string{"bar.sync 1;", ""}},
		{classShared, "the last barrier dropped", []string{"bar.sync 2;", ""}},
		{classShared, "the staging written before the wait", []string{"\tcp.async.bulk.wait_group.read 0;", "\tst.shared.u32 [%r0], 0;\n\tcp.async.bulk.wait_group.read 0;"}},
		{classLayout, "a copy to a misaligned address", []string{"[%d0+1024], [%r0]", "[%d0+1032], [%r0]"}},
		{classLayout, "a copy past the end", []string{"[%d0+2048], [%r0]", "[%d0+4000], [%r0]"}},
		{classLayout, "a copy of unwritten memory", []string{"mov.u32 %r8, 256;", "mov.u32 %r8, 512;"}},
		{classLayout, "a copy from past shared memory", []string{"[%d0+1024], [%r0]", "[%d0+1024], [%r0+16256]"}},
	}},
	{name: "one lane signals for its warp", block: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	ld.param.u64 %d0, [out];
	setp.eq.u32 %p1, %r3, 0;
	setp.ge.u32 %p0, %r3, 32;
	and.b32 %r4, %r3, 31;
	xor.b32 %r5, %r4, 1;
	mad.lo.u32 %r6, %r4, 4, %r0;
	mad.lo.u32 %r7, %r5, 4, %r0;
	mad.wide.u32 %d1, %r4, 4, %d0;
	mad.wide.u32 %d2, %r5, 4, %d0;
	mov.u32 %r9, 1;
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 1;
	bar.sync 0;
	@%p0 bra other;
	st.shared.u32 [%r6], %r3;
	bar.warp.sync -1;
	@%p1 mbarrier.arrive.shared::cta.b64 _, [%r0+1024];
	st.global.u32 [%d1+1024], %r3;
	bar.warp.sync 0xffffffff;
	@%p1 st.release.gpu.global.u32 [%d0], %r9;
	bra end;
other:
full:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0+1024], 0;
	@!%p2 bra full;
	ld.shared.u32 %r8, [%r7];
flag:
	ld.acquire.gpu.global.u32 %r8, [%d0];
	setp.ne.u32 %p2, %r8, 1;
	@%p2 bra flag;
	ld.global.u32 %r8, [%d2+1024];
end:`, bugs: []bug{
		{classShared, "no warp barrier before the arrival", []string{"bar.warp.sync -1;", ""}},
		{classShared, "a shuffle instead of a warp barrier", []string{"bar.warp.sync -1;", "shfl.sync.idx.b32 %r8, %r3, 0, 31, 0xffffffff;"}},
		{classShared, "the arrival before the warp barrier", []string{"bar.warp.sync -1;\n\t@%p1 mbarrier.arrive.shared::cta.b64 _, [%r0+1024];", "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r0+1024];\n\tbar.warp.sync -1;"}},
		{classShared, "the arrival by half of the lanes", []string{"[%r0+1024], 1;\n\tbar", "[%r0+1024], 16;\n\tbar", "bar.warp.sync -1;", "and.b32 %r8, %r4, 1; setp.eq.u32 %p1, %r8, 0;"}},
		{classGlobal, "no warp barrier before the flag", []string{"bar.warp.sync 0xffffffff;", ""}},
		{classGlobal, "each lane's fence instead of a warp barrier", []string{"bar.warp.sync 0xffffffff;\n\t@%p1 st.release", "fence.acq_rel.gpu;\n\t@%p1 st.relaxed"}},
		{classGlobal, "the flag before the warp barrier", []string{"bar.warp.sync 0xffffffff;\n\t@%p1 st.release.gpu.global.u32 [%d0], %r9;", "@%p1 st.release.gpu.global.u32 [%d0], %r9;\n\tbar.warp.sync 0xffffffff;"}},
	}},
	{name: "one lane waits for its warp", block: 96, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	ld.param.u64 %d0, [out];
	setp.eq.u32 %p1, %r3, 0;
	and.b32 %r4, %r3, 31;
	shr.u32 %r1, %r3, 5;
	setp.eq.u32 %p0, %r1, 0;
	setp.eq.u32 %p3, %r1, 1;
	setp.ne.u32 %p4, %r4, 0;
	setp.eq.u32 %p5, %r4, 1;
	mad.lo.u32 %r6, %r4, 4, %r0;
	mad.wide.u32 %d1, %r4, 4, %d0;
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 32;
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1032], 1;
	bar.sync 0;
	@%p3 bra second;
	@!%p0 bra third;
	st.shared.u32 [%r6], %r3;
	mbarrier.arrive.shared::cta.b64 _, [%r0+1024];
	st.global.u32 [%d1+1024], %r3;
	bar.warp.sync -1;
	@%p1 st.release.gpu.global.u32 [%d0], 1;
	bra end;
second:
	@%p4 bra waited;
full:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0+1024], 0;
	@!%p2 bra full;
waited:
	bar.warp.sync -1;
	ld.shared.u32 %r8, [%r6];
	@%p5 mbarrier.arrive.shared::cta.b64 _, [%r0+1032];
	@%p4 bra seen;
flag:
	ld.acquire.gpu.global.u32 %r8, [%d0];
	setp.ne.u32 %p2, %r8, 1;
	@%p2 bra flag;
seen:
	bar.warp.sync 0xffffffff;
	ld.global.u32 %r8, [%d1+1024];
	bra end;
third:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0+1032], 0;
	@!%p2 bra third;
	ld.shared.u32 %r8, [%r6];
end:`, bugs: []bug{
		{classShared, "no warp barrier after the wait", []string{"waited:\n\tbar.warp.sync -1;", "waited:"}},
		{classShared, "a shuffle after the wait", []string{"waited:\n\tbar.warp.sync -1;", "waited:\n\tshfl.sync.idx.b32 %r8, %r3, 0, 31, 0xffffffff;"}},
		{classShared, "a warp barrier of half of the lanes", []string{"waited:\n\tbar.warp.sync -1;", "waited:\n\tsetp.lt.u32 %p6, %r4, 16;\n\t@%p6 bar.warp.sync 0xffff;"}},
		{classShared, "a lane that did not wait signals others", []string{"waited:\n\tbar.warp.sync -1;\n\tld.shared.u32 %r8, [%r6];", "waited:"}},
		{classGlobal, "no warp barrier after the flag", []string{"seen:\n\tbar.warp.sync 0xffffffff;", "seen:"}},
		{classGlobal, "each lane's fence after the flag", []string{"ld.acquire", "ld.relaxed", "seen:\n\tbar.warp.sync 0xffffffff;", "seen:\n\tfence.acq_rel.gpu;"}},
	}},
	{name: "one lane waits and its warp fences", block: 96, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	ld.param.u64 %d0, [out];
	setp.eq.u32 %p1, %r3, 0;
	and.b32 %r4, %r3, 31;
	shr.u32 %r1, %r3, 5;
	setp.eq.u32 %p0, %r1, 0;
	setp.eq.u32 %p3, %r1, 1;
	setp.ne.u32 %p4, %r4, 0;
	setp.eq.u32 %p5, %r4, 0;
	mad.lo.u32 %r6, %r4, 4, %r0;
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 32;
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1032], 1;
	bar.sync 0;
	@%p3 bra second;
	@!%p0 bra third;
	st.shared.u32 [%r6], %r3;
	mbarrier.arrive.shared::cta.b64 _, [%r0+1024];
	bra end;
second:
	@%p4 bra waited;
full:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0+1024], 0;
	@!%p2 bra full;
waited:
	fence.proxy.async.shared::cta;
	@%p5 mbarrier.arrive.shared::cta.b64 _, [%r0+1032];
	bra end;
third:
	@%p4 bra end;
copy:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0+1032], 0;
	@!%p2 bra copy;
	cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 128;
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group 0;
end:`, bugs: []bug{
		{classProxy, "the proxy fence dropped", []string{"fence.proxy.async.shared::cta;", ""}},
		{classProxy, "the proxy fence before the wait", []string{"fence.proxy.async.shared::cta;", "", "second:", "second:\n\tfence.proxy.async.shared::cta;"}},
		{classProxy, "the proxy fence of global memory", []string{"fence.proxy.async.shared::cta", "fence.proxy.async.global"}},
		{classShared, "the arrival by a lane that did not wait", []string{"setp.eq.u32 %p5, %r4, 0;", "setp.eq.u32 %p5, %r4, 1;"}},
	}},
}
