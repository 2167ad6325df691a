package emu

import (
	"fmt"
	"slices"
	"strings"

	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

// Loading links a kernel with all functions that it may call. The bodies of the functions follow
// the kernel's body, with registers and variables of their own. A recursive call saves the
// registers of the function until it returns, and gets new variables.

// linked is a kernel together with the functions that it may call.
type linked struct {
	entry     *ptx.Entry
	functions []*function
}

// function is one function that the linked kernel may call.
type function struct {
	*ptx.Func
	start     int32             // index of the function's first instruction; -1 if it has no body
	registers [2]int            // the function's registers are number registers[0] to registers[1]-1 of the linked kernel
	slots     [numBanks][]int32 // slots of the function's registers, and of the symbols that depend on the call
	names     map[string]string
	// bytes is the number of contiguous bytes for the variables of one call. The variables of the
	// first call begin in local memory at the offset in field from.
	from, bytes     int
	results, params []place
	symbols         []frameSymbol
}

// place is a range of bytes. Its offset counts from the first variable of a call, or of the kernel.
type place struct{ at, bytes int }

// frameSymbol is a variable of a function. The register slot holds the variable's address in the
// frame of the function's innermost call. at is the variable's offset in the frame.
type frameSymbol struct {
	slot int32
	at   int
}

// calledWith holds the decoded operands of a call instruction.
type calledWith struct {
	function        *function // the called function, or nil if the call is by address
	results, params []place
}

// functionWindow is the base of function addresses. No memory has an address in this range.
const functionWindow = 1 << 58

// functionAddress returns the address of function n of the module.
func functionAddress(n int) uint64 { return functionWindow | uint64(n)<<4 }

// numberOf returns the index of a function in the module, or -1.
func numberOf(m *ptx.Module, name string) int {
	return slices.IndexFunc(m.Funcs, func(f *ptx.Func) bool { return f.Name == name })
}

// link finds the functions that a kernel may call, and appends them to the kernel.
func link(m *ptx.Module, e *ptx.Entry) (linked, error) {
	out := linked{entry: e}
	if len(m.Funcs) == 0 {
		return out, nil
	}
	seen := map[string]bool{}
	var reach func(body []ptx.Inst)
	add := func(name string) {
		f := m.Func(name)
		if f == nil || seen[name] {
			return
		}
		seen[name] = true
		out.functions = append(out.functions, &function{Func: f, start: -1, names: map[string]string{}})
		reach(f.Body)
	}
	reach = func(body []ptx.Inst) {
		for i := range body {
			in := &body[i]
			if in.Form == nil {
				continue
			}
			if in.Form.ID == isa.Call && in.Args[1].Kind == ptx.OpReg { // a call by address may reach any function of the module
				for _, f := range m.Funcs {
					add(f.Name)
				}
			}
			for j := range in.Args {
				if in.Args[j].Kind == ptx.OpSymbol {
					add(in.Args[j].Sym)
				}
			}
		}
	}
	reach(e.Body)
	if len(out.functions) == 0 {
		return out, nil
	}
	whole := *e
	out.entry = &whole
	whole.Registers, whole.Local, whole.Shared = slices.Clone(e.Registers), slices.Clone(e.Local), slices.Clone(e.Shared)
	end := ptx.Inst{Form: &isa.Table[isa.Ret]}
	whole.Body = append(slices.Clone(e.Body), end)
	for _, f := range out.functions {
		if !f.Declared {
			f.appendTo(&whole)
			whole.Body = append(whole.Body, end)
		}
	}
	return out, nil
}

// own returns the name that a label or variable of the function has in the linked kernel.
func (f *function) own(name string) string {
	if now, ok := f.names[name]; ok {
		return now
	}
	return name
}

// startLabel returns the name of the label before the function's code.
func (f *function) startLabel() string { return f.Name + "()" }

// appendTo appends the function's registers, variables and code to the linked kernel e.
func (f *function) appendTo(e *ptx.Entry) {
	f.registers[0] = len(e.Registers)
	e.Registers = append(e.Registers, f.Registers...)
	f.registers[1] = len(e.Registers)
	declare := func(name string) string {
		f.names[name] = f.startLabel() + "." + name
		return f.names[name]
	}
	for _, list := range [][]ptx.Param{f.Results, f.Params} {
		for _, p := range list {
			e.Local = append(e.Local, ptx.Variable{Name: declare(p.Name), Space: isa.Param, Align: p.Align, Bytes: p.Bytes})
		}
	}
	for _, v := range f.Local {
		v.Name = declare(v.Name)
		e.Local = append(e.Local, v)
	}
	for _, v := range f.Shared {
		v.Name = declare(v.Name)
		e.Shared = append(e.Shared, v)
	}
	for i := range f.Body {
		if f.Body[i].Form == nil {
			declare(f.Body[i].Label)
		}
	}
	e.Body = append(e.Body, ptx.Inst{Label: f.startLabel()})
	for _, in := range f.Body {
		if in.Form == nil {
			in.Label = f.own(in.Label)
		}
		if in.Guard > 0 {
			in.Guard += int32(f.registers[0])
		}
		in.Args = f.shifted(in.Args)
		e.Body = append(e.Body, in)
	}
}

// shifted returns operands of the function with the registers and names that they have in the
// linked kernel.
func (f *function) shifted(args []ptx.Operand) []ptx.Operand {
	args = slices.Clone(args)
	for i := range args {
		o := &args[i]
		switch o.Kind {
		case ptx.OpReg, ptx.OpNotReg, ptx.OpTensor:
			o.Reg += int32(f.registers[0])
		case ptx.OpAddr:
			if o.Reg >= 0 && o.Sym == "" {
				o.Reg += int32(f.registers[0])
			}
		}
		o.Sym, o.List = f.own(o.Sym), f.shifted(o.List)
	}
	return args
}

// beginFunctions lays out the variables of a call for each function, and decodes branch tables.
func (d *decoder) beginFunctions(labels map[string]int32) {
	d.k.functions, d.frames = d.linked.functions, map[string]*function{}
	d.tables = map[string][]int32{}
	for i := range d.e.Body {
		if in := &d.e.Body[i]; in.Directive == ".branchtargets" {
			for _, to := range in.Args {
				d.tables[in.Label] = append(d.tables[in.Label], labels[to.Sym])
			}
		}
	}
	for _, f := range d.k.functions {
		if f.Declared {
			f.results, f.params = unplaced(f.Results), unplaced(f.Params)
			continue
		}
		f.start = labels[f.startLabel()]
		for r := f.registers[0]; r < f.registers[1]; r++ {
			b := bankOf(d.e.Registers[r].Class)
			f.slots[b] = append(f.slots[b], d.reg[r])
		}
		first := true
		for _, v := range d.e.Local {
			if !strings.HasPrefix(v.Name, f.startLabel()+".") {
				continue
			}
			at := d.local[v.Name]
			if first {
				f.from, first = at&^15, false
			}
			f.bytes = at + v.Bytes - f.from
			d.frames[v.Name] = f
		}
		for _, p := range f.Results {
			f.results = append(f.results, place{d.local[f.own(p.Name)] - f.from, p.Bytes})
		}
		for _, p := range f.Params {
			f.params = append(f.params, place{d.local[f.own(p.Name)] - f.from, p.Bytes})
		}
	}
}

// unplaced returns the sizes of the parameters of a function without a body. They have no place in
// memory.
func unplaced(params []ptx.Param) (list []place) {
	for _, p := range params {
		list = append(list, place{0, p.Bytes})
	}
	return list
}

// endFunctions adds the slots with addresses of variables to the slots that a recursive call saves.
func (d *decoder) endFunctions() {
	for _, f := range d.k.functions {
		for _, s := range f.symbols {
			f.slots[bank64] = append(f.slots[bank64], s.slot)
		}
	}
}

// frameSlot returns the slot that holds the address of a variable of function f in the innermost
// call, plus the constant add.
func (d *decoder) frameSlot(f *function, name string, add int64) int32 {
	key := fmt.Sprint(name, "+", add)
	s, ok := d.wide[key]
	if !ok {
		s = d.newSlot(bank64)
		d.wide[key] = s
		f.symbols = append(f.symbols, frameSymbol{s, d.local[name] - f.from + int(add)})
	}
	return s
}

// call decodes the operands of a call.
func (d *decoder) call(src *ptx.Inst) (*calledWith, error) {
	c := &calledWith{}
	places := func(o *ptx.Operand) (list []place, err error) {
		for _, x := range o.List {
			at, ok := d.local[x.Sym]
			if !ok {
				return nil, fmt.Errorf("a call passes %s, which is not a variable in parameter space", x.Sym)
			}
			for _, v := range d.e.Local {
				if v.Name == x.Sym {
					if f := d.frames[x.Sym]; f != nil {
						at -= f.from
					}
					list = append(list, place{at, v.Bytes})
				}
			}
		}
		return list, nil
	}
	var err error
	if c.results, err = places(&src.Args[0]); err != nil {
		return nil, err
	}
	if c.params, err = places(&src.Args[2]); err != nil {
		return nil, err
	}
	if to := &src.Args[1]; to.Kind == ptx.OpSymbol {
		i := slices.IndexFunc(d.k.functions, func(f *function) bool { return f.Name == to.Sym })
		if i < 0 {
			return nil, fmt.Errorf("no function %s", to.Sym)
		}
		c.function = d.k.functions[i]
		if why := c.misfit(c.function); why != "" {
			return nil, fmt.Errorf("%s", why)
		}
	}
	return c, nil
}

// misfit says why the operands of a call do not match function f. It returns "" if they match.
func (c *calledWith) misfit(f *function) string {
	for _, x := range []struct {
		what        string
		given, want []place
	}{{"parameters", c.params, f.params}, {"results", c.results, f.results}} {
		if len(x.given) != len(x.want) {
			return fmt.Sprintf("a call of %s passes %d %s, want %d", f.Name, len(x.given), x.what, len(x.want))
		}
		for i, p := range x.given {
			if p.bytes != x.want[i].bytes {
				return fmt.Sprintf("a call of %s: item %d of its %s has %d bytes, want %d", f.Name, i+1, x.what, p.bytes, x.want[i].bytes)
			}
		}
	}
	return ""
}
