package ptx

import (
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
	why, fits := "", false // fits is true if some form accepts the modifiers; why then says what is wrong with the operands
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
