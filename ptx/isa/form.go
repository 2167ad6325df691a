package isa

import "strconv"

// ID is the number of an instruction form: the index of its row in [Table].
type ID uint16

// Version is ten times a PTX .version: 80 stands for 8.0.
type Version int

// String returns the version as PTX writes it.
func (v Version) String() string {
	return strconv.Itoa(int(v)/10) + "." + strconv.Itoa(int(v)%10)
}

// Arch is a .target of PTX, such as sm_90a.
type Arch uint8

// The targets, in rising order.
const (
	SM70 Arch = iota
	SM80
	SM90
	SM90a
)

var archNames = [...]string{"sm_70", "sm_80", "sm_90", "sm_90a"}

// String returns the target as PTX writes it.
func (a Arch) String() string { return archNames[a] }

// ArchNamed returns the Arch with the given .target name.
func ArchNamed(name string) (Arch, bool) {
	for i, n := range archNames {
		if n == name {
			return Arch(i), true
		}
	}
	return 0, false
}

// MinVersion returns the lowest .version that knows the target.
func (a Arch) MinVersion() Version {
	return [...]Version{70, 70, 78, 80}[a]
}

// Effect is a set of effects of an instruction, besides computing its outputs. The verifier and the
// emulator use it for control flow and for the lanes of a warp.
type Effect uint8

// The effects.
const (
	// Aligned: all threads of the warp must execute it together.
	Aligned Effect = 1 << iota
	// Branches: control may go to the label operand.
	Branches
	// Exits: the thread ends.
	Exits
	// Uniform: the result is the same in all lanes of a converged warp.
	Uniform
	// Varies: the result differs between lanes even if the inputs do not.
	Varies
)

// Mod is a place for a modifier in an instruction, with the modifiers that may be there.
type Mod struct {
	// Name is the name by which [Arg.TypeOf] and [Arg.LenOf] refer to the place.
	Name string
	// Alts lists the modifiers that may be at the place, with their dots.
	Alts []string
	// Opt states that the place may be empty.
	Opt bool
	// Version and Arch are the lowest that accept the modifiers of this place. They are 0 if the
	// form itself needs as much.
	Version Version
	Arch    Arch
}

// Fixed reports whether the place always holds the same modifier.
func (m Mod) Fixed() bool { return !m.Opt && len(m.Alts) == 1 }

// Dir is the direction of an operand.
type Dir uint8

// The directions.
const (
	In Dir = iota
	Out
	InOut
)

// Kind is the syntax of an operand.
type Kind uint8

// The kinds of operands.
const (
	// Reg is a register. An input may also be a constant.
	Reg Kind = iota
	// PredIn is an input predicate, perhaps negated, or the constant 0 or 1.
	PredIn
	// Imm is an immediate.
	Imm
	// Addr is [register or symbol + constant].
	Addr
	// Vec is {r0, r1, ...}.
	Vec
	// TensorAddr is [map, {c0, c1, ...}].
	TensorAddr
	// Label is a branch target.
	Label
	// Sink is the word _, which stands for an unused result.
	Sink
	// SinkPred is _|p: an unused register and a predicate.
	SinkPred
	// Pair is r|p: a register of Type and a predicate. Either may be _.
	Pair
	// Passed is (a, b, ...): variables in the parameter space, which a call passes. An empty list
	// is not printed.
	Passed
)

// Space is the state space of an address operand.
type Space uint8

// The state spaces.
const (
	Generic Space = iota
	Param
	Global
	Shared        // of the thread's own CTA
	SharedCluster // of any CTA of the cluster
	Const
	Local // of one thread
)

