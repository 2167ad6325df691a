package ptx

import (
	"slices"
	"strconv"

	"sonicmoe/ptx/isa"
)

type loop struct {
	end    string
	breaks []int // indices of the instructions that leave the loop
}

func (k *Kernel) label(what string) string {
	what = k.scope + what
	n := k.labels[what]
	k.labels[what] = n + 1
	return "$" + what + strconv.Itoa(n)
}

func (k *Kernel) place(label string) { k.add(Inst{Label: label}) }

// jump appends a branch or exit that a thread takes if p holds or, with not, if p does not hold. It
// reports whether a thread may take it: false if p is a constant that rules it out.
func (k *Kernel) jump(id isa.ID, p Pred, not bool, args ...Operand) bool {
	f := &isa.Table[id]
	in := Inst{Form: f, Mods: k.mods(f), Args: args, pos: here(k.position())}
	switch {
	case k.guarded:
		k.Errorf("%s is in a guarded body", f.Op)
	case p.v.missing():
		k.Errorf("%s takes %s", f.Op, p.v.nowhere().Sym)
		return false
	case p.v.k != nil && p.v.k != k:
		k.Errorf("%s takes a value of kernel %s in kernel %s", f.Op, p.v.k.name, k.name)
		return false
	}
	if !p.v.konst {
		in.Guard, in.GuardNot = p.v.reg+1, p.v.negate != not
	} else if (p.v.imm != 0) == not {
		return false
	}
	k.add(in)
	return true
}

func (k *Kernel) bra(label string, p Pred, not bool) bool {
	return k.jump(isa.Bra, p, not, Operand{Kind: OpLabel, Sym: label})
}

// If emits a branch: threads execute body if p is true.
func (k *Kernel) If(p Pred, body func()) { k.IfElse(p, body, nil) }

// IfElse emits a branch: threads execute then if p is true, else otherwise. A nil function is an
// empty body.
func (k *Kernel) IfElse(p Pred, then, otherwise func()) {
	if p.v.konst {
		if p.v.imm != 0 {
			then()
		} else if otherwise != nil {
			otherwise()
		}
		return
	}
	skip := k.label("else")
	k.bra(skip, p, true)
	cause := len(k.body) - 1
	known := k.thread
	then()
	k.thread = known
	if otherwise != nil {
		end := k.label("endif")
		k.bra(end, True(), false)
		k.place(skip)
		otherwise()
		k.thread = known
		k.place(end)
	} else {
		k.place(skip)
	}
	k.regions = append(k.regions, region{cause + 1, len(k.body), cause})
}

// Guarded makes p the guard of each instruction of body, instead of branching around body. It suits
// a few instructions without results.
func (k *Kernel) Guarded(p Pred, body func()) {
	if p.v.konst {
		if p.v.imm != 0 {
			body()
		}
		return
	}
	switch {
	case k.guarded:
		k.Errorf("guarded bodies do not nest")
	case p.v.k != k:
		k.Errorf("the guard is no value of kernel %s", k.name)
		return
	}
	k.guard, k.guarded = p.v, true
	body()
	k.guarded = false
}

// Loop emits a loop that repeats body until a [Kernel.BreakIf] in body leaves it.
func (k *Kernel) Loop(body func()) {
	l := &loop{end: k.label("end")}
	start := k.label("loop")
	first := len(k.body)
	k.place(start)
	k.loops = append(k.loops, l)
	known := k.thread
	body()
	k.thread = known
	k.loops = k.loops[:len(k.loops)-1]
	k.bra(start, True(), false)
	k.place(l.end)
	for _, b := range l.breaks {
		k.regions = append(k.regions, region{first, len(k.body), b})
	}
}

// BreakIf leaves the innermost loop if p is true.
func (k *Kernel) BreakIf(p Pred) {
	if len(k.loops) == 0 {
		k.Errorf("BreakIf is outside a loop")
		return
	}
	l := k.loops[len(k.loops)-1]
	if k.bra(l.end, p, false) {
		l.breaks = append(l.breaks, len(k.body)-1)
	}
}

