package ptx

import "strconv"

// Scopes end with the parser: what braces declare gets a name of its own, if
// that of the text is taken, and stands with the kernel's. So inline assembly,
// whose blocks all use the same names, prints without braces and means the same.

// scope is an open brace.
type scope struct {
	// hidden are the registers and variables that those of this scope hide, -1 and
	// "" where there were none.
	hidden     map[string]int32
	hiddenSyms map[string]string
	labels     map[string]string
	jumps      []jump
}

// jump is an operand that names a label.
type jump struct{ inst, arg, elem int }

// begin starts a kernel's names.
func (p *parser) begin() {
	p.regs, p.taken, p.copies, p.syms, p.scopes = map[string]int32{}, map[string]bool{}, map[string]int{}, map[string]string{}, nil
	p.open()
}

func (p *parser) open() {
	p.scopes = append(p.scopes, scope{hidden: map[string]int32{}, hiddenSyms: map[string]string{}, labels: map[string]string{}})
}

// close ends the innermost scope: jumps to its labels are settled, the others
// are for the scope around it.
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

// bind makes a name mean a register that has another name, or the same, in the
// kernel; false if the scope has declared it already.
func (p *parser) bind(name, now string, reg int32) bool {
	s := &p.scopes[len(p.scopes)-1]
	old, ok := p.regs[name]
	if inner := len(p.scopes) > 1; inner { // else nothing is hidden
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

// declare gives a variable its name in the kernel.
func (p *parser) declare(name string) string {
	s := &p.scopes[len(p.scopes)-1]
	if _, twice := s.hiddenSyms[name]; twice { // for the verifier to say
		return name
	}
	now := p.free(name)
	p.taken[now] = true
	s.hiddenSyms[name] = p.syms[name]
	p.syms[name] = now
	return now
}

// label gives a label its name in the kernel.
func (p *parser) label(name string) string {
	s := &p.scopes[len(p.scopes)-1]
	if _, twice := s.labels[name]; twice { // for the verifier to say
		return name
	}
	now := p.free(name)
	p.taken[now] = true
	s.labels[name] = now
	return now
}

// free is a name that nothing has, close to the given one.
func (p *parser) free(name string) string { return p.freePrefix(name, 0) }

// freePrefix is free for so many registers that share a prefix.
func (p *parser) freePrefix(name string, count int) string {
	now := name
	for p.clashes(now, count) {
		p.copies[name]++ // of one name there may be thousands
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

// jumps notes the labels that the latest instruction names.
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
