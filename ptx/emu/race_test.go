package emu

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// raced is a kernel with two accesses that nothing orders. The line of the later access ends with
// the comment "here", the line of the earlier one with "there". The mended kernel must have no
// findings.
type raced struct {
	name    string
	kind    FaultKind
	or      FaultKind // kind of the finding in some orders
	threads int
	ctas    int // CTAs in the grid; 0 means one
	code    string
	// mend has pairs of old and new text. With these replacements the kernel has no race.
	mend []string
	says []string
}

// warps sets registers: %r1 to the warp's number, %r0 to the address of shared memory, and %r2 to
// %r0 plus 4 times the thread's number.
const warps = `
	mov.u32 %r0, smem;
	mov.u32 %r3, %tid.x;
	shr.u32 %r1, %r3, 5;
	mad.lo.u32 %r2, %r3, 4, %r0;
	setp.eq.u32 %p0, %r1, 0;
	setp.eq.u32 %p1, %r3, 0;
	ld.param.u64 %d0, [out];
`

// mbarrierMade returns PTX that initialises an mbarrier at %r0+1024 for a number of arrivals.
func mbarrierMade(arrivals string) string {
	return warps + `
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], ` + arrivals + `;
	@%p1 fence.mbarrier_init.release.cluster;
	bar.sync 0;
`
}

// bulk is PTX by which thread 0 copies 64 bytes to shared memory.
const bulk = `
	@!%p1 bra issued;
	mov.u32 %r8, 64;
	mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+1024], %r8;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 64, [%r0+1024]; // there
issued:
`

// bulkHere is the PTX of bulk as the later access of a race: its copy has the comment "here"
// instead of "there".
var bulkHere = strings.ReplaceAll(bulk, "there", "here")

func waitFor(label, parity string) string {
	return label + `:
	mbarrier.try_wait.parity.shared::cta.b64 %p7, [%r0+1024], ` + parity + `;
	@!%p7 bra ` + label + ";\n"
}

