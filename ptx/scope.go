package ptx

import "strconv"

// This file resolves PTX scopes while parsing. A name that is declared inside braces becomes a name
// of the whole kernel. It is changed if the kernel uses the name already. Blocks of inline
// assembly, which all use the same names, can thus be printed without braces and keep their
// meaning.

// scope holds the names that one pair of open braces declares.
type scope struct {
	// hidden and hiddenSyms are the registers and variables of outer scopes that a declaration of
	// this scope hides, by name. The value is -1 or "" if the name had no meaning before.
	hidden     map[string]int32
	hiddenSyms map[string]string
	labels     map[string]string
	jumps      []jump
}

// jump says where an operand names a label: the index of the instruction, the index of the operand
// and, if the operand is a list, the index in the list.
type jump struct{ inst, arg, elem int }

// begin resets the names for a new kernel.
func (p *parser) begin() {
	p.regs, p.taken, p.copies, p.syms, p.scopes = map[string]int32{}, map[string]bool{}, map[string]int{}, map[string]string{}, nil
	p.open()
}

func (p *parser) open() {
	p.scopes = append(p.scopes, scope{hidden: map[string]int32{}, hiddenSyms: map[string]string{}, labels: map[string]string{}})
}

// close ends the innermost scope. It resolves the jumps to the scope's own labels, and hands the
// other jumps to the enclosing scope.
func (p *parser) close() {
	s := &p.scopes[len(p.scopes)-1]
	p.scopes = p.scopes[:len(p.scopes)-1]
	for _, j := range s.jumps {
		o := &p.e.Body[j.inst].Args[j.arg]
		if j.elem >= 0 {
			o = &o.List[j.elem]
		}
		if name, ok := s.labels[o.Sym]; ok {
			o.Sym = name
		} else if n := len(p.scopes); n > 0 {
			p.scopes[n-1].jumps = append(p.scopes[n-1].jumps, j)
		}
	}
	for name, reg := range s.hidden {
		if reg < 0 {
			delete(p.regs, name)
		} else {
			p.regs[name] = reg
		}
	}
	for name, sym := range s.hiddenSyms {
		if sym == "" {
			delete(p.syms, name)
		} else {
			p.syms[name] = sym
		}
	}
}

// bind makes a name of the text refer to register reg. Parameter now is the register's name in the
// kernel. bind returns false if the scope has declared the name before.
func (p *parser) bind(name, now string, reg int32) bool {
	s := &p.scopes[len(p.scopes)-1]
	old, ok := p.regs[name]
	if inner := len(p.scopes) > 1; inner { // the outermost scope hides nothing
		if _, twice := s.hidden[name]; twice {
			return false
		}
		if !ok {
			old = -1
		}
		s.hidden[name] = old
		p.taken[now] = true
	} else if ok {
		return false
	}
	p.regs[name] = reg
	return true
}

// declare returns the kernel's name for a variable, and records the name in the innermost scope.
func (p *parser) declare(name string) string {
	s := &p.scopes[len(p.scopes)-1]
	if _, twice := s.hiddenSyms[name]; twice { // the verifier reports that the name is declared twice
		return name
	}
	now := p.free(name)
	p.taken[now] = true
	s.hiddenSyms[name] = p.syms[name]
	p.syms[name] = now
	return now
}

// label returns the kernel's name for a label, and records the name in the innermost scope.
func (p *parser) label(name string) string {
	s := &p.scopes[len(p.scopes)-1]
	if _, twice := s.labels[name]; twice { // the verifier reports that the label is declared twice
		return name
	}
	now := p.free(name)
	p.taken[now] = true
	s.labels[name] = now
	return now
}

// free returns an unused name similar to name.
func (p *parser) free(name string) string { return p.freePrefix(name, 0) }

// freePrefix returns an unused name similar to name. If count is not 0, it must be unused as prefix
// of count registers.
func (p *parser) freePrefix(name string, count int) string {
	now := name
	for p.clashes(now, count) {
		p.copies[name]++ // start at the number used last, because a name may have thousands of copies
		now = name + "$" + strconv.Itoa(p.copies[name])
		if count > 0 {
			now += "_"
		}
	}
	return now
}

func (p *parser) clashes(prefix string, count int) bool {
	inner := len(p.scopes) > 1
	has := func(name string) bool {
		_, visible := p.regs[name]
		return p.taken[name] || inner && visible
	}
	if count == 0 {
		return has(prefix)
	}
	for i := 0; i < count && (inner || len(p.taken) > 0); i++ {
		if has(registerName(prefix, i)) {
			return true
		}
	}
	return false
}

// jumps records the labels to which the latest instruction refers.
func (p *parser) jumps(in *Inst) {
	s := &p.scopes[len(p.scopes)-1]
	at := len(p.e.Body) - 1
	for i := range in.Args {
		if in.Args[i].Kind == OpLabel {
			s.jumps = append(s.jumps, jump{at, i, -1})
		}
		for j := range in.Args[i].List {
			if in.Args[i].List[j].Kind == OpLabel {
				s.jumps = append(s.jumps, jump{at, i, j})
			}
		}
	}
}
