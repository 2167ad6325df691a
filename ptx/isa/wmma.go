package isa

// This file has the wmma instructions: matrix products of a warp. The layout of their fragments is
// not documented.

// wmmaElement is an element type of A and B. It has, for each shape, the number of registers of a
// fragment, and the types of the sums.
type wmmaElement struct {
	name   string // part of the names of the element's rows in the instruction table
	types  []string
	shapes []wmmaShape
	sums   []string
	arch   Arch
	// fixed states that A must be stored by rows and B by columns.
	fixed bool
}

type wmmaShape struct {
	names []string // shapes with this number of registers
	a, b  int
}

var wmmaElements = []wmmaElement{
	{"F16", []string{".f16"}, []wmmaShape{{[]string{".m16n16k16", ".m8n32k16", ".m32n8k16"}, 8, 8}}, []string{".f16", ".f32"}, SM70, false},
	{"BF16", []string{".bf16"}, []wmmaShape{{[]string{".m16n16k16"}, 4, 4}, {[]string{".m8n32k16"}, 2, 8}, {[]string{".m32n8k16"}, 8, 2}}, []string{".f32"}, SM80, false},
	{"TF32", []string{".tf32"}, []wmmaShape{{[]string{".m16n16k8"}, 4, 4}}, []string{".f32"}, SM80, false},
	{"Int8", []string{".s8", ".u8"}, []wmmaShape{{[]string{".m16n16k16"}, 2, 2}, {[]string{".m8n32k16"}, 1, 4}, {[]string{".m32n8k16"}, 4, 1}}, []string{".s32"}, SM80, false},
	{"Int4", []string{".s4", ".u4"}, []wmmaShape{{[]string{".m8n8k32"}, 1, 1}}, []string{".s32"}, SM80, true},
	{"Bits", []string{".b1"}, []wmmaShape{{[]string{".m8n8k128"}, 1, 1}}, []string{".s32"}, SM80, true},
	{"F64", []string{".f64"}, []wmmaShape{{[]string{".m8n8k4"}, 1, 1}}, []string{".f64"}, SM80, false},
}

// fragment returns an operand that is a fragment: length registers of an element type.
func fragment(name, element string, dir Dir, length int) Arg {
	t := B32
	switch element {
	case ".f64":
		t = F64
	case ".f32":
		t = F32
	case ".f16":
		t = F16x2
	case ".s32":
		t = S32
	}
	return Arg{Name: name, Dir: dir, Kind: Vec, Type: t, Len: length, RegOnly: dir == In}
}

// wmmaSums returns the number of registers of a fragment of sums.
func wmmaSums(shape, element string) int {
	switch {
	case shape == ".m8n8k4", shape == ".m8n8k32", shape == ".m8n8k128":
		return 2
	case element == ".f16":
		return 4
	}
	return 8
}

// product returns the forms that multiply fragments of one shape. d and c are the types of the sums
// and of the initial sums.
func (e wmmaElement) product(name string, layoutA, layoutB Mod, s wmmaShape, d, c string) []Form {
	f := Form{Name: "Wmma" + name, Op: "wmma.mma.sync.aligned", Arch: e.arch, Effects: Aligned | Varies, Manual: "wmma.mma",
		Args: []Arg{fragment("d", d, Out, wmmaSums(s.names[0], d)), fragment("a", e.types[0], In, s.a), fragment("b", e.types[0], In, s.b), fragment("c", c, In, wmmaSums(s.names[0], c))}}
	f.Mods = []Mod{layoutA, layoutB, one("shape", s.names...)}
	switch e.name {
	case "F16":
		f.Name += map[string]string{".f16": "Halves", ".f32": ""}[d] + map[string]string{".f16": "OfHalves", ".f32": ""}[c]
		f.Mods = append(f.Mods, fix(d), fix(c))
	case "F64":
		f.Mods = append(f.Mods, opt("rnd", ".rn", ".rz", ".rm", ".rp"), fix(d), fixed("a", ".f64"), fixed("b", ".f64"), fix(c))
	case "Bits":
		f.Op, f.Mods = "wmma.mma.xor.popc.sync.aligned", append(f.Mods, fix(d), fixed("a", ".b1"), fixed("b", ".b1"), fix(c))
		and := f
		and.Name, and.Op, and.Version = f.Name+"And", "wmma.mma.and.popc.sync.aligned", 71
		return []Form{f, and}
	default:
		f.Mods = append(f.Mods, fix(d), one("a", e.types...), one("b", e.types...), fix(c))
		if d == ".s32" {
			f.Mods = append(f.Mods, opt("satfinite", ".satfinite"))
			f.Not = [][2]string{{e.types[0], e.types[1]}}
		}
	}
	return []Form{f}
}

func wmmaForms() (forms []Form) {
	either := func(name string) Mod { return one(name, ".row", ".col") }
	space := opt("space", ".global", ".shared")
	stride := optional(in("stride", U32))
	load := func(matrix, name string, layout Mod, shapes, types []string, length int, arch Arch) {
		forms = append(forms, Form{Name: "WmmaLoad" + name, Op: "wmma.load." + matrix + ".sync.aligned", Mods: []Mod{layout, one("shape", shapes...), space, one("element", types...)},
			Args: []Arg{fragment("d", types[0], Out, length), addrIn(), stride}, Arch: arch, Effects: Aligned | Varies, Manual: "wmma.load"})
	}
	for _, e := range wmmaElements {
		a, b := either("layoutA"), either("layoutB")
		if e.fixed {
			a, b = fixed("layoutA", ".row"), fixed("layoutB", ".col")
		}
		for _, s := range e.shapes {
			name := e.name
			if len(e.shapes) > 1 {
				name += "M" + s.names[0][2:len(s.names[0])-4]
			}
			load("a", "A"+name, Mod{Name: "layout", Alts: a.Alts}, s.names, e.types, s.a, e.arch)
			load("b", "B"+name, Mod{Name: "layout", Alts: b.Alts}, s.names, e.types, s.b, e.arch)
			for _, d := range e.sums {
				for _, c := range e.sums {
					forms = append(forms, e.product(name, a, b, s, d, c)...)
				}
			}
		}
	}
	for _, s := range []struct {
		name   string
		shapes []string
		sums   string
		arch   Arch
	}{
		{"Halves", wmmaElements[0].shapes[0].names, ".f16", SM70},
		{"", wmmaElements[0].shapes[0].names, ".f32", SM70},
		{"TF32", []string{".m16n16k8"}, ".f32", SM80},
		{"Ints", wmmaElements[0].shapes[0].names, ".s32", SM80},
		{"SmallInts", []string{".m8n8k32", ".m8n8k128"}, ".s32", SM80},
		{"F64", []string{".m8n8k4"}, ".f64", SM80},
	} {
		n := wmmaSums(s.shapes[0], s.sums)
		load("c", "C"+s.name, either("layout"), s.shapes, []string{s.sums}, n, s.arch)
		forms = append(forms, Form{Name: "WmmaStore" + s.name, Op: "wmma.store.d.sync.aligned", Mods: []Mod{either("layout"), one("shape", s.shapes...), space, one("element", s.sums)},
			Args: []Arg{addrIn(), fragment("d", s.sums, In, n), stride}, Arch: s.arch, Effects: Aligned, Manual: "wmma.store"})
	}
	return forms
}
