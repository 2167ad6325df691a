package ptx

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"sonicmoe/ptx/isa"
)

// inst parses [@[!]guard] opcode operands ;
func (p *parser) inst() error {
	in := Inst{Line: p.line(), Loc: p.loc}
	if p.accept("@") {
		in.GuardNot = p.accept("!")
		r, ok := p.regs[p.peek()]
		if !ok || p.e.Registers[r].Class != isa.Pred {
			return p.errorf("guard %q is not a predicate register", p.peek())
		}
		p.at++
		in.Guard = r + 1
	}
	in.Line = p.line()
	opcode, err := p.word()
	if err != nil {
		return err
	}
	args := p.args[:0]
	for !p.accept(";") {
		o, err := p.operand(0)
		if err != nil {
			return err
		}
		args = append(args, o)
		if !p.accept(",") && p.peek() != ";" {
			return p.errorf("%q where , or ; is expected", p.peek())
		}
	}
	p.args = args
	if opcode == "call" || opcode == "call.uni" {
		args = wholeCall(args)
	}
	in.Args = p.keep(args)
	if err := p.match(&in, opcode); err != nil {
		return err
	}
	p.e.Body = append(p.e.Body, in)
	p.jumps(&in)
	return nil
}

// keep copies operands into a slice. It takes the slice from an allocation for many instructions.
func (p *parser) keep(args []Operand) []Operand {
	n := len(args)
	if n == 0 {
		return nil
	}
	if n > len(p.kept) {
		p.kept = make([]Operand, max(n, 256))
	}
	out := p.kept[:n:n]
	p.kept = p.kept[n:]
	copy(out, args)
	return out
}

// wholeCall adds the parentheses of results and arguments that a call may omit.
func wholeCall(args []Operand) []Operand {
	none := Operand{Kind: OpPassed}
	if len(args) > 0 && args[0].Kind != OpPassed {
		args = append([]Operand{none}, args...)
	}
	if len(args) == 2 || len(args) > 2 && args[2].Kind != OpPassed {
		args = slices.Insert(args, 2, none)
	}
	return args
}

// match finds the form that fits the opcode and the operands.
func (p *parser) match(in *Inst, opcode string) error {
	if len(opcode) > maxOpcode { // otherwise every dot of a very long opcode would be tried
		return &FormError{Line: in.Line, Opcode: opcode[:maxOpcode] + "...", Why: ": it has " + strconv.Itoa(len(opcode)) + " bytes"}
	}
	why, fits := "", false // fits: some form accepts the modifiers, so why is about operands
	for _, read := range []func(*isa.Form, string) (isa.Mods, string, bool){parseMods, looseMods} {
		for end := len(opcode); end > 0; end = strings.LastIndexByte(opcode[:end], '.') {
			for _, f := range isa.ByOp[opcode[:end]] {
				m, rest, ok := read(f, opcode[end:])
				if !ok {
					if why == "" {
						why = "modifier " + strconv.Quote(rest) + " does not fit " + f.Op
					}
					continue
				}
				bad := argsFit(p.e, f, m, in.Args)
				if bad == "" {
					bad = sinksFit(f, in.Args)
				}
				if bad != "" {
					if !fits {
						why, fits = bad, true
					}
					continue
				}
				in.Form, in.Mods = f, m
				return nil
			}
		}
	}
	if why != "" {
		why = ": " + why
	}
	return &FormError{Line: in.Line, Opcode: opcode, Why: why}
}

// sinksFit returns "" if the form has _| exactly where the operands have it. Otherwise it says
// where they differ.
func sinksFit(f *isa.Form, args []Operand) string {
	for i := range args {
		for _, o := range args[i].List {
			if o.sunk {
				return "_| in braces"
			}
		}
		if args[i].sunk != (f.Args[i].Kind == isa.SinkPred) {
			return "operand " + strconv.Itoa(i+1) + " of " + f.Op + " is written _|p exactly where the form has it"
		}
	}
	return ""
}

// FormError reports an instruction that does not match any form of the table. More is the number of
// later instructions with the same mistake.
type FormError struct {
	Line   int
	Opcode string
	Why    string
	More   int
}

