package isa

func ftz() Mod { return opt("ftz", ".ftz") }

// Floating-point instructions. Rounding is written out, so no assembler may
// contract a product and a sum.
var floats = []Form{
	{Name: "AddF32", Op: "add.rn", Mods: []Mod{ftz(), fix(".f32")},
		Args: []Arg{out("d", F32), in("a", F32), in("b", F32)}, Manual: "Floating Point: add", Go: "x.Add"},
	{Name: "SubF32", Op: "sub.rn", Mods: []Mod{ftz(), fix(".f32")},
		Args: []Arg{out("d", F32), in("a", F32), in("b", F32)}, Manual: "Floating Point: sub", Go: "x.Sub"},
	{Name: "MulF32", Op: "mul.rn", Mods: []Mod{ftz(), fix(".f32")},
		Args: []Arg{out("d", F32), in("a", F32), in("b", F32)}, Manual: "Floating Point: mul", Go: "x.Mul"},
	{Name: "FmaF32", Op: "fma.rn", Mods: []Mod{ftz(), fix(".f32")},
		Args: []Arg{out("d", F32), in("a", F32), in("b", F32), in("c", F32)}, Manual: "Floating Point: fma", Go: "x.Fma"},
	{Name: "MinF32", Op: "min", Mods: []Mod{ftz(), opt("nan", ".NaN").since(70, SM80), fix(".f32")},
		Args: []Arg{out("d", F32), in("a", F32), in("b", F32)}, Manual: "Floating Point: min", Go: "x.Min"},
	{Name: "MaxF32", Op: "max", Mods: []Mod{ftz(), opt("nan", ".NaN").since(70, SM80), fix(".f32")},
		Args: []Arg{out("d", F32), in("a", F32), in("b", F32)}, Manual: "Floating Point: max", Go: "x.Max"},
	{Name: "NegF32", Op: "neg.f32",
		Args: []Arg{out("d", F32), in("a", F32)}, Manual: "Floating Point: neg", Go: "x.Neg"},
	{Name: "Ex2", Op: "ex2.approx", Mods: []Mod{ftz(), fix(".f32")},
		Args: []Arg{out("d", F32), in("a", F32)}, Manual: "Floating Point: ex2", Go: "x.Ex2Approx"},
	{Name: "Lg2", Op: "lg2.approx", Mods: []Mod{ftz(), fix(".f32")},
		Args: []Arg{out("d", F32), in("a", F32)}, Manual: "Floating Point: lg2", Go: "x.Lg2Approx"},
	{Name: "Rcp", Op: "rcp.approx", Mods: []Mod{ftz(), fix(".f32")},
		Args: []Arg{out("d", F32), in("a", F32)}, Manual: "Floating Point: rcp", Go: "x.RcpApprox"},
	{Name: "Tanh", Op: "tanh.approx.f32", Version: 70, Arch: SM80,
		Args: []Arg{out("d", F32), in("a", F32)}, Manual: "Floating Point: tanh", Go: "x.TanhApprox"},
	{Name: "SetpF32", Op: "setp", Mods: []Mod{one("cmp", ".eq", ".ne", ".lt", ".le", ".gt", ".ge", ".equ", ".neu", ".ltu", ".leu", ".gtu", ".geu", ".num", ".nan"), ftz(), fix(".f32")},
		Args: []Arg{out("p", Pred), in("a", F32), in("b", F32)}, Manual: "Comparison and Selection: setp"},
}

// Moves and conversions.
var data = []Form{
	{Name: "Mov", Op: "mov", Mods: []Mod{types(".b32", ".u32", ".f32", ".b64", ".u64", ".b16", ".pred")},
		Args: []Arg{outT("d"), inT("a")}, Manual: "Data Movement: mov"},
	{Name: "Pack64", Op: "mov.b64",
		Args: []Arg{out("d", B64), {Name: "a", Kind: Vec, Type: B32, Len: 2}}, Manual: "Data Movement: mov"},
	{Name: "Unpack64", Op: "mov.b64",
		Args: []Arg{{Name: "d", Dir: Out, Kind: Vec, Type: B32, Len: 2}, in("a", B64)}, Manual: "Data Movement: mov"},
	{Name: "Pack32", Op: "mov.b32",
		Args: []Arg{out("d", B32), {Name: "a", Kind: Vec, Type: B16, Len: 2}}, Manual: "Data Movement: mov"},
	{Name: "Unpack32", Op: "mov.b32",
		Args: []Arg{{Name: "d", Dir: Out, Kind: Vec, Type: B16, Len: 2}, in("a", B32)}, Manual: "Data Movement: mov"},
	{Name: "CvtaToGlobal", Op: "cvta.to.global.u64",
		Args: []Arg{out("d", U64), in("a", U64)}, Manual: "Data Movement: cvta"},
	{Name: "CvtaParam", Op: "cvta.param.u64", Version: 77,
		Args: []Arg{out("d", U64), in("a", U64)}, Manual: "Data Movement: cvta"},
	{Name: "CvtInt", Op: "cvt", Mods: []Mod{one("d", ".u16", ".u32", ".s32", ".u64", ".s64"), one("a", ".u16", ".u32", ".s32", ".u64", ".s64")},
		Args: []Arg{{Name: "d", Dir: Out, TypeOf: "d"}, {Name: "a", TypeOf: "a"}}, Manual: "Data Movement: cvt"},
	{Name: "CvtIntToF32", Op: "cvt.rn.f32", Mods: []Mod{types(".u32", ".s32")},
		Args: []Arg{out("d", F32), inT("a")}, Manual: "Data Movement: cvt"},
	{Name: "CvtF32ToInt", Op: "cvt.rzi", Mods: []Mod{types(".u32", ".s32"), fix(".f32")},
		Args: []Arg{outT("d"), in("a", F32)}, Manual: "Data Movement: cvt"},
	{Name: "CvtF32ToBF16", Op: "cvt.rn.bf16.f32", Arch: SM80,
		Args: []Arg{out("d", BF16), in("a", F32)}, Manual: "Data Movement: cvt", Go: "x.BF16"},
	{Name: "CvtF32ToBF16x2", Op: "cvt.rn.bf16x2.f32", Arch: SM80,
		Args: []Arg{out("d", BF16x2), in("hi", F32), in("lo", F32)}, Manual: "Data Movement: cvt"},
	{Name: "CvtBF16ToF32", Op: "cvt.f32.bf16", Version: 71, Arch: SM80,
		Args: []Arg{out("d", F32), register(in("a", BF16))}, Manual: "Data Movement: cvt", Go: "x.F32"},
}
