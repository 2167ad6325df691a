package ptx

import (
	"errors"
	"fmt"
	"slices"

	"sonicmoe/ptx/isa"
)

// Mod is a modifier with its dot, such as ".L1::no_allocate". Methods take it for instructions with
// optional modifiers.
type Mod string

// Kernel builds one kernel. Only one goroutine may use it.
type Kernel struct {
	name   string
	params []Param
	regs   []regInfo
	counts map[string]int // number of registers with each prefix
	order  []string       // prefixes in order of first use
	class  map[string]isa.Type
	body   []Inst
	args   []Operand // storage for the operands of instructions
	// positions is storage for the call stacks of the next instructions.
	positions []position
	errs      []error
	hint      string

	maxThreads, minCTAs, cluster, maxRegisters int
	sharedBase                                 U32
	hasShared                                  bool
	// thread holds the values of %tid.x, and of the indices computed from it, that are available at
	// this point of the kernel: every path to it has computed them. If and Loop restore thread
	// after a body that some threads skip. They restore it without a helper function, because a
	// helper would add a frame to the positions of instructions.
	thread [threadIndices]val

	labels  map[string]int
	scope   string
	names   []Name
	loops   []*loop
	regions []region
	guard   val
	guarded bool
}

type regInfo struct {
	prefix string
	n      int
	class  isa.Type
}

// NewKernel starts a kernel with the given name.
func NewKernel(name string) *Kernel {
	return &Kernel{
		body: make([]Inst, 0, 512), args: make([]Operand, 0, 1024), regs: make([]regInfo, 0, 512),
		name: name, counts: map[string]int{}, class: map[string]isa.Type{}, labels: map[string]int{},
	}
}

// SetLaunchBounds states the largest number of threads of a CTA, and the number of CTAs that must
// fit on an SM at the same time. From these the assembler derives how many registers a thread may
// have.
func (k *Kernel) SetLaunchBounds(maxThreads, minCTAs int) {
	k.maxThreads, k.minCTAs = maxThreads, minCTAs
}

// SetMaxRegisters states how many registers a thread may have, in place of the number that follows
// from the CTAs of [Kernel.SetLaunchBounds]. CTAs of another kernel can then be on the same SM.
func (k *Kernel) SetMaxRegisters(n int) { k.maxRegisters, k.minCTAs = n, 0 }

// SetCluster states how many CTAs a cluster must have.
func (k *Kernel) SetCluster(ctas int) { k.cluster = ctas }

// Errorf records an error, with the Go line of the caller. Build returns it.
func (k *Kernel) Errorf(format string, args ...any) {
	k.errs = append(k.errs, fmt.Errorf("%s: %s", here(new(position)).resolve(), fmt.Sprintf(format, args...)))
}

// newReg returns a new register of the class of type t. Its name begins with the prefix that
// [Kernel.Named] has set, or else with the letter of the class.
func (k *Kernel) newReg(t isa.Type) val {
	class := t.Class()
	prefix := k.hint
	if prefix == "" || (k.class[prefix] != isa.NoType && k.class[prefix] != class) {
		switch class {
		case isa.Pred:
			prefix = "p"
		case isa.B16:
			prefix = "h"
		case isa.B32:
			prefix = "r"
		default:
			prefix = "d"
		}
	}
	if k.class[prefix] == isa.NoType {
		k.class[prefix] = class
		k.order = append(k.order, prefix)
	}
	n := k.counts[prefix]
	k.counts[prefix] = n + 1
	k.regs = append(k.regs, regInfo{prefix: prefix, n: n, class: class})
	return val{k: k, reg: int32(len(k.regs) - 1)}
}

// Named makes name the prefix of the registers that body creates: %name0, %name1 and so on. It
// makes the text easier to read. The single letters r, h, d and p are reserved.
func (k *Kernel) Named(name string, body func()) {
	old := k.hint
	k.hint = name
	if len(name) < 2 {
		k.Errorf("register name %q must have at least two letters", name)
		k.hint = old
	}
	body()
	k.hint = old
}

