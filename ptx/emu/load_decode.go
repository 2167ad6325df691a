package emu

import (
	"fmt"

	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

// decoder turns one parsed kernel into the emulator's instructions.
type decoder struct {
	m   *ptx.Module
	e   *ptx.Entry
	k   *Kernel
	reg []int32 // slot of each register in the bank of its class

	consts32 map[uint32]int32
	consts64 map[uint64]int32
	special  map[int32]int32
	symbol   map[string]int32
	wide     map[string]int32 // slot of the 64-bit register that holds a symbol's address, by symbol
	local    map[string]int   // offset of each variable in a thread's local memory
	// shared holds the address of each shared variable as CTA rank 0 sees it.
	shared map[string]int
	// params holds the offset of each kernel parameter.
	params map[string]int
	linked linked
	tables map[string][]int32   // targets of each .branchtargets label
	frames map[string]*function // function that declares each local variable
	// operands is what is left of a large allocation. Method room takes slices from it.
	operands []operand
}

func decodeKernel(module *Module, e *ptx.Entry) (*Kernel, error) {
	of, err := link(module.text, e)
	if err != nil {
		return nil, err
	}
	e = of.entry
	d := &decoder{m: module.text, e: e, linked: of, k: &Kernel{module: module, entry: e},
		consts32: map[uint32]int32{}, consts64: map[uint64]int32{}, special: map[int32]int32{}, symbol: map[string]int32{}, wide: map[string]int32{}, params: map[string]int{}}
	for _, p := range e.Params {
		d.params[p.Name] = p.Offset
	}
	d.k.slots = [numBanks]int{bankPred: 2}
	d.const32(0)
	d.const64(0)
	for _, r := range e.Registers {
		d.reg = append(d.reg, d.newSlot(bankOf(r.Class)))
	}
	d.layoutShared()
	d.layoutLocal()
	labels := map[string]int32{}
	n := int32(0)
	for i := range e.Body {
		if e.Body[i].Form == nil {
			labels[e.Body[i].Label] = n
		} else {
			n++
		}
	}
	d.k.code = make([]inst, 0, n+1)
	d.beginFunctions(labels)
	for i := range e.Body {
		if e.Body[i].Form == nil {
			continue
		}
		in, err := d.inst(&e.Body[i], labels)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", e.Body[i].Line, err)
		}
		d.k.asyncShared = d.k.asyncShared || forms[in.form.ID].bulk || in.product != nil
	}
	// If execution runs off the end of the code, it returns.
	ret := &isa.Table[isa.Ret]
	d.k.code = append(d.k.code, inst{form: ret, exec: forms[isa.Ret].exec, guard: -1, number: len(d.k.code)})
	d.endFunctions()
	d.k.nameRoles()
	d.markAccumulators()
	d.k.resolveReads()
	return d.k, nil
}

// layoutShared assigns addresses to the shared variables of the kernel, as ptxas does: of the
// module's variables, to those that the kernel or a function that it may call refers to.
func (d *decoder) layoutShared() {
	at := sharedBase
	d.shared = map[string]int{}
	globals := d.sharedGlobals()
	for _, list := range [][]ptx.Variable{globals, d.e.Shared} {
		for _, v := range list {
			if v.Shared() && !v.Extern {
				at = (at + v.Align - 1) / v.Align * v.Align
				d.shared[v.Name] = at
				d.k.variables = append(d.k.variables, sharedVariable{v.Name, uint32(at), uint32(v.Bytes)})
				at += v.Bytes
			}
		}
	}
	d.k.staticShared, d.k.dynamicAlign = at-sharedBase, 1
	for _, v := range globals {
		if v.Extern { // dynamic shared memory begins after all static variables
			start := (at + v.Align - 1) / v.Align * v.Align
			d.shared[v.Name] = start
			d.k.variables = append(d.k.variables, sharedVariable{v.Name, uint32(start), sharedMaxBytes})
			d.k.dynamicAlign = max(d.k.dynamicAlign, v.Align)
		}
	}
}

// sharedGlobals returns the shared variables of the module that the linked kernel refers to.
func (d *decoder) sharedGlobals() (list []ptx.Variable) {
	used := map[string]bool{}
	var refer func(args []ptx.Operand)
	refer = func(args []ptx.Operand) {
		for i := range args {
			if args[i].Sym != "" {
				used[args[i].Sym] = true
			}
			refer(args[i].List)
		}
	}
	for i := range d.e.Body {
		refer(d.e.Body[i].Args)
	}
	for _, v := range d.m.Globals {
		if v.Shared() && used[v.Name] {
			list = append(list, v)
		}
	}
	return list
}

// layoutLocal assigns offsets in a thread's local memory to the kernel's local variables.
func (d *decoder) layoutLocal() {
	d.local = map[string]int{}
	at := 0
	for _, v := range d.e.Local {
		at = (at + v.Align - 1) / v.Align * v.Align
		d.local[v.Name] = at
		at += v.Bytes
	}
	d.k.localBytes = (at + 15) / 16 * 16
}

func (d *decoder) newSlot(b bank) int32 {
	n := d.k.slots[b]
	d.k.slots[b]++
	return int32(n)
}

