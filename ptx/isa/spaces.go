package isa

import "slices"

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

// spaceForms has loads, stores and atomics that only kernels of other compilers
// use: generic addresses, local memory, constants, volatile accesses, memory
// orders and scopes, cache policies.
var spaceForms = slices.Concat([]Form{
	{Name: "Ld", Op: "ld", Mods: []Mod{vec(), memTypes()}, Args: []Arg{vecArg("d", Out), addr("a", Generic)}, Not: wide, Manual: "Data Movement: ld"},
	{Name: "LdLocal", Op: "ld.local", Mods: []Mod{vec(), memTypes()}, Args: []Arg{vecArg("d", Out), addr("a", Local)}, Not: wide, Manual: "Data Movement: ld"},
	{Name: "LdConst", Op: "ld.const", Mods: []Mod{vec(), memTypes()}, Args: []Arg{vecArg("d", Out), addr("a", Const)}, Not: wide, Effects: Varies, Manual: "Data Movement: ld"},
	{Name: "LdSharedCTA", Op: "ld.shared::cta", Mods: []Mod{vec(), memTypes()}, Args: []Arg{vecArg("d", Out), addr("a", Shared)}, Not: wide, Version: 78, Manual: "Data Movement: ld"},
	{Name: "LdVolatile", Op: "ld.volatile", Mods: []Mod{opt("space", ".global", ".shared"), vec(), memTypes()},
		Args: []Arg{vecArg("d", Out), addrIn()}, Not: wide, Manual: "Data Movement: ld"},
	{Name: "LdSync", Op: "ld", Mods: []Mod{orders("ld", true), one("scope", ".gpu", ".sys", ".cta"), opt("space", ".shared"), memTypes()},
		Args: []Arg{{Name: "d", Dir: Out, TypeOf: "type", Wider: true}, addrIn()}, Manual: "Data Movement: ld"},
	{Name: "LdPolicy", Op: "ld.global", Mods: []Mod{opt("nc", ".nc"), opt("l1", ".L1::no_allocate", ".L1::evict_first", ".L1::evict_last"), fix(".L2::cache_hint"), vec(), memTypes()},
		Args: []Arg{vecArg("d", Out), addr("a", Global), policy()}, Not: wide, Version: 74, Arch: SM80, Manual: "Data Movement: ld"},
	{Name: "St", Op: "st", Mods: []Mod{vec(), memTypes()}, Args: []Arg{addr("a", Generic), vecArg("b", In)}, Not: wide, Manual: "Data Movement: st"},
	{Name: "StLocal", Op: "st.local", Mods: []Mod{vec(), memTypes()}, Args: []Arg{addr("a", Local), vecArg("b", In)}, Not: wide, Manual: "Data Movement: st"},
	{Name: "StSharedCTA", Op: "st.shared::cta", Mods: []Mod{vec(), memTypes()}, Args: []Arg{addr("a", Shared), vecArg("b", In)}, Not: wide, Version: 78, Manual: "Data Movement: st"},
	{Name: "StSharedCluster", Op: "st.shared::cluster", Mods: []Mod{vec(), memTypes()}, Args: []Arg{addr("a", SharedCluster), vecArg("b", In)}, Not: wide, Version: 78, Arch: SM90, Manual: "Data Movement: st"},
	{Name: "StVolatile", Op: "st.volatile", Mods: []Mod{opt("space", ".global", ".shared"), vec(), memTypes()},
		Args: []Arg{addrIn(), vecArg("b", In)}, Not: wide, Manual: "Data Movement: st"},
	{Name: "StSync", Op: "st", Mods: []Mod{orders("st", false), one("scope", ".gpu", ".sys", ".cta"), opt("space", ".shared"), memTypes()},
		Args: []Arg{addrIn(), {Name: "b", TypeOf: "type", Wider: true}}, Manual: "Data Movement: st"},
	{Name: "StPolicy", Op: "st.global", Mods: []Mod{opt("l1", ".L1::no_allocate", ".L1::evict_first"), fix(".L2::cache_hint"), vec(), memTypes()},
		Args: []Arg{addr("a", Global), vecArg("b", In), policy()}, Not: wide, Version: 74, Arch: SM80, Manual: "Data Movement: st"},
	{Name: "CreatePolicy", Op: "createpolicy.fractional", Mods: []Mod{one("prefer", ".L2::evict_last", ".L2::evict_normal", ".L2::evict_first", ".L2::evict_unchanged"), fix(".b64")},
		Args: []Arg{out("d", B64), optional(register(in("fraction", F32)))}, Version: 74, Arch: SM80, Manual: "Data Movement: createpolicy"},
	{Name: "Prefetch", Op: "prefetch", Mods: []Mod{opt("space", ".global"), one("level", ".L1", ".L2")}, Args: []Arg{addrIn()}, Manual: "Data Movement: prefetch"},
	{Name: "MapaGeneric", Op: "mapa.u64", Version: 78, Arch: SM90, Args: []Arg{out("d", U64), in("a", U64), in("rank", U32)}, Manual: "Data Movement: mapa"},
	{Name: "Membar", Op: "membar", Mods: []Mod{one("level", ".cta", ".gl", ".sys")}, Manual: "Parallel Synchronization: membar"},
	{Name: "FenceSC", Op: "fence.sc", Mods: []Mod{one("scope", ".cta", ".gpu", ".sys")}, Manual: "Parallel Synchronization: fence"},
	{Name: "FenceCluster", Op: "fence", Mods: []Mod{one("sem", ".acq_rel", ".sc"), fix(".cluster")}, Version: 78, Arch: SM90, Manual: "Parallel Synchronization: fence"},
}, atomics("atom", atomOps()), atomics("red", redOps()))

// atomics returns the forms of atom or red with generic addresses, memory orders
// and scopes. For atom it includes compare-and-swap and sums of 16-bit floats.
func atomics(op string, ops Mod) (forms []Form) {
	name := map[string]string{"atom": "Atom", "red": "Red"}[op]
	add := func(suffix, op string, mods ...Mod) {
		args := []Arg{outT("d"), addrIn(), inT("b")}
		f := Form{Op: op, Effects: Varies, Manual: "Parallel Synchronization: atom"}
		if name == "Red" {
			args, f.Effects, f.Manual = args[1:], 0, "Parallel Synchronization: red"
		}
		whole := f
		whole.Name, whole.Mods, whole.Not = name+suffix, slices.Concat(mods, []Mod{ops, atomTypes()}), atomNot
		whole.Args = args
		if suffix != "" && suffix != "Shared" { // the table of loads and stores has these forms
			forms = append(forms, whole)
		}
		if name == "Atom" {
			cas := f
			cas.Name, cas.Mods = "Cas"+suffix, slices.Concat(mods, []Mod{fixed("op", ".cas"), types(".b32", ".b64", ".b16")})
			cas.Args = append(slices.Clone(args), inT("c"))
			forms = append(forms, cas)
		}
	}
	after := orders(op, false) // Triton writes the memory order here
	after.Opt = true
	scope := func() Mod { return one("scope", ".cta", ".gpu", ".sys") }
	add("", op, fixed("space", ".global"))
	add("Shared", op, fixed("space", ".shared"))
	add("Generic", op)
	add("Sem", op, orders(op, false), opt("scope", ".cta", ".gpu", ".sys"), opt("space", ".global", ".shared"))
	add("Scope", op, scope(), opt("space", ".global", ".shared"))
	add("GlobalScope", op, fixed("space", ".global"), scope(), after)
	add("SharedScope", op, fixed("space", ".shared"), scope(), after)
	return forms
}
