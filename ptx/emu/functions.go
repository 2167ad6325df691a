package emu

import (
	"fmt"
	"slices"
	"strings"

	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

// Functions. When it is loaded a kernel is linked with all that it may call: their
// bodies stand behind its own, with registers and variables of their own, which
// are the lanes' whatever calls they are in. A call of a function that is under way
// keeps its registers until it comes back, and has new variables.

// linked is a kernel with the functions that it may call.
type linked struct {
	entry     *ptx.Entry
	functions []*function
}

// function is one of a kernel's.
type function struct {
	*ptx.Func
	start     int32             // of its code; -1 where it has no body
	registers [2]int            // from and to, among the kernel's
	slots     [numBanks][]int32 // of its registers and symbols
	names     map[string]string
	// The variables of a call lie together, bytes long; a first call's from from on.
	from, bytes     int
	results, params []place
	symbols         []frameSymbol
}

// place is where bytes are among a call's variables, or the kernel's.
type place struct{ at, bytes int }

// frameSymbol is a slot that holds the address of a variable of the present call.
type frameSymbol struct {
	slot int32
	at   int
}

// calledWith is what a call passes.
type calledWith struct {
	function        *function // nil: by address
	results, params []place
}

// functionWindow is where the addresses of functions begin, which no memory has.
const functionWindow = 1 << 58

// functionAddress is that of a function by its number in the module.
func functionAddress(n int) uint64 { return functionWindow | uint64(n)<<4 }

// numberOf is a function's number in the module, or -1.
func numberOf(m *ptx.Module, name string) int {
	return slices.IndexFunc(m.Funcs, func(f *ptx.Func) bool { return f.Name == name })
}

// link finds what a kernel may call and makes one of them all.
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
			if in.Form.ID == isa.Call && in.Args[1].Kind == ptx.OpReg { // of any
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

// own is the name in the kernel of what the function declares.
func (f *function) own(name string) string {
	if now, ok := f.names[name]; ok {
		return now
	}
	return name
}

// startLabel stands before the function's code.
func (f *function) startLabel() string { return f.Name + "()" }

// appendTo puts the function behind a kernel.
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

// shifted are operands with the registers and names that they have in the kernel.
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

// beginFunctions lays out the variables of the functions' calls.
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

// unplaced are the parameters of a function without a body.
func unplaced(params []ptx.Param) (list []place) {
	for _, p := range params {
		list = append(list, place{0, p.Bytes})
	}
	return list
}

// endFunctions notes the slots that a call must keep.
func (d *decoder) endFunctions() {
	for _, f := range d.k.functions {
		for _, s := range f.symbols {
			f.slots[bank64] = append(f.slots[bank64], s.slot)
		}
	}
}

// frameSlot is the slot of the address of a variable of a function's present call.
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

// call decodes what a call passes.
func (d *decoder) call(src *ptx.Inst) (*calledWith, error) {
	c := &calledWith{}
	places := func(o *ptx.Operand) (list []place, err error) {
		for _, x := range o.List {
			at, ok := d.local[x.Sym]
			if !ok {
				return nil, fmt.Errorf("%s, which a call passes, is no variable in parameter space", x.Sym)
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

// misfit says why a call does not fit a function, or "".
func (c *calledWith) misfit(f *function) string {
	for _, x := range []struct {
		what        string
		given, want []place
	}{{"parameters", c.params, f.params}, {"results", c.results, f.results}} {
		if len(x.given) != len(x.want) {
			return fmt.Sprintf("a call of %s with %d %s, it has %d", f.Name, len(x.given), x.what, len(x.want))
		}
		for i, p := range x.given {
			if p.bytes != x.want[i].bytes {
				return fmt.Sprintf("a call of %s: number %d of its %s has %d bytes, not %d", f.Name, i+1, x.what, x.want[i].bytes, p.bytes)
			}
		}
	}
	return ""
}

// call is one that lanes are in.
type call struct {
	pc   int32 // of the instruction
	fn   *function
	base int // of its variables in a lane's own memory
	kept *keptRegisters
}

// keptRegisters are those of an earlier call of the same function.
type keptRegisters struct {
	r32 [][warpLanes]uint32
	r64 [][warpLanes]uint64
	p   []uint32
	ok  [numBanks][]uint32
}

// at is where a fragment is at a depth of calls.
func (f *frag) at(depth int) int32 {
	if depth < len(f.calls) {
		return f.calls[depth].pc
	}
	return f.pc
}

// before: f has further to go than g to where they may meet.
func (f *frag) before(g *frag) bool {
	for i := 0; ; i++ {
		if a, b := f.at(i), g.at(i); a != b {
			return a < b
		}
		if i >= len(f.calls) || i >= len(g.calls) {
			return len(f.calls) < len(g.calls)
		}
	}
}

// sameAs: two fragments are at the same instruction, in the same calls.
func (f *frag) sameAs(g *frag) bool {
	return f.pc == g.pc && slices.EqualFunc(f.calls, g.calls, func(a, b call) bool { return a.pc == b.pc && a.fn == b.fn && a.base == b.base })
}

// adopt takes what calls of another fragment at the same place keep for its lanes.
func (f *frag) adopt(g *frag) {
	for i := range f.calls {
		if to, from := f.calls[i].kept, g.calls[i].kept; to != from {
			to.take(from, g.mask)
		}
	}
}

func (k *keptRegisters) take(from *keptRegisters, lanes uint32) {
	for m := lanes; m != 0; m &= m - 1 {
		l := first(m)
		for i := range k.r32 {
			k.r32[i][l] = from.r32[i][l]
		}
		for i := range k.r64 {
			k.r64[i][l] = from.r64[i][l]
		}
	}
	blend := func(to, from []uint32) {
		for i := range to {
			to[i] = to[i]&^lanes | from[i]&lanes
		}
	}
	blend(k.p, from.p)
	for b := range k.ok {
		blend(k.ok[b], from.ok[b])
	}
}

// keep copies a function's registers.
func (w *warp) keep(fn *function) *keptRegisters {
	k := &keptRegisters{}
	for _, s := range fn.slots[bank32] {
		k.r32 = append(k.r32, w.r32[s])
	}
	for _, s := range fn.slots[bank64] {
		k.r64 = append(k.r64, w.r64[s])
	}
	for _, s := range fn.slots[bankPred] {
		k.p = append(k.p, w.p[s])
	}
	for b := range k.ok {
		for _, s := range fn.slots[b] {
			k.ok[b] = append(k.ok[b], w.ok[b][s])
		}
	}
	return k
}

// giveBack undoes keep for some lanes.
func (w *warp) giveBack(fn *function, k *keptRegisters, lanes uint32) {
	now := w.keep(fn)
	now.take(k, lanes)
	for i, s := range fn.slots[bank32] {
		w.r32[s] = now.r32[i]
	}
	for i, s := range fn.slots[bank64] {
		w.r64[s] = now.r64[i]
	}
	for i, s := range fn.slots[bankPred] {
		w.p[s] = now.p[i]
	}
	for b := range now.ok {
		for i, s := range fn.slots[b] {
			w.ok[b][s] = now.ok[b][i]
		}
	}
}

// maxOwnBytes is the most of a lane's own memory that calls may take: a chip's
// default is 1 KiB, and the program may ask for more.
const maxOwnBytes = 64 << 10

// growOwn makes room in the lanes' own memory.
func (w *warp) growOwn(bytes int) {
	if bytes <= w.ownBytes {
		return
	}
	bytes = min(max(bytes, 2*w.ownBytes), maxOwnBytes)
	grown := make([]byte, bytes*warpLanes)
	fillBytes(grown, poison)
	for l := range warpLanes {
		copy(grown[l*bytes:], w.local[l*w.ownBytes:(l+1)*w.ownBytes])
	}
	w.local, w.ownBytes = grown, bytes
}

// pass copies variables from one call's to another's.
func (w *warp) pass(lanes uint32, from []place, fromBase int, to []place, toBase int) {
	for m := lanes; m != 0; m &= m - 1 {
		own := w.local[first(m)*w.ownBytes:][:w.ownBytes]
		for i, p := range from {
			copy(own[toBase+to[i].at:][:p.bytes], own[fromBase+p.at:])
		}
	}
}

// base is where the variables of a fragment's present call lie.
func (f *frag) base() int {
	if n := len(f.calls); n > 0 {
		return f.calls[n-1].base
	}
	return 0
}

func callFunction(w *warp, f *frag, in *inst, mask uint32) outcome {
	c, k := in.called, w.cta.cluster.grid.kernel
	fn, lanes := c.function, mask
	if fn == nil {
		at := w.r64[in.slot[1]][first(mask)]
		lanes = run(mask, func(l int) bool { return w.r64[in.slot[1]][l] == at })
		for _, g := range k.functions {
			if at == functionAddress(numberOf(k.module.text, g.Name)) {
				fn = g
			}
		}
		if fn == nil {
			return w.fault(in, OutOfBounds, lanes, "call of %#x, where no function is", at)
		}
		if why := c.misfit(fn); why != "" {
			return w.fault(in, IllegalInstruction, lanes, "%s", why)
		}
	}
	if fn.start < 0 {
		return w.callOutside(f, in, fn, mask, lanes)
	}
	x := call{pc: f.pc, fn: fn, base: fn.from}
	top, again := k.localBytes, false
	for _, y := range f.calls {
		again = again || y.fn == fn
		top = max(top, (y.base+y.fn.bytes+15)&^15)
	}
	if again {
		if x.base = top; top+fn.bytes > maxOwnBytes || len(f.calls) >= maxOwnBytes/16 {
			return w.fault(in, OutOfBounds, lanes, "%s calls itself %d calls deep: more than %d bytes of a thread's own memory", fn.Name, len(f.calls), maxOwnBytes)
		}
		w.growOwn(top + fn.bytes)
		x.kept = w.keep(fn)
	}
	w.pass(lanes, c.params, f.base(), fn.params, x.base)
	for b := range fn.slots {
		for _, s := range fn.slots[b] {
			w.ok[b][s] &^= lanes
		}
	}
	for _, s := range fn.symbols {
		for m := lanes; m != 0; m &= m - 1 {
			w.r64[s.slot][first(m)] = uint64(x.base + s.at)
		}
		w.ok[bank64][s.slot] |= lanes
	}
	w.leave(f, mask, lanes, frag{pc: fn.start, calls: append(slices.Clip(f.calls), x)})
	return jumped
}

// leave sends lanes of a fragment, among those of mask that execute an instruction, to
// another place. The rest of mask still have to execute it, the others go on.
func (w *warp) leave(f *frag, mask, lanes uint32, to frag) {
	if lanes == f.mask {
		f.pc, f.calls = to.pc, to.calls
		return
	}
	later := frag{pc: f.pc, mask: mask &^ lanes, calls: f.calls}
	if f.mask &^= mask; f.mask == 0 {
		f.mask = later.mask
	} else if f.pc++; later.mask != 0 {
		w.place(&later)
	}
	to.mask = lanes
	w.place(&to)
}

// comeBack ends the present call of lanes.
func (w *warp) comeBack(f *frag, mask uint32) outcome {
	n := len(f.calls) - 1
	x := f.calls[n]
	base := (&frag{calls: f.calls[:n]}).base()
	w.pass(mask, x.fn.results, x.base, w.cta.cluster.grid.kernel.code[x.pc].called.results, base)
	if x.kept != nil {
		w.giveBack(x.fn, x.kept, mask)
	}
	w.leave(f, mask, mask, frag{pc: x.pc + 1, calls: f.calls[:n]})
	return jumped
}

// callOutside is a call of a function without a body: of those that the driver gives
// to every program, or none.
func (w *warp) callOutside(f *frag, in *inst, fn *function, mask, lanes uint32) outcome {
	l := first(lanes)
	own := w.local[l*w.ownBytes:][:w.ownBytes]
	word := func(i int) uint64 {
		p := in.called.params[i]
		return readWord(own[f.base()+p.at:], p.bytes)
	}
	switch fn.Name {
	case "__assertfail":
		return w.fault(in, Trap, lanes, "assertion failed: %s, at %s:%d, %s", w.text(word(0)), w.text(word(1)), word(2), w.text(word(3)))
	case "vprintf": // its output is nowhere
		w.leave(f, mask, mask, frag{pc: f.pc + 1, calls: f.calls})
		return jumped
	}
	return w.fault(in, IllegalInstruction, lanes, "function %s has no body in the module: it is not emulated", fn.Name)
}

// text is the string at a generic address, as far as global memory has it.
func (w *warp) text(at uint64) string {
	var s []byte
	for range 256 {
		b := w.cta.cluster.globalBytes(at+uint64(len(s)), 1)
		if b == nil || b[0] == 0 {
			break
		}
		s = append(s, b[0])
	}
	return string(s)
}

// branchIndexed is brx.idx: a jump through a table.
func branchIndexed(w *warp, f *frag, in *inst, mask uint32) outcome {
	i := w.r32[in.slot[0]][first(mask)]
	if i >= uint32(len(in.targets)) {
		return w.fault(in, OutOfBounds, 1<<first(mask), "brx.idx to number %d of %d labels", i, len(in.targets))
	}
	lanes := run(mask, func(l int) bool { return w.r32[in.slot[0]][l] == i })
	w.leave(f, mask, lanes, frag{pc: in.targets[i], calls: f.calls})
	return jumped
}