// Arg is one operand of a form.
type Arg struct {
	Name string
	Dir  Dir
	Kind Kind
	// Type is the operand's type. If TypeOf is set, the modifier at the place of that name gives
	// the type instead. Wide doubles the width of the type.
	Type   Type
	TypeOf string
	Wide   bool
	// Len is the number of elements of a Vec, or of coordinates of a TensorAddr. If LenOf is set,
	// the modifier at the place of that name gives the number instead.
	Len   int
	LenOf string
	// Space is the state space of an Addr. If SpaceOf is set, the modifier at the place of that
	// name gives the space instead.
	Space   Space
	SpaceOf string
	// Wider allows the register to be wider than the type.
	Wider bool
	// RegOnly marks an input that cannot be a constant.
	RegOnly bool
	// Below, if not 0, limits an immediate to the range 0 to Below-1.
	Below int64
	// Opt marks a trailing operand that may be absent. If With is set, the last operand is present
	// exactly if the modifier With is chosen.
	Opt  bool
	With string
}

// Form is one row of the instruction table.
type Form struct {
	ID ID
	// Name is the name of the row, and the name of the ID constant in Go.
	Name string
	// Op is the mnemonic, with all modifiers that always come first.
	Op string
	// Mods lists the places for modifiers after Op, in the order of the manual.
	Mods []Mod
	Args []Arg
	// Not lists pairs of modifiers that exclude each other.
	Not [][2]string
	// Version and Arch are the lowest that accept the form without optional modifiers. [Form.Needs]
	// takes the chosen modifiers into account.
	Version Version
	Arch    Arch
	Effects Effect
	// Manual is the section of the PTX manual that describes the form.
	Manual string
	// Go names the builder method that is generated. "x.Name" is a method of the first input's
	// type, "k.Name" a method of the kernel. If Go is "", a method may be written by hand.
	Go string

	types []argTypes // indexed by operand
}

// argTypes lists the types that an operand may have. Field place is the index of the place whose
// modifier names the type, and field by has a type for each modifier there; by[0] is for an empty
// place. If the operand has only one type, place is -1, and by[0] is this type.
type argTypes struct {
	place int
	by    []Type
}

// argTypes resolves the names of modifiers to types, so that [Form.ArgType] can look up a type by
// number.
func (f *Form) argTypes(a *Arg) argTypes {
	if a.TypeOf == "" {
		return argTypes{-1, []Type{a.widened(a.Type)}}
	}
	t := argTypes{f.ModIndex(a.TypeOf), []Type{NoType}}
	for _, text := range f.Mods[t.place].Alts {
		of, _ := TypeNamed(text[1:])
		t.by = append(t.by, a.widened(of))
	}
	return t
}

// widened returns t or, for a Wide operand, the type that is twice as wide.
func (a *Arg) widened(t Type) Type {
	if a.Wide {
		switch t {
		case U32, B32:
			return U64
		case S32:
			return S64
		case U16:
			return U32
		case S16:
			return S32
		case F32:
			return F64
		}
	}
	return t
}

// MaxMods is the largest number of places for modifiers in a form.
const MaxMods = 10

// Mods holds the chosen modifiers of one instruction. For each place of the form it has 0 if the
// place is empty, else 1 + the index of the modifier in Alts.
type Mods [MaxMods]uint8

// NeedsWarp reports whether all threads of the warp must execute the instruction together. If
// .aligned is optional in the form, this depends on whether it is chosen.
func (f *Form) NeedsWarp(m Mods) bool {
	i := f.ModIndex("aligned")
	return f.Effects&Aligned != 0 && (i < 0 || m[i] != 0)
}

// Clash returns two chosen modifiers that exclude each other, if there are such.
func (f *Form) Clash(m Mods) (pair [2]string, clash bool) {
	for _, p := range f.Not {
		if f.Has(m, p[0]) && f.Has(m, p[1]) {
			return p, true
		}
	}
	return pair, false
}

// Needs returns the lowest version and target that accept the form with the chosen
// modifiers.
func (f *Form) Needs(m Mods) (Version, Arch) {
	v, a := f.Version, f.Arch
	for i := range f.Mods {
		if m[i] != 0 {
			n := newer[f.Mods[i].Alts[m[i]-1]]
			v, a = max(v, f.Mods[i].Version, n.version), max(a, f.Mods[i].Arch, n.arch)
		}
	}
	return max(v, a.MinVersion()), a
}

