package isa

import "fmt"

func dims() Mod { return one("dim", ".1d", ".2d", ".3d", ".4d", ".5d") }

func tensor() Arg {
	return Arg{Name: "at", Kind: TensorAddr, Type: S32, LenOf: "dim"}
}

// wgmmaShapes returns the shapes of a wgmma that has k elements along k. The width N is a multiple
// of 8. For integers, a width above 32 is a multiple of 16.
func wgmmaShapes(k int, integers bool) Mod {
	m := Mod{Name: "shape"}
	for n := 8; n <= 256; n += 8 {
		if integers && n > 32 && n%16 != 0 {
			continue
		}
		m.Alts = append(m.Alts, fmt.Sprintf(".m64n%dk%d", n, k))
	}
	return m
}

// tile returns the place for the mode of a tensor copy that copies boxes. This is the default mode.
func tile() Mod { return opt("mode", ".tile") }

// hint returns the place for the modifier .L2::cache_hint. hinted returns the operand that holds
// the cache policy if the modifier is there. The emulator ignores cache policies.
func hint() Mod   { return opt("hint", ".L2::cache_hint") }
func hinted() Arg { return Arg{Name: "policy", Type: B64, With: ".L2::cache_hint"} }

// tmaLoad returns the form of a tensor load to the given state space.
func tmaLoad(name, space string, version Version, arch Arch, multicast ...Mod) Form {
	f := Form{Name: name, Op: "cp.async.bulk.tensor", Mods: []Mod{dims(), fix(space), fix(".global"), tile(), fix(".mbarrier::complete_tx::bytes")}, Version: version, Arch: arch,
		Args: []Arg{addr("dst", Shared), tensor(), addr("bar", Shared)}, Manual: "cp.async.bulk.tensor"}
	if f.Mods = append(append(f.Mods, multicast...), hint()); len(multicast) > 0 {
		f.Args = append(f.Args, in("ctas", B16))
	}
	f.Args = append(f.Args, hinted())
	return f
}

// async has asynchronous copies, TMA and wgmma.
var async = []Form{
	{Name: "CpAsyncCG", Op: "cp.async.cg.shared.global", Mods: []Mod{prefetchL2()}, Arch: SM80,
		Args:   []Arg{addr("dst", Shared), addr("src", Global), imm("bytes"), optional(in("srcBytes", U32))},
		Manual: "cp.async", Go: "k.CpAsyncCG"},
	{Name: "CpAsyncCommit", Op: "cp.async.commit_group", Arch: SM80, Manual: "cp.async.commit_group", Go: "k.CpAsyncCommit"},
	{Name: "CpAsyncWait", Op: "cp.async.wait_group", Arch: SM80, Args: []Arg{imm("pending")}, Manual: "cp.async.wait_group", Go: "k.CpAsyncWait"},
	{Name: "CpAsyncMbarrierArriveNoInc", Op: "cp.async.mbarrier.arrive.noinc.shared::cta.b64", Version: 78, Arch: SM80,
		Args: []Arg{addr("bar", Shared)}, Manual: "cp.async.mbarrier.arrive", Go: "k.CpAsyncMbarrierArriveNoInc"},

	tmaLoad("TMALoad", ".shared::cluster", 80, SM90),
	tmaLoad("TMALoadMulticast", ".shared::cluster", 80, SM90a, fix(".multicast::cluster")),
	{Name: "TMAStore", Op: "cp.async.bulk.tensor", Mods: []Mod{dims(), fix(".global"), fix(".shared::cta"), tile(), fix(".bulk_group"), hint()}, Version: 80, Arch: SM90,
		Args:   []Arg{tensor(), addr("src", Shared), hinted()},
		Manual: "cp.async.bulk.tensor"},
	{Name: "TMAPrefetch", Op: "cp.async.bulk.prefetch.tensor", Mods: []Mod{dims(), fix(".L2"), fix(".global"), tile(), hint()}, Version: 80, Arch: SM90,
		Args: []Arg{tensor(), hinted()}, Manual: "cp.async.bulk.prefetch.tensor"},
	{Name: "BulkPrefetch", Op: "cp.async.bulk.prefetch.L2.global", Mods: []Mod{hint()}, Version: 80, Arch: SM90,
		Args: []Arg{addr("src", Global), in("bytes", U32), hinted()}, Manual: "cp.async.bulk.prefetch"},
	{Name: "BulkCommit", Op: "cp.async.bulk.commit_group", Version: 80, Arch: SM90, Manual: "cp.async.bulk.commit_group", Go: "k.BulkCommit"},
	{Name: "BulkWait", Op: "cp.async.bulk.wait_group", Mods: []Mod{opt("read", ".read")}, Version: 80, Arch: SM90,
		Args: []Arg{imm("pending")}, Manual: "cp.async.bulk.wait_group", Go: "k.BulkWait"},
	{Name: "BulkLoad", Op: "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", Version: 80, Arch: SM90,
		Args:   []Arg{addr("dst", Shared), addr("src", Global), in("bytes", U32), addr("bar", Shared)},
		Manual: "cp.async.bulk", Go: "k.BulkLoad"},
	{Name: "BulkCopyCluster", Op: "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", Version: 80, Arch: SM90,
		Args:   []Arg{addr("dst", SharedCluster), addr("src", Shared), in("bytes", U32), addr("bar", SharedCluster)},
		Manual: "cp.async.bulk", Go: "k.BulkCopyCluster"},
	{Name: "PrefetchTensorMap", Op: "prefetch.tensormap", Version: 80, Arch: SM90,
		Args: []Arg{addr("tensorMap", Generic)}, Manual: "prefetch", Go: "k.PrefetchTensorMap"},

	{Name: "WgmmaFence", Op: "wgmma.fence.sync.aligned", Version: 80, Arch: SM90a, Effects: Aligned, Manual: "wgmma.fence", Go: "k.WgmmaFence"},
	{Name: "WgmmaCommit", Op: "wgmma.commit_group.sync.aligned", Version: 80, Arch: SM90a, Effects: Aligned, Manual: "wgmma.commit_group", Go: "k.WgmmaCommit"},
	{Name: "WgmmaWait", Op: "wgmma.wait_group.sync.aligned", Version: 80, Arch: SM90a, Args: []Arg{imm("pending")},
		Effects: Aligned, Manual: "wgmma.wait_group", Go: "k.WgmmaWait"},
	wgmmaForm("WgmmaBF16", ".bf16"),
	wgmmaForm("WgmmaF16", ".f16"),
}

// wgmmaForm returns the form of a wgmma of 16-bit elements, with A and B in shared memory and FP32
// sums.
func wgmmaForm(name, elem string) Form {
	return Form{Name: name, Op: "wgmma.mma_async.sync.aligned", Mods: []Mod{wgmmaShapes(16, false), fix(".f32"), fix(elem), fix(elem)}, Version: 80, Arch: SM90a,
		Args: []Arg{{Name: "acc", Dir: InOut, Kind: Vec, Type: F32, LenOf: "shape"}, in("descA", B64), in("descB", B64), pred("scaleD"),
			imm("scaleA"), imm("scaleB"), imm("transA"), imm("transB")},
		Effects: Aligned | Varies, Manual: "wgmma.mma_async"}
}