var races64 = []raced{
	{name: "a byte that another warp stored before the next byte", kind: Race, threads: 64, code: warps + `
	@%p1 st.shared.u8 [%r0], %r1; // there
	@%p1 st.shared.u8 [%r0+1], %r1;
	// bar.sync 0;
	@%p0 ld.shared.u8 %r6, [%r0]; // here`, mend: []string{"// bar", "bar"}, or: UninitializedShared},
	{name: "neighbouring bytes, read and then written by one lane each", kind: Race, threads: 64, code: warps + `
	add.s32 %r4, %r3, -1; // early
	max.s32 %r4, %r4, 0;
	mad.wide.u32 %d2, %r4, 1, %d0;
	ld.global.u8 %r5, [%d2]; // here
	mad.wide.u32 %d2, %r3, 1, %d0;
	st.global.u8 [%d2], %r5; // there`, mend: []string{"add.s32 %r4, %r3, -1; // early", "mov.u32 %r4, %r3;"}},
	{name: "a barrier dropped between store and load", kind: Race, threads: 64, code: warps + `
	st.shared.u32 [%r2], %r1; // there
	// bar.sync 0;
	xor.b32 %r4, %r3, 32;
	mad.lo.u32 %r5, %r4, 4, %r0;
	ld.shared.u32 %r6, [%r5]; // here`, mend: []string{"// bar", "bar"}, says: []string{"with ld.shared|wrote with st.shared", "a barrier that both warps reach"}},
	{name: "a barrier dropped before the next store", kind: Race, threads: 64, code: warps + `
	st.shared.u32 [%r2], %r1;
	bar.sync 0;
	xor.b32 %r4, %r3, 32;
	mad.lo.u32 %r5, %r4, 4, %r0;
	ld.shared.u32 %r6, [%r5]; // there
	// bar.sync 0;
	st.shared.u32 [%r2], %r6; // here`, mend: []string{"// bar", "bar"}},
	{name: "two warps store to one word", kind: Race, threads: 64, code: warps + `
	st.shared.u32 [%r0], %r1; // here and there`, mend: []string{"[%r0]", "[%r2]"}, says: []string{"wrote with st.shared"}},
	{name: "two barriers for one", kind: Race, threads: 64, code: warps + `
	st.shared.u32 [%r2], %r1; // there
	add.u32 %r4, %r1, 1;
	bar.sync %r4, 32;
	xor.b32 %r4, %r3, 32;
	mad.lo.u32 %r5, %r4, 4, %r0;
	ld.shared.u32 %r6, [%r5]; // here`, mend: []string{"bar.sync %r4, 32", "bar.sync 1, 64"}},
	{name: "a warp that only arrives learns nothing of the others", kind: Race, threads: 64, code: warps + `
	st.shared.u32 [%r2], %r1; // there
	@%p0 bra first;
	bar.arrive 1, 64;
	bra on;
first:
	bar.sync 1, 64;
	bra end;
on:
	ld.shared.u32 %r6, [%r0]; // here
end:`, mend: []string{"bar.arrive", "bar.sync"}},
	{name: "a store that waits for no reader, the second of which waited for the first", kind: Race, threads: 96, code: warps + `
	@%p1 st.shared.u32 [%r0], 0;
	bar.sync 0;
	setp.eq.u32 %p2, %r1, 2;
	@%p2 bra third;
	@%p0 ld.shared.u32 %r6, [%r0]; // side
	bar.sync 1, 64;
	@!%p0 ld.shared.u32 %r6, [%r0]; // side
	bar.sync 1, 64;
	// @!%p0 bar.arrive 2, 64;
	bra end;
third:
	// bar.sync 2, 64;
	@%p2 st.shared.u32 [%r0], %r1; // side
end:`, mend: []string{"// bar", "bar", "// @", "@"}},
	{name: "an atomic and a plain load", kind: Race, threads: 64, code: warps + `
	@%p1 st.shared.u32 [%r0], 0;
	bar.sync 0;
	red.shared.add.u32 [%r0], 1; // there
	// bar.sync 0;
	@%p0 ld.shared.u32 %r6, [%r0]; // here`, mend: []string{"// bar", "bar"}},
	{name: "cp.async that was not waited for", kind: Race, threads: 32, code: warps + `
	mad.wide.u32 %d0, %r3, 16, %d0;
	mad.lo.u32 %r2, %r3, 16, %r0;
	cp.async.cg.shared.global [%r2], [%d0], 16; // there
	cp.async.commit_group;
	// cp.async.wait_group 0;
	ld.shared.u32 %r6, [%r2]; // here`, mend: []string{"// cp", "cp"}, says: []string{"cp.async.wait_group"}},
	{name: "cp.async waited for by one group too few", kind: Race, threads: 32, code: warps + `
	mad.wide.u32 %d0, %r3, 16, %d0;
	mad.lo.u32 %r2, %r3, 16, %r0;
	cp.async.cg.shared.global [%r2], [%d0], 16;
	cp.async.commit_group;
	cp.async.cg.shared.global [%r2+512], [%d0], 16; // there
	cp.async.commit_group;
	cp.async.wait_group 1;
	ld.shared.u32 %r6, [%r2];
	ld.shared.u32 %r6, [%r2+512]; // here`, mend: []string{"group 1", "group 0"}},
	{name: "cp.async of another warp", kind: Race, threads: 64, code: warps + `
	mad.wide.u32 %d0, %r3, 16, %d0;
	mad.lo.u32 %r2, %r3, 16, %r0;
	cp.async.cg.shared.global [%r2], [%d0], 16; // there
	cp.async.commit_group;
	cp.async.wait_group 0;
	// bar.sync 0;
	xor.b32 %r2, %r2, 512;
	ld.shared.u32 %r6, [%r2]; // here`, mend: []string{"// bar", "bar"}, says: []string{"cp.async.wait_group by the warp that copied, then a barrier"}},
	{name: "a stage loaded again while a warp reads", kind: Race, threads: 64, code: warps + `
	mad.wide.u32 %d0, %r3, 16, %d0;
	mad.lo.u32 %r2, %r3, 16, %r0;
	cp.async.cg.shared.global [%r2], [%d0], 16;
	cp.async.commit_group; cp.async.wait_group 0;
	bar.sync 0;
	ld.shared.u32 %r6, [%r0]; // there
	// bar.sync 0;
	cp.async.cg.shared.global [%r2], [%d0], 16; // here
	cp.async.commit_group; cp.async.wait_group 0;`, mend: []string{"// bar", "bar"}},
	{name: "a bulk copy read before its mbarrier", kind: Race, threads: 64, code: mbarrierMade("1") + bulk + `
	ld.shared.u32 %r6, [%r0]; // here
` + waitFor("w", "0"), mend: []string{"	ld.shared.u32 %r6, [%r0]; // here\n", "", "@!%p7 bra w;", "@!%p7 bra w;\n	ld.shared.u32 %r6, [%r0];"},
		says: []string{"cp.async.bulk", `wait for mbarrier smem \+ 1024 \(0x800\)`}},
	{name: "a wait for the wrong parity", kind: Race, threads: 64, code: mbarrierMade("1") + bulk + waitFor("w", "1") + `
	ld.shared.u32 %r6, [%r0]; // here
` + waitFor("x", "0"), mend: []string{"[%r0+1024], 1;\n	@!%p7", "[%r0+1024], 0;\n	@!%p7"}},
	{name: "a bulk copy over what a warp still reads", kind: Race, threads: 64, code: mbarrierMade("1") + `
	st.shared.u32 [%r2], %r1;
	fence.proxy.async.shared::cta;
	bar.sync 0;
	ld.shared.u32 %r6, [%r0]; // early
	// bar.sync 0;` + bulkHere + waitFor("w", "0"),
		mend: []string{"// bar", "bar"}},
	{name: "a bulk copy over a store, fenced by another thread too soon", kind: ProxyRace, threads: 64, code: mbarrierMade("1") + `
	fence.proxy.async.shared::cta;
	st.shared.u32 [%r2], %r1; // there
	// fence.proxy.async.shared::cta;
	bar.sync 0;` + bulkHere + waitFor("w", "0"),
		mend: []string{"// fence", "fence"}, says: []string{"fence.proxy.async"}},
	{name: "an mbarrier used before its init is known", kind: Race, threads: 64, code: warps + `
	@%p1 mbarrier.init.shared::cta.b64 [%r0+1024], 64; // there
	// bar.sync 0;
	mbarrier.arrive.shared::cta.b64 _, [%r0+1024]; // here`, mend: []string{"// bar", "bar"}, says: []string{"initialised with mbarrier.init|mbarrier.init has not run"}, or: BarrierMisuse},
	{name: "no fence between mbarrier.init and a bulk copy", kind: ProxyRace, threads: 64, code: strings.Replace(mbarrierMade("1"), "@%p1 fence", "// fence", 1) +
		bulkHere + waitFor("w", "0"), mend: []string{"// fence", "@%p1 fence"}, says: []string{"fence.mbarrier_init after mbarrier.init"}},
	{name: "an arrival before the store", kind: Race, threads: 64, code: mbarrierMade("32") + `
	@!%p0 bra second;
	mbarrier.arrive.shared::cta.b64 _, [%r0+1024];
	st.shared.u32 [%r2], 7; // side
	bra end;
second:
` + waitFor("w", "0") + `
	ld.shared.u32 %r6, [%r0]; // side
end:`, mend: []string{"	mbarrier.arrive.shared::cta.b64 _, [%r0+1024];\n	st.shared.u32 [%r2], 7; // side", "	st.shared.u32 [%r2], 7;\n	mbarrier.arrive.shared::cta.b64 _, [%r0+1024];"}},
	{name: "wgmma of what another warp stored, unfenced", kind: ProxyRace, threads: 128, code: strings.ReplaceAll(wgmmaFrame, "fence.proxy", "// fence.proxy") + fenceMMA + wgmma + ` // here
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;`, mend: []string{"// fence.proxy", "fence.proxy"}, says: []string{"A: reads shared memory"}},
	{name: "wgmma before the barrier", kind: Race, threads: 128, code: strings.NewReplacer("bar.sync", "// bar.sync", "[%r2], 0;", "[%r2], 0; // side").Replace(wgmmaFrame) + fenceMMA + wgmma + ` // side
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;`, mend: []string{"// bar.sync", "bar.sync"}},
	{name: "a tile stored to while wgmma reads", kind: Race, threads: 128, code: wgmmaFrame + fenceMMA + wgmma + ` // there
	wgmma.commit_group.sync.aligned;
	mov.u32 %r5, %tid.x;
	mad.lo.u32 %r2, %r5, 4, %r1;
	// wgmma.wait_group.sync.aligned 0; bar.sync 0;
	st.shared.u32 [%r2], 0; // here
	wgmma.wait_group.sync.aligned 0;`, mend: []string{"// wgmma.wait", "wgmma.wait"}},
	{name: "a lane loads what another stored", kind: Race, threads: 32, code: warps + `
	st.shared.u32 [%r2], %r3; // there
	shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1;
	// bar.warp.sync -1;
	mad.lo.u32 %r5, %r4, 4, %r0;
	ld.shared.u32 %r6, [%r5]; // here`, mend: []string{"// bar", "bar"}, says: []string{"in lane 1, and nothing orders these lanes", "__syncwarp"}},
	{name: "a lane stores over what another loaded", kind: Race, threads: 32, code: warps + `
	st.shared.u32 [%r2], %r3;
	bar.sync 0;
	xor.b32 %r4, %r3, 4;
	mad.lo.u32 %r5, %r4, 4, %r0;
	ld.shared.u32 %r6, [%r5]; // there
	// bar.warp.sync -1;
	st.shared.u32 [%r2], %r6; // here`, mend: []string{"// bar", "bar"}},
	{name: "halves of a warp that meet apart", kind: Race, threads: 32, code: warps + `
	st.shared.u32 [%r2], %r3; // there
	setp.lt.u32 %p3, %r3, 16;
	selp.b32 %r7, 0xffff, 0xffff0000, %p3; // or
	bar.warp.sync %r7;
	xor.b32 %r4, %r3, 8;
	mad.lo.u32 %r5, %r4, 4, %r0;
	ld.shared.u32 %r6, [%r5];
	xor.b32 %r4, %r3, 16;
	mad.lo.u32 %r5, %r4, 4, %r0;
	ld.shared.u32 %r6, [%r5]; // here`, mend: []string{"// or", "mov.b32 %r7, -1;"}, says: []string{"in lane 16"}},
	{name: "lanes that meet by the way of others", kind: Race, threads: 32, code: warps + `
	st.shared.u32 [%r2], %r3; // there
	setp.lt.u32 %p3, %r3, 16;
	selp.b32 %r7, 0xffff, 0xffff0000, %p3;
	bar.warp.sync %r7;
	xor.b32 %r4, %r3, 16;
	and.b32 %r8, %r3, 8;
	setp.ne.u32 %p3, %r8, 0;
	selp.b32 %r7, 0xff00ff00, 0x00ff00ff, %p3;
	// bar.warp.sync %r7;
	xor.b32 %r4, %r3, 24;
	mad.lo.u32 %r5, %r4, 4, %r0;
	ld.shared.u32 %r6, [%r5]; // here`, mend: []string{"// bar", "bar"}, says: []string{"in lane 24"}},
	{name: "a lane waits for its cp.async, the others do not know", kind: Race, threads: 32, code: warps + `
	mad.wide.u32 %d0, %r3, 16, %d0;
	mad.lo.u32 %r2, %r3, 16, %r0;
	cp.async.cg.shared.global [%r2], [%d0], 16; // there
	cp.async.commit_group;
	bar.warp.sync -1;
	cp.async.wait_group 0;
	// bar.warp.sync -1;
	ld.shared.u32 %r6, [%r2];
	xor.b32 %r2, %r2, 16;
	ld.shared.u32 %r6, [%r2]; // here`, mend: []string{"// bar", "bar"}, says: []string{"in lane 1, and"}},
	{name: "a bulk store of what other lanes wrote", kind: Race, threads: 32, code: warps + `
	st.shared.u32 [%r2], %r1; // there
	fence.proxy.async.shared::cta;
	// bar.warp.sync -1;
	@!%p1 bra end;
	cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 128; // here
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group 0;
end:`, mend: []string{"// bar", "bar"}, says: []string{"in lane 1"}},
	{name: "ldmatrix of what lanes stored", kind: Race, threads: 32, code: warps + `
	st.shared.u32 [%r2], %r3; // there
	// bar.warp.sync -1;
	and.b32 %r4, %r3, 7;
	mad.lo.u32 %r5, %r4, 16, %r0;
	ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r5]; // here`, mend: []string{"// bar", "bar"}, says: []string{"in lane 0, and"}},
	{name: "a load of what stmatrix stored", kind: Race, threads: 32, code: warps + `
	and.b32 %r4, %r3, 7;
	mad.lo.u32 %r5, %r4, 16, %r0;
	stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r5], {%r3}; // there
	// bar.warp.sync -1;
	ld.shared.u32 %r6, [%r2]; // here`, mend: []string{"// bar", "bar", "bar.warp.sync -1;", "bar.warp.sync -1;"}},
	{name: "lanes that part", kind: Race, threads: 32, code: warps + `
	@%p1 st.shared.u32 [%r0+512], 1;
	bar.warp.sync -1;
	@%p1 bra one;
	ld.shared.u32 %r6, [%r0+512]; // side
	bra end;
one:
	st.shared.u32 [%r0+512], %r3; // side
end:`, mend: []string{"[%r0+512], %r3", "[%r0+516], %r3"}},
}

