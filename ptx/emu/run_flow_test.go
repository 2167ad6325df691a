package emu

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
)

// TestDivergence checks that lanes diverge and reconverge, and that each lane has the same result as
// a thread that runs by itself.
func TestDivergence(t *testing.T) {
	k := ptx.NewKernel("k")
	out := k.ParamPtr("out")
	tid := k.TidX()
	sum := ptx.NewVar(k, ptx.Uint(0))
	// These loops have different trip counts in each lane, and contain branches.
	k.For(ptx.Uint(0), tid.RemI(7), ptx.Uint(1), func(i ptx.U32) {
		k.IfElse(i.Add(tid).AndI(1).Eq(ptx.Uint(0)), func() {
			k.If(tid.Ge(ptx.Uint(20)), func() { sum.Set(sum.Get().AddI(100)) })
			sum.Set(sum.Get().Add(i))
		}, func() {
			sum.Set(sum.Get().MulI(3).AddI(1))
		})
	})
	// Some lanes exit early.
	k.If(tid.RemI(5).Eq(ptx.Uint(4)), func() {
		ptx.StGlobal(out.Index(tid, 4), ptx.Uint(9999))
		k.ExitIf(ptx.True())
	})
	ptx.StGlobal(out.Index(tid, 4), sum.Get())
	p := build(t, k)
	const n = 96
	a := p.u32s(make([]uint32, n)...)
	p.params(a)
	p.launch.Block = [3]int{n}
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		require.NoError(t, p.run())
		for tid, v := range p.read(a, n) {
			want := uint32(0)
			for i := range tid % 7 {
				if (i+tid)&1 == 0 {
					if tid >= 20 {
						want += 100
					}
					want += uint32(i)
				} else {
					want = want*3 + 1
				}
			}
			if tid%5 == 4 {
				want = 9999
			}
			require.Equal(t, want, v, "thread %d", tid)
		}
	})
}

// TestIndependentThreads checks that a lane that spins before a join does not starve the lane for
// which it waits.
func TestIndependentThreads(t *testing.T) {
	p := assemble(t, body(`
	mov.u32 %r0, %tid.x;
	ld.param.u64 %d0, [out];
	setp.eq.u32 %p0, %r0, 5;
	@%p0 bra writer;
spin:
	ld.relaxed.gpu.global.u32 %r1, [%d0];
	setp.eq.u32 %p1, %r1, 0;
	@%p1 bra spin;
	bra end;
writer:
	st.relaxed.gpu.global.u32 [%d0], 7;
end:
	bar.warp.sync 0xffffffff;
	st.global.u32 [%d0+4], %r0;`), "k")
	a := p.u32s(0, 0)
	p.params(a, 0)
	require.NoError(t, p.run())
	require.Equal(t, []uint32{7, 31}, p.read(a, 2))
}

