package emu

import (
	"fmt"
	"testing"
)

// Benchmarks report rates per second of wall time and per second of CPU time of this process. The
// rate per CPU second does not depend on other processes of the machine. Run them with -cpu 1,2 to
// compare one core with two.

// rates runs a launch repeatedly. It reports how much work, counted in unit, it does per second.
func rates(b *testing.B, p *program, work float64, unit string) {
	b.Helper()
	start := cpuSeconds()
	for b.Loop() {
		if err := p.run(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(work*float64(b.N)/b.Elapsed().Seconds(), unit+"/s")
	if cpu := cpuSeconds() - start; cpu > 0 {
		b.ReportMetric(work*float64(b.N)/cpu, unit+"/cpu-s")
	}
}

// BenchmarkPipeline emulates a product of 64 rows with wgmma m64n256k16 and TMA. One case has a
// single CTA, for whose multiplications the emulator uses two cores of the host. The other case has
// eight equal CTAs.
func BenchmarkPipeline(b *testing.B) {
	for _, ctas := range []int{1, 8} {
		b.Run(fmt.Sprintf("CTAs=%d", ctas), func(b *testing.B) {
			g := gemm{n: 256, stages: 3}
			p := g.build(b)
			const steps = 16
			g.arguments(p, steps)
			p.launch.Grid[0] = ctas
			rates(b, p, float64(ctas)*2*64*256*gemmDepth*steps*1e-9, "GFLOP")
		})
	}
}

// scalarLoops lists loops of scalar instructions for a kernel of one warp, with the number of
// instructions per iteration.
var scalarLoops = []struct {
	name         string
	instructions int
	body         string
}{
	{"alu", 8, `
	mad.lo.u32 %r1, %r1, 1664525, 1013904223;
	fma.rn.f32 %f2, %f2, %f2, %f1;
	xor.b32 %r3, %r1, %r2;
	shl.b32 %r4, %r3, 3;
	add.u32 %r5, %r4, %r1;`},
	{"float", 9, `
	fma.rn.f32 %f2, %f2, %f1, %f3;
	mul.rn.f32 %f4, %f2, %f1;
	add.rn.f32 %f5, %f4, %f3;
	max.f32 %f6, %f5, %f4;
	sub.rn.f32 %f7, %f6, %f2;
	cvt.rn.bf16x2.f32 %r3, %f7, %f6;`},
	{"shared", 8, `
	st.shared.u32 [%r20], %r1;
	bar.warp.sync 0xffffffff;
	ld.shared.u32 %r3, [%r21];
	st.shared.v4.u32 [%r22], {%r1, %r3, %r1, %r3};
	ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r22];`},
	{"global", 7, `
	st.global.u32 [%d1], %r1;
	ld.global.u32 %r3, [%d1];
	st.global.v4.u32 [%d2], {%r1, %r3, %r1, %r3};
	ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d2];`},
}

// BenchmarkInstructions measures the rate of scalar instructions that one warp executes.
func BenchmarkInstructions(b *testing.B) {
	const turns = 10000
	for _, l := range scalarLoops {
		b.Run(l.name, func(b *testing.B) {
			p := assemble(b, body(`
	mov.u32 %r8, %tid.x;
	shl.b32 %r9, %r8, 2;
	mov.u32 %r10, smem;
	add.u32 %r20, %r10, %r9;
	xor.b32 %r11, %r9, 4;
	add.u32 %r21, %r10, %r11;
	shl.b32 %r12, %r8, 4;
	add.u32 %r22, %r10, %r12;
	add.u32 %r22, %r22, 1024;
	ld.param.u64 %d0, [out];
	cvt.u64.u32 %d3, %r9;
	add.u64 %d1, %d0, %d3;
	cvt.u64.u32 %d4, %r12;
	add.u64 %d2, %d0, %d4;
	add.u64 %d2, %d2, 1024;
	mov.u32 %r0, 0;
	mov.u32 %r1, 1;
	mov.u32 %r2, 3;
	mov.f32 %f1, 0f3F7FFFF0;
	mov.f32 %f2, 0f3F800000;
	mov.f32 %f3, 0f3C000000;
loop:`+l.body+`
	add.u32 %r0, %r0, 1;
	setp.lt.u32 %p0, %r0, 10000;
	@%p0 bra loop;`), "k")
			out := p.u32s(make([]uint32, 1024)...)
			p.params(out, 0)
			p.launch.SharedBytes = 4096
			rates(b, p, 1e-6*float64(turns*l.instructions), "Minst")
		})
	}
}
