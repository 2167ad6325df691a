package isa

import (
	"slices"
	"strings"
)

func addrIn() Arg { return Arg{Name: "a", Kind: Addr, Type: U64, SpaceOf: "space"} }

func policy() Arg { return in("policy", B64) }

func orders(name string, loads bool) Mod {
	switch {
	case name == "atom":
		return one("sem", ".relaxed", ".acquire", ".release", ".acq_rel")
	case name == "red":
		return one("sem", ".relaxed", ".release")
	case loads:
		return one("sem", ".acquire", ".relaxed")
	}
	return one("sem", ".release", ".relaxed")
}

// spaceForms has loads, stores and atomics that only kernels of other compilers use. They have
// generic addresses, local memory, constants, volatile accesses, memory orders and scopes, or cache
// policies.
var spaceForms = slices.Concat([]Form{
	{Name: "Ld", Op: "ld", Mods: []Mod{vec(), memTypes()}, Args: []Arg{vecArg("d", Out), addr("a", Generic)}, Not: wide, Manual: "Data Movement: ld"},
	{Name: "LdLocal", Op: "ld.local", Mods: []Mod{vec(), memTypes()}, Args: []Arg{vecArg("d", Out), addr("a", Local)}, Not: wide, Manual: "Data Movement: ld"},
	{Name: "LdConst", Op: "ld.const", Mods: []Mod{vec(), memTypes()}, Args: []Arg{vecArg("d", Out), addr("a", Const)}, Not: wide, Effects: Varies, Manual: "Data Movement: ld"},
	{Name: "LdSharedCTA", Op: "ld.shared::cta", Mods: []Mod{vec(), memTypes()}, Args: []Arg{vecArg("d", Out), addr("a", Shared)}, Not: wide, Version: 78, Manual: "Data Movement: ld"},
	{Name: "LdVolatile", Op: "ld.volatile", Mods: []Mod{opt("space", ".global", ".shared"), vec(), memTypes()},
		Args: []Arg{vecArg("d", Out), addrIn()}, Not: wide, Manual: "Data Movement: ld"},
	{Name: "LdSync", Op: "ld", Mods: []Mod{orders("ld", true), syncScopes(), atomSpaces(), opt("l1", ".L1::no_allocate").since(74, SM70), vec(), memTypes()},
		Args: []Arg{vecArg("d", Out), addrIn()}, Not: wide, Manual: "Data Movement: ld"},
	{Name: "LdPolicy", Op: "ld.global", Mods: []Mod{opt("nc", ".nc"), opt("l1", ".L1::no_allocate", ".L1::evict_first", ".L1::evict_last"), fix(".L2::cache_hint"), vec(), memTypes()},
		Args: []Arg{vecArg("d", Out), addr("a", Global), policy()}, Not: wide, Version: 74, Arch: SM80, Manual: "Data Movement: ld"},
	{Name: "St", Op: "st", Mods: []Mod{vec(), memTypes()}, Args: []Arg{addr("a", Generic), vecArg("b", In)}, Not: wide, Manual: "Data Movement: st"},
	{Name: "StLocal", Op: "st.local", Mods: []Mod{vec(), memTypes()}, Args: []Arg{addr("a", Local), vecArg("b", In)}, Not: wide, Manual: "Data Movement: st"},
	{Name: "StSharedCTA", Op: "st.shared::cta", Mods: []Mod{vec(), memTypes()}, Args: []Arg{addr("a", Shared), vecArg("b", In)}, Not: wide, Version: 78, Manual: "Data Movement: st"},
	{Name: "StSharedCluster", Op: "st.shared::cluster", Mods: []Mod{vec(), memTypes()}, Args: []Arg{addr("a", SharedCluster), vecArg("b", In)}, Not: wide, Version: 78, Arch: SM90, Manual: "Data Movement: st"},
	{Name: "StVolatile", Op: "st.volatile", Mods: []Mod{opt("space", ".global", ".shared"), vec(), memTypes()},
		Args: []Arg{addrIn(), vecArg("b", In)}, Not: wide, Manual: "Data Movement: st"},
	{Name: "StSync", Op: "st", Mods: []Mod{orders("st", false), syncScopes(), atomSpaces(), opt("l1", ".L1::no_allocate").since(74, SM70), vec(), memTypes()},
		Args: []Arg{addrIn(), vecArg("b", In)}, Not: wide, Manual: "Data Movement: st"},
	{Name: "StPolicy", Op: "st.global", Mods: []Mod{opt("l1", ".L1::no_allocate", ".L1::evict_first"), fix(".L2::cache_hint"), vec(), memTypes()},
		Args: []Arg{addr("a", Global), vecArg("b", In), policy()}, Not: wide, Version: 74, Arch: SM80, Manual: "Data Movement: st"},
	{Name: "CreatePolicy", Op: "createpolicy.fractional", Mods: []Mod{one("prefer", ".L2::evict_last", ".L2::evict_normal", ".L2::evict_first", ".L2::evict_unchanged"), fix(".b64")},
		Args: []Arg{out("d", B64), optional(in("fraction", F32))}, Version: 74, Arch: SM80, Manual: "Data Movement: createpolicy"},
	{Name: "Prefetch", Op: "prefetch", Mods: []Mod{opt("space", ".global"), one("level", ".L1", ".L2")}, Args: []Arg{addrIn()}, Manual: "Data Movement: prefetch"},
	{Name: "MapaGeneric", Op: "mapa.u64", Version: 78, Arch: SM90, Args: []Arg{out("d", U64), in("a", U64), in("rank", U32)}, Manual: "Data Movement: mapa"},
	{Name: "Membar", Op: "membar", Mods: []Mod{one("level", ".cta", ".gl", ".sys")}, Manual: "Parallel Synchronization: membar"},
	{Name: "FenceSC", Op: "fence.sc", Mods: []Mod{one("scope", ".cta", ".gpu", ".sys")}, Manual: "Parallel Synchronization: fence"},
	{Name: "FenceCluster", Op: "fence", Mods: []Mod{one("sem", ".acq_rel", ".sc"), fix(".cluster")}, Version: 78, Arch: SM90, Manual: "Parallel Synchronization: fence"},
}, atomics("Atom", atomOps()), atomics("Red", redOps()))

