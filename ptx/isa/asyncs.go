package isa

import (
	"slices"
	"strings"
)

// asyncs has asynchronous copies, barriers and matrix products that only kernels of other compilers
// use.
var asyncs = slices.Concat([]Form{
	{Name: "CpAsyncCA", Op: "cp.async.ca.shared.global", Mods: []Mod{prefetchL2()}, Arch: SM80,
		Args:   []Arg{addr("dst", Shared), addr("src", Global), imm("bytes"), optional(in("srcBytes", U32))},
		Manual: "cp.async"},
	{Name: "CpAsyncWaitAll", Op: "cp.async.wait_all", Arch: SM80, Manual: "cp.async.wait_all"},
	{Name: "CpAsyncMbarrierArrive", Op: "cp.async.mbarrier.arrive", Mods: []Mod{one("space", ".shared", ".shared::cta"), fix(".b64")}, Arch: SM80,
		Args: []Arg{addr("bar", Shared)}, Manual: "cp.async.mbarrier.arrive"},
	{Name: "CpAsyncMbarrierArriveNoIncShared", Op: "cp.async.mbarrier.arrive.noinc.shared.b64", Arch: SM80,
		Args: []Arg{addr("bar", Shared)}, Manual: "cp.async.mbarrier.arrive"},
	tmaLoad("TMALoadCTA", ".shared::cta", 86, SM90),
	{Name: "BulkLoadHint", Op: "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint", Version: 80, Arch: SM90,
		Args: []Arg{addr("dst", Shared), addr("src", Global), in("bytes", U32), addr("bar", Shared), policy()}, Manual: "cp.async.bulk"},
	{Name: "BulkLoadCTA", Op: "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes", Mods: []Mod{hint()}, Version: 86, Arch: SM90,
		Args: []Arg{addr("dst", Shared), addr("src", Global), in("bytes", U32), addr("bar", Shared), hinted()}, Manual: "cp.async.bulk"},
	{Name: "BulkStore", Op: "cp.async.bulk.global.shared::cta.bulk_group", Mods: []Mod{hint()}, Version: 80, Arch: SM90,
		Args: []Arg{addr("dst", Global), addr("src", Shared), in("bytes", U32), hinted()}, Manual: "cp.async.bulk"},
	{Name: "TMAReduce", Op: "cp.reduce.async.bulk.tensor", Mods: []Mod{dims(), fix(".global"), fix(".shared::cta"), one("op", ".add", ".min", ".max", ".inc", ".dec", ".and", ".or", ".xor"), tile(), fix(".bulk_group"), hint()}, Version: 80, Arch: SM90,
		Args: []Arg{tensor(), addr("src", Shared), hinted()}, Manual: "cp.reduce.async.bulk.tensor"},
	bulkReduce("BulkReduce", atomNot, redOps(), types(".u32", ".b32", ".u64", ".b64", ".s32", ".s64", ".f32", ".f64")),
	bulkReduce("BulkReduceHalves", nil, fix(".add.noftz"), types(".f16", ".bf16")),
	{Name: "StAsync", Op: "st.async", Mods: []Mod{opt("weak", ".weak"), opt("space", ".shared::cluster"), fix(".mbarrier::complete_tx::bytes"), vec(), types(".b32", ".u32", ".s32", ".f32", ".b64", ".u64", ".s64", ".f64")}, Version: 81, Arch: SM90,
		Args: []Arg{addr("dst", SharedCluster), {Name: "b", Kind: Vec, TypeOf: "type", LenOf: "vec"}, addr("bar", SharedCluster)}, Not: wide, Manual: "st.async"},
	{Name: "RedAsync", Op: "red.async.relaxed.cluster", Mods: []Mod{opt("space", ".shared::cluster"), fix(".mbarrier::complete_tx::bytes"), redOps(), types(".u32", ".b32", ".s32", ".u64")}, Version: 81, Arch: SM90,
		Args: []Arg{addr("dst", SharedCluster), inT("b"), addr("bar", SharedCluster)}, Not: atomNot, Manual: "red.async"},
	{Name: "MbarrierInitShared", Op: "mbarrier.init.shared.b64", Arch: SM80, Args: []Arg{addr("bar", Shared), in("count", U32)}, Manual: "mbarrier.init"},
	{Name: "MbarrierInvalShared", Op: "mbarrier.inval.shared.b64", Arch: SM80, Args: []Arg{addr("bar", Shared)}, Manual: "mbarrier.inval"},
	arrives("MbarrierArriveAny", "", 78, SM80, sink(), ".shared::cta"),
	arrives("MbarrierArriveState", "", 70, SM80, out("state", B64), ".shared::cta", ".shared"),
	arrives("MbarrierArriveCount", "count", 78, SM90, sink(), ".shared::cta", ".shared"),
	arrives("MbarrierArriveCountState", "count", 78, SM90, out("state", B64), ".shared::cta", ".shared"),
	arrives("MbarrierArriveClusterAny", "", 80, SM90, sink(), ".shared::cluster"),
	arrives("MbarrierArriveCountCluster", "count", 80, SM90, sink(), ".shared::cluster"),
	arrives("MbarrierArriveExpectTxAny", "bytes", 80, SM90, sink(), ".shared::cta", ".shared", ".shared::cluster"),
	arrives("MbarrierArriveExpectTxState", "bytes", 80, SM90, out("state", B64), ".shared::cta", ".shared"),
	{Name: "MbarrierExpectTx", Op: "mbarrier.expect_tx", Mods: []Mod{opt("order", ".relaxed.cta", ".relaxed.cluster"), one("space", ".shared::cta", ".shared::cluster", ".shared"), fix(".b64")}, Version: 80, Arch: SM90,
		Args: []Arg{addrIn(), in("bytes", U32)}, Manual: "mbarrier.expect_tx"},
	{Name: "MbarrierCompleteTx", Op: "mbarrier.complete_tx", Mods: []Mod{opt("order", ".relaxed.cta", ".relaxed.cluster"), one("space", ".shared::cta", ".shared::cluster", ".shared"), fix(".b64")}, Version: 80, Arch: SM90,
		Args: []Arg{addrIn(), in("bytes", U32)}, Manual: "mbarrier.complete_tx"},
	waits("MbarrierTryWait", "mbarrier.try_wait", 78, SM90, register(in("state", B64)), optional(in("hint", U32))),
	waits("MbarrierTryWaitParityAny", "mbarrier.try_wait.parity", 78, SM90, in("parity", U32), optional(in("hint", U32))),
	waits("MbarrierTestWait", "mbarrier.test_wait", 70, SM80, register(in("state", B64))),
	waits("MbarrierTestWaitParityAny", "mbarrier.test_wait.parity", 71, SM80, in("parity", U32)),
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
}, wgmmas, products, wmmaForms(), sparse())