func TestRaces(t *testing.T) { testRaces(t, races64) }

// testRaces checks, under every timing, that a finding names both accesses of each race, and that
// the mended kernel has no finding.
func testRaces(t *testing.T, list []raced) {
	for _, c := range list {
		t.Run(c.name, func(t *testing.T) {
			launch := func(code string, timing Timing, seed uint64) (string, error) {
				text := body(code)
				p := assemble(t, text, "k")
				p.params(p.u32s(make([]uint32, 512)...), 0)
				p.launch.Timing, p.launch.Seed, p.launch.Races = timing, seed, true
				p.launch.Grid, p.launch.Block, p.launch.SharedBytes = [3]int{c.ctas}, [3]int{c.threads}, 16384
				return text, p.run()
			}
			mended := strings.NewReplacer(c.mend...).Replace(c.code)
			require.NotEqual(t, mended, c.code)
			eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
				text, err := launch(c.code, timing, seed)
				var f *Fault
				require.True(t, errors.As(err, &f), "no fault: %v", err)
				if f.Kind != c.or {
					require.Equal(t, c.kind.String(), f.Kind.String(), f.Error())
				}
				lines := strings.Split(text, "\n")
				// The finding is at the later access in the emulator's order, which may be any of these.
				assert.Regexp(t, `//.*(here|there|side|early|flag)`, lines[f.Line-1], f.Error())
				for _, s := range c.says {
					assert.Regexp(t, s, f.Error())
				}
				_, err = launch(mended, timing, seed)
				require.NoError(t, err, "mended")
			})
		})
	}
}