func (e *FormError) Error() string {
	more := ""
	if e.More > 0 {
		more = " and " + strconv.Itoa(e.More) + " more"
	}
	return "line " + strconv.Itoa(e.Line) + more + ": unknown form " + e.Opcode + e.Why
}

// parseMods reads the modifiers that follow an Op. They must be in the order of the PTX manual.
func parseMods(f *isa.Form, text string) (m isa.Mods, rest string, ok bool) {
	for i := range f.Mods {
		best := 0
		for j, alt := range f.Mods[i].Alts {
			if strings.HasPrefix(text, alt) && (len(text) == len(alt) || text[len(alt)] == '.') &&
				(best == 0 || len(alt) > len(f.Mods[i].Alts[best-1])) {
				best = j + 1
			}
		}
		if best > 0 {
			m[i] = uint8(best)
			text = text[len(f.Mods[i].Alts[best-1]):]
		} else if !f.Mods[i].Opt {
			return m, text, false
		}
	}
	return m, text, text == ""
}

// looseMods does the same as parseMods, but accepts optional modifiers at any place. The assembler
// accepts this too, and CUTLASS writes .satfinite last.
func looseMods(f *isa.Form, text string) (m isa.Mods, rest string, ok bool) {
	var loose isa.Mods
	for i := range f.Mods {
		for j, alt := range f.Mods[i].Alts {
			before, after, found := strings.Cut(text+".", alt+".")
			if found && f.Mods[i].Opt && loose[i] == 0 {
				loose[i], text = uint8(j+1), before+strings.TrimSuffix("."+after, ".")
			}
		}
	}
	m, rest, ok = parseMods(f, text)
	for i, n := range loose {
		if n != 0 && m[i] != 0 { // the modifier occurs twice
			return m, f.Mods[i].Alts[n-1], false
		}
		m[i] |= n
	}
	return m, rest, ok
}

