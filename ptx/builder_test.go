package ptx_test

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
	"sonicmoe/ptx"
	"sonicmoe/ptx/ptxas"
)

// text builds a kernel and returns the text of its instructions, without declarations and without
// the final ret.
func text(t *testing.T, body func(k *ptx.Kernel)) string {
	t.Helper()
	k := ptx.NewKernel("k")
	body(k)
	m, err := k.Build()
	require.NoError(t, err)
	var out []string
	for _, line := range strings.Split(string(m.Print().PTX), "\n") {
		if strings.HasPrefix(line, "$") || strings.HasPrefix(line, "\t") && !strings.HasPrefix(line, "\t.") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out[:len(out)-1], "\n")
}

func lines(l ...string) string { return strings.Join(l, "\n") }

func TestShapes(t *testing.T) {
	for _, c := range []struct {
		name string
		body func(k *ptx.Kernel)
		want string
	}{
		{"If", func(k *ptx.Kernel) {
			k.If(k.Laneid().LtI(4), func() { k.GridDepWait() })
		}, lines(
			"mov.u32 %r0, %laneid;",
			"setp.lt.u32 %p0, %r0, 4;",
			"@!%p0 bra $else0;",
			"griddepcontrol.wait;",
			"$else0:")},
		{"IfElse", func(k *ptx.Kernel) {
			k.IfElse(k.Laneid().EqI(0).Negated(), func() { k.BulkCommit() }, func() { k.GridDepWait() })
		}, lines(
			"mov.u32 %r0, %laneid;",
			"setp.eq.u32 %p0, %r0, 0;",
			"@%p0 bra $else0;",
			"cp.async.bulk.commit_group;",
			"bra $endif0;",
			"$else0:",
			"griddepcontrol.wait;",
			"$endif0:")},
		{"If of a constant", func(k *ptx.Kernel) {
			k.If(ptx.True(), func() { k.GridDepWait() })
			k.IfElse(ptx.Uint(1).EqI(2), func() { k.BulkCommit() }, func() { k.GridDepLaunch() })
		}, lines("griddepcontrol.wait;", "griddepcontrol.launch_dependents;")},
		{"For", func(k *ptx.Kernel) {
			k.For(ptx.Uint(0), k.ParamU32("n"), ptx.Uint(2), func(i ptx.U32) { k.BarSync(i) })
		}, lines(
			"ld.param.u32 %r0, [n];",
			"mov.u32 %r1, 0;",
			"$loop0:",
			"setp.ge.u32 %p0, %r1, %r0;",
			"@%p0 bra $end0;",
			"bar.sync %r1;",
			"add.u32 %r2, %r1, 2;",
			"mov.u32 %r1, %r2;",
			"bra $loop0;",
			"$end0:")},
		{"Loop in a loop", func(k *ptx.Kernel) {
			n := k.ParamU32("n")
			k.Loop(func() {
				k.Loop(func() { k.BreakIf(n.EqI(1)) })
				k.BreakIf(n.EqI(2))
			})
		}, lines(
			"ld.param.u32 %r0, [n];",
			"$loop0:",
			"$loop1:",
			"setp.eq.u32 %p0, %r0, 1;",
			"@%p0 bra $end1;",
			"bra $loop1;",
			"$end1:",
			"setp.eq.u32 %p1, %r0, 2;",
			"@%p1 bra $end0;",
			"bra $loop0;",
			"$end0:")},
		{"Guarded", func(k *ptx.Kernel) {
			p := k.ElectOne()
			k.Guarded(p.Negated(), func() { k.BulkCommit(); k.BulkWait(0, ".read") })
			k.Guarded(ptx.False(), func() { k.Trap() })
		}, lines(
			"elect.sync _|%p0, 4294967295;",
			"@!%p0 cp.async.bulk.commit_group;",
			"@!%p0 cp.async.bulk.wait_group.read 0;")},
		{"ExitIf", func(k *ptx.Kernel) {
			k.ExitIf(k.Laneid().EqI(0).Negated())
			k.ExitIf(ptx.False())
			k.ExitIf(ptx.True())
		}, lines(
			"mov.u32 %r0, %laneid;",
			"setp.eq.u32 %p0, %r0, 0;",
			"@!%p0 exit;",
			"exit;")},
		{"Var", func(k *ptx.Kernel) {
			x := ptx.NewVar(k, ptx.Float(1))
			old := x.Copy()
			x.Set(x.Get().Add(old))
			p := ptx.NewVar(k, ptx.True())
			p.Set(p.Get().Negated())
			p.Set(ptx.False())
			d := ptx.NewVar(k, ptx.Int(-1))
			d.Set(d.Get().SubI(2))
		}, lines(
			"mov.f32 %r0, 0f3F800000;",
			"mov.f32 %r1, %r0;",
			"add.rn.f32 %r2, %r0, %r1;",
			"mov.f32 %r0, %r2;",
			"setp.eq.u32 %p0, 0, 0;",
			"not.pred %p0, %p0;",
			"setp.ne.u32 %p0, 0, 0;",
			"mov.b32 %r3, -1;",
			"sub.s32 %r4, %r3, 2;",
			"mov.b32 %r3, %r4;")},
		{"Select", func(k *ptx.Kernel) {
			n := k.ParamU32("n")
			p, q := n.EqI(0), n.EqI(1)
			ptx.Select(p, n, ptx.Uint(3))
			ptx.Select(p.Negated(), n, ptx.Uint(3))
			ptx.Select(ptx.True(), n, ptx.Uint(3))
			ptx.Select(p, ptx.Long(1), ptx.Long(2))
			ptx.Select(p, ptx.Float(1), ptx.Float(2))
			ptx.Select(p, ptx.True(), q)
		}, lines(
			"ld.param.u32 %r0, [n];",
			"setp.eq.u32 %p0, %r0, 0;",
			"setp.eq.u32 %p1, %r0, 1;",
			"selp.b32 %r1, %r0, 3, %p0;",
			"selp.b32 %r2, 3, %r0, %p0;",
			"selp.b64 %d0, 1, 2, %p0;",
			"selp.f32 %r3, 0f3F800000, 0f40000000, %p0;",
			"not.pred %p2, %p0;",
			"and.pred %p3, %p2, %p1;",
			"or.pred %p4, %p0, %p3;")},
		{"names", func(k *ptx.Kernel) {
			k.Named("row", func() {
				a := k.Laneid()
				k.Named("slot", func() { a.AddI(1) })
				a.AddI(2).U64()
				a.EqI(3)
			})
			k.TidX()
		}, lines(
			"mov.u32 %row0, %laneid;",
			"add.u32 %slot0, %row0, 1;",
			"add.u32 %row1, %row0, 2;",
			"cvt.u64.u32 %d0, %row1;", // row is the prefix of a register, so the name of its copy begins with another letter
			"setp.eq.u32 %p0, %row0, 3;",
			"mov.u32 %tid0, %tid.x;")},
		{"thread indices", func(k *ptx.Kernel) {
			k.Lane()
			k.Warp()
			k.Warpgroup()
			k.ThreadInWarpgroup()
			k.Lane().AddI(1)
			k.Warpgroup().AddI(1)
		}, lines(
			"mov.u32 %tid0, %tid.x;",
			"and.b32 %r0, %tid0, 31;",
			"shr.u32 %r1, %tid0, 5;",
			"shr.u32 %r2, %tid0, 7;",
			"and.b32 %r3, %tid0, 127;",
			"add.u32 %r4, %r0, 1;",
			"add.u32 %r5, %r2, 1;")},
		{"thread index from the kernel's own %tid.x", func(k *ptx.Kernel) {
			k.TidX()
			k.Named("row", func() { k.Lane().AddI(2) })
			k.TidX()
		}, lines(
			"mov.u32 %tid0, %tid.x;",
			"and.b32 %r0, %tid0, 31;",
			"add.u32 %row0, %r0, 2;",
			"mov.u32 %tid1, %tid.x;")},
		{"thread index after a body that computed it", func(k *ptx.Kernel) {
			k.IfElse(k.Laneid().EqI(0),
				func() { k.Range(ptx.Uint(2), func(ptx.U32) { k.Lane(); k.Lane() }) },
				func() { k.Warp() })
			k.Guarded(k.Laneid().EqI(1), func() { k.Lane().AddI(1) })
			k.If(k.Laneid().EqI(2), func() { k.Lane().AddI(2) })
		}, lines(
			"mov.u32 %r0, %laneid;",
			"setp.eq.u32 %p0, %r0, 0;",
			"@!%p0 bra $else0;",
			"mov.u32 %r1, 0;",
			"$loop0:",
			"setp.ge.u32 %p1, %r1, 2;",
			"@%p1 bra $end0;",
			"mov.u32 %tid0, %tid.x;",
			"and.b32 %r2, %tid0, 31;",
			"add.u32 %r3, %r1, 1;",
			"mov.u32 %r1, %r3;",
			"bra $loop0;",
			"$end0:",
			"bra $endif0;",
			"$else0:",
			"mov.u32 %tid1, %tid.x;",
			"shr.u32 %r4, %tid1, 5;",
			"$endif0:",
			"mov.u32 %r5, %laneid;",
			"setp.eq.u32 %p2, %r5, 1;",
			"mov.u32 %tid2, %tid.x;", // outside the guarded body, because later instructions read it too
			"and.b32 %r6, %tid2, 31;",
			"@%p2 add.u32 %r7, %r6, 1;",
			"mov.u32 %r8, %laneid;",
			"setp.eq.u32 %p3, %r8, 2;",
			"@!%p3 bra $else1;",
			"add.u32 %r9, %r6, 2;",
			"$else1:")},
		{"stmatrix", func(k *ptx.Kernel) {
			k.Stmatrix(k.SharedBase().At(16), ptx.Uint(7))
		}, lines(
			"mov.u32 %r0, smem;",
			"mov.u32 %r1, 7;",
			"stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r0+16], {%r1};")},
		{"stmatrix, transposed", func(k *ptx.Kernel) {
			w := k.Laneid()
			k.StmatrixTrans(k.SharedBase(), w, w)
		}, lines(
			"mov.u32 %r0, %laneid;",
			"mov.u32 %r1, smem;",
			"stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r1], {%r0, %r0};")},
		{"acquire and release", func(k *ptx.Kernel) {
			x := ptx.GlobalAt(k.Laneid().U64()).At(8)
			ptx.StGlobalRelease(x, ptx.LdGlobalAcquire(x).AddI(1))
		}, lines(
			"mov.u32 %r0, %laneid;",
			"cvt.u64.u32 %d0, %r0;",
			"ld.acquire.gpu.global.u32 %r1, [%d0+8];",
			"add.u32 %r2, %r1, 1;",
			"st.release.gpu.global.u32 [%d0+8], %r2;")},
		{"a value set again", func(k *ptx.Kernel) {
			x := k.Laneid()
			ptx.VarOf(x).Set(x.AddI(1))
		}, lines(
			"mov.u32 %r0, %laneid;",
			"add.u32 %r1, %r0, 1;",
			"mov.u32 %r0, %r1;")},
	} {
		t.Run(c.name, func(t *testing.T) { assert.Equal(t, c.want, text(t, c.body)) })
	}
}

