package emu

// laneFunc computes the result of one lane. The inputs are in the low bits of v.
type laneFunc func(v [4]uint64) uint64

// lanewise returns the handler of an instruction that computes each lane independently. prepare
// returns the function of one lane. Registers may have any width.
func lanewise(prepare func(in *inst) laneFunc) handler {
	return handler{exec: eachLane, prepare: func(in *inst) { in.lane = prepare(in) }}
}

func eachLane(w *warp, _ *frag, in *inst, mask uint32) outcome {
	d := &in.args[0]
	for l := range lanesIn(mask) {
		v := w.inputs(in, l)
		w.setElem(d, d.slot, l, in.lane(v))
	}
	return next
}

// inputs returns lane l's values of all operands except the first, which is the destination.
func (w *warp) inputs(in *inst, l int) (v [4]uint64) {
	for i := range min(len(in.args)-1, len(v)) {
		switch a := &in.args[1+i]; a.bank {
		case bankNone:
			v[i] = uint64(a.imm)
		case bankPred:
			v[i] = uint64(w.pred(a) >> l & 1)
		default:
			v[i] = w.elem(a, a.slot, l)
		}
	}
	return v
}

// choose returns 1 if holds, else 0.
func choose(holds bool) int {
	if holds {
		return 1
	}
	return 0
}
