package isa

// warp has instructions that concern a whole warp, and register allocation.
var warp = []Form{
	{Name: "ShflSync", Op: "shfl.sync", Mods: []Mod{one("mode", ".idx", ".up", ".down", ".bfly"), fix(".b32")},
		Args: []Arg{out("d", B32), in("a", B32), in("lane", U32), in("clamp", U32), in("mask", U32)}, Effects: Varies, Manual: "shfl.sync"},
	{Name: "VoteBallot", Op: "vote.sync.ballot.b32",
		Args: []Arg{out("d", B32), pred("p"), in("mask", U32)}, Effects: Uniform, Manual: "vote.sync", Go: "k.VoteBallot"},
	{Name: "Vote", Op: "vote.sync", Mods: []Mod{one("mode", ".any", ".all"), fix(".pred")},
		Args: []Arg{out("d", Pred), pred("p"), in("mask", U32)}, Effects: Uniform, Manual: "vote.sync"},
	{Name: "MatchAny", Op: "match.any.sync.b32",
		Args: []Arg{out("d", B32), in("a", B32), in("mask", U32)}, Effects: Varies, Manual: "match.sync", Go: "k.MatchAny"},
	{Name: "ReduxSync", Op: "redux.sync", Mods: []Mod{one("op", ".add", ".min", ".max"), types(".u32", ".s32")}, Arch: SM80,
		Args: []Arg{outT("d"), inT("a"), in("mask", U32)}, Effects: Uniform, Manual: "redux.sync"},
	{Name: "ElectSync", Op: "elect.sync", Version: 80, Arch: SM90,
		Args: []Arg{{Name: "p", Dir: Out, Kind: SinkPred, Type: Pred}, in("mask", U32)}, Effects: Varies, Manual: "elect.sync"},
	{Name: "Stmatrix", Op: "stmatrix.sync.aligned.m8n8", Mods: []Mod{one("count", ".x1", ".x2", ".x4"), opt("trans", ".trans"), fix(".shared"), fix(".b16")}, Version: 78, Arch: SM90,
		Args: []Arg{addr("a", Shared), register(Arg{Name: "b", Kind: Vec, Type: B32, LenOf: "count"})}, Effects: Aligned, Manual: "stmatrix"},
	{Name: "Ldmatrix", Op: "ldmatrix.sync.aligned.m8n8", Mods: []Mod{one("count", ".x1", ".x2", ".x4"), opt("trans", ".trans"), fix(".shared"), fix(".b16")}, Arch: SM80,
		Args: []Arg{{Name: "d", Dir: Out, Kind: Vec, Type: B32, LenOf: "count"}, addr("a", Shared)}, Effects: Aligned | Varies, Manual: "ldmatrix"},
	{Name: "SetMaxNReg", Op: "setmaxnreg", Mods: []Mod{one("dir", ".inc", ".dec"), fix(".sync.aligned.u32")}, Version: 80, Arch: SM90a,
		Args: []Arg{imm("n")}, Effects: Aligned, Manual: "setmaxnreg"},
}

// control has control flow instructions.
var control = []Form{
	{Name: "Bra", Op: "bra", Mods: []Mod{opt("uni", ".uni")}, Args: []Arg{{Name: "target", Kind: Label}}, Effects: Branches, Manual: "bra"},
	{Name: "BrxIdx", Op: "brx.idx", Mods: []Mod{opt("uni", ".uni")}, Args: []Arg{register(in("index", U32)), {Name: "targets", Kind: Label}}, Effects: Branches, Manual: "brx.idx"},
	{Name: "Call", Op: "call", Mods: []Mod{opt("uni", ".uni")}, Args: []Arg{{Name: "results", Dir: Out, Kind: Passed}, register(in("function", U64)), {Name: "arguments", Kind: Passed},
		optional(Arg{Name: "prototype", Kind: Label})}, Manual: "call"},
	{Name: "Ret", Op: "ret", Effects: Exits, Manual: "ret"},
	{Name: "Exit", Op: "exit", Effects: Exits, Manual: "exit"},
	{Name: "Trap", Op: "trap", Effects: Exits, Manual: "trap", Go: "k.Trap"},
}