// TestConstantsAssemble passes constants to every instruction that accepts them. The assembler must
// accept the kernel.
func TestConstantsAssemble(t *testing.T) {
	k := ptx.NewKernel("constants")
	out, s, n := k.ParamPtr("out"), k.SharedBase(), k.ParamU32("n")
	p := ptx.NewVar(k, ptx.True())
	p.Set(ptx.False())
	h := ptx.Materialize(k, ptx.Uint(3).B16())
	ptx.StGlobal(out, ptx.Uint(1), ptx.Uint(2), ptx.Uint(3), n)
	ptx.StGlobal(out.At(16), ptx.Float(1), ptx.Float(2))
	ptx.StGlobal(out.At(24), ptx.Long(1<<63))
	ptx.StGlobal(out.At(32), ptx.Int(-5))
	ptx.StShared(s, h)
	ptx.StShared(s.At(4), k.PackBF16(ptx.Float(1), ptx.Materialize(k, ptx.Float(2))))
	ptx.StShared(s.At(8), ptx.Select(p.Get().Negated(), ptx.Uint(1), ptx.Uint(2)))
	ptx.StShared(s.At(12), k.VoteBallot(p.Get().Negated(), ptx.Uint(ptx.FullMask)))
	ptx.StShared(s.At(16), h.F32(), ptx.Uint(5).B16().F32())
	k.Stmatrix(s, ptx.Uint(1), n)
	k.Wgmma(k.Accumulators(4), ptx.Long(1), ptx.Long(2), p.Get().Negated(), false, true)
	k.WgmmaFence()
	k.If(k.Any(p.Get().Negated()), func() { ptx.StShared(s, n.Mad(ptx.Uint(3), ptx.Uint(4))) })
	m, err := k.Build()
	require.NoError(t, err)
	outside.Ptxas(t)
	_, report, err := ptxas.Assemble(t.Context(), m.Print().PTX)
	require.NoError(t, err, report)
}

