package ptx_test

import (
	"context"
	"testing"

	"sonicmoe/ptx"
	"sonicmoe/ptx/ptxas"
)

func axpy() *ptx.Kernel {
	k := ptx.NewKernel("axpy")
	x, y := k.ParamPtr("x"), k.ParamPtr("y")
	alpha, n := k.ParamF32("alpha"), k.ParamU32("n")
	i := k.Special("%ctaid.x").Mad(k.Special("%ntid.x"), k.Special("%tid.x"))
	k.If(i.Lt(n), func() {
		dst := y.Index(i, 4)
		ptx.StGlobal(dst, ptx.LdGlobal[ptx.F32](x.Index(i, 4)).Fma(alpha, ptx.LdGlobal[ptx.F32](dst)))
	})
	return k
}

func TestAxpy(t *testing.T) {
	m, err := axpy().Build()
	if err != nil {
		t.Fatal(err)
	}
	txt := m.Print()
	t.Logf("%s", txt.Listing())
	m2, err := ptx.Parse(txt.PTX)
	if err != nil {
		t.Fatal(err)
	}
	if got := m2.Print(); string(got.PTX) != string(txt.PTX) {
		t.Fatalf("%s\n%s", txt.PTX, got.PTX)
	}
	if _, report, err := ptxas.Assemble(context.Background(), txt.PTX); err != nil {
		t.Fatal(err)
	} else {
		t.Log(report)
	}
}
