package emu

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPlantedFaults(t *testing.T) {
	for _, c := range slices.Concat(plantedFaults, sparseFaults) {
		t.Run(c.name, func(t *testing.T) {
			code := strings.ReplaceAll(c.code, "%tidx", "%r0")
			text := body(code)
			p := assemble(t, text, "k")
			p.params(p.u32s(make([]uint32, 16)...), 0)
			p.launch.Timing, p.launch.SharedBytes, p.launch.SpinLimit = Late, c.shared, 1<<17
			if c.threads > 0 {
				p.launch.Block = [3]int{c.threads}
			}
			f := requireFault(t, p.run(), c.kind, text, "// here")
			for _, s := range c.says {
				assert.Contains(t, f.Error(), s)
			}
		})
	}
}

// TestFreedMemory checks that an access to freed memory is a fault, which names the parameter that
// still points to the memory.
func TestFreedMemory(t *testing.T) {
	text := body(`
	ld.param.u64 %d0, [out];
	st.global.u32 [%d0+8], 1; // here`)
	p := assemble(t, text, "k")
	at := p.u32s(make([]uint32, 16)...)
	p.params(at, 0)
	require.NoError(t, p.mem.Free(at))
	f := requireFault(t, p.run(), OutOfBounds, text, "// here")
	assert.Contains(t, f.Error(), "byte 8 of an allocation of 64 bytes that was freed: out + 8")
}

// TestNoFault checks that kernels like the planted ones, but without their mistakes, have no fault.
func TestNoFault(t *testing.T) {
	for name, code := range map[string]string{
		"wgmma": wgmmaFrame + fenceMMA + wgmma + wgmmaKeep + `
	wgmma.commit_group.sync.aligned;
	wgmma.wait_group.sync.aligned 0;
	add.rn.f32 %f8, %f2, %f2;`,
		"one lane fences for all after a barrier": wgmmaFrame + `
	mov.u32 %r1, smem;
	st.shared.u32 [%r1], 0;
	bar.sync 0;
	fence.proxy.async.shared::cta;
	` + fenceMMA + wgmma,
		"a copy of no bytes, from anywhere": `
	mov.u32 %r0, smem;
	mov.u64 %d0, 4;
	mov.u32 %r1, 0;
	cp.async.cg.shared.global [%r0], [%d0], 16, %r1;
	cp.async.commit_group;
	cp.async.wait_group 0;
	ld.shared.u32 %r2, [%r0];`,
		"a copy's arrival wakes the waiting thread": `
	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	setp.eq.u32 %p0, %r1, 64;
	@%p0 mbarrier.init.shared::cta.b64 [%r0], 1;
	bar.sync 0;
	mov.u64 %d0, 0;
	mov.u32 %r2, 0;
	@%p0 cp.async.cg.shared.global [%r0+16], [%d0], 16, %r2;
	@%p0 cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r0];
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0], 0;
	@!%p1 bra wait;
	ld.shared.u32 %r2, [%r0+16];`,
		"lanes that come one by one": `
	mov.u32 %r0, %tid.x;
	and.b32 %r0, %r0, 31;
	mad.lo.u32 %r0, %r0, 50, 1;
again:
	sub.u32 %r0, %r0, 1;
	setp.ne.u32 %p0, %r0, 0;
	@%p0 bra again;
	bar.sync 0;`,
		"lanes that reconverge": `
	mov.u32 %r0, %tid.x;
	setp.lt.u32 %p0, %r0, 7;
	@%p0 bra other;
	mov.u32 %r1, 2;
	bra end;
other:
	mov.u32 %r1, 3;
end:
	bar.sync 0;`,
	} {
		t.Run(name, func(t *testing.T) {
			p := assemble(t, body(code), "k")
			p.params(uint64(0), 0)
			p.launch.Block, p.launch.SharedBytes = [3]int{128}, 16384
			eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
				p.launch.Timing, p.launch.Seed = timing, seed
				require.NoError(t, p.run())
			})
		})
	}
}

// TestUnknownForms checks that Load names an instruction form that the emulator does not support.
func TestUnknownForms(t *testing.T) {
	for code, says := range map[string]string{
		"tex.2d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%d0, {%r0, %r1}];": "",
		"lop3.and.b32 %r0, %r1, %r2, %r3, 0x80;":                     "lop3",
		"ld.global.v8.u32 %r0, [%d0];":                               "ld.global.v8.u32",
		"add.f128 %d0, %d1, %d2;":                                    "add.f128",
		"bra nowhere;":                                               "nowhere",
	} {
		_, err := Load([]byte(body(code)))
		require.Error(t, err, code)
		assert.Contains(t, err.Error(), "line 14")
		assert.Contains(t, err.Error(), says)
	}
}

func TestWrongLaunches(t *testing.T) {
	p := assemble(t, body(""), "k")
	p.params(uint64(0), 0)
	good := p.launch
	require.NoError(t, p.run())
	for says, spoil := range map[string]func(l *Launch){
		".maxntid allows 512":      func(l *Launch) { l.Block = [3]int{513} },
		"2048 threads":             func(l *Launch) { l.Block = [3]int{64, 32} },
		"parameters have 12 bytes": func(l *Launch) { l.Params = l.Params[:12] },
		"shared memory":            func(l *Launch) { l.SharedBytes = 228 << 10 },
		"want a multiple":          func(l *Launch) { l.Cluster, l.Grid = [3]int{2}, [3]int{3} },
		"grid":                     func(l *Launch) { l.Grid = [3]int{-1} },
	} {
		p.launch = good
		spoil(&p.launch)
		if says == "parameters have 12 bytes" {
			p.launch.Params = make([]byte, 13)
			says = "parameters have 13 bytes"
		}
		assert.ErrorContains(t, p.run(), says)
	}
}
