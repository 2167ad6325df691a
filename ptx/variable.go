package ptx

import (
	"encoding/binary"
	"math"
	"strings"

	"sonicmoe/ptx/isa"
)

// This file parses declarations of variables.

// variable parses .SPACE [.align N] .TYPE name[n] [= initial value]. The first token has been read
// already.
func (p *parser) variable(space string) (Variable, error) {
	v := Variable{Align: 1, Space: map[string]isa.Space{".global": isa.Global, ".const": isa.Const, ".local": isa.Local, ".param": isa.Param}[space]}
	if p.variables++; p.variables > maxVariables {
		return v, p.overBudget("more than %d variables", maxVariables)
	}
	t, err := p.elementType(&v)
	if err != nil {
		return v, err
	}
	if v.Align < 1 || v.Align&(v.Align-1) != 0 {
		return v, p.errorf("alignment %d is not a power of two", v.Align)
	}
	v.Align = max(v.Align, t.Bytes())
	if v.Name, err = p.name(); err != nil {
		return v, err
	}
	v.Bytes = t.Bytes()
	if err := p.extents(&v); err != nil {
		return v, err
	}
	if v.Space == isa.Param && v.Bytes == t.Bytes() && p.toks[p.at-1].text != "]" && v.Align == t.Bytes() {
		v.Scalar = t
	}
	if p.accept("=") {
		if err := p.initial(&v, t, 0); err != nil {
			return v, err
		}
		if v.Bytes = max(v.Bytes, len(v.Init)); v.Shared() || v.Space == isa.Local || v.Space == isa.Param {
			return v, p.errorf("variable %s has an initial value: only .global and .const do", v.Name)
		}
		v.Init = trimZeros(v.Init, v.Addresses)
		if len(v.Addresses) > 0 && (v.Bytes%8 != 0 || t.Bytes() != 8) {
			return v, p.errorf("variable %s holds addresses in elements of %d bytes, must be 8", v.Name, t.Bytes())
		}
	}
	return v, p.expect(";")
}

// elementType parses [.align N] .TYPE. It sets the alignment of v and returns the element type.
func (p *parser) elementType(v *Variable) (t isa.Type, err error) {
	for t == isa.NoType {
		switch name := p.next(); name {
		case ".align":
			if v.Align, err = p.int(); err != nil {
				return t, err
			}
		case ".attribute":
			for p.at < len(p.toks) && p.next() != ")" {
			}
		default:
			var ok bool
			if t, ok = isa.TypeNamed(strings.TrimPrefix(name, ".")); !ok || t.Bytes() == 0 {
				return t, p.errorf("unknown type of a variable")
			}
		}
	}
	return t, nil
}

// extents parses the extents of an array, such as [2][3]. It multiplies the size of v by each.
func (p *parser) extents(v *Variable) error {
	most := maxGlobal
	if v.Shared() {
		most = maxShared
	}
	for p.accept("[") {
		n := 0
		if p.peek() != "]" {
			var err error
			if n, err = p.int(); err != nil {
				return err
			}
		}
		if n > most || v.Bytes*n > most {
			return p.errorf("variable %s has %d elements", v.Name, n)
		}
		v.Bytes *= n
		if err := p.expect("]"); err != nil {
			return err
		}
	}
	return nil
}

// trimZeros removes zero bytes from the end of b: bytes without an initial value are zero anyway.
// It keeps the places that hold addresses.
func trimZeros(b []byte, addresses []Address) []byte {
	least := 0
	for _, a := range addresses {
		least = max(least, a.At+8)
	}
	for len(b) > least && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return b
}

// initial parses one initial value, or a list of initial values in braces.
func (p *parser) initial(v *Variable, t isa.Type, depth int) error {
	if p.accept("{") {
		if depth > 8 {
			return p.errorf("an initial value has nested braces")
		}
		for !p.accept("}") {
			if err := p.initial(v, t, depth+1); err != nil {
				return err
			}
			if !p.accept(",") && p.peek() != "}" {
				return p.errorf("%q where , or } is expected", p.peek())
			}
		}
		return nil
	}
	var b [8]byte
	if s := p.peek(); s != "" && letter(s[0]) {
		a, err := p.symbolAddress()
		if err != nil {
			return err
		}
		a.At = len(v.Init)
		v.Addresses = append(v.Addresses, a)
	} else {
		n, err := p.number()
		if err != nil {
			return err
		}
		bits := uint64(n.Imm)
		if n.Kind == OpF64 && t == isa.F32 {
			bits = uint64(math.Float32bits(float32(math.Float64frombits(bits))))
		}
		binary.LittleEndian.PutUint64(b[:], bits)
	}
	if v.Init = append(v.Init, b[:t.Bytes()]...); len(v.Init) > maxGlobal {
		return p.errorf("variable %s has more than %d initial bytes", v.Name, maxGlobal)
	}
	return nil
}

// symbolAddress parses NAME[+n] or generic(NAME)[+n].
func (p *parser) symbolAddress() (a Address, err error) {
	if a.Global = p.peek() == "generic"; a.Global {
		p.at++
		if err := p.expect("("); err != nil {
			return a, err
		}
	}
	if a.Sym, err = p.name(); err != nil {
		return a, err
	}
	if a.Global {
		if err := p.expect(")"); err != nil {
			return a, err
		}
	}
	if p.accept("+") {
		n, err := p.int()
		a.Add = int64(n)
		return a, err
	}
	return a, nil
}
