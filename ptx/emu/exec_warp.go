package emu

import (
	"fmt"
	"math/bits"

	"sonicmoe/ptx/isa"
)

func warpForms() handlers {
	sync := func(do doFunc) handler { return handler{exec: withMembers(do), waits: waitsForMembers} }
	prepared := func(h handler, prepare func(in *inst)) handler {
		h.prepare = prepare
		return h
	}
	allLanes := sync(vote(func(holds, members uint32) bool { return holds == members }))
	anyLane := sync(vote(func(holds, _ uint32) bool { return holds != 0 }))
	return handlers{
		isa.ShflSync:     sync(shuffle),
		isa.ShflSyncPred: sync(shuffle),
		isa.VoteBallot:   sync(ballot), isa.VoteBallotSync: sync(ballot),
		isa.Vote: prepared(allLanes, func(in *inst) {
			if in.has(".any") {
				in.exec = anyLane.exec
			}
		}),
		isa.VoteUni:       sync(vote(func(holds, members uint32) bool { return holds == 0 || holds == members })),
		isa.MatchAny:      sync(match),
		isa.MatchAny64:    sync(match),
		isa.MatchAll:      sync(match),
		isa.ReduxSync:     prepared(sync(reduceWarp), prepareReduce),
		isa.ReduxBits:     prepared(sync(reduceWarp), prepareReduceBits),
		isa.ElectSync:     sync(elect),
		isa.ElectSyncLane: sync(elect),
		isa.BarWarpSync:   sync(barWarp),
		isa.Stmatrix:      {do: storeMatrix, prepare: prepareMatrix},
		isa.Ldmatrix:      {do: loadMatrix, prepare: prepareMatrix},
		isa.SetMaxNReg:    {exec: setMaxRegisters, waits: waitsForRegisters},
		isa.LdmatrixCTA:   {do: loadMatrix, prepare: prepareMatrix},
		isa.StmatrixCTA:   {do: storeMatrix, prepare: prepareMatrix},
		isa.Movmatrix:     {do: moveMatrix},

		isa.LdmatrixShapeLast: {do: loadMatrix, prepare: prepareMatrix},
		isa.StmatrixShapeLast: {do: storeMatrix, prepare: prepareMatrix},

		isa.Activemask: {do: func(w *warp, in *inst, mask uint32) {
			for l := range lanesIn(mask) {
				w.r32[in.slot[0]][l] = mask
			}
		}},
	}
}

// vote returns the execution of a vote. result computes the vote from the members' predicates.
func vote(result func(holds, members uint32) bool) doFunc {
	return func(w *warp, in *inst, mask uint32) {
		holds, p := w.pred(&in.args[1]), uint32(0)
		for m := mask; m != 0; m &= m - 1 {
			members := w.r32[in.slot[2]][first(m)] & mask
			if result(holds&members, members) {
				p |= m & -m
			}
		}
		w.setPred(in.slot[0], p, mask)
	}
}

// withMembers returns an execution that waits until all lanes of the instruction's member mask have
// reached the instruction. Lanes that have exited do not count. The member mask is the last
// operand.
func withMembers(do doFunc) execFunc {
	return func(w *warp, f *frag, in *inst, mask uint32) outcome {
		masks := &w.r32[in.args[len(in.args)-1].slot]
		for m := mask; m != 0; m &= m - 1 { // a loop over lanesIn is slower in a function that returns from the loop
			l := first(m)
			members := masks[l]
			if members>>l&1 == 0 {
				return w.fault(in, DivergentAligned, 1<<l, "%s has member mask %#x, which does not include the lane itself", in.form.Op, members)
			}
			if missing := members & w.live &^ mask; missing != 0 {
				if off := missing & f.mask; off != 0 {
					return w.fault(in, DivergentAligned, off, "%s has member mask %#x, which includes lanes that are predicated off", in.form.Op, members)
				}
				return waiting
			}
		}
		do(w, in, mask)
		return next
	}
}

// barWarp executes bar.warp.sync: for the race checks, each lane learns what the other lanes of its
// member mask did.
func barWarp(w *warp, in *inst, mask uint32) {
	if r := w.cta.cluster.races; r != nil {
		for m := mask; m != 0; {
			members := w.r32[in.slot[0]][first(m)] & mask
			r.meet(w, members)
			m &^= members
		}
	}
}

func waitsForMembers(w *warp, f *frag, in *inst) need {
	members := w.r32[in.args[len(in.args)-1].slot][first(f.mask)]
	return need{from: []*warp{w}, what: fmt.Sprintf("waits at %s for %s, which member mask %#x includes",
		in.form.Op, laneList(members&w.live&^f.mask), members)}
}

func waitsForRegisters(w *warp, _ *frag, in *inst) need {
	n := need{what: fmt.Sprintf("waits to raise its registers from %d to %d: the CTA's pool has %d left per thread of one warp",
		w.regs, in.args[0].imm, w.cta.freeRegs)}
	// Name the warps that may still return registers to the pool.
	for _, x := range w.cta.warps {
		if x.live != 0 && x.regs == w.cta.cluster.grid.kernel.Registers() && x.id/4 != w.id/4 {
			n.from = append(n.from, x)
		}
	}
	return n
}

func shuffle(w *warp, in *inst, mask uint32) {
	mode := in.mod("mode")
	from := w.r32[in.slot[1]] // a copy, because the destination may be the source register
	d, p := &w.r32[in.slot[0]], uint32(0)
	for l := range lanesIn(mask) {
		j, inside := shuffleSource(mode, l, w.r32[in.slot[2]][l], w.r32[in.slot[3]][l])
		if mask>>j&1 == 0 {
			w.fault(in, IdleLane, 1<<l, "shfl.sync reads lane %d, which does not execute it", j)
		}
		d[l] = from[j]
		if inside {
			p |= 1 << l
		}
	}
	if in.form.Args[0].Kind == isa.Pair {
		w.setPred(in.args[0].pair, p, mask)
	}
}

