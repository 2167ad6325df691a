package ptx

import (
	"strconv"

	"sonicmoe/ptx/isa"
)

// Module is a PTX module. The builder makes it, the printer prints it, and the parser reads it.
type Module struct {
	Version isa.Version
	Arch    isa.Arch
	Globals []Variable // variables declared outside kernels, such as .extern .shared
	Entries []*Entry
	Funcs   []*Func
	// Files maps the numbers of .file directives in parsed text to file names.
	Files map[int]string
}

// Entry returns the kernel with the given name, or nil.
func (m *Module) Entry(name string) *Entry {
	for _, e := range m.Entries {
		if e.Name == name {
			return e
		}
	}
	return nil
}

// Func returns the function with the given name, or nil. It prefers a definition to a declaration
// without a body.
func (m *Module) Func(name string) *Func {
	var found *Func
	for _, f := range m.Funcs {
		if f.Name == name && (found == nil || !f.Declared) {
			found = f
		}
	}
	return found
}

// Variable is a declared array in shared memory or in a thread's local memory. A variable of the
// module may also be in global or constant memory.
type Variable struct {
	Name   string
	Space  isa.Space // Generic counts as Shared
	Extern bool
	Scalar isa.Type // type of a variable that is not an array; needed for variables that pass parameters
	Align  int
	Bytes  int // 0 for an unsized extern array
	// Init has the first initial bytes; the rest is zero. Addresses lists the places in Init that
	// hold the address of a variable, which is known only after loading.
	Init      []byte
	Addresses []Address
}

// Shared reports whether the variable is in shared memory.
func (v *Variable) Shared() bool { return v.Space == isa.Generic || v.Space == isa.Shared }

// Address is a place in the initial bytes of a variable that holds the address of another variable.
type Address struct {
	At     int // offset of the place in the initial bytes
	Sym    string
	Add    int64
	Global bool // the text has generic(Sym): the address is generic
}

// Param is a kernel parameter. If Bytes is larger than the size of Type, the parameter is an array
// of bytes, such as a tensor map.
type Param struct {
	Name  string
	Type  isa.Type
	Align int
	Bytes int
	// Offset is the parameter's offset in the packed parameter buffer.
	Offset int
}

// Dims are extents in x, y and z: of a CTA in threads, or of a cluster in CTAs. The zero value
// means that the kernel does not state any.
type Dims [3]int

// Count returns the number of threads or CTAs. It is 0 for the zero value.
func (d Dims) Count() int { return d[0] * d[1] * d[2] }

// String returns the extents as PTX writes them. If y and z are 1, it returns only x.
func (d Dims) String() string {
	if d[1] == 1 && d[2] == 1 {
		return strconv.Itoa(d[0])
	}
	return strconv.Itoa(d[0]) + ", " + strconv.Itoa(d[1]) + ", " + strconv.Itoa(d[2])
}

// Entry is a kernel of a module.
type Entry struct {
	Name   string
	Params []Param
	// MaxThreads is the product of the extents in .maxntid, 0 if absent. Block is .reqntid.
	MaxThreads int
	Block      Dims
	// MinCTAs is .minnctapersm and MaxRegisters is .maxnreg, 0 if absent. Cluster is
	// .reqnctapercluster.
	MinCTAs, MaxRegisters int
	Cluster               Dims
	Shared                []Variable
	Local                 []Variable // one copy for each thread
	// Names has the names of regions of dynamic shared memory and of named barriers.
	Names     []Name
	Decls     []RegDecl
	Registers []Register
	Body      []Inst
}

// Func is a function that kernels call. It uses only some fields of Entry: parameters, variables,
// registers and the body.
type Func struct {
	Entry
	Results  []Param
	Declared bool // the function has no body here: it is elsewhere in the module, or outside it
	Extern   bool
}

// ParamBytes returns the size of the packed parameter buffer.
func (e *Entry) ParamBytes() int {
	if len(e.Params) == 0 {
		return 0
	}
	p := e.Params[len(e.Params)-1]
	return p.Offset + p.Bytes
}

// Param returns the parameter with the given name, if there is one.
func (e *Entry) Param(name string) (Param, bool) {
	for _, p := range e.Params {
		if p.Name == name {
			return p, true
		}
	}
	return Param{}, false
}

// ParamBase is the address at which parameters start in the constant bank of sm_90. The assembler
// aligns addresses in the bank, not offsets in the packed buffer. If a parameter needs an alignment
// above 16, its offset in the buffer need not be a multiple of this alignment. For example, a
// tensor map that comes first is at offset 112.
const ParamBase = 0x210

// layoutParams sets the offsets of parameters as the assembler lays them out: in order, each
// aligned in the constant bank.
func layoutParams(ps []Param) {
	at := ParamBase
	for i := range ps {
		at = (at + ps[i].Align - 1) / ps[i].Align * ps[i].Align
		ps[i].Offset = at - ParamBase
		at += ps[i].Bytes
	}
}

// RegDecl declares the registers Prefix0 to Prefix(Count-1). If Count is 0, it declares one
// register with the name Prefix.
type RegDecl struct {
	Class  isa.Type
	Prefix string // with the leading %
	Count  int
}

// Register is one declared register.
type Register struct {
	Name  string
	Class isa.Type
}

// Inst is an instruction. If Form is nil, it is a label.
type Inst struct {
	Form *isa.Form
	Mods isa.Mods
	Args []Operand
	// Guard is the number of the predicate register plus one, or 0 without a guard. GuardNot
	// negates the predicate.
	Guard    int32
	GuardNot bool
	// Label is the name of the label, if Form is nil.
	Label string
	// Directive is set for some labels. It is .branchtargets, whose target labels are in Args, or
	// the whole text of another directive.
	Directive string
	// Line is the instruction's line in the parsed text. It is 0 if Go code built the instruction.
	Line int
	// Loc is the position in the source from which the PTX was compiled, if the text states one.
	Loc Loc
	// pos is the Go call stack that emitted the instruction. It is nil for parsed text.
	pos *position
}

// Pos returns the Go lines that emitted the instruction.
func (in *Inst) Pos() Pos { return in.pos.resolve() }

// opcode returns the mnemonic with its modifiers.
func (in *Inst) opcode() string {
	s := in.Form.Op
	for i := range in.Form.Mods {
		if n := in.Mods[i]; n > 0 {
			s += in.Form.Mods[i].Alts[n-1]
		}
	}
	return s
}

// needs returns the lowest PTX version and target that accept the instruction.
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

// OperandKind is the syntax of an operand.
type OperandKind uint8

// The kinds of operands. The comments show how an operand is written, by the names of its fields.
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
	// owner is the kernel to which Reg belongs. emit checks and clears it.
	owner *Kernel
	// sunk states that the parser has read _| before the operand.
	sunk bool
}

func registerName(prefix string, n int) string { return prefix + strconv.Itoa(n) }