// wgmmas has dense wgmma forms: with A in registers, and of formats that only kernels of other
// compilers use.
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

// bulkReduce returns the form of a bulk reduction of contiguous elements in global memory.
func bulkReduce(name string, not [][2]string, op, of Mod) Form {
	return Form{Name: name, Op: "cp.reduce.async.bulk.global.shared::cta.bulk_group", Mods: []Mod{hint(), op, of}, Not: not, Version: 80, Arch: SM90,
		Args: []Arg{addr("dst", Global), addr("src", Shared), in("bytes", U32), hinted()}, Manual: "cp.reduce.async.bulk"}
}

// arrives returns the form of an arrival at an mbarrier, and waits the form of a test of its phase.
// Both accept all spellings that the builder does not print. last names the last operand: "count",
// "bytes" or "".
func arrives(name, last string, version Version, arch Arch, state Arg, spaces ...string) Form {
	f := Form{Name: name, Op: "mbarrier.arrive", Mods: []Mod{opt("order", ".release.cta", ".release.cluster").since(80, SM80), one("space", spaces...), fix(".b64")}, Version: version, Arch: arch,
		Args: []Arg{state, {Name: "bar", Kind: Addr, Type: U64, SpaceOf: "space"}}, Manual: "mbarrier.arrive"}
	if last == "bytes" {
		f.Op += ".expect_tx"
	}
	if last != "" {
		f.Args = append(f.Args, in(last, U32))
	}
	return f
}

func sink() Arg { return Arg{Name: "state", Kind: Sink} }

func waits(name, op string, version Version, arch Arch, last ...Arg) Form {
	return Form{Name: name, Op: op, Mods: []Mod{opt("order", ".acquire.cta", ".acquire.cluster").since(80, SM80), one("space", ".shared::cta", ".shared"), fix(".b64")}, Version: version, Arch: arch,
		Args: append([]Arg{out("done", Pred), addr("bar", Shared)}, last...), Effects: Uniform, Manual: op}
}

// tensormapReplace returns the form that changes a field of a tensor map in memory. For a field
// that exists once per dimension, the dimension's number is an operand.
func tensormapReplace(name string, value Arg, field Mod, before ...Arg) Form {
	bits := fix(".b32")
	if value.Type == B64 {
		bits = fix(".b64")
	}
	return Form{Name: name, Op: "tensormap.replace.tile", Mods: []Mod{field, opt("space", ".global", ".shared::cta"), fix(".b1024"), bits}, Version: 83, Arch: SM90a,
		Args: append(append([]Arg{addrIn()}, before...), value), Manual: "tensormap.replace"}
}

// wgmmaRegisters returns form f with A in registers. A in registers cannot be transposed.
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

// wgmmaTF32 returns the form of a wgmma of TF32 elements with FP32 sums. Both operands must be
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

// wgmmaInt8 returns the form of a wgmma of 8-bit integers with 32-bit sums.
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

// mmaForm returns the form of an mma.sync. A fragment of A has a registers, a fragment of B has b.
func mmaForm(name, shape, sums string, elems []string, a, b int, arch Arch, version Version) Form {
	t, _ := TypeNamed(sums[1:])
	length, of := 4, B32
	switch {
	case t == F16: // each register holds two elements
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

// mmaBits returns the form of an mma.sync of single bits. A sum counts the bits that are 1 in A XOR
// B, or in A AND B; parameter op says which.
func mmaBits(name, shape string, a, b int, op string, version Version) Form {
	f := mmaForm(name, shape, ".s32", []string{".b1"}, a, b, SM80, version)
	f.Mods = slices.DeleteFunc(f.Mods, func(m Mod) bool { return m.Name == "satfinite" })
	f.Mods = append(f.Mods, fix(op), fix(".popc"))
	return f
}
