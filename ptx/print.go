package ptx

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"sonicmoe/ptx/isa"
)

// Text is printed PTX, with a table of the Go lines that emitted each line of it.
type Text struct {
	PTX []byte
	pos []*position // call stack for each line of the text
}

// Pos returns the Go lines that emitted a line of the text. Lines count from 1.
func (t Text) Pos(line int) Pos {
	if line < 0 || line >= len(t.pos) {
		return nil
	}
	return t.pos[line].resolve()
}

// Print returns the module as PTX. Equal modules give equal bytes.
func (m *Module) Print() Text {
	n := 64
	for _, e := range m.Entries {
		n += len(e.Body) + 64
	}
	for _, f := range m.Funcs {
		n += len(f.Body) + 64
	}
	p := printer{line: 1, pos: make([]*position, n)}
	p.buf.Grow(40 * n)
	p.writeLine(".version " + m.Version.String())
	p.writeLine(".target " + m.Arch.String())
	p.writeLine(".address_size 64")
	for _, v := range m.Globals {
		p.variable(v)
	}
	for _, f := range m.Funcs {
		p.function(f)
	}
	for _, e := range m.Entries {
		p.entry(e)
	}
	return Text{PTX: p.buf.Bytes(), pos: p.pos}
}

// Listing returns the text for a human reader: each instruction is followed by the Go line that
// emitted it.
func (t Text) Listing() []byte {
	var b bytes.Buffer
	for i, line := range bytes.Split(bytes.TrimSuffix(t.PTX, []byte("\n")), []byte("\n")) {
		b.Write(line)
		if pos := t.Pos(i + 1); len(pos) > 0 {
			for n := len(line); n < 60; n++ {
				b.WriteByte(' ')
			}
			b.WriteString(" // " + pos.String())
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

type printer struct {
	buf  bytes.Buffer
	line int
	pos  []*position
	e    *Entry
}

func (p *printer) writeLine(s string) {
	p.buf.WriteString(s)
	p.endLine()
}

func (p *printer) endLine() {
	p.buf.WriteByte('\n')
	p.line++
}

func (p *printer) variable(v Variable) {
	space := map[isa.Space]string{isa.Local: ".local", isa.Global: ".global", isa.Const: ".const", isa.Param: ".param"}[v.Space]
	if v.Shared() {
		space = ".shared"
	}
	s := space + " .align " + strconv.Itoa(v.Align)
	if v.Extern {
		s = ".extern " + s
	}
	if v.Scalar != isa.NoType {
		p.writeLine(s + " ." + v.Scalar.String() + " " + v.Name + ";")
		return
	}
	unit, name := 1, " .b8 "
	if len(v.Addresses) > 0 {
		unit, name = 8, " .u64 "
	}
	s += name + v.Name + "["
	if v.Bytes > 0 {
		s += strconv.Itoa(v.Bytes / unit)
	}
	p.writeLine(s + "]" + v.initial(unit) + ";")
}

// initial returns the initial value of a variable as PTX text, in elements of unit bytes each.
func (v *Variable) initial(unit int) string {
	n := (len(v.Init) + unit - 1) / unit
	if n == 0 {
		return ""
	}
	words := make([]string, n)
	for i := range words {
		var b [8]byte
		copy(b[:], v.Init[i*unit:min(len(v.Init), (i+1)*unit)])
		words[i] = strconv.FormatUint(binary.LittleEndian.Uint64(b[:]), 10)
	}
	for _, a := range v.Addresses {
		s := a.Sym
		if a.Global {
			s = "generic(" + s + ")"
		}
		if a.Add != 0 {
			s += "+" + strconv.FormatInt(a.Add, 10)
		}
		words[a.At/unit] = s
	}
	return " = {" + strings.Join(words, ", ") + "}"
}

func (p *printer) entry(e *Entry) {
	p.e = e
	p.writeLine(".visible .entry " + e.Name + "(")
	p.params(e.Params)
	p.writeLine(")")
	directives := []struct {
		name string
		dims Dims
	}{{".maxntid", Dims{e.MaxThreads, 1, 1}}, {".reqntid", e.Block}, {".minnctapersm", Dims{e.MinCTAs, 1, 1}}, {".maxnreg", Dims{e.MaxRegisters, 1, 1}}, {".reqnctapercluster", e.Cluster}}
	for _, d := range directives {
		if d.dims.Count() > 0 {
			p.writeLine(d.name + " " + d.dims.String())
		}
	}
	p.body(e)
}

// params writes one line for each parameter.
func (p *printer) params(list []Param) {
	for i, a := range list {
		s := "\t" + a.declaration()
		if i < len(list)-1 {
			s += ","
		}
		p.writeLine(s)
	}
}

func (a *Param) declaration() string {
	if a.Bytes != a.Type.Bytes() || a.Align != a.Type.Bytes() {
		return ".param .align " + strconv.Itoa(a.Align) + " .b8 " + a.Name + "[" + strconv.Itoa(a.Bytes) + "]"
	}
	return ".param ." + a.Type.String() + " " + a.Name
}

func (p *printer) function(f *Func) {
	p.e = &f.Entry
	s := ".func "
	if f.Extern {
		s = ".extern .func "
	}
	for _, r := range f.Results {
		s += "(" + r.declaration() + ") "
	}
	p.writeLine(s + f.Name + "(")
	p.params(f.Params)
	p.writeLine(")")
	if f.Declared {
		p.writeLine(";")
		return
	}
	p.body(&f.Entry)
}

func (p *printer) body(e *Entry) {
	p.writeLine("{")
	for _, d := range e.Decls {
		s := "\t.reg ." + d.Class.String() + " " + d.Prefix
		if d.Count > 0 {
			s += "<" + strconv.Itoa(d.Count) + ">"
		}
		p.writeLine(s + ";")
	}
	for _, v := range e.Shared {
		p.buf.WriteByte('\t')
		p.variable(v)
	}
	for _, v := range e.Local {
		p.buf.WriteByte('\t')
		p.variable(v)
	}
	for _, n := range e.Names {
		p.writeLine("\t" + n.String())
	}
	for i := range e.Body {
		p.inst(&e.Body[i])
	}
	p.writeLine("}")
}

func (p *printer) inst(in *Inst) {
	if in.Form == nil {
		p.buf.WriteString(in.Label + ":")
		if in.Directive != "" {
			p.buf.WriteString(" " + in.Directive)
			for i := range in.Args {
				p.buf.WriteString([]string{" ", ", "}[min(i, 1)])
				p.operand(&in.Args[i])
			}
			p.buf.WriteByte(';')
		}
		p.endLine()
		return
	}
	if in.pos != nil {
		if grow := p.line + 1 - len(p.pos); grow > 0 {
			p.pos = append(p.pos, make([]*position, grow)...)
		}
		p.pos[p.line] = in.pos
	}
	p.buf.WriteByte('\t')
	if in.Guard > 0 {
		p.buf.WriteByte('@')
		if in.GuardNot {
			p.buf.WriteByte('!')
		}
		p.buf.WriteString(p.e.Registers[in.Guard-1].Name)
		p.buf.WriteByte(' ')
	}
	p.buf.WriteString(in.Form.Op)
	for i := range in.Form.Mods {
		if n := in.Mods[i]; n > 0 {
			p.buf.WriteString(in.Form.Mods[i].Alts[n-1])
		}
	}
	separator := " "
	for i := range in.Args {
		if in.Args[i].Kind == OpPassed && in.Form.Args[i].Dir == isa.Out && len(in.Args[i].List) == 0 {
			continue
		}
		p.buf.WriteString(separator)
		separator = ", "
		if in.Form.Args[i].Kind == isa.SinkPred {
			p.buf.WriteString("_|")
		}
		p.operand(&in.Args[i])
	}
	p.buf.WriteByte(';')
	p.endLine()
}

func (p *printer) operand(o *Operand) {
	switch o.Kind {
	case OpReg:
		p.buf.WriteString(p.e.Registers[o.Reg].Name)
	case OpNotReg:
		p.buf.WriteByte('!')
		p.buf.WriteString(p.e.Registers[o.Reg].Name)
	case OpInt:
		p.int(o.Imm)
	case OpF32:
		p.float(o.Imm)
	case OpF64:
		p.buf.WriteString("0d" + strings.ToUpper(fmt.Sprintf("%016x", uint64(o.Imm))))
	case OpSymbol, OpLabel:
		p.buf.WriteString(o.Sym)
		if o.Imm != 0 {
			p.buf.WriteByte('+')
			p.int(o.Imm)
		}
	case OpPair:
		p.operand(&o.List[0])
		p.buf.WriteByte('|')
		p.operand(&o.List[1])
	case OpSpecial:
		p.buf.WriteString(isa.Specials[o.Reg].Name)
	case OpSink:
		p.buf.WriteByte('_')
	case OpAddr:
		p.address(o)
	case OpVec:
		p.list(o.List)
	case OpPassed:
		p.buf.WriteByte('(')
		for i := range o.List {
			if i > 0 {
				p.buf.WriteString(", ")
			}
			p.operand(&o.List[i])
		}
		p.buf.WriteByte(')')
	case OpTensor:
		p.buf.WriteByte('[')
		p.buf.WriteString(p.e.Registers[o.Reg].Name)
		p.buf.WriteString(", ")
		p.list(o.List)
		p.buf.WriteByte(']')
	}
}

// address prints [base], [base+n] or [n].
func (p *printer) address(o *Operand) {
	p.buf.WriteByte('[')
	switch {
	case o.Sym != "":
		p.buf.WriteString(o.Sym)
	case o.Reg >= 0:
		p.buf.WriteString(p.e.Registers[o.Reg].Name)
	}
	if o.Sym == "" && o.Reg < 0 {
		p.int(o.Imm)
	} else if o.Imm != 0 {
		p.buf.WriteByte('+')
		p.int(o.Imm)
	}
	p.buf.WriteByte(']')
}

// float prints the bits of an FP32 number, like 0f3F800000.
func (p *printer) float(bits int64) {
	const digits = "0123456789ABCDEF"
	p.buf.WriteString("0f")
	for shift := 28; shift >= 0; shift -= 4 {
		p.buf.WriteByte(digits[bits>>shift&15])
	}
}

func (p *printer) int(n int64) {
	var tmp [24]byte
	p.buf.Write(strconv.AppendInt(tmp[:0], n, 10))
}

func (p *printer) list(l []Operand) {
	p.buf.WriteByte('{')
	for i := range l {
		if i > 0 {
			p.buf.WriteString(", ")
		}
		p.operand(&l[i])
	}
	p.buf.WriteByte('}')
}
