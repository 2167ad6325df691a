package ptx_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

// thisLine returns "ptx/file_test.go:NN" for a line `plus` lines after the caller's line.
func thisLine(plus int) string {
	_, _, line, _ := runtime.Caller(1)
	return fmt.Sprintf("ptx/verify_test.go:%d", line+plus)
}

// TestVerifierRules builds, for each rule of the verifier, a kernel that keeps the rule and one
// that breaks it. Field at is the Go line that the error must name.
func TestVerifierRules(t *testing.T) {
	type body = func(k *ptx.Kernel)
	var at string
	for _, c := range []struct {
		name      string
		good, bad body
		want      string
	}{
		{"setmaxnreg count",
			func(k *ptx.Kernel) { k.SetLaunchBounds(384, 1); k.SetMaxNReg(240, true) },
			func(k *ptx.Kernel) {
				k.SetLaunchBounds(384, 1)
				at = thisLine(1)
				k.SetMaxNReg(100, false)
			}, "setmaxnreg 100, must be a multiple of 8 from 24 to 256"},
		{"setmaxnreg launch bounds",
			func(k *ptx.Kernel) { k.SetLaunchBounds(384, 1); k.SetMaxNReg(40, false) },
			func(k *ptx.Kernel) { at = thisLine(0); k.SetMaxNReg(40, false) }, "setmaxnreg without .maxntid, .reqntid or .minnctapersm"},
		{"barrier number",
			func(k *ptx.Kernel) { k.BarSync(ptx.Uint(15)) },
			func(k *ptx.Kernel) { at = thisLine(0); k.BarSync(ptx.Uint(16)) }, "barrier 16, must be 0 to 15"},
		{"barrier threads",
			func(k *ptx.Kernel) { k.BarSync(ptx.Uint(1), ptx.Uint(64)) },
			func(k *ptx.Kernel) { at = thisLine(0); k.BarArrive(ptx.Uint(1), ptx.Uint(65)) }, "barrier of 65 threads"},
		{"cp.async bytes",
			func(k *ptx.Kernel) { k.CpAsyncCG(k.SharedBase(), k.ParamPtr("x"), 16) },
			func(k *ptx.Kernel) { at = thisLine(0); k.CpAsyncCG(k.SharedBase(), k.ParamPtr("x"), 8) }, "cp.async.cg of 8 bytes"},
		{"mbarrier count",
			func(k *ptx.Kernel) { k.MbarrierInit(k.SharedBase(), ptx.Uint(1)) },
			func(k *ptx.Kernel) { at = thisLine(0); k.MbarrierInit(k.SharedBase(), ptx.Uint(0)) }, "mbarrier count 0"},
		{"parity",
			func(k *ptx.Kernel) { k.MbarrierTryWaitParity(k.SharedBase(), ptx.Uint(1)) },
			func(k *ptx.Kernel) { at = thisLine(0); k.MbarrierTryWaitParity(k.SharedBase(), ptx.Uint(2)) }, "parity 2"},
		{"bulk bytes",
			func(k *ptx.Kernel) { s := k.SharedBase(); k.BulkLoad(s, k.ParamPtr("x"), ptx.Uint(32), s) },
			func(k *ptx.Kernel) {
				s := k.SharedBase()
				at = thisLine(1)
				k.BulkLoad(s, k.ParamPtr("x"), ptx.Uint(20), s)
			}, "bulk copy of 20 bytes"},
		{"modifiers that exist",
			func(k *ptx.Kernel) { k.ClusterArrive(".relaxed", ".aligned") },
			func(k *ptx.Kernel) { at = thisLine(0); k.ClusterArrive(".acquire") }, "does not take modifier .acquire"},
		{"modifiers that are needed",
			func(k *ptx.Kernel) { k.FenceAcqRel(".gpu") },
			func(k *ptx.Kernel) { at = thisLine(0); k.FenceAcqRel() }, "needs one of the modifiers [.cta .gpu .sys]"},
		{"modifiers that go together",
			func(k *ptx.Kernel) { ptx.LdGlobalVec[ptx.U64](k.ParamPtr("x"), 2) },
			func(k *ptx.Kernel) { at = thisLine(0); ptx.LdGlobalVec[ptx.U64](k.ParamPtr("x"), 4) }, ".v4 does not go with .u64"},
		{"vector widths",
			func(k *ptx.Kernel) { ptx.LdGlobalVec[ptx.U32](k.ParamPtr("x"), 4) },
			func(k *ptx.Kernel) { at = thisLine(0); ptx.LdGlobalVec[ptx.U32](k.ParamPtr("x"), 3) }, "does not take modifier .v3"},
		{"wgmma widths",
			func(k *ptx.Kernel) { k.Wgmma(k.Accumulators(128), ptx.Long(0), ptx.Long(0), ptx.False(), false, false) },
			func(k *ptx.Kernel) {
				at = thisLine(1)
				k.Wgmma(k.Accumulators(130), ptx.Long(0), ptx.Long(0), ptx.False(), false, false)
			}, "does not take modifier .m64n260k16"},
		{"two parameters of one name",
			func(k *ptx.Kernel) { k.ParamU32("n"); k.ParamU32("m") },
			func(k *ptx.Kernel) { k.ParamU32("n"); at = thisLine(0); k.ParamF32("n") }, "parameter n is declared twice"},
		{"a zero value",
			func(k *ptx.Kernel) { k.MbarrierInit(k.SharedBase(), ptx.Uint(3)) },
			func(k *ptx.Kernel) { at = thisLine(0); k.MbarrierInit(k.SharedBase(), ptx.U32{}) }, "takes a zero value"},
		{"a zero address",
			func(k *ptx.Kernel) { k.MbarrierInit(k.SharedBase(), ptx.Uint(3)) },
			func(k *ptx.Kernel) { at = thisLine(0); k.MbarrierInit(ptx.Shared{}, ptx.Uint(3)) }, "takes a zero value"},
		{"float constants that the GPU approximates",
			func(k *ptx.Kernel) { ptx.StGlobal(k.ParamPtr("x"), ptx.Materialize(k, ptx.Float(2)).Ex2Approx()) },
			func(k *ptx.Kernel) {
				at = thisLine(1)
				y := ptx.Float(2).Ex2Approx().Add(ptx.Float(1))
				ptx.StGlobal(k.ParamPtr("x"), y)
			}, "st.global takes ex2.approx of constants, which only the GPU computes"},
		{"division by a constant zero",
			func(k *ptx.Kernel) { ptx.StGlobal(k.ParamPtr("x"), ptx.Uint(4).DivI(2)) },
			func(k *ptx.Kernel) { at = thisLine(0); ptx.StGlobal(k.ParamPtr("x"), ptx.Uint(4).DivI(0)) }, "div of constants"},
		{"constants of 32 bits",
			func(k *ptx.Kernel) { k.ParamU32("n").AddI(1<<32 - 1) },
			func(k *ptx.Kernel) {
				at = thisLine(1)
				ptx.StGlobal(k.ParamPtr("x"), k.ParamU32("n").AddI(1<<32))
			}, "constant 4294967296 does not fit 32 bits"},
		{"constant global addresses",
			func(k *ptx.Kernel) { ptx.StGlobal(ptx.GlobalAt(k.ParamU64("x")), ptx.Uint(1)) },
			func(k *ptx.Kernel) {
				n := k.ParamU32("n")
				at = thisLine(1)
				ptx.StGlobal(ptx.GlobalAt(ptx.Long(64)), n)
			}, "a global address that is a constant"},
		{"names of registers",
			func(k *ptx.Kernel) { k.Named("row", func() { k.Laneid() }) },
			func(k *ptx.Kernel) { at = thisLine(0); k.Named("r", func() {}) }, `register name "r" must have at least two letters`},
		{"break in a loop",
			func(k *ptx.Kernel) { k.Loop(func() { k.BreakIf(ptx.True()) }) },
			func(k *ptx.Kernel) { at = thisLine(0); k.BreakIf(ptx.True()) }, "BreakIf is outside a loop"},
		{"guarded bodies",
			func(k *ptx.Kernel) { k.Guarded(k.ElectOne(), func() { k.BulkCommit() }) },
			func(k *ptx.Kernel) {
				p := k.ElectOne()
				at = thisLine(1)
				k.Guarded(p, func() { k.If(p, func() {}) })
			}, "bra is in a guarded body"},
		{"values of one kernel",
			func(k *ptx.Kernel) {},
			func(k *ptx.Kernel) {
				other := ptx.NewKernel("other")
				at = thisLine(1)
				k.ParamU32("n").Add(other.ParamU32("n"))
			},
			"takes a value of kernel other in kernel k"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := ptx.NewKernel("k")
			c.good(k)
			_, err := k.Build()
			require.NoError(t, err)

			k = ptx.NewKernel("k")
			c.bad(k)
			_, err = k.Build()
			require.Error(t, err)
			assert.Contains(t, err.Error(), c.want)
			assert.Contains(t, err.Error(), at)
		})
	}
}