// For emits a loop that executes body with i = from, from+step, … while i < to. i must not wrap
// around.
func (k *Kernel) For(from, to, step U32, body func(i U32)) {
	i := NewVar(k, from)
	k.Loop(func() {
		k.BreakIf(i.Get().Ge(to))
		body(i.Get())
		i.Set(i.Get().Add(step))
	})
}

// Range emits a loop that executes body with i = 0, 1, … while i < n.
func (k *Kernel) Range(n U32, body func(i U32)) { k.For(Uint(0), n, Uint(1), body) }

// ExitIf ends the thread if p is true.
func (k *Kernel) ExitIf(p Pred) {
	if k.jump(isa.Exit, p, false) {
		at := len(k.body) - 1
		k.regions = append(k.regions, region{at + 1, toTheEnd, at})
	}
}

// Var is a register that can be set several times, such as a value that a loop carries from one
// iteration to the next.
type Var[T Value] struct{ v val }

// NewVar returns a new variable with the value init.
func NewVar[T Value](k *Kernel, init T) *Var[T] {
	x := &Var[T]{k.newReg(init.isaType())}
	x.Set(init)
	return x
}

// NewVars returns n new variables, each with the value init.
func NewVars[T Value](k *Kernel, n int, init T) []*Var[T] {
	list := make([]*Var[T], n)
	for i := range list {
		list[i] = NewVar(k, init)
	}
	return list
}

// SetAll sets each variable vars[i] to the value to[i].
func SetAll[T Value](vars []*Var[T], to []T) {
	for i, v := range vars {
		v.Set(to[i])
	}
}

// VarOf returns the variable that uses x's own register. With it a kernel can overwrite a value
// that an instruction has produced, such as one of [Kernel.Accumulators].
func VarOf[T Value](x T) *Var[T] {
	v := x.val()
	if v.k != nil && slices.Contains(v.k.thread[:], v) {
		v.k.Errorf("VarOf of a thread index, which its readers share: set a NewVar of it")
	}
	return &Var[T]{v}
}

// Get returns the variable's own register, not a copy. Its value changes with the next Set.
func (x *Var[T]) Get() T { return wrap[T](x.v) }

// Copy returns the variable's present value in a new register.
func (x *Var[T]) Copy() T { return copyOf(x.Get()) }

// Set gives the variable a new value.
func (x *Var[T]) Set(to T) {
	x.v.k.move(x.v, to.val(), to.isaType())
}

func (k *Kernel) move(dst, src val, t isa.Type) {
	ty := t
	if ty == isa.S32 {
		ty = isa.B32
	} else if ty == isa.S64 {
		ty = isa.B64
	}
	if ty == isa.Pred && !src.konst && src.negate {
		src.negate = false
		k.op(isa.Not, []Mod{".pred"}, dst.operand(t), src.operand(t))
		return
	}
	if ty == isa.Pred && src.konst { // some assemblers refuse an immediate in mov.pred
		cmp := Mod(".ne")
		if src.imm != 0 {
			cmp = ".eq"
		}
		k.op(isa.Setp, []Mod{cmp, ".u32"}, dst.operand(t), Operand{Kind: OpInt}, Operand{Kind: OpInt})
		return
	}
	k.op(isa.Mov, []Mod{Mod("." + ty.String())}, dst.operand(t), src.operand(t))
}

func copyOf[T Value](x T) T {
	v := x.val()
	if v.konst || v.missing() {
		return x
	}
	d := v.k.result(x.isaType())
	v.k.move(d, v, x.isaType())
	return wrap[T](d)
}

// Materialize copies x into a register of k. x may be a constant.
func Materialize[T Value](k *Kernel, x T) T {
	if !x.val().konst {
		return x
	}
	d := k.result(x.isaType())
	k.move(d, x.val(), x.isaType())
	return wrap[T](d)
}
