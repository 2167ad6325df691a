package isa

func sat() Mod  { return opt("sat", ".sat") }
func relu() Mod { return opt("relu", ".relu") }

// rounds returns a place for a mandatory rounding modifier, anyRound a place for an optional one.
func rounds(alts ...string) Mod   { return one("rnd", alts...) }
func anyRound(alts ...string) Mod { return opt("rnd", alts...) }

// exactFloats has floating-point instructions. Most of them are used only by kernels of other
// compilers. They round in other directions or name no direction, have double or half precision, or
// compute further functions.
var exactFloats = join([]Form{
	{Name: "AddF32Any", Op: "add", Mods: []Mod{anyRound(".rz", ".rm", ".rp"), ftz(), sat(), fix(".f32")}, Args: three(F32), Manual: "Floating Point: add"},
	{Name: "SubF32Any", Op: "sub", Mods: []Mod{anyRound(".rz", ".rm", ".rp"), ftz(), sat(), fix(".f32")}, Args: three(F32), Manual: "Floating Point: sub"},
	{Name: "MulF32Any", Op: "mul", Mods: []Mod{anyRound(".rz", ".rm", ".rp"), ftz(), sat(), fix(".f32")}, Args: three(F32), Manual: "Floating Point: mul"},
	{Name: "FmaF32Any", Op: "fma", Mods: []Mod{rounds(".rz", ".rm", ".rp"), ftz(), sat(), fix(".f32")}, Args: four(F32), Manual: "Floating Point: fma"},
	{Name: "MadF32", Op: "mad", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), ftz(), sat(), fix(".f32")}, Args: four(F32), Manual: "Floating Point: mad"},
	{Name: "AddF64", Op: "add", Mods: []Mod{anyRound(".rn", ".rz", ".rm", ".rp"), fix(".f64")}, Args: three(F64), Manual: "Floating Point: add"},
	{Name: "SubF64", Op: "sub", Mods: []Mod{anyRound(".rn", ".rz", ".rm", ".rp"), fix(".f64")}, Args: three(F64), Manual: "Floating Point: sub"},
	{Name: "MulF64", Op: "mul", Mods: []Mod{anyRound(".rn", ".rz", ".rm", ".rp"), fix(".f64")}, Args: three(F64), Manual: "Floating Point: mul"},
	{Name: "FmaF64", Op: "fma", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), fix(".f64")}, Args: four(F64), Manual: "Floating Point: fma"},
	{Name: "MadF64", Op: "mad", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), fix(".f64")}, Args: four(F64), Manual: "Floating Point: mad"},
	{Name: "DivF32Approx", Op: "div", Mods: []Mod{one("mode", ".approx", ".full"), ftz(), fix(".f32")}, Args: three(F32), Manual: "Floating Point: div"},
	{Name: "DivF32", Op: "div", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), ftz(), fix(".f32")}, Args: three(F32), Manual: "Floating Point: div"},
	{Name: "DivF64", Op: "div", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), fix(".f64")}, Args: three(F64), Manual: "Floating Point: div"},
	{Name: "RcpF32", Op: "rcp", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), ftz(), fix(".f32")}, Args: two(F32), Manual: "Floating Point: rcp"},
	{Name: "RcpF64", Op: "rcp", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), fix(".f64")}, Args: two(F64), Manual: "Floating Point: rcp"},
	{Name: "RcpF64Approx", Op: "rcp.approx.ftz.f64", Args: two(F64), Manual: "Floating Point: rcp"},
	{Name: "SqrtApprox", Op: "sqrt.approx", Mods: []Mod{ftz(), fix(".f32")}, Args: two(F32), Manual: "Floating Point: sqrt"},
	{Name: "SqrtF32", Op: "sqrt", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), ftz(), fix(".f32")}, Args: two(F32), Manual: "Floating Point: sqrt"},
	{Name: "SqrtF64", Op: "sqrt", Mods: []Mod{rounds(".rn", ".rz", ".rm", ".rp"), fix(".f64")}, Args: two(F64), Manual: "Floating Point: sqrt"},
	{Name: "Rsqrt", Op: "rsqrt.approx", Mods: []Mod{ftz(), fix(".f32")}, Args: two(F32), Manual: "Floating Point: rsqrt"},
	{Name: "RsqrtF64", Op: "rsqrt.approx.f64", Args: two(F64), Manual: "Floating Point: rsqrt"},
	{Name: "Sin", Op: "sin.approx", Mods: []Mod{ftz(), fix(".f32")}, Args: two(F32), Manual: "Floating Point: sin"},
	{Name: "Cos", Op: "cos.approx", Mods: []Mod{ftz(), fix(".f32")}, Args: two(F32), Manual: "Floating Point: cos"},
	{Name: "AbsF32", Op: "abs", Mods: []Mod{ftz(), fix(".f32")}, Args: two(F32), Manual: "Floating Point: abs"},
	{Name: "AbsF64", Op: "abs.f64", Args: two(F64), Manual: "Floating Point: abs"},
	{Name: "NegF32Ftz", Op: "neg.ftz.f32", Args: two(F32), Manual: "Floating Point: neg"},
	{Name: "NegF64", Op: "neg.f64", Args: two(F64), Manual: "Floating Point: neg"},
	{Name: "MinF64", Op: "min.f64", Args: three(F64), Manual: "Floating Point: min"},
	{Name: "MaxF64", Op: "max.f64", Args: three(F64), Manual: "Floating Point: max"},
	{Name: "Copysign", Op: "copysign", Mods: []Mod{types(".f32", ".f64")}, Args: threeT, Manual: "Floating Point: copysign"},
}, halves("F16", types(".f16", ".f16x2"), 70, SM70), halves("BF16", types(".bf16", ".bf16x2"), 78, SM90))