// TestAccumulatorsAreZero checks that accumulators have a value before a product: assemblers before
// CUDA 12.9 wait after each wgmma if they have none.
func TestAccumulatorsAreZero(t *testing.T) {
	k := ptx.NewKernel("k")
	k.Wgmma(k.Accumulators(4), ptx.Long(1), ptx.Long(2), ptx.False(), false, false)
	m, err := k.Build()
	require.NoError(t, err)
	for i := range 4 {
		assert.Regexp(t, fmt.Sprintf(`(?s)mov\.f32 %%acc%d, 0f00000000;.*wgmma\.mma_async`, i), string(m.Print().PTX))
	}
}

func TestTextIsDeterministic(t *testing.T) {
	build := func() string {
		m, err := longKernel().Build()
		if err != nil {
			return err.Error()
		}
		return string(m.Print().PTX)
	}
	want := build()
	var wg sync.WaitGroup
	got := make([]string, 4)
	for i := range got {
		wg.Go(func() { got[i] = build() })
	}
	wg.Wait()
	for _, g := range got {
		require.Equal(t, want, g)
	}
}

func TestPositions(t *testing.T) {
	_, _, base, _ := runtime.Caller(0)
	helper := func(n ptx.U32) ptx.U32 { return n.AddI(1) } // line base + 1
	k := ptx.NewKernel("k")
	n := k.ParamU32("n")                                                              // line base + 3
	k.For(ptx.Uint(0), n, ptx.Uint(1), func(i ptx.U32) { k.BarSync(helper(i)) })      // line base + 4
	ptx.StGlobal(ptx.GlobalAt(ptx.Materialize(k, ptx.Long(4096))), ptx.Uint(1), n, n) // line base + 5
	_, err := k.Build()
	require.ErrorContains(t, err, "builder_test.go:"+strconv.Itoa(base+5)) // there is no vector of 3 values

	k = ptx.NewKernel("k")
	n = k.ParamU32("n") // line base + 10
	k.BarSync(helper(n))
	m, err := k.Build() // line base + 12
	require.NoError(t, err)
	txt := m.Print()
	want := map[string][]int{"ld.param": {base + 10}, "add.u32": {base + 1, base + 11}, "bar.sync": {base + 11}, "ret": {base + 12}}
	for i, line := range strings.Split(string(txt.PTX), "\n") {
		pos := txt.Pos(i + 1)
		found := false
		for op, at := range want {
			if strings.HasPrefix(line, "\t"+op) {
				found = true
				require.GreaterOrEqual(t, len(pos), len(at), line)
				for j := range at {
					assert.Equal(t, "ptx/builder_test.go", pos[j].File)
					assert.Equal(t, at[j], pos[j].Line, line)
				}
			}
		}
		assert.Equal(t, found, len(pos) > 0, line)
	}
	assert.Empty(t, txt.Pos(-1))
	assert.Empty(t, txt.Pos(1<<20))
	assert.Contains(t, string(txt.Listing()), "\tbar.sync %r1;"+strings.Repeat(" ", 60-len("\tbar.sync %r1;"))+
		" // ptx/builder_test.go:"+strconv.Itoa(base+11)+"\n")
}

