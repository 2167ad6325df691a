package emu

import (
	"fmt"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// With Launch.NaNs, the first instruction of each cluster that makes a NaN or infinity of finite
// inputs is a note, and so is the first load of a NaN.

// floatOperand is an operand of floats.
type floatOperand struct {
	arg int
	typ isa.Type
}

// floatOperands holds the operands of floats of an instruction: inputs and outputs.
type floatOperands [2][]floatOperand

// floats returns the operands of floats of each instruction of the kernel.
func (k *Kernel) floats() []floatOperands {
	k.finding.Do(func() {
		k.floatOperands = make([]floatOperands, len(k.code))
		for i := range k.code {
			if in := &k.code[i]; in.product == nil { // wgmma's sums come later
				k.floatOperands[i] = floatsOf(in)
			}
		}
	})
	return k.floatOperands
}

func floatsOf(in *inst) (floats floatOperands) {
	for i := range in.args {
		a, t := &in.form.Args[i], in.form.ArgType(in.mods, i)
		if a.Kind != isa.Reg && a.Kind != isa.Vec || !t.Float() {
			continue
		}
		if a.Dir == isa.In {
			floats[0] = append(floats[0], floatOperand{i, t})
		} else {
			floats[1] = append(floats[1], floatOperand{i, t})
		}
	}
	return floats
}

// infinite returns the lanes in which an operand has a NaN or an infinity.
func (w *warp) infinite(in *inst, list []floatOperand, mask uint32) (lanes uint32, value float64) {
	for _, x := range list {
		o := &in.args[x.arg]
		for _, s := range o.list {
			for l := range lanesIn(mask &^ lanes) {
				if v, bad := notFinite(x.typ, w.elem(o, s, l)); bad {
					lanes, value = lanes|1<<l, v
				}
			}
		}
	}
	return lanes, value
}

// notFinite reports whether an element, or one of a pair, is a NaN or infinite.
func notFinite(t isa.Type, v uint64) (float64, bool) {
	half := isa.F16
	switch t {
	case isa.BF16x2:
		half = isa.BF16
	case isa.F16x2:
	default:
		x := arith.FloatOf(t, v)
		return x, x-x != 0
	}
	if x, bad := notFinite(half, v&0xffff); bad {
		return x, true
	}
	return notFinite(half, v>>16&0xffff)
}

// stepFinite is step, and looks for a NaN or infinity that the instruction makes.
func (w *warp) stepFinite(f *frag, in *inst, mask uint32) outcome {
	floats := &w.cta.cluster.grid.kernel.floatOperands[in.number]
	before, _ := w.infinite(in, floats[0], mask)
	out := w.step(f, in, mask)
	made, value := w.infinite(in, floats[1], mask&^before)
	switch loads := len(floats[0]) == 0; {
	case out != next || made == 0 || loads && value == value:
	case loads:
		w.notFinite(in, made, value, "reads")
	default:
		w.notFinite(in, made, value, "makes")
	}
	return out
}

// notFinite notes the cluster's first NaN or infinity.
func (w *warp) notFinite(in *inst, lanes uint32, value float64, does string) {
	cl := w.cta.cluster
	cl.finite = false
	w.find(in, Note, NotFinite, lanes, fmt.Sprintf("%s %s %v, the first of the cluster that is not finite", in.form.Op, does, value))
}

// addFinite is add, and looks for a NaN or infinity in the sums of wgmma.
func (w *warp) addFinite(p *product) {
	in, list := p.in, []floatOperand{{0, p.in.form.Args[0].Type}}
	if p.halves {
		list[0].typ = isa.F16x2
	}
	before := uint32(0)
	if p.keep {
		before, _ = w.infinite(in, list, fullMask)
	}
	w.add(p)
	if made, value := w.infinite(in, list, fullMask&^before); made != 0 {
		w.notFinite(in, made, value, "makes, or reads in A or B,")
	}
}
