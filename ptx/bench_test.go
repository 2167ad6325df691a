package ptx_test

import (
	"testing"

	"sonicmoe/ptx"
)

// longKernel builds a kernel of about 2000 instructions, as many as the largest kernels of a layer
// have.
func longKernel() *ptx.Kernel {
	k := ptx.NewKernel("long")
	k.SetLaunchBounds(384, 1)
	x := k.ParamPtr("x")
	smem := k.SharedBase()
	tid := k.TidX()
	for i := range 200 {
		row := tid.ShrI(3).AddI(i).AndI(127)
		a := ptx.LdGlobal[ptx.F32](x.Index(row, 4))
		b := ptx.LdShared[ptx.F32](smem.Plus(row.ShlI(2)))
		k.If(row.LtI(64), func() {
			ptx.StGlobal(x.At(4*i), a.Fma(b, ptx.Float(2)), a.Add(b))
		})
	}
	return k
}

// BenchmarkBuildAndPrint measures building, verifying and printing a kernel. The
// target is 1.5 us for each instruction.
func BenchmarkBuildAndPrint(b *testing.B) {
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		m, err := longKernel().Build()
		if err != nil {
			b.Fatal(err)
		}
		m.Print()
		n = len(m.Entries[0].Body)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/inst")
}

func BenchmarkParse(b *testing.B) {
	m, err := longKernel().Build()
	if err != nil {
		b.Fatal(err)
	}
	text := m.Print().PTX
	for b.Loop() {
		if _, err := ptx.Parse(text); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(m.Entries[0].Body)), "ns/inst")
}
