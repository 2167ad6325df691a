package emu

import (
	"errors"
	"fmt"
	"strings"

	"sonicmoe/ptx"
	"sonicmoe/ptx/isa"
)

func (d *decoder) operand(src *ptx.Inst, i int, labels map[string]int32, in *inst) (operand, error) {
	f, o := src.Form, &src.Args[i]
	a, t := &f.Args[i], f.ArgType(src.Mods, i)
	switch a.Kind {
	case isa.Imm:
		return operand{bank: bankNone, imm: o.Imm}, nil
	case isa.Sink:
		return operand{bank: bankNone}, nil
	case isa.Label:
		in.target = labels[o.Sym]
		in.targets = d.tables[o.Sym]
		return operand{bank: bankNone}, nil
	case isa.Passed:
		return operand{bank: bankNone}, nil
	case isa.Addr:
		return d.address(f.ArgSpace(src.Mods, i), o)
	case isa.Pair:
		r, err := d.scalar(src, &o.List[0], t)
		if err != nil {
			return r, err
		}
		p, err := d.scalar(src, &o.List[1], isa.Pred)
		r.pair = p.slot
		return r, err
	case isa.TensorAddr:
		list, err := d.list(src, o.List, isa.S32)
		return operand{bank: bank64, slot: d.reg[o.Reg], list: list}, err
	case isa.Vec:
		elems := o.List
		if o.Kind != ptx.OpVec {
			elems = []ptx.Operand{*o}
		}
		list, err := d.list(src, elems, t)
		out := operand{bank: bankOf(t.Class()), list: list}
		for _, e := range elems {
			if e.Kind == ptx.OpReg {
				out.bank = bankOf(d.e.Registers[e.Reg].Class) // the register may be wider than the operand's type
			}
		}
		for _, e := range elems {
			if e.Kind == ptx.OpReg && bankOf(d.e.Registers[e.Reg].Class) != out.bank || e.Kind == ptx.OpInt && out.bank != bankOf(t.Class()) {
				return out, fmt.Errorf("%s with registers of several widths is not emulated", f.Op)
			}
		}
		return out, err
	}
	return d.scalar(src, o, t)
}

func (d *decoder) list(src *ptx.Inst, elems []ptx.Operand, t isa.Type) ([]int32, error) {
	out := make([]int32, len(elems))
	for i := range elems {
		o, err := d.scalar(src, &elems[i], t)
		if err != nil {
			return nil, err
		}
		out[i] = o.slot
	}
	return out, nil
}

func (d *decoder) scalar(src *ptx.Inst, o *ptx.Operand, t isa.Type) (operand, error) {
	b := bankOf(t.Class())
	switch o.Kind {
	case ptx.OpSink:
		return operand{bank: b, slot: d.newSlot(b)}, nil
	case ptx.OpReg, ptx.OpNotReg:
		b = bankOf(d.e.Registers[o.Reg].Class)
		return operand{bank: b, slot: d.reg[o.Reg], negate: o.Kind == ptx.OpNotReg}, nil
	case ptx.OpInt, ptx.OpF32, ptx.OpF64:
		switch {
		case b == bankPred:
			return operand{bank: b, slot: slotZero + int32(o.Imm&1)}, nil
		case b == bank64:
			return operand{bank: b, slot: d.const64(uint64(o.Imm))}, nil
		case t.Bits() == 16:
			return operand{bank: b, slot: d.const32(uint32(o.Imm) & 0xffff)}, nil
		case t.Bits() == 8:
			return operand{bank: b, slot: d.const32(uint32(o.Imm) & 0xff)}, nil
		}
		return operand{bank: b, slot: d.const32(uint32(o.Imm))}, nil
	case ptx.OpSpecial:
		return operand{bank: b, slot: d.specialSlot(b, o.Reg)}, nil
	case ptx.OpSymbol:
		return d.symbolValue(b, o.Sym, o.Imm)
	}
	return operand{}, fmt.Errorf("operand of %s is not emulated", src.Form.Op)
}

