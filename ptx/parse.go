package ptx

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/ptx/isa"
)

// Parse reads a PTX module. It accepts the instruction forms of ptx/isa, and the directives that
// this package prints. Anything else is an error that names the construct and its line. One call
// reports all wrong statements of the kernels. Parse also reads debugging directives (.loc for
// [Module.Source]), which are not printed. Its time and memory grow linearly with the text: the
// numbers of declarations, such as registers, are bounded far above the limits of a chip.
func Parse(src []byte) (*Module, error) {
	if len(src) > maxText {
		return nil, fmt.Errorf("ptx: %d bytes of text, at most %d", len(src), maxText)
	}
	toks, err := lex(string(src))
	if err != nil {
		return nil, fmt.Errorf("ptx: %w", err)
	}
	p := &parser{toks: toks, m: &Module{}}
	if err := p.module(); err != nil {
		p.errs = append(p.errs, err)
	}
	for i, err := range p.errs {
		p.errs[i] = fmt.Errorf("ptx: %w", err)
	}
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	if p.m.Version == 0 {
		return nil, errors.New("ptx: the module has no .version")
	}
	return p.m, nil
}

const (
	maxText      = 32 << 20 // bytes
	maxPrefix    = 1 << 10  // bytes in the common prefix of declared registers; the name of each register has a copy of the prefix
	maxOpcode    = 1 << 8   // bytes in an opcode with its modifiers
	maxKernels   = 1 << 8
	maxFunctions = 1 << 12 // functions in a module, including declarations
	maxVariables = 1 << 16
	maxRegisters = 1 << 16 // registers in one kernel
	maxDeclared  = 1 << 18 // registers in all kernels
	maxParams    = 32764   // bytes of a kernel's parameters
	maxShared    = 232448  // bytes of variables in shared memory
	maxGlobal    = 1 << 26 // bytes in one variable
	maxScopes    = 1 << 8  // nested braces
)

type parser struct {
	toks []token
	at   int
	m    *Module
	e    *Entry
	regs map[string]int32
	// scopes holds the open braces. taken has the names that the kernel uses already. syms maps the
	// name of a variable in the text to its name in the kernel, if an inner scope declares the
	// variable.
	scopes []scope
	taken  map[string]bool
	copies map[string]int // last number that was appended to a name to make it unique
	syms   map[string]string
	// declared and variables are the numbers of registers and variables that the module has
	// declared so far.
	declared, variables int
	loc                 Loc            // from the latest .loc
	places              map[place]*Loc // the latest .loc with each position, in the present kernel
	errs                []error
	spent               bool // a limit was exceeded

	args []Operand // operands of the current instruction
	kept []Operand // storage for the operands of the next instructions
}