func TestParametersAreLaidOutAsTheAssemblerDoes(t *testing.T) {
	k := ptx.NewKernel("k")
	k.ParamU32("a")
	k.ParamTensorMap("map")
	k.ParamF32("b")
	k.ParamU64("c")
	m, err := k.Build()
	require.NoError(t, err)
	e := m.Entry("k")
	for _, c := range []struct {
		name   string
		offset int
	}{{"a", 0}, {"map", 112}, {"b", 240}, {"c", 248}} {
		p, ok := e.Param(c.name)
		require.True(t, ok)
		assert.Equal(t, c.offset, p.Offset, c.name)
	}
	assert.Equal(t, 256, e.ParamBytes())
	parsed, err := ptx.Parse(m.Print().PTX)
	require.NoError(t, err)
	for i, p := range parsed.Entries[0].Params {
		assert.Equal(t, e.Params[i].Offset, p.Offset)
	}
	assert.Nil(t, m.Entry("other"))
	_, ok := e.Param("other")
	assert.False(t, ok)
}

func TestErrorsAreAllReported(t *testing.T) {
	k := ptx.NewKernel("k")
	k.BarSync(ptx.U32{})
	k.Errorf("tile of %d rows", 7)
	_, err := k.Build()
	for _, want := range []string{"kernel k", "zero value", "tile of 7 rows"} {
		assert.ErrorContains(t, err, want)
	}
}

// TestThreadIndexIsReadOnly checks that setting a thread index is an error, because all readers of
// the index share one register.
func TestThreadIndexIsReadOnly(t *testing.T) {
	k := ptx.NewKernel("k")
	ptx.VarOf(k.Lane()).Set(ptx.Uint(1))
	_, err := k.Build()
	require.ErrorContains(t, err, "VarOf of a thread index")
	assert.ErrorContains(t, err, "builder_test.go:")

	k = ptx.NewKernel("k")
	lane := k.Lane()
	ptx.NewVar(k, lane).Set(ptx.Uint(1))
	ptx.VarOf(lane.AddI(1)).Set(ptx.Uint(1))
	_, err = k.Build()
	require.NoError(t, err)
}

func TestStoreWithoutAKernelSaysSo(t *testing.T) {
	assert.PanicsWithValue(t, "ptx: st.shared of constants to an address without a register: Materialize the address",
		func() { ptx.StShared(ptx.SharedAt(ptx.Uint(8)), ptx.Uint(1)) })
}
