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
	Globals []Variable // declared outside kernels, such as .extern .shared
	Entries []*Entry
	Funcs   []*Func
	// Files are the .file directives of parsed text, by number.
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

// Func finds a function by name. It prefers the definition to a declaration
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

// Variable is a declared array in shared memory, in a thread's local memory, or,
// if it belongs to the module, in global or constant memory.
type Variable struct {
	Name   string
	Space  isa.Space // Generic counts as Shared
	Extern bool
	Scalar isa.Type // the type of a variable that is not an array, which matters where parameters are passed
	Align  int
	Bytes  int // 0 for an unsized extern array
	// Init are the first bytes; the rest is zero. Addresses lists the addresses among
	// them, which are known only after loading.
	Init      []byte
	Addresses []Address
}

// Shared reports whether the variable is in shared memory.
func (v *Variable) Shared() bool { return v.Space == isa.Generic || v.Space == isa.Shared }

// Address is the address of one variable within the initial bytes of another.
type Address struct {
	At     int // offset in the initial bytes
	Sym    string
	Add    int64
	Global bool // written generic(Sym): a generic address
}

// Param is a kernel parameter. If Bytes is larger than its type, the parameter is
// an array of bytes, such as a tensor map.
type Param struct {
	Name  string
	Type  isa.Type
	Align int
	Bytes int
	// Offset is the parameter's place in the packed parameter buffer.
	Offset int
}

// Dims are the extents of a CTA in threads, or of a cluster in CTAs. The zero
// value means that the kernel states none.
type Dims [3]int

// Count returns the number of threads or CTAs, 0 for the zero value.
func (d Dims) Count() int { return d[0] * d[1] * d[2] }

// String returns the extents as PTX writes them: x alone if y and z are 1.
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
	Local   []Variable // one copy for each thread
	// Names describe regions of dynamic shared memory and named barriers.
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
	Declared bool // a declaration: the body is elsewhere in the module, or outside it
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

// ParamBase is the address at which parameters start in the constant bank of
// sm_90. The assembler aligns addresses in the bank, not offsets in the packed
// buffer. A parameter with an alignment above 16 may therefore have an offset that
// is not a multiple of its alignment: a tensor map that comes first is at offset
// 112.
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
	// Guard is the number of the predicate register plus one, 0 for none. GuardNot
	// negates it.
	Guard    int32
	GuardNot bool
	// Label is the label's name when Form is nil.
	Label string
	// Directive belongs to a label: .branchtargets, whose labels are Args, or the
	// whole text of another directive.
	Directive string
	// Line is the line of the parsed text, 0 if the instruction was built in Go.
	Line int
	// Loc is the position in the source, if the parsed text states one.
	Loc Loc
	// pos is the Go call stack that emitted the instruction.
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

// needs returns the lowest version and target that accept the instruction.
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
	// owner is the kernel that Reg belongs to, until emit has checked it.
	owner *Kernel
	// sunk reports that the parser read _| before the operand.
	sunk bool
}

func registerName(prefix string, n int) string { return prefix + strconv.Itoa(n) }
