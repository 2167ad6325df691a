package isa

// Table holds every form, indexed by ID.
var Table = build(arith, floats, data, memory, barriers, async, warp, control,
	integers, exactFloats, conversions, spaceForms, warps, asyncs)

// ByOp lists the forms that have the same Op. The parser uses it.
var ByOp = byOp()

func build(families ...[]Form) []Form {
	var t []Form
	for _, f := range families {
		t = append(t, f...)
	}
	for i := range t {
		t[i].ID = ID(i)
		if t[i].Version == 0 {
			t[i].Version = 70
		}
		for j := range t[i].Args {
			t[i].types = append(t[i].types, t[i].argTypes(&t[i].Args[j]))
		}
	}
	return t
}

func byOp() map[string][]*Form {
	m := map[string][]*Form{}
	for i := range Table {
		m[Table[i].Op] = append(m[Table[i].Op], &Table[i])
	}
	return m
}

// The functions below make the rows of the table shorter.

func one(name string, alts ...string) Mod { return Mod{Name: name, Alts: alts} }
func opt(name string, alts ...string) Mod { return Mod{Name: name, Alts: alts, Opt: true} }

// since returns the place with the version and target that its modifiers need.
func (m Mod) since(v Version, a Arch) Mod {
	m.Version, m.Arch = v, a
	return m
}

// not returns all pairs of one modifier of a and one modifier of b.
func not(a, b []string) (pairs [][2]string) {
	for _, x := range a {
		for _, y := range b {
			pairs = append(pairs, [2]string{x, y})
		}
	}
	return pairs
}

func fix(text string) Mod      { return Mod{Alts: []string{text}} }
func types(alts ...string) Mod { return Mod{Name: "type", Alts: alts} }

func out(name string, t Type) Arg   { return Arg{Name: name, Dir: Out, Type: t} }
func in(name string, t Type) Arg    { return Arg{Name: name, Type: t} }
func outT(name string) Arg          { return Arg{Name: name, Dir: Out, TypeOf: "type"} }
func inT(name string) Arg           { return Arg{Name: name, TypeOf: "type"} }
func imm(name string) Arg           { return Arg{Name: name, Kind: Imm, Type: U32} }
func pred(name string) Arg          { return Arg{Name: name, Kind: PredIn, Type: Pred} }
func addr(name string, s Space) Arg { return Arg{Name: name, Kind: Addr, Type: U64, Space: s} }
func optional(a Arg) Arg            { a.Opt = true; return a }
func register(a Arg) Arg            { a.RegOnly = true; return a }
