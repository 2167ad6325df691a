package emu

// lives sets registers for two CTAs of a cluster. %r1 is the own rank, %r5 the address of the other
// CTA's shared memory, and %p1 says whether the thread is the first of its CTA.
const lives = `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	mov.u32 %r1, %cluster_ctarank;
	setp.eq.u32 %p1, %r3, 0;
	ld.param.u64 %d0, [out];
	xor.b32 %r4, %r1, 1;
	mapa.shared::cluster.u32 %r5, %r0, %r4;
`

const clusterSync = "barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;"

// plantedLives has kernels with mistakes about the lifetime of CTAs and mbarriers, and with
// mistakes in branches.
var plantedLives = []whole{
	{name: "a word for the other CTA", block: 64, grid: 2, cluster: 2, code: lives + `
	` + clusterSync + ` // start
	mad.lo.u32 %r6, %r3, 4, %r5;
	st.shared::cluster.u32 [%r6], %r3;
	` + clusterSync + ` // end
	mad.lo.u32 %r7, %r3, 4, %r0;
	ld.shared.u32 %r8, [%r7];`, bugs: []bug{
		{classGlobal, "the first access before the other CTA starts", []string{clusterSync + " // start", ""}},
		{classGlobal, "a barrier of the CTA at the start", []string{clusterSync + " // start", "bar.sync 0;"}},
		{classGlobal, "the CTA ends before the other has stored", []string{clusterSync + " // end", "setp.eq.u32 %p2, %r1, 0;\n\t@%p2 ret;", "ld.shared.u32 %r8, [%r7];", ""}},
	}},
	{name: "a start by a relaxed arrival", block: 64, grid: 2, cluster: 2, code: lives + `
	barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; // start
	@%p1 st.shared::cluster.u32 [%r5], %r3;
	` + clusterSync, bugs: []bug{
		{classGlobal, "an end without a barrier", []string{"[%r5], %r3;\n\t" + clusterSync, "[%r5], %r3;"}},
		{classGlobal, "no start", []string{"barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; // start", ""}},
	}},
	{name: "arrivals in the other CTA", block: 32, grid: 2, cluster: 2, code: lives + `
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 32;
	@%p1 fence.mbarrier_init.release.cluster;
	` + clusterSync + `
	add.u32 %r6, %r5, 1024;
	mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
wait:
	mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r0+1024], 0;
	@!%p2 bra wait; // end`, bugs: []bug{
		{classGlobal, "the wait before the end dropped in one CTA", []string{"wait:", "setp.eq.u32 %p3, %r1, 0;\n\t@%p3 ret;\nwait:"}},
		{classMbarrier, "the wait before the end tested once", []string{"@!%p2 bra wait; // end", ""}},
	}},
	{name: "a copy for the other CTA, which waits for it and ends", block: 32, grid: 2, cluster: 2, code: lives + `
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 1;
	@%p1 fence.mbarrier_init.release.cluster;
	mov.u32 %r7, 64;
	@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+1024], %r7;
	` + clusterSync + ` // start
	add.u32 %r6, %r5, 1024;
	@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r5], [%d0], 64, [%r6];
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0+1024], 0;
	@!%p2 bra wait;
	bar.warp.sync -1;
	@%p1 mbarrier.inval.shared::cta.b64 [%r0+1024]; // end`, bugs: []bug{
		{classGlobal, "no wait before the end", []string{"@!%p2 bra wait;", "", "@%p1 mbarrier.inval.shared::cta.b64 [%r0+1024]; // end", ""}},
		{classGlobal, "one CTA does not wait", []string{"wait:", "setp.eq.u32 %p3, %r1, 0;\n\t@%p3 ret;\nwait:"}},
		{classGlobal, "no start", []string{clusterSync + " // start", "bar.sync 0;"}},
	}},
	{name: "an mbarrier made anew", block: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	setp.eq.u32 %p1, %r3, 0;
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 64;
	bar.sync 0;
	mbarrier.arrive.shared::cta.b64 _, [%r0+1024];
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0+1024], 0;
	@!%p2 bra wait;
	bar.sync 0; // all have waited
	@%p1 mbarrier.inval.shared::cta.b64 [%r0+1024];
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 64;
	bar.sync 0;
	mbarrier.arrive.shared::cta.b64 _, [%r0+1024];
again:
	mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r0+1024], 0;
	@!%p2 bra again;`, bugs: []bug{
		{classMbarrier, "other warps may still wait", []string{"bar.sync 0; // all have waited", ""}},
		{classMbarrier, "other lanes may still wait", []string{"bar.sync 0; // all have waited", "@!%p1 bar.arrive 1, 128; @!%p1 bra around; bar.sync 1, 128;", "\t@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 64;\n\tbar.sync 0;", "\t@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 64;\naround:\n\tbar.sync 0;"}},
		{classMbarrier, "no arrivals before the end", []string{"bar.sync 0; // all have waited", "bar.warp.sync -1;"}},
		{classMbarrier, "made anew without its end", []string{"@%p1 mbarrier.inval.shared::cta.b64 [%r0+1024];", ""}},
		{classMbarrier, "used before it is made anew", []string{"64;\n\tbar.sync 0;\n\tmbarrier.arrive.shared::cta.b64 _, [%r0+1024];\nagain", "64;\n\tmbarrier.arrive.shared::cta.b64 _, [%r0+1024];\nagain"}},
	}},
	{name: "uniform branches", block: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	mad.lo.u32 %r2, %r3, 4, %r0;
	shr.u32 %r1, %r3, 5; // by warp
	setp.eq.u32 %p1, %r1, 1;
	st.shared.u32 [%r2], %r3;
	@%p1 bra.uni done;
	ld.shared.u32 %r4, [%r2];
	jumps: .branchtargets done, other;
	brx.idx.uni %r1, jumps;
other:
	st.shared.u32 [%r2], %r4;
done:`, bugs: []bug{
		{classDeadlock, "bra.uni by lane", []string{"setp.eq.u32 %p1, %r1, 1;", "setp.eq.u32 %p1, %r3, 1;"}},
		{classDeadlock, "brx.idx.uni by lane", []string{"brx.idx.uni %r1", "and.b32 %r1, %r3, 1;\n\tbrx.idx.uni %r1"}},
	}},
}