// shuffleSource returns the lane that lane l reads, and whether that lane is inside the segment. If
// it would be outside, lane l reads itself.
func shuffleSource(mode string, l int, b, c uint32) (lane int, inside bool) {
	segment := int(c >> 8 & 31)
	b &= 31
	low := l & segment
	high := low | int(c&31)&^segment
	j := 0
	switch mode {
	case ".up":
		j = l - int(b)
		inside = j >= high
	case ".down":
		j = l + int(b)
		inside = j <= high
	case ".bfly":
		j = l ^ int(b)
		inside = j <= high
	default:
		j = low | int(b)&^segment
		inside = j <= high
	}
	if !inside {
		return l, false
	}
	return j, true
}

func ballot(w *warp, in *inst, mask uint32) {
	holds := w.pred(&in.args[1])
	for l := range lanesIn(mask) {
		w.r32[in.slot[0]][l] = holds & mask & w.r32[in.slot[2]][l]
	}
}

func prepareReduce(in *inst) {
	in.op32 = map[string]map[isa.Type]func(a, b, c uint32) uint32{
		".add": {isa.U32: func(a, b, _ uint32) uint32 { return a + b }, isa.S32: func(a, b, _ uint32) uint32 { return a + b }},
		".min": {isa.U32: func(a, b, _ uint32) uint32 { return min(a, b) }, isa.S32: func(a, b, _ uint32) uint32 { return uint32(min(int32(a), int32(b))) }},
		".max": {isa.U32: func(a, b, _ uint32) uint32 { return max(a, b) }, isa.S32: func(a, b, _ uint32) uint32 { return uint32(max(int32(a), int32(b))) }},
	}[in.mod("op")][in.typ]
}

func reduceWarp(w *warp, in *inst, mask uint32) {
	a := w.r32[in.slot[1]]
	for l := range lanesIn(mask) {
		members := w.r32[in.slot[2]][l] & mask
		v := a[first(members)]
		for l := range lanesIn(members & (members - 1)) {
			v = in.op32(v, a[l], 0)
		}
		w.r32[in.slot[0]][l] = v
	}
}

// setMaxRegisters moves registers between the warp and the CTA's pool. It does nothing for a kernel
// without launch bounds, because the assembler removes the instruction there.
func setMaxRegisters(w *warp, _ *frag, in *inst, mask uint32) outcome {
	if e := w.cta.cluster.grid.kernel.entry; e.MaxThreads == 0 && e.MinCTAs == 0 && e.Block.Count() == 0 {
		return next
	}
	n := int(in.args[0].imm)
	switch {
	case in.has(".dec") && n > w.regs:
		return w.fault(in, IllegalInstruction, mask, "setmaxnreg.dec to %d, but the warp has %d registers", n, w.regs)
	case in.has(".inc") && n < w.regs:
		return w.fault(in, IllegalInstruction, mask, "setmaxnreg.inc to %d, but the warp has %d registers", n, w.regs)
	case in.has(".inc") && n-w.regs > w.cta.freeRegs:
		return waiting
	}
	if w.id/4 >= len(w.cta.groups) {
		return w.fault(in, IllegalInstruction, mask, "setmaxnreg in warp %d, which is not in a complete warpgroup", w.id)
	}
	w.cta.freeRegs += w.regs - n
	w.regs = n
	w.cta.cluster.event()
	return next
}

func prepareReduceBits(in *inst) {
	in.op32 = map[string]func(a, b, c uint32) uint32{
		".and": func(a, b, _ uint32) uint32 { return a & b }, ".or": func(a, b, _ uint32) uint32 { return a | b },
		".xor": func(a, b, _ uint32) uint32 { return a ^ b },
	}[in.mod("op")]
}

// match executes match.any and match.all. match.any returns the members whose value equals the
// lane's own. match.all returns all members and true if all have the same value, else 0 and false.
func match(w *warp, in *inst, mask uint32) {
	d, a := &in.args[0], &in.args[1]
	all := in.form.ID == isa.MatchAll
	var results [warpLanes]uint32
	p := uint32(0)
	for l := range lanesIn(mask) {
		members := w.r32[in.slot[2]][l] & mask
		for n := members; n != 0; n &= n - 1 {
			if w.elem(a, a.slot, first(n)) == w.elem(a, a.slot, l) {
				results[l] |= n & -n
			}
		}
		if all && results[l] != members {
			results[l] = 0
		} else {
			p |= 1 << l
		}
	}
	for l := range lanesIn(mask) {
		w.r32[d.slot][l] = results[l]
	}
	if all {
		w.setPred(d.pair, p, mask)
	}
}

// elect selects the lowest lane of the member mask. It sets a predicate in this lane; a form with
// two results also returns the lane's number.
func elect(w *warp, in *inst, mask uint32) {
	d, p := &in.args[0], uint32(0)
	var leaders [warpLanes]uint32
	for l := range lanesIn(mask) {
		leaders[l] = uint32(bits.TrailingZeros32(w.r32[in.slot[1]][l] & mask))
		if leaders[l] == uint32(l) {
			p |= 1 << l
		}
	}
	if in.form.ID == isa.ElectSync {
		w.setPred(d.slot, p, mask)
		return
	}
	for l := range lanesIn(mask) {
		w.r32[d.slot][l] = leaders[l]
	}
	w.setPred(d.pair, p, mask)
}