func two(t Type) []Arg  { return []Arg{out("d", t), in("a", t)} }
func four(t Type) []Arg { return []Arg{out("d", t), in("a", t), in("b", t), in("c", t)} }

func join(families ...[]Form) (all []Form) {
	for _, f := range families {
		all = append(all, f...)
	}
	return all
}

// halves returns the forms for 16-bit floats and for pairs of them. Sums and products need version
// v and target a; fma, min and max need less.
func halves(name string, t Mod, v Version, a Arch) []Form {
	regs := func(n int) []Arg {
		args := []Arg{outT("d")}
		for _, in := range []string{"a", "b", "c"}[:n] {
			args = append(args, register(inT(in)))
		}
		return args
	}
	f16 := name == "F16"
	flush, clamp := func(mods ...Mod) []Mod {
		if f16 {
			return append([]Mod{ftz()}, append(mods, t)...)
		}
		return append(mods, t)
	}, func(mods ...Mod) []Mod {
		if f16 {
			return append([]Mod{ftz(), sat()}, append(mods, t)...)
		}
		return append(mods, t)
	}
	fmaVersion, fmaArch := v, a
	if !f16 {
		fmaVersion, fmaArch = 70, SM80
	}
	forms := []Form{
		{Name: "Fma" + name, Op: "fma.rn", Mods: clamp(relu().since(70, SM80)), Args: regs(3), Version: fmaVersion, Arch: fmaArch, Manual: "Half Precision: fma"},
		{Name: "Neg" + name, Op: "neg", Mods: flush(), Args: regs(1), Version: 70, Arch: fmaArch, Manual: "Half Precision: neg"},
		{Name: "Abs" + name, Op: "abs", Mods: flush(), Args: regs(1), Version: 70, Arch: fmaArch, Manual: "Half Precision: abs"},
		{Name: "Min" + name, Op: "min", Mods: flush(opt("nan", ".NaN")), Args: regs(2), Version: 70, Arch: SM80, Manual: "Half Precision: min"},
		{Name: "Max" + name, Op: "max", Mods: flush(opt("nan", ".NaN")), Args: regs(2), Version: 70, Arch: SM80, Manual: "Half Precision: max"},
	}
	if f16 {
		forms[0].Not = [][2]string{{".sat", ".relu"}}
		forms = append(forms, Form{Name: "Ex2F16", Op: "ex2.approx", Mods: []Mod{t}, Args: regs(1), Arch: SM80, Manual: "Half Precision: ex2"})
	} else {
		forms = append(forms, Form{Name: "Ex2BF16", Op: "ex2.approx.ftz", Mods: []Mod{t}, Args: regs(1), Version: 78, Arch: SM90, Manual: "Half Precision: ex2"})
	}
	tanh := Form{Name: "Tanh" + name, Op: "tanh.approx", Mods: []Mod{t}, Args: regs(1), Version: v, Arch: max(a, SM80), Manual: "Half Precision: tanh"}
	forms = append(forms, tanh)
	for _, op := range []string{"add", "sub", "mul"} {
		forms = append(forms, Form{Name: map[string]string{"add": "Add", "sub": "Sub", "mul": "Mul"}[op] + name, Op: op,
			Mods: append([]Mod{opt("rnd", ".rn")}, clamp()...), Args: regs(2), Version: v, Arch: a, Manual: "Half Precision: " + op})
	}
	return forms
}