func TestWarpInstructions(t *testing.T) {
	for _, c := range []struct {
		code string
		want func(lane int) uint32
	}{
		{"shfl.sync.bfly.b32 %r3, %r1, 5, 31, 0xffffffff;", func(l int) uint32 { return uint32((l ^ 5) * 10) }},
		{"shfl.sync.up.b32 %r3, %r1, 3, 0, 0xffffffff;", func(l int) uint32 {
			if l < 3 {
				return uint32(l * 10)
			}
			return uint32((l - 3) * 10)
		}},
		{"shfl.sync.down.b32 %r3, %r1, 4, 0x181f, 0xffffffff;", func(l int) uint32 { // segments of 8 lanes
			if l%8 >= 4 {
				return uint32(l * 10)
			}
			return uint32((l + 4) * 10)
		}},
		{"shfl.sync.idx.b32 %r3, %r1, 2, 0x1c1f, 0xffffffff;", func(l int) uint32 { return uint32((l&^3 + 2) * 10) }},
		{"vote.sync.ballot.b32 %r3, %p0, 0xffffffff;", func(int) uint32 { return 0xfff }},
		{"vote.sync.ballot.b32 %r3, !%p0, 0xffffffff;", func(int) uint32 { return 0xfffff000 }},
		{"vote.sync.any.pred %p1, %p0, 0xffffffff; selp.b32 %r3, 1, 2, %p1;", func(int) uint32 { return 1 }},
		{"vote.sync.all.pred %p1, %p0, 0xffffffff; selp.b32 %r3, 1, 2, %p1;", func(int) uint32 { return 2 }},
		{"shr.u32 %r2, %r0, 3; match.any.sync.b32 %r3, %r2, 0xffffffff;", func(l int) uint32 { return 0xff << (l &^ 7) }},
		{"redux.sync.add.u32 %r3, %r1, 0xffffffff;", func(int) uint32 { return 4960 }},
		{"sub.s32 %r2, 100, %r1; redux.sync.min.s32 %r3, %r2, 0xffffffff;", func(int) uint32 { return uint32(0xffffffff - 209) }},
		{"elect.sync _|%p1, 0xffffffff; selp.b32 %r3, 1, 0, %p1;", func(l int) uint32 { return uint32(b2u(l == 0)) }},
		// Two groups of lanes execute redux in two branches, each with its own member mask.
		{`@%p0 bra low;
	redux.sync.add.u32 %r3, %r0, 0xfffff000;
	bra met;
low:
	redux.sync.max.u32 %r3, %r0, 0xfff;
met:
	bar.warp.sync 0xffffffff;`, func(l int) uint32 {
			if l < 12 {
				return 11
			}
			return 430
		}},
	} {
		t.Run(c.code[:20], func(t *testing.T) {
			p := assemble(t, body(`
	mov.u32 %r0, %laneid;
	mul.lo.u32 %r1, %r0, 10;
	setp.lt.u32 %p0, %r0, 12;
	`+c.code+`
	ld.param.u64 %d0, [out];
	mad.wide.u32 %d0, %r0, 4, %d0;
	st.global.u32 [%d0], %r3;`), "k")
			a := p.u32s(make([]uint32, 32)...)
			p.params(a, 0)
			require.NoError(t, p.run())
			for l, v := range p.read(a, 32) {
				require.Equal(t, c.want(l), v, "lane %d", l)
			}
		})
	}
}

// TestAtomics checks that atomics of CTAs that run in parallel give exact counts.
func TestAtomics(t *testing.T) {
	for op, want := range map[string]uint32{
		"add": 1000 + 64*100*3, "max": 1000, "min": 3, "and": 1000 & 3, "or": 1000 | 3, "xor": 1000, "inc": 2,
	} {
		p := assemble(t, body(fmt.Sprintf(`
	ld.param.u64 %%d0, [out];
	atom.global.%s.%s %%r1, [%%d0], 3;
	red.global.add.u64 [%%d0+8], 1;`, op, map[bool]string{true: "b32", false: "u32"}[op == "and" || op == "or" || op == "xor"])), "k")
		a := p.u32s(1000, 0, 0, 0)
		p.params(a, 0)
		p.launch.Grid, p.launch.Block, p.launch.Parallel = [3]int{100}, [3]int{64}, 4
		require.NoError(t, p.run())
		got := p.read(a, 4)
		if op == "inc" { // inc wraps around after 3; 6400 steps from 1000 end at this value
			want = (6400 - 1) % 4
		}
		require.Equal(t, []uint32{want, 0, 6400, 0}, got, op)
	}
	p := assemble(t, body(`
	ld.param.u64 %d0, [out];
	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	setp.eq.u32 %p0, %r1, 0;
	@%p0 st.shared.u32 [%r0], 0;
	bar.sync 0;
	atom.shared.add.u32 %r2, [%r0], 1;
	red.shared.max.u32 [%r0], 0;
	mad.wide.u32 %d0, %r2, 4, %d0;
	red.global.add.u32 [%d0], 1;`), "k")
	a := p.u32s(make([]uint32, 128)...)
	p.params(a, 0)
	p.launch.Block, p.launch.SharedBytes = [3]int{128}, 16
	require.NoError(t, p.run())
	for i, v := range p.read(a, 128) {
		require.Equal(t, uint32(1), v, "ticket %d", i)
	}
}

