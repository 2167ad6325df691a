package isa

import "slices"

func vec() Mod { return opt("vec", ".v2", ".v4") }

func prefetchL2() Mod {
	return opt("l2", ".L2::64B", ".L2::128B", ".L2::256B").since(74, SM80)
}

func memTypes() Mod {
	return types(".b32", ".u32", ".s32", ".f32", ".b64", ".u64", ".b16", ".u16", ".u8", ".b8", ".s8", ".s16", ".s64", ".f64")
}

func vecArg(name string, d Dir) Arg {
	return Arg{Name: name, Dir: d, Kind: Vec, TypeOf: "type", LenOf: "vec", Wider: true}
}

// wide lists the pairs of vector length and type that make more than 16 bytes, which Hopper cannot
// access at once.
var wide = not([]string{".v4"}, []string{".b64", ".u64", ".s64", ".f64"})

// atomNot lists the pairs of operation and type that atomics do not have.
var atomNot = slices.Concat(
	not([]string{".add", ".min", ".max", ".inc", ".dec"}, []string{".b32", ".b64"}),
	not([]string{".and", ".or", ".xor", ".exch"}, []string{".u32", ".u64", ".s32", ".s64", ".f32", ".f64"}),
	not([]string{".inc", ".dec"}, []string{".u64", ".s32", ".s64", ".f32", ".f64"}),
	not([]string{".min", ".max"}, []string{".f32", ".f64"}),
	not([]string{".add"}, []string{".s64"}))

func atomTypes() Mod {
	return types(".u32", ".b32", ".u64", ".b64", ".s32", ".s64", ".f32", ".f64")
}

func atomOps() Mod {
	return one("op", ".add", ".min", ".max", ".and", ".or", ".xor", ".exch", ".inc", ".dec")
}

func redOps() Mod { return one("op", ".add", ".min", ".max", ".and", ".or", ".xor", ".inc", ".dec") }

func loadCaches() Mod { return opt("cop", ".ca", ".cg", ".cs", ".lu", ".cv") }

// loadCache and storeCache list pairs of cache modifiers that exclude each other.
var (
	loadCache = slices.Concat(not([]string{".ca", ".cg", ".cs", ".lu", ".cv"}, []string{".L1::no_allocate", ".L1::evict_first", ".L1::evict_last"}),
		not([]string{".lu", ".cv"}, []string{".nc"}))
	storeCache = not([]string{".wb", ".cg", ".cs", ".wt"}, []string{".L1::no_allocate", ".L1::evict_first"})
)

// memory has loads, stores and atomics.
var memory = []Form{
	{Name: "LdParam", Op: "ld.param", Mods: []Mod{vec(), memTypes()},
		Args: []Arg{vecArg("d", Out), addr("a", Param)}, Not: wide, Effects: Uniform, Manual: "Data Movement: ld"},
	{Name: "StParam", Op: "st.param", Mods: []Mod{vec(), memTypes()},
		Args: []Arg{addr("a", Param), vecArg("b", In)}, Not: wide, Manual: "Data Movement: st"},
	{Name: "LdGlobal", Op: "ld.global", Mods: []Mod{loadCaches(), opt("nc", ".nc"), opt("l1", ".L1::no_allocate", ".L1::evict_first", ".L1::evict_last").since(74, SM70), prefetchL2(), vec(), memTypes()},
		Args: []Arg{vecArg("d", Out), addr("a", Global)}, Not: slices.Concat(wide, loadCache), Manual: "Data Movement: ld"},
	{Name: "LdShared", Op: "ld.shared", Mods: []Mod{vec(), memTypes()},
		Args: []Arg{vecArg("d", Out), addr("a", Shared)}, Not: wide, Manual: "Data Movement: ld"},
	{Name: "LdSharedCluster", Op: "ld.shared::cluster", Mods: []Mod{vec(), memTypes()},
		Args: []Arg{vecArg("d", Out), addr("a", SharedCluster)}, Not: wide, Version: 78, Arch: SM90, Manual: "Data Movement: ld"},
	{Name: "StGlobal", Op: "st.global", Mods: []Mod{opt("cop", ".wb", ".cg", ".cs", ".wt"), opt("l1", ".L1::no_allocate", ".L1::evict_first").since(74, SM70), vec(), memTypes()},
		Args: []Arg{addr("a", Global), vecArg("b", In)}, Not: slices.Concat(wide, storeCache), Manual: "Data Movement: st"},
	{Name: "StShared", Op: "st.shared", Mods: []Mod{vec(), memTypes()},
		Args: []Arg{addr("a", Shared), vecArg("b", In)}, Not: wide, Manual: "Data Movement: st"},
	{Name: "Mapa", Op: "mapa.shared::cluster.u32", Version: 78, Arch: SM90,
		Args: []Arg{out("d", U32), in("a", U32), in("rank", U32)}, Manual: "Data Movement: mapa", Go: "x.Mapa"},
}
