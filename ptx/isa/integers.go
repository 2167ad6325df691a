package isa

// integers has integer and logic instructions, most of which only kernels of other compilers use:
// 16-bit types, bit fields, carries, saturation, and further comparisons.
var integers = []Form{
	{Name: "Add16", Op: "add", Mods: []Mod{types(".u16", ".s16")}, Args: threeT, Manual: "Integer Arithmetic: add"},
	{Name: "Sub16", Op: "sub", Mods: []Mod{types(".u16", ".s16")}, Args: threeT, Manual: "Integer Arithmetic: sub"},
	{Name: "AddSat", Op: "add.sat.s32", Args: three(S32), Manual: "Integer Arithmetic: add"},
	{Name: "SubSat", Op: "sub.sat.s32", Args: three(S32), Manual: "Integer Arithmetic: sub"},
	{Name: "MulLo16", Op: "mul.lo", Mods: []Mod{types(".u16", ".s16")}, Args: threeT, Manual: "Integer Arithmetic: mul"},
	{Name: "MulHiMore", Op: "mul.hi", Mods: []Mod{types(".u16", ".s16", ".u64", ".s64")}, Args: threeT, Manual: "Integer Arithmetic: mul"},
	{Name: "MulWide16", Op: "mul.wide", Mods: []Mod{types(".u16", ".s16")},
		Args: []Arg{{Name: "d", Dir: Out, TypeOf: "type", Wide: true}, inT("a"), inT("b")}, Manual: "Integer Arithmetic: mul"},
	{Name: "MadLoMore", Op: "mad.lo", Mods: []Mod{types(".u16", ".s16", ".s64")}, Args: fourT, Manual: "Integer Arithmetic: mad"},
	{Name: "MadHi", Op: "mad.hi", Mods: []Mod{types(".u32", ".s32", ".u64", ".s64")}, Args: fourT, Manual: "Integer Arithmetic: mad"},
	{Name: "MadWide16", Op: "mad.wide", Mods: []Mod{types(".u16", ".s16")},
		Args: []Arg{{Name: "d", Dir: Out, TypeOf: "type", Wide: true}, inT("a"), inT("b"), {Name: "c", TypeOf: "type", Wide: true}}, Manual: "Integer Arithmetic: mad"},
	{Name: "Mul24", Op: "mul24", Mods: []Mod{one("half", ".lo", ".hi"), types(".u32", ".s32")}, Args: threeT, Manual: "Integer Arithmetic: mul24"},
	{Name: "Mad24", Op: "mad24", Mods: []Mod{one("half", ".lo", ".hi"), types(".u32", ".s32")}, Args: fourT, Manual: "Integer Arithmetic: mad24"},
	{Name: "Sad", Op: "sad", Mods: []Mod{types(".u32", ".s32", ".u64", ".s64", ".u16", ".s16")}, Args: fourT, Manual: "Integer Arithmetic: sad"},
	{Name: "Dp4a", Op: "dp4a", Mods: []Mod{one("a", ".u32", ".s32"), one("b", ".u32", ".s32")},
		Args: []Arg{out("d", B32), in("a", B32), in("b", B32), in("c", B32)}, Manual: "Integer Arithmetic: dp4a"},
	{Name: "DivMore", Op: "div", Mods: []Mod{types(".u16", ".s16", ".s64")}, Args: threeT, Manual: "Integer Arithmetic: div"},
	{Name: "RemMore", Op: "rem", Mods: []Mod{types(".u16", ".s16", ".s64")}, Args: threeT, Manual: "Integer Arithmetic: rem"},
	{Name: "Min16", Op: "min", Mods: []Mod{types(".u16", ".s16")}, Args: threeT, Manual: "Integer Arithmetic: min"},
	{Name: "Max16", Op: "max", Mods: []Mod{types(".u16", ".s16")}, Args: threeT, Manual: "Integer Arithmetic: max"},
	{Name: "Neg", Op: "neg", Mods: []Mod{types(".s16", ".s32", ".s64")}, Args: twoT, Manual: "Integer Arithmetic: neg"},
	{Name: "Abs", Op: "abs", Mods: []Mod{types(".s16", ".s32", ".s64")}, Args: twoT, Manual: "Integer Arithmetic: abs"},
	{Name: "And16", Op: "and.b16", Args: three(B16), Manual: "Logic and Shift: and"},
	{Name: "Or16", Op: "or.b16", Args: three(B16), Manual: "Logic and Shift: or"},
	{Name: "Xor16", Op: "xor.b16", Args: three(B16), Manual: "Logic and Shift: xor"},
	{Name: "Not16", Op: "not.b16", Args: []Arg{out("d", B16), in("a", B16)}, Manual: "Logic and Shift: not"},
	{Name: "Cnot", Op: "cnot", Mods: []Mod{types(".b16", ".b32", ".b64")}, Args: twoT, Manual: "Logic and Shift: cnot"},
	{Name: "Shl16", Op: "shl.b16", Args: []Arg{out("d", B16), in("a", B16), in("n", U32)}, Manual: "Logic and Shift: shl"},
	{Name: "ShrMore", Op: "shr", Mods: []Mod{types(".u16", ".s16", ".b16", ".b32", ".b64")},
		Args: []Arg{outT("d"), inT("a"), in("n", U32)}, Manual: "Logic and Shift: shr"},
	{Name: "Shf", Op: "shf", Mods: []Mod{one("dir", ".l", ".r"), one("mode", ".wrap", ".clamp"), fix(".b32")},
		Args: []Arg{out("d", B32), in("a", B32), in("b", B32), in("n", U32)}, Manual: "Logic and Shift: shf"},
	{Name: "Lop3", Op: "lop3.b32", Args: []Arg{out("d", B32), in("a", B32), in("b", B32), in("c", B32), imm("table")}, Manual: "Logic and Shift: lop3"},
	{Name: "Brev", Op: "brev", Mods: []Mod{types(".b32", ".b64")}, Args: twoT, Manual: "Integer Arithmetic: brev"},
	{Name: "Bmsk", Op: "bmsk", Mods: []Mod{one("mode", ".clamp", ".wrap"), fix(".b32")}, Version: 76, Args: []Arg{out("d", B32), in("at", B32), in("bits", B32)}, Manual: "Integer Arithmetic: bmsk"},
	{Name: "Bfind", Op: "bfind", Mods: []Mod{opt("shiftamt", ".shiftamt"), types(".u32", ".s32", ".u64", ".s64")},
		Args: []Arg{out("d", U32), inT("a")}, Manual: "Integer Arithmetic: bfind"},
	{Name: "Bfe", Op: "bfe", Mods: []Mod{types(".u32", ".s32", ".u64", ".s64")},
		Args: []Arg{outT("d"), inT("a"), in("at", U32), in("n", U32)}, Manual: "Integer Arithmetic: bfe"},
	{Name: "Bfi", Op: "bfi", Mods: []Mod{types(".b32", ".b64")},
		Args: []Arg{outT("d"), inT("a"), inT("b"), in("at", U32), in("n", U32)}, Manual: "Integer Arithmetic: bfi"},
	{Name: "PrmtMode", Op: "prmt.b32", Mods: []Mod{one("mode", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")},
		Args: []Arg{out("d", B32), in("a", B32), in("b", B32), in("selector", B32)}, Manual: "Data Movement: prmt"},
	{Name: "AddCC", Op: "add.cc", Mods: []Mod{types(".u32", ".s32", ".u64", ".s64")}, Args: threeT, Manual: "Extended-Precision: add.cc"},
	{Name: "Addc", Op: "addc", Mods: []Mod{opt("cc", ".cc"), types(".u32", ".s32", ".u64", ".s64")}, Args: threeT, Manual: "Extended-Precision: addc"},
	{Name: "SubCC", Op: "sub.cc", Mods: []Mod{types(".u32", ".s32", ".u64", ".s64")}, Args: threeT, Manual: "Extended-Precision: sub.cc"},
	{Name: "Subc", Op: "subc", Mods: []Mod{opt("cc", ".cc"), types(".u32", ".s32", ".u64", ".s64")}, Args: threeT, Manual: "Extended-Precision: subc"},
	{Name: "MadCC", Op: "mad", Mods: []Mod{one("half", ".lo", ".hi"), fix(".cc"), types(".u32", ".s32", ".u64", ".s64")}, Args: fourT, Manual: "Extended-Precision: mad.cc"},
	{Name: "Madc", Op: "madc", Mods: []Mod{one("half", ".lo", ".hi"), opt("cc", ".cc"), types(".u32", ".s32", ".u64", ".s64")}, Args: fourT, Manual: "Extended-Precision: madc"},

	{Name: "SetpBits", Op: "setp", Mods: []Mod{one("cmp", ".eq", ".ne"), types(".b16", ".b32", ".b64")},
		Args: []Arg{out("p", Pred), inT("a"), inT("b")}, Manual: "Comparison and Selection: setp"},
	{Name: "Setp16", Op: "setp", Mods: []Mod{one("cmp", ".eq", ".ne", ".lt", ".le", ".gt", ".ge"), types(".u16", ".s16")},
		Args: []Arg{out("p", Pred), inT("a"), inT("b")}, Manual: "Comparison and Selection: setp"},
	{Name: "SetpUnsigned", Op: "setp", Mods: []Mod{one("cmp", ".lo", ".ls", ".hi", ".hs"), types(".u16", ".u32", ".u64")},
		Args: []Arg{out("p", Pred), inT("a"), inT("b")}, Manual: "Comparison and Selection: setp"},
	{Name: "SetpF64", Op: "setp", Mods: []Mod{floatCmp(), fix(".f64")},
		Args: []Arg{out("p", Pred), in("a", F64), in("b", F64)}, Manual: "Comparison and Selection: setp"},
	{Name: "SetpF16", Op: "setp", Mods: []Mod{floatCmp(), ftz(), fix(".f16")},
		Args: []Arg{out("p", Pred), register(in("a", F16)), register(in("b", F16))}, Manual: "Comparison and Selection: setp"},
	{Name: "SetpBF16", Op: "setp", Mods: []Mod{floatCmp(), fix(".bf16")}, Version: 78, Arch: SM90,
		Args: []Arg{out("p", Pred), register(in("a", BF16)), register(in("b", BF16))}, Manual: "Comparison and Selection: setp"},
	{Name: "SetpPair", Op: "setp", Mods: []Mod{setpCmp(), setpTypes()}, Not: setpNot,
		Args: []Arg{{Name: "p", Dir: Out, Kind: Pair, Type: Pred}, inT("a"), inT("b")}, Manual: "Comparison and Selection: setp"},
	{Name: "SetpBool", Op: "setp", Mods: []Mod{setpCmp(), one("bool", ".and", ".or", ".xor"), setpTypes()}, Not: setpNot,
		Args: []Arg{out("p", Pred), inT("a"), inT("b"), pred("c")}, Manual: "Comparison and Selection: setp"},
	{Name: "SetpBoolPair", Op: "setp", Mods: []Mod{setpCmp(), one("bool", ".and", ".or", ".xor"), setpTypes()}, Not: setpNot,
		Args: []Arg{{Name: "p", Dir: Out, Kind: Pair, Type: Pred}, inT("a"), inT("b"), pred("c")}, Manual: "Comparison and Selection: setp"},
	{Name: "Set", Op: "set", Mods: []Mod{setpCmp(), one("d", ".u32", ".s32", ".f32"), setpTypes()}, Not: setpNot,
		Args: []Arg{{Name: "d", Dir: Out, TypeOf: "d"}, inT("a"), inT("b")}, Manual: "Comparison and Selection: set"},
	{Name: "Slct", Op: "slct", Mods: []Mod{types(".b32", ".u32", ".s32", ".f32", ".b64", ".u64", ".s64", ".f64"), fix(".s32")},
		Args: []Arg{outT("d"), inT("a"), inT("b"), in("c", S32)}, Manual: "Comparison and Selection: slct"},
}

var (
	twoT   = []Arg{outT("d"), inT("a")}
	threeT = []Arg{outT("d"), inT("a"), inT("b")}
	fourT  = []Arg{outT("d"), inT("a"), inT("b"), inT("c")}
)

func three(t Type) []Arg { return []Arg{out("d", t), in("a", t), in("b", t)} }

func floatCmp() Mod {
	return one("cmp", ".eq", ".ne", ".lt", ".le", ".gt", ".ge", ".equ", ".neu", ".ltu", ".leu", ".gtu", ".geu", ".num", ".nan")
}

// setpCmp and setpTypes return the modifiers for the comparison and the type of a setp with two
// results.
// setpNot lists the pairs of comparison and type that exclude each other.

func setpCmp() Mod { return floatCmp() }

func setpTypes() Mod { return types(".u32", ".s32", ".u64", ".s64", ".f32", ".f64", ".b32", ".b64") }

var setpNot = append(
	not([]string{".equ", ".neu", ".ltu", ".leu", ".gtu", ".geu", ".num", ".nan"}, []string{".u32", ".s32", ".u64", ".s64", ".b32", ".b64"}),
	not([]string{".lt", ".le", ".gt", ".ge"}, []string{".b32", ".b64"})...)