func (d *decoder) const32(v uint32) int32 {
	s, ok := d.consts32[v]
	if !ok {
		s = d.newSlot(bank32)
		d.consts32[v] = s
		d.k.const32 = append(d.k.const32, constant[uint32]{s, v})
	}
	return s
}

func (d *decoder) const64(v uint64) int32 {
	s, ok := d.consts64[v]
	if !ok {
		s = d.newSlot(bank64)
		d.consts64[v] = s
		d.k.const64 = append(d.k.const64, constant[uint64]{s, v})
	}
	return s
}

// inst decodes an instruction and appends it to the code. The code has enough capacity, so inst
// values are never copied: each has half a KiB.
func (d *decoder) inst(src *ptx.Inst, labels map[string]int32) (*inst, error) {
	f := src.Form
	h := &forms[f.ID]
	if h.exec == nil {
		return nil, fmt.Errorf("%s is not emulated", f.Op)
	}
	number := len(d.k.code)
	d.k.code = append(d.k.code, inst{form: f, mods: src.Mods, exec: h.exec, guard: -1, number: number, line: src.Line})
	in := &d.k.code[number]
	in.args = d.room(len(src.Args))
	in.aligned = f.NeedsWarp(src.Mods)
	if src.Guard > 0 {
		in.guard, in.guardNot = d.reg[src.Guard-1], src.GuardNot
	}
	if f.ModIndex("type") >= 0 {
		in.typ, _ = isa.TypeNamed(f.Mod(src.Mods, "type")[1:])
		in.size = uint8(in.typ.Bytes())
	}
	if err := d.args(in, src, labels); err != nil {
		return in, err
	}
	if f.ID == isa.Call {
		var err error
		if in.called, err = d.call(src); err != nil {
			return in, err
		}
	}
	if h.scratch {
		for b := range bankPred {
			in.scratch.address[b], in.scratch.value[b] = d.newSlot(b), d.newSlot(b)
		}
	}
	if h.prepare != nil {
		if h.prepare(in); in.exec == nil {
			return in, fmt.Errorf("%s%s is not emulated", f.Op, in.typ)
		}
	}
	if f.ID == isa.LdParam && d.ofCall(&src.Args[1]) {
		in.exec = loadLocal
	}
	d.extendLoaded(in)
	if in.narrow != nil {
		narrowed(in)
	}
	if in.space == isa.Generic && h.spaces != nil {
		d.chooseSpace(in, h.spaces)
	}
	in.meets = in.meetsOthers()
	if f.ID == isa.Mov && src.Args[1].Kind == ptx.OpSpecial {
		if read := clocks[isa.Specials[src.Args[1].Reg].Name]; read != nil {
			in.exec = readClock(read)
			in.use = [numBanks][]int32{}
		}
	}
	return in, nil
}

// args decodes the operands of an instruction.
func (d *decoder) args(in *inst, src *ptx.Inst, labels map[string]int32) error {
	f := src.Form
	for i := range src.Args {
		o, err := d.operand(src, i, labels, in)
		if err != nil {
			return err
		}
		if f.Args[i].Kind == isa.Addr {
			if in.space = f.ArgSpace(src.Mods, i); inSharedSpace(in.space) && o.bank == bank64 {
				d.uses(in, &f.Args[i], &o)
				in.narrow = append(in.narrow, narrowing{arg: i, from: o, to: d.newSlot(bank32)})
				n := &in.narrow[len(in.narrow)-1]
				in.args = append(in.args, operand{bank: bank32, slot: n.to, list: []int32{n.to}})
				if i < len(in.slot) {
					in.slot[i] = n.to
				}
				continue
			}
		}
		if i < len(in.slot) && o.bank != bankNone {
			in.slot[i] = o.slot
		}
		in.args = append(in.args, o)
		d.uses(in, &f.Args[i], &in.args[i])
		if o.list == nil {
			in.args[i].list = []int32{o.slot} // a single register counts as a vector of one
		}
	}
	return nil
}

// room returns an empty slice with capacity for the operands of an instruction. Such slices share a
// larger allocation.
func (d *decoder) room(operands int) []operand {
	if operands > len(d.operands) {
		d.operands = make([]operand, max(operands, 512))
	}
	out := d.operands[:0:operands]
	d.operands = d.operands[operands:]
	return out
}

// ofCall reports whether an address operand names a parameter or result of a function call.
func (d *decoder) ofCall(o *ptx.Operand) bool {
	_, own := d.local[o.Sym]
	return own
}

// uses records which slots an operand reads or writes. It leaves out accumulators of wgmma.
func (d *decoder) uses(in *inst, a *isa.Arg, o *operand) {
	if o.bank == bankNone || a.Dir == isa.InOut {
		return
	}
	slots := o.list
	if a.Kind == isa.Pair {
		in.def[bankPred] = append(in.def[bankPred], o.pair)
	}
	if a.Kind != isa.Vec {
		slots = append([]int32{o.slot}, o.list...)
	}
	for i, s := range slots {
		b := o.bank
		if a.Kind == isa.TensorAddr && i > 0 {
			b = bank32
		}
		if a.Dir == isa.Out {
			in.def[b] = append(in.def[b], s)
		} else {
			in.use[b] = append(in.use[b], s)
		}
	}
}
