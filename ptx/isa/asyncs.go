package isa

import (
	"slices"
	"strings"
)

// asyncs has asynchronous copies, barriers and products that only kernels of other
// compilers use.
var asyncs = slices.Concat([]Form{
	{Name: "CpAsyncCA", Op: "cp.async.ca.shared.global", Mods: []Mod{prefetchL2()}, Arch: SM80,
		Args:   []Arg{addr("dst", Shared), addr("src", Global), imm("bytes"), optional(in("srcBytes", U32))},
		Manual: "cp.async"},
	{Name: "CpAsyncWaitAll", Op: "cp.async.wait_all", Arch: SM80, Manual: "cp.async.wait_all"},
	{Name: "BulkStore", Op: "cp.async.bulk.global.shared::cta.bulk_group", Version: 80, Arch: SM90,
		Args: []Arg{addr("dst", Global), addr("src", Shared), in("bytes", U32)}, Manual: "cp.async.bulk"},
	{Name: "MbarrierArriveState", Op: "mbarrier.arrive.shared::cta.b64", Version: 78, Arch: SM80,
		Args: []Arg{out("state", B64), addr("bar", Shared)}, Manual: "mbarrier.arrive"},
	{Name: "MbarrierArriveExpectTxState", Op: "mbarrier.arrive.expect_tx.shared::cta.b64", Version: 80, Arch: SM90,
		Args: []Arg{out("state", B64), addr("bar", Shared), in("bytes", U32)}, Manual: "mbarrier.arrive"},
	{Name: "MbarrierArriveOrder", Op: "mbarrier.arrive.release.cta.shared::cta.b64", Version: 80, Arch: SM80,
		Args: []Arg{{Name: "state", Kind: Sink}, addr("bar", Shared)}, Manual: "mbarrier.arrive"},
	{Name: "MbarrierArriveOrderCluster", Op: "mbarrier.arrive.release.cluster", Mods: []Mod{one("space", ".shared::cta", ".shared::cluster"), fix(".b64")}, Version: 80, Arch: SM90,
		Args: []Arg{{Name: "state", Kind: Sink}, addrIn()}, Manual: "mbarrier.arrive"},
	{Name: "MbarrierArriveExpectTxOrder", Op: "mbarrier.arrive.expect_tx.release", Mods: []Mod{one("scope", ".cta", ".cluster"), one("space", ".shared::cta", ".shared::cluster"), fix(".b64")}, Version: 80, Arch: SM90,
		Args: []Arg{{Name: "state", Kind: Sink}, addrIn(), in("bytes", U32)}, Manual: "mbarrier.arrive"},
	{Name: "MbarrierTryWait", Op: "mbarrier.try_wait.shared::cta.b64", Version: 78, Arch: SM90,
		Args: []Arg{out("done", Pred), addr("bar", Shared), register(in("state", B64))}, Effects: Uniform, Manual: "mbarrier.try_wait"},
	{Name: "MbarrierTestWait", Op: "mbarrier.test_wait.shared::cta.b64", Version: 78, Arch: SM80,
		Args: []Arg{out("done", Pred), addr("bar", Shared), register(in("state", B64))}, Effects: Uniform, Manual: "mbarrier.test_wait"},
	{Name: "MbarrierTryWaitParityOrder", Op: "mbarrier.try_wait.parity.acquire", Mods: []Mod{one("scope", ".cta", ".cluster"), fix(".shared::cta.b64")}, Version: 80, Arch: SM90,
		Args: []Arg{out("done", Pred), addr("bar", Shared), in("parity", U32)}, Effects: Uniform, Manual: "mbarrier.try_wait"},
	tensormapReplace("TensormapReplaceAddress", in("value", B64), one("field", ".global_address")),
	tensormapReplace("TensormapReplaceRank", in("value", B32), one("field", ".rank")),
	tensormapReplace("TensormapReplaceStride", in("value", B64), one("field", ".global_stride"), imm("dimension")),
	tensormapReplace("TensormapReplaceDim", in("value", B32), one("field", ".box_dim", ".global_dim", ".element_stride"), imm("dimension")),
	tensormapReplace("TensormapReplaceMode", imm("value"), one("field", ".elemtype", ".interleave_layout", ".swizzle_mode", ".fill_mode")),
	{Name: "TensormapCopy", Op: "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release", Mods: []Mod{one("scope", ".gpu", ".cta", ".cluster", ".sys"), fix(".sync"), fix(".aligned")}, Version: 83, Arch: SM90,
		Args: []Arg{addr("dst", Global), addr("src", Shared), imm("mapBytes")}, Effects: Aligned, Manual: "tensormap.cp_fenceproxy"},
	{Name: "FenceTensormapAcquire", Op: "fence.proxy.tensormap::generic.acquire", Mods: []Mod{one("scope", ".gpu", ".cta", ".cluster", ".sys")}, Version: 83, Arch: SM90,
		Args: []Arg{addr("tensorMap", Generic), imm("mapBytes")}, Manual: "membar/fence"},
	{Name: "FenceTensormapRelease", Op: "fence.proxy.tensormap::generic.release", Mods: []Mod{one("scope", ".gpu", ".cta", ".cluster", ".sys")}, Version: 83, Arch: SM90, Manual: "membar/fence"},
}, wgmmas, shortShared(), products, wmmaForms(), sparse())