// TestCTAsWaitForEachOther checks CTAs that wait for each other through global memory. More CTAs
// wait than can run at once.
func TestCTAsWaitForEachOther(t *testing.T) {
	p := assemble(t, body(`
	ld.param.u64 %d0, [out];
	ld.param.u32 %r4, [n];
	mov.u32 %r0, %ctaid.x;
	add.u32 %r1, %r0, 1;
	setp.eq.u32 %p0, %r1, %r4;
	@%p0 bra mine;
spin:
	ld.acquire.gpu.global.u32 %r2, [%d0];
	add.u32 %r3, %r2, %r1;
	setp.ne.u32 %p1, %r3, %r4;
	@%p1 bra spin;
mine:
	fence.acq_rel.gpu;
	atom.global.add.u32 %r2, [%d0], 1;`), "k")
	a := p.u32s(0)
	p.params(a, 6)
	p.launch.Grid, p.launch.Block = [3]int{6}, [3]int{1}
	for _, parallel := range []int{1, 3} {
		require.NoError(t, p.mem.Fill32(a, 0, 1))
		p.launch.Parallel = parallel
		require.NoError(t, p.run())
		require.Equal(t, []uint32{6}, p.read(a, 1))
	}
}

// TestNamedBarriers checks named barriers for some of the warps: producers arrive, consumers wait.
func TestNamedBarriers(t *testing.T) {
	p := assemble(t, body(`
	ld.param.u64 %d0, [out];
	mov.u32 %r0, smem;
	mov.u32 %r1, %tid.x;
	mad.lo.u32 %r2, %r1, 4, %r0;
	setp.ge.u32 %p0, %r1, 64;
	@%p0 bra consumer;
	st.shared.u32 [%r2], %r1;
	bar.arrive 3, 128;
	bra end;
consumer:
	bar.sync 3, 128;
	ld.shared.u32 %r3, [%r2+-256];
	mad.wide.u32 %d0, %r1, 4, %d0;
	st.global.u32 [%d0+-256], %r3;
end:
	bar.sync 0;`), "k")
	a := p.u32s(make([]uint32, 64)...)
	p.params(a, 0)
	p.launch.Block, p.launch.SharedBytes = [3]int{128}, 256
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		require.NoError(t, p.run())
		for i, v := range p.read(a, 64) {
			require.Equal(t, uint32(i), v)
		}
	})
}

// TestCluster checks shared memory of a cluster. Each CTA writes its rank to its own memory, reads
// its neighbour's rank, and then arrives at an mbarrier of the neighbour.
func TestCluster(t *testing.T) {
	p := assemble(t, body(`
	ld.param.u64 %d0, [out];
	mov.u32 %r0, smem;
	mov.u32 %r1, %cluster_ctarank;
	mov.u32 %r2, %ctaid.x;
	add.u32 %r3, %r2, 50;
	st.shared.u32 [%r0], %r3;
	mbarrier.init.shared::cta.b64 [%r0+8], 1;
	fence.mbarrier_init.release.cluster;
	barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;
	add.u32 %r4, %r1, 1;
	and.b32 %r4, %r4, 3;
	mapa.shared::cluster.u32 %r5, %r0, %r4;
	ld.shared::cluster.u32 %r6, [%r5];
	mbarrier.arrive.shared::cluster.b64 _, [%r5+8];
wait:
	mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r0+8], 0;
	@!%p0 bra wait;
	mad.wide.u32 %d0, %r2, 4, %d0;
	st.global.u32 [%d0], %r6;
	barrier.cluster.arrive.aligned;
	barrier.cluster.wait.aligned;`), "k")
	a := p.u32s(make([]uint32, 8)...)
	p.params(a, 0)
	p.launch.Grid, p.launch.Block, p.launch.Cluster, p.launch.SharedBytes = [3]int{8}, [3]int{1}, [3]int{4}, 16
	eachTiming(t, func(t *testing.T, timing Timing, seed uint64) {
		p.launch.Timing, p.launch.Seed = timing, seed
		require.NoError(t, p.run())
		require.Equal(t, []uint32{51, 52, 53, 50, 55, 56, 57, 54}, p.read(a, 8))
	})
}

// TestRegistersWithoutLaunchBounds checks that setmaxnreg does nothing in a kernel without launch
// bounds, from which the assembler removes it.
func TestRegistersWithoutLaunchBounds(t *testing.T) {
	text := strings.Replace(body("setmaxnreg.inc.sync.aligned.u32 240;\nsetmaxnreg.dec.sync.aligned.u32 24;\nret;"), ".maxntid 512\n.minnctapersm 1\n", "", 1)
	p := assemble(t, text, "k")
	p.launch.Block = [3]int{512}
	p.params(p.u32s(0), 1)
	require.NoError(t, p.run())
}
