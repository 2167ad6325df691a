package isa

import "slices"

// Asynchronous copies, barriers and products that other compilers print and
// kernels here don't need.
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
	wgmmaRegisters("WgmmaBF16Registers", ".bf16"),
	wgmmaRegisters("WgmmaF16Registers", ".f16"),
}, shortShared(), products)

// shortShared are the mbarrier forms that say .shared instead of .shared::cta.
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

// wgmmaRegisters is the product of 16-bit elements, A from registers.
func wgmmaRegisters(name, elem string) Form {
	f := wgmmaForm(name, elem)
	acc, b := f.Args[0], f.Args[2]
	f.Args = []Arg{acc, register(Arg{Name: "a", Kind: Vec, Type: B32, Len: 4}), b, pred("scaleD"), imm("scaleA"), imm("scaleB"), imm("transB")}
	return f
}

// products are mma.sync.
var products = []Form{
	mmaForm("MmaF16", ".m16n8k16", ".f32", []string{".f16"}, 4, 2, SM80, 70),
	mmaForm("MmaBF16", ".m16n8k16", ".f32", []string{".bf16"}, 4, 2, SM80, 70),
	mmaForm("MmaF16K8", ".m16n8k8", ".f32", []string{".f16"}, 2, 1, SM80, 70),
	mmaForm("MmaBF16K8", ".m16n8k8", ".f32", []string{".bf16"}, 2, 1, SM80, 70),
	mmaForm("MmaTF32", ".m16n8k8", ".f32", []string{".tf32"}, 4, 2, SM80, 70),
	mmaForm("MmaTF32K4", ".m16n8k4", ".f32", []string{".tf32"}, 2, 1, SM80, 70),
	mmaForm("MmaInt8", ".m16n8k32", ".s32", []string{".s8", ".u8"}, 4, 2, SM80, 70),
	mmaForm("MmaInt8K16", ".m16n8k16", ".s32", []string{".s8", ".u8"}, 2, 1, SM80, 70),
}

// mmaForm is a product of a warp with so many registers of A and B.
func mmaForm(name, shape, sums string, elems []string, a, b int, arch Arch, version Version) Form {
	t, _ := TypeNamed(sums[1:])
	mods := []Mod{fix(shape), fix(".row"), fix(".col")}
	if sums == ".s32" {
		mods = append(mods, opt("satfinite", ".satfinite"))
	}
	return Form{Name: name, Op: "mma.sync.aligned", Mods: append(mods, fix(sums), one("a", elems...), one("b", elems...), fix(sums)), Version: version, Arch: arch,
		Args: []Arg{{Name: "d", Dir: Out, Kind: Vec, Type: t, Len: 4}, register(Arg{Name: "a", Kind: Vec, Type: B32, Len: a}),
			register(Arg{Name: "b", Kind: Vec, Type: B32, Len: b}), register(Arg{Name: "c", Kind: Vec, Type: t, Len: 4})},
		Effects: Aligned | Varies, Manual: "mma.sync"}
}