// TestVerifierRulesOfText checks rules that kernels from the builder cannot break, on PTX text.
func TestVerifierRulesOfText(t *testing.T) {
	const head = ".version 8.0\n.target sm_90a\n.entry k(.param .u32 n) {\n.reg .b32 %r<4>; .reg .b64 %d;\n"
	const sparse = head + "mma.sp.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16 {%r0, %r1}, {%r0, %r1, %r2, %r3}, "
	for _, c := range []struct{ src, want string }{
		{head + "$a: bra $a;\n}", ""},
		{head + "bra $a;\n}", "line 5: no label $a"},
		{head + "$a:\n$a:\nret;\n}", "line 6: label $a is defined twice"},
		{head + "ld.param.u32 %r0, [n];\n}", ""},
		{head + "ld.param.u32 %r0, [m];\n}", "line 5: no parameter or variable m"},
		{".version 7.8\n.target sm_90\n.entry k() { wgmma.fence.sync.aligned; }", "wgmma.fence.sync.aligned needs .version 8.0, the module says 7.8"},
		{".version 8.0\n.target sm_90\n.entry k() { wgmma.fence.sync.aligned; }", "needs .target sm_90a, the module says sm_90"},
		{".version 7.3\n.target sm_80\n.entry k() { .reg .b64 %d; .reg .b32 %r;\nld.global.L2::128B.b32 %r, [%d]; }", "ld.global.L2::128B.b32 needs .version 7.4"},
		{".version 7.0\n.target sm_70\n.entry k() { .reg .b32 %r; mov.u32 %r, %cluster_ctarank; }", "needs .target sm_90"},
		{".version 8.0\n.target sm_90a\n.entry k() {}\n.entry k() {}", "kernel k is defined twice"},
		{head + ".shared .b8 n[4];\n}", "n is declared twice"},
		{head + ".shared .b8 k[4];\n}", ""},
		{".version 8.0\n.target sm_90a\n.extern .shared .b8 k[];\n.entry k() {}", "variable k has the name of a kernel or function"},
		{sparse + "{%r0, %r1, %r2, %r3}, {%r0, %r1}, %r0, 1;\n}", ""},
		{sparse + "{%r0, %r1, %r2, %r3}, {%r0, %r1}, %r0, 2;\n}", "mma.sp.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16: selector 2, must be 0 to 1"},
		{head + "mma.sp.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%r0, %r1, %r2, %r3}, {%r0, %r1, %r2, %r3}, {%r0, %r1, %r2, %r3}, {%r0, %r1, %r2, %r3}, %r0, 1;\n}", "selector 1, must be 0"},
		{head + ".shared .b8 x[232448];\n.shared .b8 y[1];\n}", "232449 bytes of shared variables"},
		{head + "atom.global.add.b32 %r0, [%d], %r1;\n}", ".add does not go with .b32"},
	} {
		m, err := ptx.Parse([]byte(c.src))
		require.NoError(t, err, c.src)
		if err := m.Verify(); c.want == "" {
			assert.NoError(t, err, c.src)
		} else if assert.Error(t, err, c.src) {
			assert.Contains(t, err.Error(), c.want)
		}
	}
}

