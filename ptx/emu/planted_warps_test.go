package emu

// plantedWarps has kernels with mistakes about instructions of a warp or a warpgroup: votes and
// shuffles, matrices in shared memory, and the registers of a warpgroup.
var plantedWarps = []whole{
	{name: "halves of a warp", block: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	and.b32 %r1, %r3, 31;
	mad.lo.u32 %r2, %r3, 4, %r0;
	setp.lt.u32 %p0, %r1, 16;
	vote.sync.ballot.b32 %r4, %p0, -1;
	@!%p0 bra high;
	shfl.sync.bfly.b32 %r6, %r3, 1, 31, 65535; // low
	redux.sync.add.u32 %r7, %r6, 65535;
	match.any.sync.b32 %r8, %r6, 65535;
	bra met;
high:
	shfl.sync.bfly.b32 %r6, %r3, 1, 31, -65536;
	redux.sync.add.u32 %r7, %r6, -65536;
	match.any.sync.b32 %r8, %r6, -65536;
met:
	bar.warp.sync -1;
	st.shared.u32 [%r2], %r7;
	bar.warp.sync -1; // both
	elect.sync %r9|%p2, -1;
	@!%p2 bra end;
	ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r2+64]; // of lanes 16 to 19
end:`, bugs: []bug{
		{classVotes, "a shuffle of the whole warp in one half", []string{"31, 65535; // low", "31, -1;"}},
		{classVotes, "a shuffle with the other half's mask", []string{"31, 65535; // low", "31, -65536;"}},
		{classVotes, "a shuffle from the other half", []string{"%r3, 1, 31, 65535; // low", "%r3, 16, 31, 65535;"}},
		{classVotes, "a sum of the whole warp in one half", []string{"%r7, %r6, 65535", "%r7, %r6, -1"}},
		{classVotes, "a sum without some of its lanes", []string{"%r7, %r6, 65535", "%r7, %r6, 255"}},
		{classVotes, "a match with more lanes", []string{"%r8, %r6, 65535", "%r8, %r6, 131071"}},
		{classVotes, "a vote after a lane has left", []string{"vote.sync", "setp.eq.u32 %p3, %r1, 31;\n\t@%p3 ret;\n\tvote.sync"}},
		{classVotes, "masks that differ", []string{"%r7, %r6, 65535", "%r7, %r6, %r1"}},
		{classVotes, "a vote on a predicate of some lanes", []string{"vote.sync.ballot.b32 %r4, %p0, -1;", "@%p0 setp.eq.u32 %p4, %r1, 3;\n\tvote.sync.ballot.b32 %r4, %p4, -1;"}},
		{classShared, "the second warp barrier by one half", []string{"bar.warp.sync -1; // both", "@%p0 bar.warp.sync 65535;"}},
		{classShared, "no second warp barrier", []string{"bar.warp.sync -1; // both", ""}},
	}},
	{name: "matrices through shared memory", block: 64, code: `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	mad.lo.u32 %r2, %r3, 16, %r0;
	xor.b32 %r8, %r3, 32;
	mad.lo.u32 %r10, %r8, 16, %r0;
	setp.lt.u32 %p0, %r3, 40;
	st.shared.v4.b32 [%r2], {%r3, %r3, %r3, %r3};
	bar.warp.sync -1;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r2];
	stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2+1024], {%r4, %r5, %r6, %r7};
	bar.sync 0;
	ld.shared.v4.b32 {%r12, %r13, %r14, %r15}, [%r10+1024];`, bugs: []bug{
		{classMatrix, "no warp barrier before the load", []string{"bar.warp.sync -1;", ""}},
		{classMatrix, "a warp barrier of half the lanes", []string{"bar.warp.sync -1;", "and.b32 %r11, %r3, 16; setp.eq.u32 %p2, %r11, 0; @%p2 bar.warp.sync 65535;"}},
		{classMatrix, "rows of the other warp", []string{"%r7}, [%r2];", "%r7}, [%r10];"}},
		{classMatrix, "misaligned rows", []string{"%r7}, [%r2];", "%r7}, [%r2+8];"}},
		{classMatrix, "rows that nothing stored", []string{"%r7}, [%r2];", "%r7}, [%r2+2048];"}},
		{classMatrix, "a store by some lanes", []string{"st.shared.v4.b32", "@%p0 st.shared.v4.b32"}},
		{classMatrix, "a load by some lanes", []string{"ldmatrix", "@%p0 ldmatrix"}},
		{classMatrix, "a store of half the matrices", []string{"stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2+1024], {%r4, %r5, %r6, %r7}", "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r2+1024], {%r4, %r5}"}},
		{classMatrix, "a store over the other warp's rows", []string{"[%r2+1024], {%r4", "[%r10], {%r4"}},
		{classMatrix, "a store past the end", []string{"[%r2+1024], {%r4", "[%r2+16000], {%r4"}},
		{classMatrix, "no barrier before the other warp reads", []string{"bar.sync 0;", ""}},
		{classMatrix, "registers of an unfinished load", []string{"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}", "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r4, %r5}"}},
	}},
	{name: "warpgroups that share registers", block: 512, code: `
	mov.u32 %r3, %tid.x;
	setp.lt.u32 %p0, %r3, 256;
	setp.lt.u32 %p1, %r3, 96;
	@%p0 bra more;
	setmaxnreg.dec.sync.aligned.u32 40;
	bar.sync 1, 512; // few
	bra end;
more:
	setmaxnreg.inc.sync.aligned.u32 216;
	bar.sync 1, 512;
end:`, bugs: []bug{
		{classRegisters, "more registers than are released", []string{"u32 216", "u32 224"}},
		{classRegisters, "too few released", []string{"u32 40", "u32 48"}},
		{classRegisters, "none released", []string{"setmaxnreg.dec.sync.aligned.u32 40;", ""}},
		{classRegisters, "released after the barrier", []string{"setmaxnreg.dec.sync.aligned.u32 40;\n\tbar.sync 1, 512; // few", "bar.sync 1, 512;\n\tsetmaxnreg.dec.sync.aligned.u32 40;"}},
		{classRegisters, "a release that takes", []string{"setmaxnreg.dec.sync.aligned.u32 40", "setmaxnreg.dec.sync.aligned.u32 136"}},
		{classRegisters, "three warps of a warpgroup", []string{"more:\n", "more:\n\t@!%p1 bra others;\n", "end:", "\tbra end;\nothers:\n\tsetp.lt.u32 %p2, %r3, 128;\n\t@%p2 bra end;\n\tsetmaxnreg.inc.sync.aligned.u32 216;\n\tbar.sync 1, 512;\nend:"}},
	}},
}
