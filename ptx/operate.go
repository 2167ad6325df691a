package ptx

import "sonicmoe/ptx/isa"

// operate emits an instruction with one output. Its inputs are registers or constants. If all
// inputs are constants, it computes the result instead.
func operate(id isa.ID, mods []Mod, in ...val) val {
	f := &isa.Table[id]
	for _, v := range in {
		if v.missing() {
			if v.why == nil {
				return noVal("%s of a zero value: nothing computed it", f.Op)
			}
			return v // report the first mistake only
		}
	}
	k := kernelOf(in...)
	if k == nil {
		return foldConstants(f, mods, in)
	}
	m := k.mods(f, mods...)
	if v, ok := simplify(f, m, in); ok {
		return v
	}
	var args [6]Operand
	for i := range in {
		t := f.ArgType(m, i+1)
		switch {
		case t == isa.Pred && in[i].negate:
			in[i] = k.positive(in[i])
		case in[i].konst && (t == isa.Pred || f.Args[i+1].RegOnly):
			in[i] = k.register(in[i], t)
		}
		args[i+1] = in[i].operand(t)
	}
	d := k.result(f.ArgType(m, 0))
	args[0] = d.operand(isa.NoType)
	k.emit(f, m, args[:len(in)+1]...)
	return d
}

// foldConstants computes an instruction whose inputs are all constants. Constants belong to no kernel,
// so the instruction cannot be emitted. If the builder cannot compute the result either, the caller
// made a mistake, and the result is an error.
func foldConstants(f *isa.Form, mods []Mod, in []val) val {
	m := fixedMods(f)
	for _, t := range mods {
		if t != "" && !setMod(f, &m, string(t)) {
			return noVal("%s with modifier %s, which it does not take", f.Op, t)
		}
	}
	if c, ok := fold(f, m, in); ok {
		return constant(c)
	}
	return noVal("%s of constants, which only the GPU computes: Materialize one", f.Op)
}

// positive returns the predicate p in a register that is used without negation.
func (k *Kernel) positive(p val) val { return k.register(p, isa.Pred) }

// register copies the value to a new register.
func (k *Kernel) register(v val, t isa.Type) val {
	if t == isa.BF16x2 || t == isa.F16x2 {
		t = isa.B32 // mov has no types for pairs
	}
	d := k.result(t)
	k.move(d, v, t)
	return d
}

// Negated returns the opposite predicate. It emits an instruction only when the predicate must be
// in a register.
func (x Pred) Negated() Pred {
	if x.v.konst {
		return Pred{constant(1 - x.v.imm)}
	}
	x.v.negate = !x.v.negate
	return x
}