func (p *parser) module() error {
	extern := false
	for p.at < len(p.toks) {
		var err error
		switch t := p.next(); t {
		case ".version":
			v := strings.Split(p.next(), ".")
			n, err := strconv.ParseUint(strings.Join(v, ""), 10, 8)
			if err != nil || len(v) != 2 || len(v[0]) != 1 || len(v[1]) != 1 || n < 10 {
				return p.errorf(".version must be like 8.0")
			}
			p.m.Version = isa.Version(n)
		case ".target":
			name := p.next()
			a, ok := isa.ArchNamed(name)
			if !ok {
				return p.errorf("unknown target %q", name)
			}
			p.m.Arch = a
			for p.accept(",") { // options such as debug and texmode_independent do not change the emulation
				p.next()
			}
		case ".address_size":
			if err := p.expect("64"); err != nil {
				return err
			}
		case ".shared", ".global", ".const":
			var v Variable
			if v, err = p.variable(t); err == nil {
				v.Extern = extern
				p.m.Globals = append(p.m.Globals, v)
			}
			extern = false
		case ".extern":
			extern = true
		case ".visible", ".weak", ".common":
		case ".pragma":
			p.skipStatement()
		case ".file", ".section":
			err = p.debug(t)
		case ".entry":
			err = p.entry()
		case ".func":
			err = p.function(extern)
			extern = false
		default:
			if _, ok := parseName(t); ok {
				continue // outside a kernel, a comment with a name means nothing
			}
			p.at--
			return p.errorf("unknown directive %q", t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// body parses the body of a kernel or function, including its braces.
func (p *parser) body() error {
	if err := p.expect("{"); err != nil {
		return err
	}
	p.e.Body = make([]Inst, 0, p.statements())
	for len(p.scopes) > 0 {
		if p.at >= len(p.toks) {
			return p.errorf("%s is not closed by }", p.e.Name)
		}
		if p.accept("}") {
			p.close()
			continue
		}
		start := p.at
		if err := p.statement(); err != nil {
			if !p.again(err) {
				if p.spent || len(p.errs) == maxErrors {
					return err
				}
				p.errs = append(p.errs, err)
			}
			if p.at == start || p.toks[p.at-1].text != ";" {
				p.skipStatement()
			}
		}
	}
	return nil
}

// again reports whether err is about an unknown instruction form that an earlier error names. If
// so, it counts the instruction in the earlier error.
func (p *parser) again(err error) bool {
	var of *FormError
	if !errors.As(err, &of) {
		return false
	}
	for _, old := range p.errs {
		if old, ok := old.(*FormError); ok && old.Opcode == of.Opcode && old.Why == of.Why {
			old.More++
			return true
		}
	}
	return false
}

// statements returns the number of statements up to the brace that closes the innermost open one.
// It counts at most 2^14.
func (p *parser) statements() int {
	n, open := 0, 1
	for _, t := range p.toks[p.at:] {
		switch t.text {
		case ";":
			n++
		case "{":
			open++
		case "}":
			open--
		}
		if open == 0 || n == 1<<14 {
			break
		}
	}
	return n
}

// skipStatement moves to the statement after the next semicolon, or to the end of
// the kernel.
func (p *parser) skipStatement() {
	for p.at < len(p.toks) && p.peek() != "}" {
		if p.next() == ";" {
			return
		}
		if p.accept("{") { // these are the braces of a vector operand
			for p.at < len(p.toks) && p.next() != "}" {
			}
		}
	}
}

func (p *parser) statement() error {
	switch t := p.peek(); t {
	case ".reg":
		p.at++
		return p.registers()
	case ".shared", ".local", ".param":
		p.at++
		v, err := p.variable(t)
		if err != nil {
			return err
		}
		v.Name = p.declare(v.Name)
		if v.Space == isa.Local || v.Space == isa.Param {
			p.e.Local = append(p.e.Local, v)
		} else {
			p.e.Shared = append(p.e.Shared, v)
		}
		return nil
	case "{":
		p.at++
		if len(p.scopes) > maxScopes {
			return p.overBudget("more than %d nested braces", maxScopes)
		}
		p.open()
		return nil
	case ".loc", ".pragma":
		p.at++
		return p.debug(t)
	}
	if n, ok := parseName(p.peek()); ok {
		p.at++
		p.e.Names = append(p.e.Names, n)
		return nil
	}
	if p.at+1 < len(p.toks) && p.toks[p.at+1].text == ":" {
		name, err := p.name()
		if err != nil {
			return err
		}
		at := p.toks[p.at-1].line
		p.at++
		in := Inst{Label: p.label(name), Line: at}
		if err := p.labelled(&in); err != nil {
			return err
		}
		p.e.Body = append(p.e.Body, in)
		p.jumps(&in)
		return nil
	}
	return p.inst()
}

// labelled parses a directive that follows a label.
func (p *parser) labelled(in *Inst) error {
	switch p.peek() {
	case ".branchtargets":
		in.Directive = p.next()
		for {
			name, err := p.name()
			if err != nil {
				return err
			}
			in.Args = append(in.Args, Operand{Kind: OpLabel, Sym: name})
			if p.accept(";") {
				return nil
			}
			if err := p.expect(","); err != nil {
				return err
			}
		}
	case ".callprototype", ".calltargets":
		in.Directive = p.next()
		for !p.accept(";") {
			t := p.next()
			if t == "" {
				return p.errorf("%s is not closed by ;", in.Directive)
			}
			if !strings.HasSuffix(in.Directive, "(") && !strings.HasSuffix(in.Directive, "[") && !strings.Contains(",)[]", t) {
				in.Directive += " "
			}
			in.Directive += t
		}
	}
	return nil
}

// registers parses the rest of a .reg directive. A vector register is declared as one register for
// each element: r.x, r.y, and r.z and r.w of .v4.
func (p *parser) registers() error {
	elements := ""
	switch {
	case p.accept(".v2"):
		elements = "xy"
	case p.accept(".v4"):
		elements = "xyzw"
	}
	class, ok := isa.TypeNamed(strings.TrimPrefix(p.next(), "."))
	if !ok || class.Class() == isa.NoType {
		return p.errorf("unknown register type")
	}
	for {
		name, err := p.name()
		if err != nil {
			return err
		}
		if len(name) > maxPrefix {
			return p.overBudget("the name of registers has %d bytes, at most %d", len(name), maxPrefix)
		}
		if elements == "" {
			err = p.counted(class, name)
		}
		for _, e := range elements {
			if err = p.declareOne(RegDecl{Class: class, Prefix: name + "_" + string(e)}, name+"."+string(e)); err != nil {
				break
			}
		}
		if err != nil || p.accept(";") {
			return err
		}
		if err := p.expect(","); err != nil {
			return err
		}
	}
}

// counted parses the count after the name of a register, and declares one or as many registers.
func (p *parser) counted(class isa.Type, name string) (err error) {
	d := RegDecl{Class: class, Prefix: name}
	if p.accept("<") {
		if d.Count, err = p.int(); err != nil {
			return err
		}
		if err := p.expect(">"); err != nil {
			return err
		}
		if d.Count < 1 || d.Count > maxRegisters {
			return p.errorf("%d registers %s", d.Count, name)
		}
	}
	return p.declareOne(d, name)
}

// declareOne adds a declaration to the kernel. name is the name in the text, or the text's prefix of
// the names if the declaration has a count.
func (p *parser) declareOne(d RegDecl, name string) error {
	n := max(d.Count, 1)
	if len(p.e.Registers)+n > maxRegisters {
		return p.overBudget("more than %d registers", maxRegisters)
	}
	if p.declared += n; p.declared > maxDeclared {
		return p.overBudget("more than %d registers in all kernels", maxDeclared)
	}
	d.Prefix = p.freePrefix(d.Prefix, d.Count)
	p.e.Decls = append(p.e.Decls, d)
	p.e.Registers = slices.Grow(p.e.Registers, n)
	for i := range n {
		r, now := name, d.Prefix
		if d.Count > 0 {
			r = registerName(name, i)
			if now = r; d.Prefix != name {
				now = registerName(d.Prefix, i)
			}
		}
		if !p.bind(r, now, int32(len(p.e.Registers))) {
			return p.errorf("register %s is declared twice", r)
		}
		p.e.Registers = append(p.e.Registers, Register{Name: now, Class: d.Class.Class()})
	}
	return nil
}
