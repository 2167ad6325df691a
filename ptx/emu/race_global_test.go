package emu

import (
	"strings"
	"testing"
)

// ctas is PTX that sets registers: %r10 to the CTA's number, %p6 to whether the CTA is the first,
// %p1 to whether the thread is the CTA's first, and %d0 to the address of the buffer out. The first
// 32 words of the buffer are flags and counters, the words from byte 1024 on are data.
const ctas = `
	mov.u32 %r3, %tid.x;
	mov.u32 %r10, %ctaid.x;
	setp.eq.u32 %p1, %r3, 0;
	setp.eq.u32 %p6, %r10, 0;
	ld.param.u64 %d0, [out];
	mul.wide.u32 %d2, %r3, 4;
	add.u64 %d1, %d0, %d2;
	mad.lo.u32 %r12, %r10, 256, 1024;
	cvt.u64.u32 %d3, %r12;
	add.u64 %d3, %d1, %d3;
`

// handed returns a kernel in which each thread of the first CTA stores a word, and a thread of the
// other CTA loads it after a flag is set. Parameter before is the code between the store of the
// word and the flag. Parameter after is the code between the flag and the load of the word.
// Parameters store and load are the instructions that access the flag.
func handed(before, store, load, after string) string {
	return ctas + `
	@!%p6 bra other;
	st.global.u32 [%d1+1024], %r3; // there
	` + before + `
	mov.u32 %r9, 1;
	@%p1 ` + store + ` [%d0], %r9; // flag
	bra end;
other:
	` + load + ` %r4, [%d0]; // flag
	setp.eq.u32 %p2, %r4, 1;
	@!%p2 bra other;
	` + after + `
	ld.global.u32 %r6, [%d1+1024]; // here
end:`
}