// wgmmas has the dense wgmma forms that only kernels of other compilers use.
var wgmmas = []Form{
	wgmmaRegisters("WgmmaBF16Registers", wgmmaForm("", ".bf16")),
	wgmmaRegisters("WgmmaF16Registers", wgmmaForm("", ".f16")),
	wgmmaTF32("WgmmaTF32"), wgmmaRegisters("WgmmaTF32Registers", wgmmaTF32("")),
	wgmmaFP8("WgmmaFP8"), wgmmaRegisters("WgmmaFP8Registers", wgmmaFP8("")),
	inHalves("WgmmaF16Halves", wgmmaForm("", ".f16")), wgmmaRegisters("WgmmaF16HalvesRegisters", inHalves("", wgmmaForm("", ".f16"))),
	inHalves("WgmmaFP8Halves", wgmmaFP8("")), wgmmaRegisters("WgmmaFP8HalvesRegisters", inHalves("", wgmmaFP8(""))),
	wgmmaInt8("WgmmaS8", ".s8", ".s8", 80), wgmmaRegisters("WgmmaS8Registers", wgmmaInt8("", ".s8", ".s8", 80)),
	wgmmaInt8("WgmmaU8", ".u8", ".u8", 80), wgmmaRegisters("WgmmaU8Registers", wgmmaInt8("", ".u8", ".u8", 80)),
	wgmmaInt8("WgmmaS8U8", ".s8", ".u8", 84), wgmmaRegisters("WgmmaS8U8Registers", wgmmaInt8("", ".s8", ".u8", 84)),
	wgmmaInt8("WgmmaU8S8", ".u8", ".s8", 84), wgmmaRegisters("WgmmaU8S8Registers", wgmmaInt8("", ".u8", ".s8", 84)),
}

// shortShared returns the mbarrier forms with .shared in place of .shared::cta.
func shortShared() (forms []Form) {
	for _, f := range barriers {
		long := map[string]string{
			"MbarrierInit": "mbarrier.init.shared.b64", "MbarrierInval": "mbarrier.inval.shared.b64",
			"MbarrierTryWaitParity": "mbarrier.try_wait.parity.shared.b64", "MbarrierTestWaitParity": "mbarrier.test_wait.parity.shared.b64",
		}
		if op := long[f.Name]; op != "" {
			f.Name, f.Op, f.Go = f.Name+"Shared", op, ""
			switch f.Name {
			case "MbarrierInitShared", "MbarrierInvalShared":
				f.Version = 70
			case "MbarrierTestWaitParityShared":
				f.Version = 71
			}
			forms = append(forms, f)
		}
	}
	return forms
}