// newer lists modifiers that need a later version and target in any form.
var newer = map[string]struct {
	version Version
	arch    Arch
}{".shared::cta": {78, SM70}, ".shared::cluster": {78, SM90}, ".cluster": {78, SM90},
	".release.cluster": {80, SM90}, ".acquire.cluster": {80, SM90}, ".L2::cache_hint": {74, SM80}}

// ArgCount returns the least and the largest number of operands for the chosen modifiers.
func (f *Form) ArgCount(m Mods) (least, most int) {
	most = len(f.Args)
	if most > 0 && f.Args[most-1].With != "" {
		if f.Has(m, f.Args[most-1].With) {
			return most, most
		}
		most--
	}
	for least = most; least > 0 && f.Args[least-1].Opt; least-- {
	}
	return least, most
}

// ModIndex returns the index of the place with the given name, or -1.
func (f *Form) ModIndex(name string) int {
	for i := range f.Mods {
		if f.Mods[i].Name == name {
			return i
		}
	}
	return -1
}

// Mod returns the modifier that is chosen at the place with the given name, or "" if the place is
// empty.
func (f *Form) Mod(m Mods, name string) string {
	i := f.ModIndex(name)
	if i < 0 || m[i] == 0 {
		return ""
	}
	return f.Mods[i].Alts[m[i]-1]
}

// Has reports whether a modifier was chosen. text has the modifier's dot.
func (f *Form) Has(m Mods, text string) bool {
	for i := range f.Mods {
		if m[i] != 0 && f.Mods[i].Alts[m[i]-1] == text {
			return true
		}
	}
	return false
}

// ArgType returns the type of operand i for the chosen modifiers.
func (f *Form) ArgType(m Mods, i int) Type {
	t := &f.types[i]
	if t.place < 0 {
		return t.by[0]
	}
	return t.by[m[t.place]]
}

// spaces maps a modifier to its state space. No modifier means the generic space.
var spaces = map[string]Space{"": Generic, ".param": Param, ".global": Global, ".shared": Shared, ".shared::cta": Shared,
	".shared::cluster": SharedCluster, ".const": Const, ".local": Local}

// ArgSpace returns the state space of operand i for the chosen modifiers.
func (f *Form) ArgSpace(m Mods, i int) Space {
	if a := &f.Args[i]; a.SpaceOf == "" {
		return a.Space
	}
	return spaces[f.Mod(m, f.Args[i].SpaceOf)]
}

// Braced reports whether operand i, a Vec, is written in braces. Memory accesses without a vector
// modifier have a Vec of one element without braces.
func (f *Form) Braced(m Mods, i int) bool {
	a := &f.Args[i]
	return a.LenOf == "" || f.Mod(m, a.LenOf) != ""
}

// ArgLen returns the number of elements of a Vec, or of coordinates of a
// TensorAddr, for the chosen modifiers.
func (f *Form) ArgLen(m Mods, i int) int {
	a := &f.Args[i]
	if a.LenOf == "" {
		return a.Len
	}
	text := f.Mod(m, a.LenOf)
	switch {
	case text == "":
		return 1
	case a.LenOf == "shape" && a.Type == F16x2: // each register holds two accumulators
		return WgmmaN(text) / 4
	case a.LenOf == "shape": // .m64n{N}k16 has N/2 accumulators in each thread
		return WgmmaN(text) / 2
	}
	// The digit in .v2, .v4, .x1, .x2, .x4 or .1d to .5d is the number.
	for _, c := range text {
		if c >= '1' && c <= '9' {
			return int(c - '0')
		}
	}
	return 1
}

// WgmmaN returns N of a shape modifier such as ".m64n256k16".
func WgmmaN(shape string) int {
	n := 0
	for i := len(".m64n"); i < len(shape) && shape[i] != 'k'; i++ {
		n = n*10 + int(shape[i]-'0')
	}
	return n
}