func TestBuildNamesTheLowestNeed(t *testing.T) {
	for _, c := range []struct {
		body    func(k *ptx.Kernel)
		version isa.Version
		arch    isa.Arch
	}{
		{func(k *ptx.Kernel) { ptx.StGlobal(k.ParamPtr("x"), ptx.Uint(1)) }, 70, isa.SM70},
		{func(k *ptx.Kernel) { ptx.LdGlobal[ptx.U32](k.ParamPtr("x"), ".L1::no_allocate") }, 74, isa.SM70},
		{func(k *ptx.Kernel) { k.ClusterCtarank() }, 78, isa.SM90},
		{func(k *ptx.Kernel) { k.SetCluster(2) }, 78, isa.SM90},
		{func(k *ptx.Kernel) { k.WgmmaFence() }, 80, isa.SM90a},
	} {
		k := ptx.NewKernel("k")
		c.body(k)
		m, err := k.Build()
		require.NoError(t, err)
		assert.Equal(t, c.version, m.Version)
		assert.Equal(t, c.arch, m.Arch)
	}
}

// TestDivergence checks that an instruction that needs the whole warp is accepted only where the
// whole warp runs.
func TestDivergence(t *testing.T) {
	var at string
	sync := func(k *ptx.Kernel) { at = thisLine(0); k.BarSync(ptx.Uint(0)) }
	lane := func(k *ptx.Kernel) ptx.Pred { return k.TidX().LtI(5) }
	warp := func(k *ptx.Kernel) ptx.Pred { return k.TidX().ShrI(5).EqI(0) }
	for _, c := range []struct {
		name string
		body func(k *ptx.Kernel)
		ok   bool
	}{
		{"uniform if", func(k *ptx.Kernel) { k.If(warp(k), func() { sync(k) }) }, true},
		{"division by 32 is the warp", func(k *ptx.Kernel) { k.If(k.TidX().DivI(32).EqI(0), func() { sync(k) }) }, true},
		{"Warp", func(k *ptx.Kernel) { k.If(k.Warp().EqI(0), func() { sync(k) }) }, true},
		{"Warpgroup", func(k *ptx.Kernel) { k.If(k.Warpgroup().EqI(1), func() { sync(k) }) }, true},
		{"Lane", func(k *ptx.Kernel) { k.If(k.Lane().EqI(0), func() { sync(k) }) }, false},
		{"ThreadInWarpgroup", func(k *ptx.Kernel) { k.If(k.ThreadInWarpgroup().EqI(0), func() { sync(k) }) }, false},
		{"half warps", func(k *ptx.Kernel) { k.If(k.TidX().ShrI(4).EqI(0), func() { sync(k) }) }, false},
		{"a register named tid", func(k *ptx.Kernel) {
			k.Named("tid", func() { k.If(k.Laneid().ShrI(5).EqI(0), func() { sync(k) }) })
		}, false},
		{"parameter", func(k *ptx.Kernel) { k.If(k.ParamU32("n").EqI(0), func() { sync(k) }) }, true},
		{"CTA", func(k *ptx.Kernel) { k.If(k.CtaidX().EqI(0), func() { sync(k) }) }, true},
		{"lane if", func(k *ptx.Kernel) { k.If(lane(k), func() { sync(k) }) }, false},
		{"lane else", func(k *ptx.Kernel) { k.IfElse(lane(k), func() {}, func() { sync(k) }) }, false},
		{"after a lane if", func(k *ptx.Kernel) { k.If(lane(k), func() {}); sync(k) }, true},
		{"guarded by lanes", func(k *ptx.Kernel) { k.Guarded(lane(k), func() { sync(k) }) }, false},
		{"guarded by warps", func(k *ptx.Kernel) { k.Guarded(warp(k), func() { sync(k) }) }, true},
		{"one elected lane", func(k *ptx.Kernel) { k.If(k.ElectOne(), func() { sync(k) }) }, false},
		{"any lane", func(k *ptx.Kernel) { k.If(k.Any(lane(k)), func() { sync(k) }) }, true},
		{"lane 0's value", func(k *ptx.Kernel) {
			k.If(k.TidX().ShflIdx(ptx.Uint(0)).EqI(0), func() { sync(k) })
		}, true},
		{"every lane's value", func(k *ptx.Kernel) { k.If(k.TidX().ShflXor(1).EqI(0), func() { sync(k) }) }, false},
		{"atomic result", func(k *ptx.Kernel) {
			k.If(k.AtomGlobalAdd(k.ParamPtr("x"), ptx.Uint(1)).EqI(0), func() { sync(k) })
		}, false},
		{"loaded from one place", func(k *ptx.Kernel) { k.If(ptx.LdGlobal[ptx.U32](k.ParamPtr("x")).EqI(0), func() { sync(k) }) }, true},
		{"loaded from many places", func(k *ptx.Kernel) {
			k.If(ptx.LdGlobal[ptx.U32](k.ParamPtr("x").Index(k.TidX(), 4)).EqI(0), func() { sync(k) })
		}, false},
		{"uniform for", func(k *ptx.Kernel) {
			k.For(ptx.Uint(0), k.ParamU32("n"), ptx.Uint(1), func(ptx.U32) { sync(k) })
		}, true},
		{"lane for", func(k *ptx.Kernel) {
			k.For(k.Laneid(), k.ParamU32("n"), ptx.Uint(32), func(ptx.U32) { sync(k) })
		}, false},
		{"before a lane's break", func(k *ptx.Kernel) {
			k.Loop(func() { sync(k); k.BreakIf(lane(k)) })
		}, false},
		{"after a loop that lanes leave", func(k *ptx.Kernel) { k.Loop(func() { k.BreakIf(lane(k)) }); sync(k) }, true},
		{"after an exit of lanes", func(k *ptx.Kernel) { k.ExitIf(lane(k)); sync(k) }, false},
		{"after an exit of warps", func(k *ptx.Kernel) { k.ExitIf(warp(k)); sync(k) }, true},
		{"how often lanes went around", func(k *ptx.Kernel) {
			n := ptx.NewVar(k, ptx.Uint(0))
			k.Loop(func() { k.BreakIf(lane(k)); n.Set(n.Get().AddI(1)) })
			k.If(n.Get().EqI(3), func() { sync(k) })
		}, false},
		{"a variable set by some lanes", func(k *ptx.Kernel) {
			n := ptx.NewVar(k, ptx.Uint(0))
			k.If(lane(k), func() { n.Set(ptx.Uint(1)) })
			k.If(n.Get().EqI(1), func() { sync(k) })
		}, false},
		{"a variable that varies from the second pass on", func(k *ptx.Kernel) {
			n := ptx.NewVar(k, ptx.Uint(0))
			k.For(ptx.Uint(0), ptx.Uint(4), ptx.Uint(1), func(ptx.U32) {
				k.If(n.Get().EqI(0), func() { sync(k) })
				n.Set(k.Laneid())
			})
		}, false},
		{"cluster barrier that need not be aligned", func(k *ptx.Kernel) { k.If(lane(k), func() { k.ClusterArrive() }) }, true},
		{"cluster barrier that is aligned", func(k *ptx.Kernel) {
			k.If(lane(k), func() { at = thisLine(0); k.ClusterArrive(".aligned") })
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := ptx.NewKernel("k")
			c.body(k)
			_, err := k.Build()
			if c.ok {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			assert.Contains(t, err.Error(), "needs the whole warp")
			assert.Contains(t, err.Error(), at)
		})
	}
}

// TestTensorMapModes checks the range of values of each field of a tensor map.
func TestTensorMapModes(t *testing.T) {
	for field, most := range map[string]int{".elemtype": 15, ".interleave_layout": 2, ".swizzle_mode": 3, ".fill_mode": 1} {
		for value := range most + 2 {
			m, err := ptx.Parse(fmt.Appendf(nil, ".version 8.3\n.target sm_90a\n.entry k(.param .u64 m) {\n.reg .b64 %%d;\nld.param.u64 %%d, [m];\ntensormap.replace.tile%s.global.b1024.b32 [%%d], %d;\nret;\n}\n", field, value))
			require.NoError(t, err)
			if err = m.Verify(); value <= most {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, fmt.Sprintf("line 6: tensormap.replace%s %d, must be 0 to %d", field, value, most))
			}
		}
	}
}