// mods chooses the modifiers of a form: those that parameter texts lists. At a place that allows
// only one modifier, it chooses that one.
func (k *Kernel) mods(f *isa.Form, texts ...Mod) isa.Mods {
	m := fixedMods(f)
	for _, t := range texts {
		if t == "" {
			continue
		}
		if !setMod(f, &m, string(t)) {
			k.Errorf("%s does not take modifier %s", f.Op, t)
		}
	}
	for i := range f.Mods {
		if m[i] == 0 && !f.Mods[i].Opt {
			k.Errorf("%s needs one of the modifiers %v", f.Op, f.Mods[i].Alts)
		}
	}
	return m
}

// fixedMods returns the modifiers at places with only one possible modifier.
func fixedMods(f *isa.Form) (m isa.Mods) {
	for i := range f.Mods {
		if f.Mods[i].Fixed() {
			m[i] = 1
		}
	}
	return m
}

func setMod(f *isa.Form, m *isa.Mods, text string) bool {
	for i := range f.Mods {
		if m[i] != 0 {
			continue
		}
		for j, alt := range f.Mods[i].Alts {
			if alt == text {
				m[i] = uint8(j + 1)
				return true
			}
		}
	}
	return false
}

// op appends an instruction of a form, with the given modifiers and operands.
func (k *Kernel) op(id isa.ID, mods []Mod, args ...Operand) {
	f := &isa.Table[id]
	k.emitAt(here(k.position()), f, k.mods(f, mods...), args)
}

// opTo appends an instruction whose first operand, the result, is a new register of type t.
func (k *Kernel) opTo(id isa.ID, t isa.Type, mods []Mod, args ...Operand) val {
	f, d := &isa.Table[id], k.result(t)
	k.emitAt(here(k.position()), f, k.mods(f, mods...), append([]Operand{d.operand(t)}, args...))
	return d
}

// emit appends an instruction. It copies args.
func (k *Kernel) emit(f *isa.Form, m isa.Mods, args ...Operand) {
	k.emitAt(here(k.position()), f, m, args)
}

func (k *Kernel) emitAt(pos *position, f *isa.Form, m isa.Mods, args []Operand) {
	in := Inst{Form: f, Mods: m, pos: pos}
	if len(args) > 0 {
		if len(k.args)+len(args) > cap(k.args) {
			k.args = make([]Operand, 0, 1024)
		}
		at := len(k.args)
		k.args = append(k.args, args...)
		in.Args = k.args[at:len(k.args):len(k.args)]
		k.own(f, in.Args)
	}
	if k.guarded {
		in.Guard, in.GuardNot = k.guard.reg+1, k.guard.negate
	}
	k.add(in)
}

// add appends an instruction to the body, and doubles the capacity of the body when it is full.
// append alone grows a large slice in small steps, which copies it about four times as often.
func (k *Kernel) add(in Inst) {
	if len(k.body) == cap(k.body) {
		k.body = slices.Grow(k.body, len(k.body))
	}
	k.body = append(k.body, in)
}

// own reports operands that are missing or belong to another kernel.
func (k *Kernel) own(f *isa.Form, args []Operand) {
	for i := range args {
		o := &args[i]
		switch {
		case o.Kind == OpNone:
			k.Errorf("%s takes %s", f.Op, o.Sym)
		case o.owner != nil && o.owner != k:
			k.Errorf("%s takes a value of kernel %s in kernel %s", f.Op, o.owner.name, k.name)
		}
		o.owner = nil
		k.own(f, o.List)
	}
}

// result returns a new register for the output of an instruction.
func (k *Kernel) result(t isa.Type) val { return k.newReg(t) }

func (k *Kernel) param(p Param) {
	for _, q := range k.params {
		if q.Name == p.Name {
			k.Errorf("parameter %s is declared twice", p.Name)
		}
	}
	k.params = append(k.params, p)
}

func loadParam[T Value](k *Kernel, name string) T {
	var t T
	ty := t.isaType()
	k.param(Param{Name: name, Type: ty, Align: ty.Bytes(), Bytes: ty.Bytes()})
	return wrap[T](k.opTo(isa.LdParam, ty, []Mod{Mod("." + ty.String())}, Operand{Kind: OpAddr, Reg: -1, Sym: name}))
}

