package isa

func pair(name string, t Type) Arg { return Arg{Name: name, Dir: Out, Kind: Pair, Type: t} }

// warps has instructions that concern whole warps or CTAs and that only kernels of other compilers
// use.
var warps = []Form{
	{Name: "ShflSyncPred", Op: "shfl.sync", Mods: []Mod{one("mode", ".idx", ".up", ".down", ".bfly"), fix(".b32")},
		Args: []Arg{pair("d", B32), in("a", B32), in("lane", U32), in("clamp", U32), in("mask", U32)}, Effects: Varies, Manual: "shfl.sync"},
	{Name: "VoteBallotSync", Op: "vote.ballot.sync.b32", Args: []Arg{out("d", B32), pred("p"), in("mask", U32)}, Effects: Uniform, Manual: "vote.sync"},
	{Name: "VoteUni", Op: "vote.sync.uni.pred", Args: []Arg{out("d", Pred), pred("p"), in("mask", U32)}, Effects: Uniform, Manual: "vote.sync"},
	{Name: "MatchAny64", Op: "match.any.sync.b64", Args: []Arg{out("d", B32), in("a", B64), in("mask", U32)}, Effects: Varies, Manual: "match.sync"},
	{Name: "MatchAll", Op: "match.all.sync", Mods: []Mod{types(".b32", ".b64")},
		Args: []Arg{pair("d", B32), inT("a"), in("mask", U32)}, Effects: Uniform, Manual: "match.sync"},
	{Name: "ReduxBits", Op: "redux.sync", Mods: []Mod{one("op", ".and", ".or", ".xor"), types(".b32")}, Arch: SM80,
		Args: []Arg{outT("d"), inT("a"), in("mask", U32)}, Effects: Uniform, Manual: "redux.sync"},
	{Name: "ElectSyncLane", Op: "elect.sync", Version: 80, Arch: SM90, Args: []Arg{pair("d", B32), in("mask", U32)}, Effects: Varies, Manual: "elect.sync"},
	{Name: "Activemask", Op: "activemask.b32", Args: []Arg{out("d", B32)}, Effects: Uniform, Manual: "activemask"},
	{Name: "BarrierSync", Op: "barrier.sync", Mods: []Mod{opt("aligned", ".aligned")}, Args: []Arg{in("id", U32), optional(in("threads", U32))},
		Effects: Aligned, Manual: "Parallel Synchronization: barrier"},
	{Name: "BarrierArrive", Op: "barrier.arrive", Mods: []Mod{opt("aligned", ".aligned")}, Args: []Arg{in("id", U32), in("threads", U32)},
		Effects: Aligned, Manual: "Parallel Synchronization: barrier"},
	{Name: "BarRedPopc", Op: "bar.red.popc.u32", Args: []Arg{out("d", U32), in("id", U32), pred("p")}, Effects: Aligned, Manual: "Parallel Synchronization: bar"},
	{Name: "BarRed", Op: "bar.red", Mods: []Mod{one("op", ".and", ".or"), fix(".pred")}, Args: []Arg{out("d", Pred), in("id", U32), pred("p")},
		Effects: Aligned, Manual: "Parallel Synchronization: bar"},
	{Name: "LdmatrixCTA", Op: "ldmatrix.sync.aligned.m8n8", Mods: []Mod{one("count", ".x1", ".x2", ".x4"), opt("trans", ".trans"), fix(".shared::cta"), fix(".b16")}, Version: 78, Arch: SM80,
		Args: []Arg{{Name: "d", Dir: Out, Kind: Vec, Type: B32, LenOf: "count"}, addr("a", Shared)}, Effects: Aligned | Varies, Manual: "ldmatrix"},
	{Name: "StmatrixCTA", Op: "stmatrix.sync.aligned.m8n8", Mods: []Mod{one("count", ".x1", ".x2", ".x4"), opt("trans", ".trans"), fix(".shared::cta"), fix(".b16")}, Version: 78, Arch: SM90,
		Args: []Arg{addr("a", Shared), register(Arg{Name: "b", Kind: Vec, Type: B32, LenOf: "count"})}, Effects: Aligned, Manual: "stmatrix"},
	{Name: "LdmatrixShapeLast", Op: "ldmatrix.sync.aligned", Mods: []Mod{one("count", ".x1", ".x2", ".x4"), opt("trans", ".trans"), fix(".m8n8"), one("space", ".shared", ".shared::cta"), fix(".b16")}, Arch: SM80,
		Args: []Arg{{Name: "d", Dir: Out, Kind: Vec, Type: B32, LenOf: "count"}, addr("a", Shared)}, Effects: Aligned | Varies, Manual: "ldmatrix"},
	{Name: "StmatrixShapeLast", Op: "stmatrix.sync.aligned", Mods: []Mod{one("count", ".x1", ".x2", ".x4"), opt("trans", ".trans"), fix(".m8n8"), one("space", ".shared", ".shared::cta"), fix(".b16")}, Version: 78, Arch: SM90,
		Args: []Arg{addr("a", Shared), register(Arg{Name: "b", Kind: Vec, Type: B32, LenOf: "count"})}, Effects: Aligned, Manual: "stmatrix"},
	{Name: "Movmatrix", Op: "movmatrix.sync.aligned.m8n8.trans.b16", Version: 78, Arch: SM80, Args: []Arg{out("d", B32), register(in("a", B32))}, Effects: Aligned | Varies, Manual: "movmatrix"},
	{Name: "Nanosleep", Op: "nanosleep.u32", Args: []Arg{in("ns", U32)}, Manual: "nanosleep"},
	{Name: "Brkpt", Op: "brkpt", Manual: "brkpt"},
}
