package ptx

import (
	"math"
	"strconv"
	"strings"

	"sonicmoe/ptx/isa"
)

// operand parses an operand. depth is the number of operands that contain the operand.
func (p *parser) operand(depth int) (Operand, error) {
	t := p.peek()
	switch {
	case t == "_":
		p.at++
		if !p.accept("|") {
			return Operand{Kind: OpSink}, nil
		}
		r, err := p.register() // _|p
		return Operand{Kind: OpReg, Reg: r, sunk: true}, err
	case t == "[":
		return p.address()
	case t == "{":
		if depth > 0 {
			return Operand{}, p.errorf("nested braces")
		}
		return p.vector()
	case t == "(":
		if depth > 0 {
			return Operand{}, p.errorf("nested parentheses")
		}
		return p.passed()
	case t == "!":
		p.at++
		r, err := p.register()
		return Operand{Kind: OpNotReg, Reg: r}, err
	case t == "-" || t != "" && (t[0] >= '0' && t[0] <= '9' || t[0] == '.' && len(t) > 1):
		return p.number()
	}
	return p.named(depth)
}

// register parses the name of a register.
func (p *parser) register() (int32, error) {
	r, ok := p.regs[p.peek()]
	if !ok {
		return 0, p.errorf("%q is not a register", p.peek())
	}
	p.at++
	return r, nil
}

// vector parses a list of operands in braces.
func (p *parser) vector() (Operand, error) {
	p.at++
	var list []Operand
	for !p.accept("}") {
		o, err := p.operand(1)
		if err != nil {
			return o, err
		}
		list = append(list, o)
		if !p.accept(",") && p.peek() != "}" {
			return o, p.errorf("%q where , or } is expected", p.peek())
		}
	}
	return Operand{Kind: OpVec, List: list}, nil
}

// passed parses the arguments of a call: a list of names in parentheses.
func (p *parser) passed() (Operand, error) {
	p.at++
	o := Operand{Kind: OpPassed}
	for !p.accept(")") {
		name, err := p.name()
		if err != nil {
			return o, err
		}
		o.List = append(o.List, Operand{Kind: OpSymbol, Sym: p.symbol(name)})
		if !p.accept(",") && p.peek() != ")" {
			return o, p.errorf("%q where , or ) is expected", p.peek())
		}
	}
	return o, nil
}

// named parses an operand that begins with a name: r, r|p, a special register, WARP_SZ, symbol or
// symbol+n.
func (p *parser) named(depth int) (Operand, error) {
	name, err := p.word()
	if err != nil {
		return Operand{}, err
	}
	if r, ok := p.regs[name]; ok {
		o := Operand{Kind: OpReg, Reg: r}
		if !p.accept("|") {
			return o, nil
		}
		second, err := p.operand(depth + 1) // the second part of r|p
		return Operand{Kind: OpPair, List: []Operand{o, second}}, err
	}
	if i, ok := isa.SpecialNamed(name); ok {
		return Operand{Kind: OpSpecial, Reg: int32(i)}, nil
	}
	if strings.HasPrefix(name, "%") {
		return Operand{}, p.errorf("%s is not a register that the kernel declares, nor a known special register", name)
	}
	if name == "WARP_SZ" {
		return Operand{Kind: OpInt, Imm: 32}, nil
	}
	o := Operand{Kind: OpSymbol, Sym: p.symbol(name)}
	if p.accept("+") {
		n, err := p.number()
		o.Imm = n.Imm
		return o, err
	}
	return o, nil
}

// symbol returns the kernel's name for a variable of the parsed text.
func (p *parser) symbol(name string) string {
	if now, ok := p.syms[name]; ok {
		return now
	}
	return name
}

func (p *parser) number() (Operand, error) {
	neg := p.accept("-")
	t := p.next()
	if strings.HasPrefix(t, "0f") || strings.HasPrefix(t, "0F") {
		b, err := strconv.ParseUint(t[2:], 16, 32)
		if err != nil || len(t) != 10 || neg {
			p.at--
			return Operand{}, p.errorf("%q is not a float like 0f3F800000", t)
		}
		return Operand{Kind: OpF32, Imm: int64(b)}, nil
	}
	if strings.HasPrefix(t, "0d") || strings.HasPrefix(t, "0D") {
		b, err := strconv.ParseUint(t[2:], 16, 64)
		if err != nil || len(t) != 18 || neg {
			p.at--
			return Operand{}, p.errorf("%q is not a float like 0d3FF0000000000000", t)
		}
		return Operand{Kind: OpF64, Imm: int64(b)}, nil
	}
	if strings.ContainsAny(t, ".eE") && !strings.HasPrefix(t, "0x") && !strings.HasPrefix(t, "0X") {
		f, err := strconv.ParseFloat(t, 64)
		if err != nil {
			p.at--
			return Operand{}, p.errorf("%q is not a number", t)
		}
		if neg {
			f = -f
		}
		return Operand{Kind: OpF64, Imm: int64(math.Float64bits(f))}, nil
	}
	u, err := strconv.ParseUint(strings.TrimRight(t, "U"), 0, 64)
	if err != nil {
		p.at--
		return Operand{}, p.errorf("%q is not a number", t)
	}
	n := int64(u)
	if neg {
		n = -n
	}
	return Operand{Kind: OpInt, Imm: n}, nil
}

// address parses [base], [base+n], [n] and [map, {c0, c1}].
func (p *parser) address() (Operand, error) {
	p.at++
	a := Operand{Kind: OpAddr, Reg: -1}
	if t := p.peek(); t == "-" || t != "" && t[0] >= '0' && t[0] <= '9' {
		n, err := p.number()
		if err != nil {
			return a, err
		}
		a.Imm = n.Imm
		return a, p.expect("]")
	}
	name, err := p.name()
	if err != nil {
		return a, err
	}
	if r, ok := p.regs[name]; ok {
		a.Reg = r
	} else {
		a.Sym = p.symbol(name)
	}
	if p.accept(",") {
		if a.Reg < 0 {
			return a, p.errorf("a tensor map must be a register: %s is not", name)
		}
		if p.peek() != "{" { // an address here could nest without end
			return a, p.errorf("coordinates must be in braces")
		}
		o, err := p.operand(0)
		if err != nil {
			return a, err
		}
		a.Kind, a.List = OpTensor, o.List
		return a, p.expect("]")
	}
	if p.peek() == "+" || p.peek() == "-" {
		p.accept("+")
		n, err := p.number()
		if err != nil {
			return a, err
		}
		a.Imm = n.Imm
	}
	return a, p.expect("]")
}