func (p *parser) operand(depth int) (Operand, error) {
	if p.accept("_") {
		if !p.accept("|") {
			return Operand{Kind: OpSink}, nil
		}
		r, ok := p.regs[p.peek()] // _|p
		if !ok {
			return Operand{}, p.errorf("%q is not a register", p.peek())
		}
		p.at++
		return Operand{Kind: OpReg, Reg: r, sunk: true}, nil
	}
	t := p.peek()
	switch {
	case t == "[":
		return p.address()
	case t == "{":
		if depth > 0 {
			return Operand{}, p.errorf("nested braces")
		}
		p.at++
		var list []Operand
		for !p.accept("}") {
			o, err := p.operand(depth + 1)
			if err != nil {
				return o, err
			}
			list = append(list, o)
			if !p.accept(",") && p.peek() != "}" {
				return o, p.errorf("%q where , or } is expected", p.peek())
			}
		}
		return Operand{Kind: OpVec, List: list}, nil
	case t == "(":
		if depth > 0 {
			return Operand{}, p.errorf("nested parentheses")
		}
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
	case t == "!":
		p.at++
		r, ok := p.regs[p.peek()]
		if !ok {
			return Operand{}, p.errorf("%q is not a register", p.peek())
		}
		p.at++
		return Operand{Kind: OpNotReg, Reg: r}, nil
	case t == "-" || t != "" && (t[0] >= '0' && t[0] <= '9' || t[0] == '.' && len(t) > 1):
		return p.number()
	}
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

// argsFit returns "" if the operands fit the form. Otherwise it says why they do not. It turns
// symbols into labels where the form has a label.
func argsFit(e *Entry, f *isa.Form, m isa.Mods, args []Operand) string {
	if least, most := f.ArgCount(m); len(args) < least || len(args) > most {
		return f.Op + " takes " + strconv.Itoa(least) + " operands"
	}
	for i := range args {
		if o := &args[i]; f.Args[i].Kind == isa.Vec && !f.Braced(m, i) && o.Kind == OpVec && len(o.List) == 1 {
			*o = o.List[0] // a vector of one element
		}
		if !argFits(e, f, m, i, &args[i]) {
			return "operand " + strconv.Itoa(i+1) + " (" + f.Args[i].Name + ") does not fit " + f.Op
		}
	}
	for i := range args {
		if f.Args[i].Kind == isa.Label {
			args[i].Kind = OpLabel
		}
		if t := f.ArgType(m, i); args[i].Kind == OpF64 && t == isa.F32 {
			args[i] = Operand{Kind: OpF32, Imm: int64(math.Float32bits(float32(math.Float64frombits(uint64(args[i].Imm)))))}
		}
	}
	return ""
}

func argFits(e *Entry, f *isa.Form, m isa.Mods, i int, o *Operand) bool {
	a, t := &f.Args[i], f.ArgType(m, i)
	switch a.Kind {
	case isa.Reg:
		return scalarFits(e, f, a, t, o)
	case isa.PredIn:
		return (o.Kind == OpReg || o.Kind == OpNotReg) && e.Registers[o.Reg].Class == isa.Pred ||
			o.Kind == OpInt && (o.Imm == 0 || o.Imm == 1)
	case isa.SinkPred:
		return o.Kind == OpReg && e.Registers[o.Reg].Class == isa.Pred
	case isa.Pair:
		return o.Kind == OpPair && pairFits(e, t, &o.List[0]) && pairFits(e, isa.Pred, &o.List[1])
	case isa.Imm:
		return o.Kind == OpInt
	case isa.Passed:
		return o.Kind == OpPassed
	case isa.Sink:
		return o.Kind == OpSink
	case isa.Label:
		return o.Kind == OpSymbol || o.Kind == OpLabel
	case isa.Addr:
		return o.Kind == OpAddr && (o.Reg < 0 || addressFits(f.ArgSpace(m, i), e.Registers[o.Reg].Class))
	case isa.TensorAddr:
		return o.Kind == OpTensor && e.Registers[o.Reg].Class == isa.B64 && listFits(e, f, a, isa.S32, f.ArgLen(m, i), o.List)
	case isa.Vec:
		if !f.Braced(m, i) {
			return scalarFits(e, f, a, t, o)
		}
		return o.Kind == OpVec && listFits(e, f, a, t, f.ArgLen(m, i), o.List)
	}
	return false
}

func listFits(e *Entry, f *isa.Form, a *isa.Arg, t isa.Type, n int, list []Operand) bool {
	if len(list) != n {
		return false
	}
	for i := range list {
		if !scalarFits(e, f, a, t, &list[i]) {
			return false
		}
	}
	return true
}

func scalarFits(e *Entry, f *isa.Form, a *isa.Arg, t isa.Type, o *Operand) bool {
	switch o.Kind {
	case OpReg:
		c := e.Registers[o.Reg].Class
		return c == t.Class() || a.Wider && c != isa.Pred && c.Bits() > t.Bits()
	case OpInt:
		return a.Dir == isa.In && !a.RegOnly && (t != isa.Pred || f.ID == isa.Mov) && t != isa.F32 && t != isa.F64
	case OpF32:
		return a.Dir == isa.In && !a.RegOnly && (t == isa.F32 || t == isa.B32)
	case OpF64:
		return a.Dir == isa.In && !a.RegOnly && (t == isa.F32 || t == isa.F64 || t == isa.B64)
	case OpSink: // an element of a vector that is not needed
		return a.Dir == isa.Out && a.Kind == isa.Vec
	case OpSpecial:
		return a.Dir == isa.In && f.ID == isa.Mov && isa.Specials[o.Reg].Type.Class() == t.Class()
	case OpSymbol:
		return a.Dir == isa.In && (f.ID == isa.Mov || f.ID == isa.Call)
	}
	return false
}

func pairFits(e *Entry, t isa.Type, o *Operand) bool {
	return o.Kind == OpSink || o.Kind == OpReg && e.Registers[o.Reg].Class == t.Class()
}

// addressFits reports whether registers of a class can hold addresses of a space. 64-bit registers
// can hold any address, 32-bit registers only addresses of small spaces.
func addressFits(s isa.Space, class isa.Type) bool {
	switch s {
	case isa.Shared, isa.SharedCluster, isa.Local:
		return class == isa.B32 || class == isa.B64
	}
	return class == isa.B64
}
