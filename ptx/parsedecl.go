package ptx

import (
	"strings"

	"sonicmoe/ptx/isa"
)

// This file parses declarations and the directives before a body: names, parameters and launch
// bounds.

func (p *parser) entry() error {
	p.loc, p.places = Loc{}, nil
	name, err := p.name()
	if err != nil {
		return err
	}
	if len(p.m.Entries) == maxKernels {
		return p.overBudget("more than %d kernels", maxKernels)
	}
	p.e = &Entry{Name: name}
	p.begin()
	if p.e.Params, err = p.params(); err != nil {
		return err
	}
	layoutParams(p.e.Params)
	if p.e.ParamBytes() > maxParams {
		return p.errorf("parameters take %d bytes, at most %d", p.e.ParamBytes(), maxParams)
	}
	if err := p.directives(); err != nil {
		return err
	}
	if err := p.body(); err != nil {
		return err
	}
	p.m.Entries = append(p.m.Entries, p.e)
	return nil
}

// function parses [(result)] name [(parameters)], followed by a body, or by a semicolon if the body
// is elsewhere.
func (p *parser) function(extern bool) error {
	p.loc, p.places = Loc{}, nil
	f := &Func{Extern: extern}
	var err error
	if f.Results, err = p.params(); err != nil {
		return err
	}
	if len(f.Results) > 1 {
		return p.errorf("a function has one result at most")
	}
	if f.Name, err = p.name(); err != nil {
		return err
	}
	if len(p.m.Funcs) == maxFunctions {
		return p.overBudget("more than %d functions", maxFunctions)
	}
	p.e = &f.Entry
	p.begin()
	if f.Params, err = p.params(); err != nil {
		return err
	}
	for _, list := range [][]Param{f.Results, f.Params} {
		layoutParams(list)
	}
	p.m.Funcs = append(p.m.Funcs, f)
	if err := p.directives(); err != nil {
		return err
	}
	if f.Declared = p.accept(";"); f.Declared {
		return nil
	}
	return p.body()
}

// params parses a list (a, b, ...), which may be absent.
func (p *parser) params() (list []Param, err error) {
	if !p.accept("(") {
		return nil, nil
	}
	for !p.accept(")") {
		a, err := p.param()
		if err != nil {
			return nil, err
		}
		list = append(list, a)
		if !p.accept(",") && p.peek() != ")" {
			return nil, p.errorf("%q where , or ) is expected", p.peek())
		}
	}
	return list, nil
}

func (p *parser) directives() error {
	for {
		name := p.peek()
		switch name {
		case ".maxntid", ".reqntid", ".minnctapersm", ".reqnctapercluster", ".maxnreg":
		case ".explicitcluster", ".noreturn": // a launch checks what these directives demand
			p.at++
			continue
		case ".pragma":
			p.at++
			p.skipStatement()
			continue
		default:
			return nil
		}
		p.at++
		d, err := p.dims()
		if err != nil {
			return err
		}
		switch name {
		case ".maxntid":
			p.e.MaxThreads = d.Count()
		case ".reqntid":
			p.e.Block = d
		case ".minnctapersm":
			p.e.MinCTAs = d.Count()
		case ".maxnreg":
			p.e.MaxRegisters = d.Count()
		case ".reqnctapercluster":
			p.e.Cluster = d
		}
	}
}

// dims parses x[, y[, z]].
func (p *parser) dims() (Dims, error) {
	d := Dims{1, 1, 1}
	for i := range d {
		if i > 0 && !p.accept(",") {
			break
		}
		var err error
		if d[i], err = p.int(); err != nil {
			return d, err
		}
		if err := p.atMost(d.Count()); err != nil { // check before the next multiplication overflows
			return d, err
		}
	}
	return d, nil
}

// atMost refuses a number of threads or CTAs that no launch can have.
func (p *parser) atMost(n int) error {
	if n < 1 || n > 1<<16 {
		return p.errorf("%d threads or CTAs", n)
	}
	return nil
}

func (p *parser) param() (a Param, err error) {
	if err := p.expect(".param"); err != nil {
		return a, err
	}
	if p.accept(".align") {
		if a.Align, err = p.int(); err != nil {
			return a, err
		}
		if a.Align < 1 || a.Align&(a.Align-1) != 0 || a.Align > 1024 {
			return a, p.errorf("alignment %d is not a power of two up to 1024", a.Align)
		}
	}
	t, ok := isa.TypeNamed(strings.TrimPrefix(p.next(), "."))
	if !ok || t.Bytes() == 0 {
		return a, p.errorf("unknown type of a parameter")
	}
	a.Type, a.Bytes = t, t.Bytes()
	if a.Align == 0 {
		a.Align = t.Bytes()
	}
	if err := p.pointer(); err != nil {
		return a, err
	}
	if a.Name, err = p.name(); err != nil {
		return a, err
	}
	if p.accept("[") {
		n, err := p.int()
		if err != nil {
			return a, err
		}
		if n < 1 || n > maxParams {
			return a, p.errorf("parameter %s has %d elements", a.Name, n)
		}
		a.Bytes *= n
		if err := p.expect("]"); err != nil {
			return a, err
		}
	}
	return a, nil
}
