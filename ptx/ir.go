package ptx

import (
	"strconv"

	"sonicmoe/ptx/isa"
)

// Module is a PTX module: what the builder makes, the printer prints and the
// parser reads.
type Module struct {
	Version isa.Version
	Arch    isa.Arch
	Globals []Variable // of the module, such as .extern .shared
	Entries []*Entry
	Funcs   []*Func
	// Files are the .file of parsed text, by number.
	Files map[int]string
}

// Entry finds a kernel by name.
func (m *Module) Entry(name string) *Entry {
	for _, e := range m.Entries {
		if e.Name == name {
			return e
		}
	}
	return nil
}

// Func finds a function by name: where it has a body, that.
func (m *Module) Func(name string) *Func {
	var found *Func
	for _, f := range m.Funcs {
		if f.Name == name && (found == nil || !f.Declared) {
			found = f
		}
	}
	return found
}

// Variable is a declared array: in shared memory, in a thread's own, or, of the
// module, in global or constant memory.
type Variable struct {
	Name   string
	Space  isa.Space // Generic counts as Shared
	Extern bool
	Scalar isa.Type // of what is no array: where parameters are passed, that matters
	Align  int
	Bytes  int // 0 for an unsized extern array
	// Init are the first bytes, the rest is zero; Addresses are what stands
	// among them that only loading knows.
	Init      []byte
	Addresses []Address
}

// Shared reports whether the variable is in shared memory.
func (v *Variable) Shared() bool { return v.Space == isa.Generic || v.Space == isa.Shared }

// Address is the address of a variable among the initial bytes of another.
type Address struct {
	At     int // in the bytes
	Sym    string
	Add    int64
	Global bool // generic(Sym): the generic address
}

// Param is a kernel parameter. A Bytes above its type's size is an array of
// bytes, such as a tensor map.
type Param struct {
	Name  string
	Type  isa.Type
	Align int
	Bytes int
	// Offset is its place in the packed parameter buffer.
	Offset int
}

// Dims are the extents of a CTA in threads, or of a cluster in CTAs; the zero
// value where a kernel does not say.
type Dims [3]int

// Count is how many threads or CTAs that are, 0 for the zero value.
func (d Dims) Count() int { return d[0] * d[1] * d[2] }

// String is the extents as PTX writes them, short where only x counts.
func (d Dims) String() string {
	if d[1] == 1 && d[2] == 1 {
		return strconv.Itoa(d[0])
	}
	return strconv.Itoa(d[0]) + ", " + strconv.Itoa(d[1]) + ", " + strconv.Itoa(d[2])
}

// Entry is a kernel.
type Entry struct {
	Name   string
	Params []Param
	// MaxThreads is the product of .maxntid, 0 when absent; Block is .reqntid.
	MaxThreads int
	Block      Dims
	// MinCTAs is .minnctapersm, 0 when absent; Cluster is .reqnctapercluster.
	MinCTAs int
	Cluster Dims
	Shared  []Variable
	Local   []Variable // of each thread
	// Names are those of dynamic shared memory and named barriers.
	Names     []Name
	Decls     []RegDecl
	Registers []Register
	Body      []Inst
}

// Func is a function that kernels call. Its Entry has the parts that a function may
// have: parameters, variables, registers and a body.
type Func struct {
	Entry
	Results  []Param
	Declared bool // only: its body is elsewhere in the module, or nowhere
	Extern   bool
}

// ParamBytes is the size of the packed parameter buffer.
func (e *Entry) ParamBytes() int {
	if len(e.Params) == 0 {
		return 0
	}
	p := e.Params[len(e.Params)-1]
	return p.Offset + p.Bytes
}

// Param finds a parameter by name.
func (e *Entry) Param(name string) (Param, bool) {
	for _, p := range e.Params {
		if p.Name == name {
			return p, true
		}
	}
	return Param{}, false
}

// ParamBase is where parameters start in the constant bank of sm_90.
// Alignments hold for addresses there, so a parameter aligned to more than 16
// does not stand at a multiple of its alignment in the packed buffer: a tensor
// map that comes first stands at 112.
const ParamBase = 0x210

// layoutParams sets the offsets: parameters in order, each aligned in the
// constant bank, as the assembler lays them out.
func layoutParams(ps []Param) {
	at := ParamBase
	for i := range ps {
		at = (at + ps[i].Align - 1) / ps[i].Align * ps[i].Align
		ps[i].Offset = at - ParamBase
		at += ps[i].Bytes
	}
}

// RegDecl declares registers Prefix0 to Prefix(Count-1), or the one register
// Prefix when Count is 0.
type RegDecl struct {
	Class  isa.Type
	Prefix string // with its %
	Count  int
}

// Register is one declared register.
type Register struct {
	Name  string
	Class isa.Type
}

// Inst is an instruction, or a label when Form is nil.
type Inst struct {
	Form *isa.Form
	Mods isa.Mods
	Args []Operand
	// Guard is a predicate register plus one, 0 for none; GuardNot negates it.
	Guard    int32
	GuardNot bool
	// Label is the label's name when Form is nil.
	Label string
	// Directive, of a label, is what stands behind it: .branchtargets, whose labels
	// are Args, or all of another.
	Directive string
	// Line is the line of the text that it was parsed from, 0 where it was built.
	Line int
	// Loc is the source line, of parsed text that says so.
	Loc Loc
	// pos is where Go emitted it.
	pos *position
}

// Pos is where Go emitted the instruction.
func (in *Inst) Pos() Pos { return in.pos.resolve() }

// opcode is the mnemonic with its modifiers.
func (in *Inst) opcode() string {
	s := in.Form.Op
	for i := range in.Form.Mods {
		if n := in.Mods[i]; n > 0 {
			s += in.Form.Mods[i].Alts[n-1]
		}
	}
	return s
}

// needs is the lowest version and target that accept the instruction.
func (in *Inst) needs() (isa.Version, isa.Arch) {
	if in.Form == nil {
		return 0, 0
	}
	v, a := in.Form.Needs(in.Mods)
	for i := range in.Args {
		if o := &in.Args[i]; o.Kind == OpSpecial {
			sp := &isa.Specials[o.Reg]
			v, a = max(v, sp.Version), max(a, sp.Arch)
		}
	}
	return max(v, a.MinVersion()), a
}

// OperandKind says what an operand is.
type OperandKind uint8

// Operand kinds.
const (
	OpNone    OperandKind = iota
	OpReg                 // Reg
	OpNotReg              // !Reg, a negated predicate
	OpInt                 // Imm
	OpF32                 // Imm's low 32 bits
	OpF64                 // Imm's bits
	OpSymbol              // Sym: a variable or parameter
	OpSpecial             // special register number Reg
	OpLabel               // Sym
	OpAddr                // [Reg or Sym + Imm]; Reg is -1 when Sym is set
	OpVec                 // {List}
	OpTensor              // [Reg, {List}]
	OpSink                // _
	OpPair                // List[0]|List[1]
	OpPassed              // (List)
)

// Operand is an operand of an instruction.
type Operand struct {
	Kind OperandKind
	Reg  int32
	Imm  int64
	Sym  string
	List []Operand
	// owner is the kernel that Reg belongs to, until emit has looked.
	owner *Kernel
	// sunk: the parser read _| before it.
	sunk bool
}

func registerName(prefix string, n int) string { return prefix + strconv.Itoa(n) }