// tensormapReplace returns the form that changes a field of a tensor map in
// memory. A field that exists for each dimension has the dimension's number as
// operand.
func tensormapReplace(name string, value Arg, field Mod, before ...Arg) Form {
	bits := fix(".b32")
	if value.Type == B64 {
		bits = fix(".b64")
	}
	return Form{Name: name, Op: "tensormap.replace.tile", Mods: []Mod{field, opt("space", ".global", ".shared::cta"), fix(".b1024"), bits}, Version: 83, Arch: SM90a,
		Args: append(append([]Arg{addrIn()}, before...), value), Manual: "tensormap.replace"}
}

// wgmmaRegisters returns form f with A in registers. A then has no transposition.
func wgmmaRegisters(name string, f Form) Form {
	args := []Arg{f.Args[0], register(Arg{Name: "a", Kind: Vec, Type: B32, Len: 4})}
	for _, a := range f.Args[2:] {
		if a.Name != "transA" {
			args = append(args, a)
		}
	}
	f.Name, f.Args = name, args
	return f
}

// inHalves returns form f with sums in FP16, two in each register.
func inHalves(name string, f Form) Form {
	f.Name, f.Mods, f.Args = name, slices.Clone(f.Mods), slices.Clone(f.Args)
	f.Mods[1], f.Args[0].Type = fix(".f16"), F16x2
	return f
}

// wgmmaTF32 returns the wgmma of TF32 elements with FP32 sums. Both operands are
// contiguous along k.
func wgmmaTF32(name string) Form {
	f := wgmmaForm(name, ".tf32")
	f.Mods[0], f.Args = wgmmaShapes(8, false), f.Args[:6]
	return f
}

func wgmmaFP8(name string) Form {
	f := wgmmaForm(name, "")
	f.Mods = []Mod{wgmmaShapes(32, false), fix(".f32"), one("a", ".e4m3", ".e5m2"), one("b", ".e4m3", ".e5m2")}
	f.Args = f.Args[:6]
	return f
}

// wgmmaInt8 returns the wgmma of 8-bit integers with 32-bit sums.
func wgmmaInt8(name, a, b string, version Version) Form {
	f := wgmmaForm(name, "")
	f.Mods = []Mod{wgmmaShapes(32, true), opt("satfinite", ".satfinite"), fix(".s32"), fix(a), fix(b)}
	f.Args, f.Version = f.Args[:4], version
	f.Args[0].Type = S32
	return f
}

