package emu

import (
	"cmp"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRacesOfLaunches checks that a programmatic launch races with its predecessor, and with
// earlier launches for which no launch has waited, unless its access follows griddepcontrol.wait.
func TestRacesOfLaunches(t *testing.T) {
	const (
		wait    = "griddepcontrol.wait;\n"
		trigger = "griddepcontrol.launch_dependents;\n"
		store   = "@%p1 st.global.u32 [%d0], 1;\n"
		load    = "@%p1 ld.global.u32 %r5, [%d0];\n"
		others  = "setp.eq.u32 %p2, %r3, 1;\n@%p2 st.global.u32 [%d0], 1;\n" // stores in lane 1
		loads   = "@%p0 ld.global.u32 %r5, [%d0];\n"                         // loads in every lane of the first warp
		other   = "@%p1 st.global.u32 [%d0+64], 1;\n"                        // stores to a word that no launch reads
		raised  = store + "@%p1 st.release.gpu.global.u32 [%d0+128], 1;\n"
		seen    = "@%p1 mbarrier.init.shared.b64 [%r0+32], 1;\nfence.mbarrier_init.release.cluster;\n@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r0+32], 16;\n@%p1 ld.acquire.gpu.global.u32 %r4, [%d0+128];\n"
		bulk    = "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d0], 16, [%r0+32];\nagain: @%p1 mbarrier.test_wait.parity.shared.b64 %p2, [%r0+32], 0;\n@!%p1 bra done;\n@!%p2 bra again;\ndone:\n"
	)
	for _, x := range []struct {
		name     string
		launches []string // PTX of the launches; the last one has the race
		ordinary bool     // the launches are not programmatic
		says     []string
		kind     FaultKind // of the fault, unless it is Race
	}{
		{name: "reads before the wait", launches: []string{store, load + wait},
			says: []string{"reads global memory", "(out + 0)", "of CTA (0,0,0) wrote with st.global (line ", "the earlier launch of kernel k may still run", "griddepcontrol.wait before"}},
		{name: "reads after the wait", launches: []string{store, wait + load}},
		{name: "no wait", launches: []string{store + trigger, load}, says: []string{"may still run"}},
		{name: "writes what is still read", launches: []string{load, store + wait}, says: []string{"writes global memory", "read with ld.global"}},
		{name: "both read", launches: []string{load, load}},
		{name: "other bytes", launches: []string{"@%p1 st.global.u8 [%d0], 1;", "@%p1 ld.global.u8 %r5, [%d0+1];"}},
		{name: "one after the other", launches: []string{store, load}, ordinary: true},
		{name: "a warp waits for its CTA", launches: []string{store, "@%p0 bra meet; " + wait + "meet: bar.sync 0; " + load}},
		{name: "a warp waits and the other does not know", launches: []string{store, "@%p0 bra on; " + wait + "on: " + load}, says: []string{"may still run"}},
		{name: "a flag", launches: []string{store + "@%p1 st.release.gpu.global.u32 [%d0+8], 1;\n", "@%p1 ld.acquire.gpu.global.u32 %r4, [%d0+8];\n" + load}},
		{name: "a flag without release", launches: []string{store + "@%p1 st.relaxed.gpu.global.u32 [%d0+8], 1;\n", "@%p1 ld.acquire.gpu.global.u32 %r4, [%d0+8];\n" + load}, says: []string{"(out + 0)"}},
		{name: "a flag of another lane", launches: []string{others + "@%p1 st.release.gpu.global.u32 [%d0+128], 1;\n", "@%p1 ld.acquire.gpu.global.u32 %r4, [%d0+128];\n" + load}, says: []string{"(out + 0)"}},
		{name: "a flag of another lane after they meet", launches: []string{others + "bar.warp.sync 0xffffffff;\n@%p1 st.release.gpu.global.u32 [%d0+128], 1;\n", "@%p1 ld.acquire.gpu.global.u32 %r4, [%d0+128];\n" + load}},
		{name: "a flag that another lane reads", launches: []string{store + "@%p1 st.release.gpu.global.u32 [%d0+128], 1;\n", "@%p1 ld.acquire.gpu.global.u32 %r4, [%d0+128];\n" + loads}, says: []string{"(out + 0)"}},
		{name: "a flag that another lane reads and then meets", launches: []string{store + "@%p1 st.release.gpu.global.u32 [%d0+128], 1;\n", "@%p1 ld.acquire.gpu.global.u32 %r4, [%d0+128];\nbar.warp.sync 0xffffffff;\n" + loads}},
		{name: "a flag before a bulk copy", launches: []string{raised, seen + "fence.proxy.async;\n" + bulk}},
		{name: "a flag before a bulk copy, without a proxy fence", launches: []string{raised, seen + bulk}, says: []string{"fence.proxy.async"}, kind: ProxyRace},
		{name: "a bulk store", launches: []string{"@%p1 st.shared.u32 [%r0], 1; @%p1 st.shared.u32 [%r0+4], 1; @%p1 st.shared.v2.u32 [%r0+8], {1, 1}; fence.proxy.async; @%p1 cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r0], 16; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n", load},
			says: []string{"wrote with cp.async.bulk"}},
		{name: "a copy", launches: []string{store, "@%p1 cp.async.cg.shared.global [%r0], [%d0], 16; cp.async.wait_all;\n"}, says: []string{"cp.async"}},
		{name: "none waited in between", launches: []string{store, trigger + other, wait + load}, says: []string{"may still run"}},
		{name: "one that waited in between", launches: []string{store, trigger + wait + other, wait + load}},
		{name: "one that triggers before its wait", launches: []string{store, trigger + wait + other, load}, says: []string{"wrote with st.global"}},
		{name: "one that triggers after its wait", launches: []string{store, wait + trigger + other, load}},
		{name: "one that never triggers", launches: []string{store, wait + other, load}},
		{name: "one whose warps trigger before and after", launches: []string{store, "@%p0 bra w0; " + wait + "w0: " + trigger + other, load}, says: []string{"wrote with st.global"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			for _, check := range []bool{false, true} {
				var stream Stream
				p := assemble(t, body(warps+x.launches[0]+"\nexit;"), "k")
				p.params(p.u32s(make([]uint32, 64)...), 0)
				p.launch.Block, p.launch.SharedBytes, p.launch.Races, p.launch.Stream, p.launch.Programmatic = [3]int{64}, 64, true, &stream, !x.ordinary
				for i, code := range x.launches {
					p.kernel = assemble(t, body(warps+code+"\nexit;"), "k").kernel
					var err error
					if check {
						err = p.kernel.Check(context.Background(), p.mem, p.launch, 2)
					} else {
						err = p.run()
					}
					if i < len(x.launches)-1 || len(x.says) == 0 {
						require.NoError(t, err, i)
						continue
					}
					var f *Fault
					require.True(t, errors.As(err, &f), "%v", err)
					require.Equal(t, cmp.Or(x.kind, Race), f.Kind)
					for _, s := range x.says {
						require.Contains(t, f.Text, s)
					}
				}
				before := stream.Clone()
				stream.Wait()
				require.NotEmpty(t, before.before)
				require.Empty(t, stream.before)
			}
		})
	}
}
