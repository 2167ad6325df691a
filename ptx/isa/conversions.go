package isa

// ints lists the integer types of cvt.
var ints = []string{".u8", ".s8", ".u16", ".s16", ".u32", ".s32", ".u64", ".s64"}

// wider lists the integer types that cvt can convert to or from bf16.
var wider = ints[2:]

// cvtArgs returns the operands of cvt. The registers may be wider than the types.
func cvtArgs() []Arg {
	return []Arg{{Name: "d", Dir: Out, TypeOf: "d", Wider: true}, {Name: "a", TypeOf: "a", Wider: true, RegOnly: true}}
}

func cvt(name string, mods ...Mod) Form {
	return Form{Name: name, Op: "cvt", Mods: mods, Args: cvtArgs(), Manual: "Data Movement: cvt"}
}

// conversions has conversions and address instructions that only kernels of other compilers use.
// They concern 8-bit integers and floats, all rounding modes, saturation, double precision, and
// addresses of all state spaces.
var conversions = []Form{
	cvt("CvtIntSat", fix(".sat"), one("d", ".u8", ".s8", ".u16", ".s16"), one("a", ".u32", ".s32", ".u64", ".s64")),
	cvt("CvtInt64Sat", fix(".sat"), one("d", ".u32", ".s32"), one("a", ".u64", ".s64")),
	cvt("CvtInt8", one("d", ".u8", ".s8", ".s16"), one("a", ints...)),
	cvt("CvtIntFrom8", one("d", ".u16", ".u32", ".s32", ".u64", ".s64"), one("a", ".u8", ".s8", ".s16")),
	cvt("CvtIntToF32Any", rounds(".rz", ".rm", ".rp"), opt("sat", ".sat"), fixed("d", ".f32"), one("a", ints...)),
	cvt("CvtIntToF32More", fix(".rn"), opt("sat", ".sat"), fixed("d", ".f32"), one("a", ".u8", ".s8", ".u16", ".s16", ".u64", ".s64")),
	cvt("CvtIntToF64", rounds(".rn", ".rz", ".rm", ".rp"), fixed("d", ".f64"), one("a", ints...)),
	cvt("CvtIntToF16", rounds(".rn", ".rz", ".rm", ".rp"), fixed("d", ".f16"), one("a", ints...)),
	cvt("CvtF32ToIntAny", rounds(".rni", ".rmi", ".rpi"), ftz(), one("d", ints...), fixed("a", ".f32")),
	cvt("CvtF32ToIntMore", fix(".rzi"), fix(".ftz"), one("d", ints...), fixed("a", ".f32")),
	cvt("CvtF32ToWide", fix(".rzi"), one("d", ".u8", ".s8", ".u16", ".s16", ".u64", ".s64"), fixed("a", ".f32")),
	cvt("CvtF64ToInt", rounds(".rni", ".rzi", ".rmi", ".rpi"), one("d", ints...), fixed("a", ".f64")),
	cvt("CvtF16ToInt", rounds(".rni", ".rzi", ".rmi", ".rpi"), one("d", ints...), fixed("a", ".f16")),
	cvt("CvtF32ToF64", ftz(), fixed("d", ".f64"), fixed("a", ".f32")),
	cvt("CvtF64ToF32", rounds(".rn", ".rz", ".rm", ".rp"), ftz(), sat(), fixed("d", ".f32"), fixed("a", ".f64")),
	cvt("CvtF16ToF64", fixed("d", ".f64"), fixed("a", ".f16")),
	cvt("CvtF64ToF16", rounds(".rn", ".rz", ".rm", ".rp"), fixed("d", ".f16"), fixed("a", ".f64")),
	cvt("CvtRoundF32", rounds(".rni", ".rzi", ".rmi", ".rpi"), ftz(), sat(), fixed("d", ".f32"), fixed("a", ".f32")),
	cvt("CvtSatF32", ftz(), fix(".sat"), fixed("d", ".f32"), fixed("a", ".f32")),
	cvt("CvtRoundF64", rounds(".rni", ".rzi", ".rmi", ".rpi"), fixed("d", ".f64"), fixed("a", ".f64")),
	cvt("CvtRoundF16", rounds(".rni", ".rzi", ".rmi", ".rpi"), fixed("d", ".f16"), fixed("a", ".f16")),
	cvt("CvtF32ToF16Zero", fix(".rz"), fixed("d", ".f16"), fixed("a", ".f32")),
	{Name: "CvtF32ToHalf", Op: "cvt", Mods: []Mod{rounds(".rn", ".rz"), fix(".relu"), one("d", ".f16", ".bf16"), fixed("a", ".f32")}, Args: cvtArgs(), Arch: SM80, Manual: "Data Movement: cvt"},
	{Name: "CvtF32ToBF16Zero", Op: "cvt.rz.bf16.f32", Arch: SM80, Args: []Arg{out("d", BF16), in("a", F32)}, Manual: "Data Movement: cvt"},
	{Name: "CvtF32ToPair", Op: "cvt", Mods: []Mod{rounds(".rn", ".rz"), fix(".relu"), one("d", ".f16x2", ".bf16x2"), fix(".f32")}, Arch: SM80,
		Args: []Arg{{Name: "d", Dir: Out, TypeOf: "d"}, in("hi", F32), in("lo", F32)}, Manual: "Data Movement: cvt"},
	{Name: "CvtF32ToPairZero", Op: "cvt.rz", Mods: []Mod{one("d", ".f16x2", ".bf16x2"), fix(".f32")}, Arch: SM80,
		Args: []Arg{{Name: "d", Dir: Out, TypeOf: "d"}, in("hi", F32), in("lo", F32)}, Manual: "Data Movement: cvt"},
	{Name: "CvtIntToBF16", Op: "cvt", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), fixed("d", ".bf16"), one("a", wider...)}, Args: cvtArgs(), Version: 78, Arch: SM90, Manual: "Data Movement: cvt"},
	{Name: "CvtBF16ToInt", Op: "cvt", Mods: []Mod{rounds(".rni", ".rzi", ".rmi", ".rpi"), one("d", wider...), fixed("a", ".bf16")}, Args: cvtArgs(), Version: 78, Arch: SM90, Manual: "Data Movement: cvt"},
	{Name: "CvtF16ToBF16", Op: "cvt", Mods: []Mod{fix(".rn"), fixed("d", ".bf16"), one("a", ".f16", ".f64")}, Args: cvtArgs(), Version: 78, Arch: SM90, Manual: "Data Movement: cvt"},
	{Name: "CvtBF16ToF16", Op: "cvt", Mods: []Mod{fix(".rn"), fixed("d", ".f16"), fixed("a", ".bf16")}, Args: cvtArgs(), Version: 78, Arch: SM90, Manual: "Data Movement: cvt"},
	{Name: "CvtTF32Any", Op: "cvt", Mods: []Mod{rounds(".rn", ".rz"), relu(), fix(".tf32"), fix(".f32")}, Version: 78, Arch: SM90,
		Args: []Arg{out("d", B32), in("a", F32)}, Manual: "Data Movement: cvt"},
	{Name: "CvtTF32", Op: "cvt.rna.tf32.f32", Arch: SM80, Args: []Arg{out("d", B32), in("a", F32)}, Manual: "Data Movement: cvt"},
	{Name: "CvtFP8", Op: "cvt.rn.satfinite", Mods: []Mod{relu(), one("fp8", ".e4m3x2", ".e5m2x2"), fix(".f32")}, Version: 78, Arch: SM90,
		Args: []Arg{out("d", B16), in("hi", F32), in("lo", F32)}, Manual: "Data Movement: cvt"},
	{Name: "CvtFP8FromF16", Op: "cvt.rn.satfinite", Mods: []Mod{relu(), one("fp8", ".e4m3x2", ".e5m2x2"), fix(".f16x2")}, Version: 78, Arch: SM90,
		Args: []Arg{out("d", B16), register(in("a", F16x2))}, Manual: "Data Movement: cvt"},
	{Name: "CvtFP8ToF16", Op: "cvt.rn.f16x2", Mods: []Mod{one("fp8", ".e4m3x2", ".e5m2x2")}, Version: 78, Arch: SM90,
		Args: []Arg{out("d", F16x2), register(in("a", B16))}, Manual: "Data Movement: cvt"},

	{Name: "Cvta", Op: "cvta", Mods: []Mod{one("space", ".global", ".shared", ".local", ".const"), fix(".u64")},
		Args: []Arg{out("d", U64), in("a", U64)}, Manual: "Data Movement: cvta"},
	{Name: "CvtaTo", Op: "cvta.to", Mods: []Mod{one("space", ".shared", ".local", ".const"), fix(".u64")},
		Args: []Arg{out("d", U64), register(in("a", U64))}, Manual: "Data Movement: cvta"},
	{Name: "Isspacep", Op: "isspacep", Mods: []Mod{one("space", ".global", ".shared", ".local", ".shared::cta")},
		Args: []Arg{out("p", Pred), register(in("a", U64))}, Manual: "Data Movement: isspacep"},
	{Name: "IsspacepCluster", Op: "isspacep.shared::cluster", Version: 78, Arch: SM90,
		Args: []Arg{out("p", Pred), register(in("a", U64))}, Manual: "Data Movement: isspacep"},
	{Name: "Pack64x4", Op: "mov.b64", Args: []Arg{out("d", B64), {Name: "a", Kind: Vec, Type: B16, Len: 4}}, Manual: "Data Movement: mov"},
	{Name: "Unpack64x4", Op: "mov.b64", Args: []Arg{{Name: "d", Dir: Out, Kind: Vec, Type: B16, Len: 4}, in("a", B64)}, Manual: "Data Movement: mov"},
}

// fixed returns a place with one possible modifier. The place has a name because an operand takes
// its type from the place.
func fixed(name, text string) Mod { return Mod{Name: name, Alts: []string{text}} }
