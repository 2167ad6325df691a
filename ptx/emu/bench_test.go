package emu

import "testing"

func BenchmarkPipeline(b *testing.B) {
	g := gemm{n: 256, stages: 3}
	p := g.build(b)
	const steps = 16
	g.arguments(p, steps)
	for b.Loop() {
		if err := p.run(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*steps*4), "us/wgmma")
}

func BenchmarkInstructions(b *testing.B) {
	const loops = 10000
	p := assemble(b, body(`
	mov.u32 %r0, 0;
	mov.u32 %r1, 1;
	mov.f32 %r2, 0f3F800000;
loop:
	mad.lo.u32 %r1, %r1, 1664525, 1013904223;
	fma.rn.f32 %r2, %r2, %r2, %r1;
	xor.b32 %r3, %r1, %r2;
	shl.b32 %r4, %r3, 3;
	add.u32 %r5, %r4, %r1;
	add.u32 %r0, %r0, 1;
	setp.lt.u32 %p0, %r0, 10000;
	@%p0 bra loop;`), "k")
	p.params(uint64(0), 0)
	for b.Loop() {
		if err := p.run(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*loops*8), "ns/instruction")
}