// products has the forms of mma.sync.
var products = []Form{
	mmaForm("MmaF16", ".m16n8k16", ".f32", []string{".f16"}, 4, 2, SM80, 70),
	mmaForm("MmaBF16", ".m16n8k16", ".f32", []string{".bf16"}, 4, 2, SM80, 70),
	mmaForm("MmaF16K8", ".m16n8k8", ".f32", []string{".f16"}, 2, 1, SM80, 70),
	mmaForm("MmaBF16K8", ".m16n8k8", ".f32", []string{".bf16"}, 2, 1, SM80, 70),
	mmaForm("MmaTF32", ".m16n8k8", ".f32", []string{".tf32"}, 4, 2, SM80, 70),
	mmaForm("MmaTF32K4", ".m16n8k4", ".f32", []string{".tf32"}, 2, 1, SM80, 70),
	mmaForm("MmaF16Halves", ".m16n8k16", ".f16", []string{".f16"}, 4, 2, SM80, 70),
	mmaForm("MmaF16K8Halves", ".m16n8k8", ".f16", []string{".f16"}, 2, 1, SM80, 70),
	mmaForm("MmaFP8", ".m16n8k32", ".f32", []string{".e4m3", ".e5m2"}, 4, 2, SM90, 84),
	mmaForm("MmaFP8K16", ".m16n8k16", ".f32", []string{".e4m3", ".e5m2"}, 2, 1, SM90, 87),
	mmaForm("MmaFP8Halves", ".m16n8k32", ".f16", []string{".e4m3", ".e5m2"}, 4, 2, SM90, 87),
	mmaForm("MmaFP8K16Halves", ".m16n8k16", ".f16", []string{".e4m3", ".e5m2"}, 2, 1, SM90, 87),
	mmaForm("MmaInt8", ".m16n8k32", ".s32", []string{".s8", ".u8"}, 4, 2, SM80, 70),
	mmaForm("MmaInt8K16", ".m16n8k16", ".s32", []string{".s8", ".u8"}, 2, 1, SM80, 70),
	mmaForm("MmaInt8M8", ".m8n8k16", ".s32", []string{".s8", ".u8"}, 1, 1, SM80, 70),
	mmaForm("MmaInt4", ".m16n8k64", ".s32", []string{".s4", ".u4"}, 4, 2, SM80, 70),
	mmaForm("MmaInt4K32", ".m16n8k32", ".s32", []string{".s4", ".u4"}, 2, 1, SM80, 70),
	mmaForm("MmaInt4M8", ".m8n8k32", ".s32", []string{".s4", ".u4"}, 1, 1, SM80, 70),
	mmaBits("MmaBits", ".m16n8k256", 4, 2, ".xor", 70), mmaBits("MmaBitsAnd", ".m16n8k256", 4, 2, ".and", 71),
	mmaBits("MmaBitsK128", ".m16n8k128", 2, 1, ".xor", 70), mmaBits("MmaBitsK128And", ".m16n8k128", 2, 1, ".and", 71),
	mmaBits("MmaBitsM8", ".m8n8k128", 1, 1, ".xor", 70), mmaBits("MmaBitsM8And", ".m8n8k128", 1, 1, ".and", 71),
	mmaForm("MmaF64", ".m16n8k16", ".f64", []string{".f64"}, 8, 4, SM90, 78),
	mmaForm("MmaF64K8", ".m16n8k8", ".f64", []string{".f64"}, 4, 2, SM90, 78),
	mmaForm("MmaF64K4", ".m16n8k4", ".f64", []string{".f64"}, 2, 1, SM90, 78),
	mmaForm("MmaF64M8", ".m8n8k4", ".f64", []string{".f64"}, 1, 1, SM80, 70),
}

// mmaForm returns an mma.sync whose fragments of A and B have a and b registers.
func mmaForm(name, shape, sums string, elems []string, a, b int, arch Arch, version Version) Form {
	t, _ := TypeNamed(sums[1:])
	length, of := 4, B32
	switch {
	case t == F16: // two elements in each register
		t, length = F16x2, 2
	case t == F64:
		of = F64
	}
	if strings.HasPrefix(shape, ".m8") {
		length = 2
	}
	mods := []Mod{fixed("shape", shape), fix(".row"), fix(".col")}
	if sums == ".s32" {
		mods = append(mods, opt("satfinite", ".satfinite"))
	}
	return Form{Name: name, Op: "mma.sync.aligned", Mods: append(mods, fix(sums), one("a", elems...), one("b", elems...), fix(sums)), Version: version, Arch: arch,
		Args: []Arg{{Name: "d", Dir: Out, Kind: Vec, Type: t, Len: length}, register(Arg{Name: "a", Kind: Vec, Type: of, Len: a}),
			register(Arg{Name: "b", Kind: Vec, Type: of, Len: b}), register(Arg{Name: "c", Kind: Vec, Type: t, Len: length})},
		Effects: Aligned | Varies, Manual: "mma.sync"}
}

// mmaBits returns the mma.sync of single bits. Each sum counts the ones of A xor
// B, or of A and B, as op says.
func mmaBits(name, shape string, a, b int, op string, version Version) Form {
	f := mmaForm(name, shape, ".s32", []string{".b1"}, a, b, SM80, version)
	f.Mods = slices.DeleteFunc(f.Mods, func(m Mod) bool { return m.Name == "satfinite" })
	f.Mods = append(f.Mods, fix(op), fix(".popc"))
	return f
}
