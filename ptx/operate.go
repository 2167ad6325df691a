package ptx

import "sonicmoe/ptx/isa"

func modList(mods []Mod) []Mod { return mods }

// operate emits an instruction with one output and register inputs, or folds
// it when all inputs are constants.
func operate(id isa.ID, mods []Mod, in ...val) val {
	f := &isa.Table[id]
	var k *Kernel
	for i := range in {
		if in[i].k != nil {
			if k != nil && k != in[i].k {
				k.Errorf("%s mixes values of two kernels", f.Op)
			}
			k = in[i].k
		}
	}
	if k == nil {
		var m isa.Mods
		for i := range f.Mods {
			if f.Mods[i].Fixed() {
				m[i] = 1
			}
		}
		for _, t := range mods {
			setMod(f, &m, string(t))
		}
		if c, ok := fold(f, m, in); ok {
			return constant(c)
		}
		// Not foldable and no kernel to emit into: an error of the caller that
		// surfaces when the poisoned value is used.
		return constant(0xdead)
	}
	m := k.mods(f, mods...)
	if v, ok := simplify(f, m, in); ok {
		return v
	}
	varies := f.Effects&isa.Varies != 0
	var args [6]Operand
	for i := range in {
		t := f.ArgType(m, i+1)
		if t == isa.Pred && in[i].negate {
			in[i] = k.positive(in[i])
		}
		if t == isa.Pred && in[i].konst {
			in[i] = Materialize(k, Pred{in[i]}).v
		}
		args[i+1] = in[i].operand(t)
		varies = varies || in[i].varies()
	}
	if f.Effects&isa.Uniform != 0 {
		varies = false
	}
	d := k.result(f.ArgType(m, 0), varies)
	if id == isa.Shr && warpIndex(k, in) {
		k.regs[d.reg].varies = k.divergent > 0
	}
	args[0] = d.operand(isa.NoType)
	k.emit(f, m, args[:len(in)+1]...)
	return d
}

// positive is the predicate in a register of its own, not negated.
func (k *Kernel) positive(p val) val {
	d := k.result(isa.Pred, p.varies())
	k.move(d, p, isa.Pred)
	return d
}

// warpIndex recognises tid.x >> 5 and more, which is the same in a warp as
// long as CTAs are one-dimensional.
func warpIndex(k *Kernel, in []val) bool {
	return !in[0].konst && k.regs[in[0].reg].prefix == "tid" && in[1].konst && in[1].imm >= 5
}

// Not is the opposite predicate; it emits nothing until a register is needed.
func (x Pred) Negated() Pred {
	if x.v.konst {
		return Pred{constant(1 - x.v.imm)}
	}
	x.v.negate = !x.v.negate
	return x
}
