package ptx

import "strconv"

// This file resolves PTX scopes while parsing. A name that braces declare becomes
// a name of the whole kernel, changed if the kernel already uses it. Inline
// assembly, whose blocks all use the same names, thus prints without braces and
// keeps its meaning.

// scope holds the names that one pair of open braces declares.
type scope struct {
	// hidden and hiddenSyms are the outer registers and variables that a declaration
	// of this scope hides, by name. The value is -1 or "" if nothing was hidden.
	hidden     map[string]int32
	hiddenSyms map[string]string
	labels     map[string]string
	jumps      []jump
}

// jump is an operand that names a label.
type jump struct{ inst, arg, elem int }

// begin resets the names for a new kernel.
func (p *parser) begin() {
	p.regs, p.taken, p.copies, p.syms, p.scopes = map[string]int32{}, map[string]bool{}, map[string]int{}, map[string]string{}, nil
	p.open()
}

func (p *parser) open() {
	p.scopes = append(p.scopes, scope{hidden: map[string]int32{}, hiddenSyms: map[string]string{}, labels: map[string]string{}})
}

// close ends the innermost scope. It resolves jumps to the scope's labels and
// passes the other jumps to the enclosing scope.
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

// bind makes name refer to register reg, whose name in the kernel is now. It
// returns false if the scope has already declared name.
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

// declare returns the kernel's name for a variable and records it in the innermost
// scope.
func (p *parser) declare(name string) string {
	s := &p.scopes[len(p.scopes)-1]
	if _, twice := s.hiddenSyms[name]; twice { // the verifier reports the duplicate
		return name
	}
	now := p.free(name)
	p.taken[now] = true
	s.hiddenSyms[name] = p.syms[name]
	p.syms[name] = now
	return now
}

// label returns the kernel's name for a label and records it in the innermost
// scope.
func (p *parser) label(name string) string {
	s := &p.scopes[len(p.scopes)-1]
	if _, twice := s.labels[name]; twice { // the verifier reports the duplicate
		return name
	}
	now := p.free(name)
	p.taken[now] = true
	s.labels[name] = now
	return now
}

// free returns an unused name similar to name.
func (p *parser) free(name string) string { return p.freePrefix(name, 0) }

// freePrefix returns an unused name similar to name, for count registers that
// share it as prefix.
func (p *parser) freePrefix(name string, count int) string {
	now := name
	for p.clashes(now, count) {
		p.copies[name]++ // start at the last number used, since a name may have thousands of copies
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
