package ptx

import (
	"fmt"
	"math"

	"sonicmoe/ptx/isa"
)

// region is a part of a kernel's body, from index start up to end, that some threads of a warp may
// skip: the body of an If, the rest of a loop after a break, or everything after an exit. The guard
// of the instruction with index cause decides which threads skip it.
type region struct{ start, end, cause int }

const toTheEnd = math.MaxInt

// divergence returns an error for each instruction that needs the whole warp but is at a place that
// only some lanes may reach. A register varies if its value may differ between the lanes of a warp.
// Which places are divergent depends on which registers vary, and the other way round, so passes
// repeat until nothing changes.
func (k *Kernel) divergence() []error {
	d := diverging{k: k, varies: make([]bool, len(k.regs)), lane: make([]bool, len(k.regs)), cause: make([]int32, len(k.body))}
	for d.pass() {
	}
	var errs []error
	for i := range k.body {
		in := &k.body[i]
		if in.Form == nil || !in.Form.NeedsWarp(in.Mods) || !d.partial(i) {
			continue
		}
		why := "its guard varies between lanes"
		if c := d.cause[i]; c > 0 {
			why = "only some lanes run here, after " + k.body[c-1].pos.resolve().String()
		}
		errs = append(errs, fmt.Errorf("%s: %s needs the whole warp, but %s", in.pos.resolve(), in.opcode(), why))
	}
	return errs
}

type diverging struct {
	k      *Kernel
	varies []bool // indexed by register
	lane   []bool // indexed by register: whether it holds %tid.x itself
	cause  []int32
}

// partial reports whether only some lanes may run instruction i.
func (d *diverging) partial(i int) bool {
	g := d.k.body[i].Guard
	return d.cause[i] > 0 || g > 0 && d.varies[g-1]
}

// pass goes over the body once. It reports whether it has marked a further instruction as partial
// or a further register as varying.
func (d *diverging) pass() (changed bool) {
	for _, r := range d.k.regions {
		if !d.partial(r.cause) {
			continue
		}
		for i := r.start; i < min(r.end, len(d.k.body)); i++ {
			if d.cause[i] == 0 {
				d.cause[i], changed = int32(r.cause+1), true
			}
		}
	}
	for i := range d.k.body {
		in := &d.k.body[i]
		if in.Form == nil || !(d.partial(i) || d.result(in)) {
			continue
		}
		for a := range in.Args {
			if in.Form.Args[a].Dir != isa.In {
				changed = d.mark(&in.Args[a]) || changed
			}
		}
	}
	return changed
}

func (d *diverging) mark(o *Operand) (changed bool) {
	if o.Kind == OpReg && !d.varies[o.Reg] {
		d.varies[o.Reg], changed = true, true
	}
	for i := range o.List {
		changed = d.mark(&o.List[i]) || changed
	}
	return changed
}

// result reports whether the outputs of an instruction that the whole warp executes may differ
// between lanes.
func (d *diverging) result(in *Inst) bool {
	f := in.Form
	switch f.ID {
	case isa.Mov:
		if o := in.Args[1]; o.Kind == OpSpecial {
			d.lane[in.Args[0].Reg] = isa.Specials[o.Reg].Name == "%tid.x"
			return !isa.Specials[o.Reg].Uniform
		}
	case isa.ShflSync: // with mode .idx and the same source lane in all lanes, all lanes get one value
		if f.Mod(in.Mods, "mode") == ".idx" {
			return d.reads(&in.Args[2]) && d.reads(&in.Args[1])
		}
		return d.reads(&in.Args[1])
	case isa.Shr: // if CTAs have one dimension, %tid.x divided by 32 or more is the same in the whole warp
		if a, n := in.Args[1], in.Args[2]; a.Kind == OpReg && d.lane[a.Reg] && n.Kind == OpInt && n.Imm >= 5 {
			return false
		}
	}
	if f.Effects&isa.Uniform != 0 {
		return false
	}
	if f.Effects&isa.Varies != 0 {
		return true
	}
	for a := range in.Args {
		if f.Args[a].Dir != isa.Out && d.reads(&in.Args[a]) {
			return true
		}
	}
	return false
}

// reads reports whether the value of an operand may differ between lanes.
func (d *diverging) reads(o *Operand) bool {
	switch o.Kind {
	case OpReg, OpNotReg, OpTensor:
		if d.varies[o.Reg] {
			return true
		}
	case OpAddr:
		return o.Reg >= 0 && d.varies[o.Reg]
	}
	for i := range o.List {
		if d.reads(&o.List[i]) {
			return true
		}
	}
	return false
}