func (d *decoder) specialSlot(b bank, i int32) int32 {
	s, ok := d.special[i]
	if !ok {
		s = d.newSlot(b)
		d.special[i] = s
		name := isa.Specials[i].Name
		d.k.specials = append(d.k.specials, specialSlot{b, s, name})
		d.k.reserved = d.k.reserved || strings.HasPrefix(name, "%reserved_smem_")
	}
	return s
}

// symbolValue decodes a symbol that is an operand of mov. Its value is the offset of a parameter,
// or the address of a variable or function.
func (d *decoder) symbolValue(b bank, name string, add int64) (operand, error) {
	if n := numberOf(d.m, name); n >= 0 && b == bank64 {
		return operand{bank: b, slot: d.const64(functionAddress(n))}, nil
	}
	if _, shared := d.shared[name]; b == bank64 && d.params[name] == 0 || add != 0 {
		if _, param := d.params[name]; !param {
			if b != bank64 {
				return operand{}, fmt.Errorf("the address of %s does not fit in a 32-bit register", name)
			}
			s, err := d.wideSymbol(name, add, shared)
			return operand{bank: b, slot: s}, err
		}
	}
	if offset, ok := d.params[name]; ok {
		if b == bank64 {
			return operand{bank: b, slot: d.const64(uint64(offset))}, nil
		}
		return operand{bank: b, slot: d.const32(uint32(offset))}, nil
	}
	if b != bank32 {
		return operand{}, fmt.Errorf("no variable %s", name)
	}
	s, err := d.sharedSlot(name)
	return operand{bank: bank32, slot: s}, err
}

// wideSymbol returns the 64-bit slot that holds the address of a variable in its state space, plus
// the constant add.
func (d *decoder) wideSymbol(name string, add int64, shared bool) (int32, error) {
	if f := d.frames[name]; f != nil {
		return d.frameSlot(f, name, add), nil
	}
	if at, ok := d.local[name]; ok {
		return d.const64(uint64(int64(at) + add)), nil
	}
	at, ok := d.shared[name], shared
	if !shared {
		at, ok = d.k.module.image.offset(name)
	}
	if !ok {
		return 0, fmt.Errorf("no variable %s", name)
	}
	key := fmt.Sprint(name, "+", add)
	s, ok := d.wide[key]
	if !ok {
		s = d.newSlot(bank64)
		d.wide[key] = s
		d.k.wideSymbols = append(d.k.wideSymbols, wideSymbol{s, uint64(int64(at) + add), shared})
	}
	return s, nil
}

func (d *decoder) sharedSlot(name string) (int32, error) {
	if s, ok := d.symbol[name]; ok {
		return s, nil
	}
	at, ok := d.shared[name]
	if !ok {
		return 0, fmt.Errorf("no variable %s", name)
	}
	s := d.newSlot(bank32)
	d.symbol[name] = s
	d.k.symbols = append(d.k.symbols, constant[uint32]{s, uint32(at)})
	return s, nil
}

func (d *decoder) address(space isa.Space, o *ptx.Operand) (operand, error) {
	b := bank64
	if inSharedSpace(space) {
		b = bank32
	}
	if o.Reg >= 0 && o.Sym == "" {
		b = bankOf(d.e.Registers[o.Reg].Class)
		if b == bank32 && !inSharedSpace(space) {
			return operand{}, errors.New("an address of 32 bits in this state space is not emulated")
		}
	}
	out := operand{bank: b, slot: slotZero, imm: o.Imm}
	switch {
	case o.Reg >= 0 && o.Sym == "":
		out.slot = d.reg[o.Reg]
	case o.Sym == "":
	case space == isa.Param:
		offset, ok := d.params[o.Sym]
		if _, own := d.local[o.Sym]; own { // the parameter belongs to a function call
			s, err := d.wideSymbol(o.Sym, 0, false)
			out.slot = s
			return out, err
		}
		if !ok {
			return out, fmt.Errorf("no parameter %s", o.Sym)
		}
		out.imm += int64(offset)
	case b == bank32:
		s, err := d.sharedSlot(o.Sym)
		if err != nil {
			return out, err
		}
		out.slot = s
	default:
		s, err := d.wideSymbol(o.Sym, 0, false)
		if err != nil {
			return out, fmt.Errorf("[%s] is not an address in this state space", o.Sym)
		}
		out.slot = s
	}
	return out, nil
}