var globalRaces64 = []raced{
	{name: "two CTAs store to one word", kind: Race, threads: 32, ctas: 2, code: ctas + `
	st.global.u32 [%d1+1024], %r10; // here and there`, mend: []string{"[%d1+1024]", "[%d3]"},
		says: []string{`wrote with st.global \(line`, `of CTA \([01],0,0\)`, `\(out \+ 1024\)`, "acq_rel.gpu"}},
	{name: "a CTA loads what another stores", kind: Race, threads: 32, ctas: 2, code: ctas + `
	st.global.u32 [%d3], %r10; // side
	ld.global.u32 %r6, [%d1+1024]; // side`, mend: []string{"[%d1+1024]", "[%d3]"}},
	{name: "warps of a CTA meet at no barrier", kind: Race, threads: 64, code: ctas + `
	st.global.u32 [%d1+1024], %r3; // there
	// bar.sync 0;
	xor.b32 %r4, %r3, 32;
	mul.wide.u32 %d4, %r4, 4;
	add.u64 %d4, %d4, %d0;
	ld.global.u32 %r6, [%d4+1024]; // here`, mend: []string{"// bar", "bar"}},
	{name: "a counter that is no atomic", kind: Race, threads: 1, ctas: 4, code: ctas + `
	ld.global.u32 %r4, [%d0]; // there
	add.u32 %r4, %r4, 1;
	st.global.u32 [%d0], %r4; // here`,
		mend: []string{"st.global.u32 [%d0], %r4;", "red.global.add.u32 [%d0], 1;", "ld.global.u32 %r4, [%d0]; // there", "mov.u32 %r4, 0;"}},
	{name: "an atomic of a CTA's scope across CTAs", kind: Race, threads: 32, ctas: 2, code: ctas + `
	red.cta.global.add.u32 [%d0], 1; // here and there`, mend: []string{".cta.", ".gpu."}, says: []string{"the accesses have .cta and .cta"}},
	{name: "an atomic and a plain load", kind: Race, threads: 32, ctas: 2, code: ctas + `
	red.global.add.u32 [%d0], 1; // side
	ld.global.u32 %r4, [%d0]; // side`, mend: []string{"ld.global", "ld.volatile.global"}, says: []string{"both accesses atomic, relaxed or volatile"}},
	{name: "a flag without a fence", kind: Race, threads: 32, ctas: 2,
		code: handed("bar.warp.sync -1;", "st.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32", ""), mend: []string{"bar.warp", "fence.acq_rel.gpu; bar.warp"}},
	{name: "a flag read without acquire", kind: Race, threads: 32, ctas: 2,
		code: handed("bar.warp.sync -1;", "st.release.gpu.global.u32", "ld.relaxed.gpu.global.u32", "// fence.acq_rel.gpu;"), mend: []string{"// fence", "fence"}},
	{name: "a fence of a CTA's scope", kind: Race, threads: 32, ctas: 2,
		code: handed("bar.warp.sync -1; fence.acq_rel.cta;", "st.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32", ""), mend: []string{"fence.acq_rel.cta", "fence.acq_rel.gpu"}},
	{name: "a membar of a CTA's level", kind: Race, threads: 32, ctas: 2,
		code: handed("bar.warp.sync -1; membar.cta;", "st.volatile.global.u32", "ld.volatile.global.u32", "membar.gl;"), mend: []string{"membar.cta", "membar.gl"}},
	{name: "a flag by a plain store", kind: Race, threads: 32, ctas: 2,
		code: handed("bar.warp.sync -1; membar.gl;", "st.global.u32", "ld.acquire.gpu.global.u32", ""), mend: []string{"st.global.u32 [%d0]", "st.relaxed.gpu.global.u32 [%d0]"}},
	{name: "a flag by a plain load", kind: Race, threads: 32, ctas: 2,
		code: handed("bar.warp.sync -1; membar.gl;", "st.relaxed.gpu.global.u32", "ld.global.u32", "membar.gl;"), mend: []string{"ld.global.u32 %r4", "ld.relaxed.gpu.global.u32 %r4"}},
	{name: "a flag by a plain load, whose CTA comes first", kind: Race, threads: 32, ctas: 2,
		code: strings.Replace(handed("bar.warp.sync -1; membar.gl;", "st.relaxed.gpu.global.u32", "ld.global.u32", "membar.gl;"), "%r10, 0", "%r10, 1", 1), mend: []string{"ld.global.u32 %r4", "ld.relaxed.gpu.global.u32 %r4"}},
	{name: "a warp that did not meet the releasing warp", kind: Race, threads: 64, ctas: 2,
		code: handed("// bar.sync 0;", "st.release.gpu.global.u32", "ld.acquire.gpu.global.u32", ""), mend: []string{"// bar", "bar"}},
	{name: "a ticket of the last CTA without fences", kind: Race, threads: 32, ctas: 4, code: ctas + `
	st.global.u32 [%d3], %r10; // side
	// membar.gl;
	atom.global.add.u32 %r4, [%d0], 1;
	setp.ne.u32 %p2, %r4, 127;
	@%p2 bra end;
	// membar.gl;
	ld.global.u32 %r6, [%d0+1024]; // here
	ld.global.u32 %r6, [%d0+1536]; // here
end:`, mend: []string{"// membar", "membar"}},
	{name: "ld.global.nc of what the kernel wrote", kind: Race, threads: 32, code: ctas + `
	st.global.u32 [%d3], %r10; // there
	bar.sync 0;
	ld.global.nc.u32 %r6, [%d3]; // here`, mend: []string{".nc", ""}, says: []string{`\.nc`}},
	{name: "cp.async of what another CTA stores", kind: Race, threads: 32, ctas: 2, code: ctas + `
	mov.u32 %r0, smem;
	st.global.u32 [%d3], %r10; // side
	mad.lo.u32 %r0, %r3, 4, %r0;
	cp.async.ca.shared.global [%r0], [%d1+1024], 4; // side
	cp.async.wait_all;`, mend: []string{"[%d1+1024]", "[%d3]"}},
	{name: "a word stored while cp.async reads it", kind: Race, threads: 32, code: ctas + `
	mov.u32 %r0, smem;
	mad.lo.u32 %r0, %r3, 4, %r0;
	cp.async.ca.shared.global [%r0], [%d3], 4; // there
	// cp.async.wait_all;
	st.global.u32 [%d3], %r10; // here
	cp.async.wait_all;`, mend: []string{"// cp", "cp"}, says: []string{"cp.async.wait_group"}},
	{name: "a bulk store read before its writes are done", kind: Race, threads: 32, code: ctas + `
	mov.u32 %r0, smem;
	mad.lo.u32 %r1, %r3, 4, %r0;
	st.shared.u32 [%r1], %r3;
	fence.proxy.async.shared::cta;
	bar.sync 0;
	mov.u32 %r8, 128;
	@!%p1 bra on;
	cp.async.bulk.global.shared::cta.bulk_group [%d0+1024], [%r0], %r8; // there
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group.read 0;
on:
	bar.sync 0;
	ld.global.u32 %r4, [%d1+1024]; // here`, mend: []string{".read", ""}, says: []string{"without .read"}},
	{name: "a bulk load of what was stored, unfenced", kind: ProxyRace, threads: 32, code: mbarrierMade("1") + `
	st.global.u32 [%d0], %r3; // there
	// fence.proxy.async.global;
	bar.sync 0;` + bulkHere + waitFor("w", "0"), mend: []string{"// fence", "fence"}, says: []string{"fence.proxy.async"}},
}

// TestGlobalRaces checks races in global memory: between CTAs, between warps, and with asynchronous
// copies.
func TestGlobalRaces(t *testing.T) { testRaces(t, globalRaces64) }
