package emu

import (
	"fmt"

	"sonicmoe/ptx/emu/internal/arith"
	"sonicmoe/ptx/isa"
)

// With Launch.NaNs, there is a note for the first instruction of each cluster that turns finite
// inputs into a NaN or infinity, or that loads a NaN.

// floatOperand is an operand that holds floats: its index and its type.
type floatOperand struct {
	arg int
	typ isa.Type
}

// floatOperands lists the operands of an instruction that hold floats: [0] the inputs, [1] the
// outputs.
type floatOperands [2][]floatOperand

// floats returns, for each instruction of the kernel, the operands that hold floats.
func (k *Kernel) floats() []floatOperands {
	k.finding.Do(func() {
		k.floatOperands = make([]floatOperands, len(k.code))
		for i := range k.code {
			if in := &k.code[i]; in.product == nil { // addFinite checks the sums of wgmma, which complete later
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

// infinite returns the lanes in which one of the operands is a NaN or an infinity, and one such
// value.
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

// notFinite reports whether a value, or one of a pair of values, is a NaN or an infinity.
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

// stepFinite executes an instruction as step does, and looks for a NaN or infinity that it makes.
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

// notFinite reports the cluster's first NaN or infinity.
func (w *warp) notFinite(in *inst, lanes uint32, value float64, does string) {
	cl := w.cta.cluster
	cl.finite = false
	w.find(in, Note, NotFinite, lanes, fmt.Sprintf("%s %s %v, the first of the cluster that is not finite", in.form.Op, does, value))
}

// addFinite adds product p as add does, and looks for a NaN or infinity in the sums.
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