func syncScopes() Mod { return one("scope", ".gpu", ".sys", ".cta", ".cluster") }

func scopes() Mod { return opt("scope", ".cta", ".gpu", ".sys", ".cluster") }

func atomSpaces() Mod {
	return opt("space", ".global", ".shared", ".shared::cta", ".shared::cluster")
}

// atomics returns the forms of atom or red: on whole words, on 16-bit floats, on vectors of floats
// and, for atom, compare-and-swap. All orders, scopes and spaces are optional modifiers. The parser
// therefore accepts them at any place, as compilers write them before or after the operation.
func atomics(name string, ops Mod) (forms []Form) {
	op := strings.ToLower(name)
	sem := orders(op, false)
	sem.Opt = true
	args := []Arg{outT("d"), addrIn(), inT("b")}
	f := Form{Op: op, Effects: Varies, Manual: "Parallel Synchronization: " + op}
	if name == "Red" {
		args, f.Effects = args[1:], 0
	}
	add := func(suffix string, version Version, arch Arch, not [][2]string, args []Arg, mods ...Mod) {
		f.Name, f.Version, f.Arch, f.Not, f.Args = name+suffix, version, arch, not, args
		spaces := atomSpaces()
		if suffix == "Vector" {
			spaces.Alts = spaces.Alts[:1]
		}
		f.Mods = append([]Mod{sem, scopes(), spaces}, mods...)
		forms = append(forms, f)
	}
	add("", 70, SM70, atomNot, args, ops, atomTypes())
	args = slices.Clone(args)
	args[len(args)-1].RegOnly = true
	add("Halves", 70, SM70, nil, args, fix(".add.noftz"), types(".f16", ".f16x2"))
	add("Brains", 78, SM90, nil, args, fix(".add.noftz"), types(".bf16", ".bf16x2"))
	vectors := slices.Clone(args)
	for i := range vectors {
		if vectors[i].Kind == Reg {
			vectors[i].Kind, vectors[i].LenOf = Vec, "vec"
		}
	}
	add("Vector", 81, SM90, nil, vectors, fix(".add"), one("vec", ".v2", ".v4"), types(".f32"))
	if name == "Atom" {
		add("Cas", 70, SM70, nil, []Arg{args[0], args[1], inT("b"), inT("c")}, fixed("op", ".cas"), types(".b32", ".b64", ".b16"))
	}
	return forms
}