// ParamU32 declares a 32-bit integer parameter, and loads it.
func (k *Kernel) ParamU32(name string) U32 { return loadParam[U32](k, name) }

// ParamU64 declares a 64-bit integer parameter, and loads it.
func (k *Kernel) ParamU64(name string) U64 { return loadParam[U64](k, name) }

// ParamF32 declares a single-precision parameter, and loads it.
func (k *Kernel) ParamF32(name string) F32 { return loadParam[F32](k, name) }

// ParamPtr declares a parameter that is an address in global memory, and loads it.
func (k *Kernel) ParamPtr(name string) Global {
	p := loadParam[U64](k, name)
	return Global{base: U64{k.opTo(isa.CvtaToGlobal, isa.U64, nil, p.v.operand(isa.U64))}}
}

// TensorMapBytes and TensorMapAlign are the size and alignment of a tensor
// map parameter.
const (
	TensorMapBytes = 128
	TensorMapAlign = 128
)

// ParamTensorMap declares a parameter that is a tensor map, passed by value. It returns the
// parameter's address.
func (k *Kernel) ParamTensorMap(name string) TensorMap {
	k.param(Param{Name: name, Type: isa.B8, Align: TensorMapAlign, Bytes: TensorMapBytes})
	a := k.opTo(isa.Mov, isa.U64, []Mod{".u64"}, Operand{Kind: OpSymbol, Sym: name})
	return TensorMap{U64{k.opTo(isa.CvtaParam, isa.U64, nil, a.operand(isa.U64))}}
}

// sharedName is the name of a kernel's dynamic shared memory.
const sharedName = "smem"

// SharedBase returns the start of the CTA's dynamic shared memory, aligned to 1024 bytes. The first
// call computes it, so it must be in a body that encloses every later use.
func (k *Kernel) SharedBase() Shared {
	if !k.hasShared {
		k.hasShared = true
		k.sharedBase = U32{k.opTo(isa.Mov, isa.U32, []Mod{".u32"}, Operand{Kind: OpSymbol, Sym: sharedName})}
	}
	return Shared{base: k.sharedBase}
}

// Build ends the kernel. It returns a verified module with this one kernel. If there were mistakes,
// it returns all of them, each with its Go line.
func (k *Kernel) Build() (*Module, error) {
	k.op(isa.Ret, nil)
	e := &Entry{Name: k.name, Params: k.params, MaxThreads: k.maxThreads, MinCTAs: k.minCTAs, MaxRegisters: k.maxRegisters, Names: k.names, Body: k.body}
	if k.cluster > 0 {
		e.Cluster = Dims{k.cluster, 1, 1}
	}
	layoutParams(e.Params)
	for _, p := range k.order {
		e.Decls = append(e.Decls, RegDecl{Class: k.class[p], Prefix: "%" + p, Count: k.counts[p]})
	}
	e.Registers = make([]Register, 0, len(k.regs))
	for _, r := range k.regs {
		e.Registers = append(e.Registers, Register{Name: registerName("%"+r.prefix, r.n), Class: r.class})
	}
	m := &Module{Entries: []*Entry{e}}
	if k.hasShared {
		m.Globals = append(m.Globals, Variable{Name: sharedName, Extern: true, Align: 1024})
	}
	m.needs()
	k.errs = append(k.errs, k.divergence()...)
	if err := errors.Join(k.errs...); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", k.name, err)
	}
	if err := m.Verify(); err != nil {
		return nil, err
	}
	return m, nil
}

// needs sets the version and target of the module to the lowest that its instructions need.
func (m *Module) needs() {
	m.Version, m.Arch = 70, isa.SM70
	for _, e := range m.Entries {
		if e.Cluster.Count() > 0 {
			m.Version, m.Arch = max(m.Version, 78), max(m.Arch, isa.SM90)
		}
		for i := range e.Body {
			v, a := e.Body[i].needs()
			m.Version, m.Arch = max(m.Version, v), max(m.Arch, a)
		}
	}
	m.Version = max(m.Version, m.Arch.MinVersion())
}
