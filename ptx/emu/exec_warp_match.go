package emu

import (
	"math/bits"

	"sonicmoe/ptx/isa"
)

func warpMoreForms() map[isa.ID]handler {
	sync := func(exec execFunc) handler { return handler{exec: exec, waits: waitsForMembers} }
	return map[isa.ID]handler{
		isa.ShflSyncPred: sync(shuffle),
		isa.VoteUni: sync(func(w *warp, f *frag, in *inst, mask uint32) outcome {
			if out := w.members(f, in, mask, &in.args[2]); out != next {
				return out
			}
			holds, p := w.pred(&in.args[1]), uint32(0)
			for m := mask; m != 0; m &= m - 1 {
				members := w.r32[in.slot[2]][first(m)] & mask
				if yes := holds & members; yes == 0 || yes == members {
					p |= m & -m
				}
			}
			w.setPred(in.slot[0], p, mask)
			return next
		}),
		isa.MatchAny64:    sync(match),
		isa.MatchAll:      sync(match),
		isa.ReduxBits:     {exec: reduceWarp, waits: waitsForMembers, prepare: prepareReduceBits},
		isa.ElectSyncLane: sync(electLane),
		isa.Activemask: {exec: func(w *warp, _ *frag, in *inst, mask uint32) outcome {
			for m := mask; m != 0; m &= m - 1 {
				w.r32[in.slot[0]][first(m)] = mask
			}
			return next
		}},
		isa.BarrierSync:   {exec: barSync, waits: waitsAtBarrier, at: namedBarrierAt},
		isa.BarrierArrive: {exec: barArrive},
		isa.BarRedPopc:    {exec: barReduce, waits: waitsAtBarrier, at: namedBarrierAt},
		isa.BarRed:        {exec: barReduce, waits: waitsAtBarrier, at: namedBarrierAt},
		isa.LdmatrixCTA:   {exec: loadMatrix, prepare: prepareMatrix},
		isa.StmatrixCTA:   {exec: storeMatrix, prepare: prepareMatrix},
		isa.Nanosleep:     {exec: func(*warp, *frag, *inst, uint32) outcome { return yielded }},
		isa.Brkpt: {exec: func(w *warp, _ *frag, in *inst, mask uint32) outcome {
			return w.fault(in, Trap, mask, "the kernel executed brkpt")
		}},
	}
}

func prepareReduceBits(in *inst) {
	in.op32 = map[string]func(a, b, c uint32) uint32{
		".and": func(a, b, _ uint32) uint32 { return a & b }, ".or": func(a, b, _ uint32) uint32 { return a | b },
		".xor": func(a, b, _ uint32) uint32 { return a ^ b },
	}[in.mod("op")]
}

// match is match.any of 64 bits, and match.all, whose result is the mask of members or 0, and a
// predicate.
func match(w *warp, f *frag, in *inst, mask uint32) outcome {
	if out := w.members(f, in, mask, &in.args[2]); out != next {
		return out
	}
	d, a := &in.args[0], &in.args[1]
	all := in.form.ID == isa.MatchAll
	var results [warpLanes]uint32
	p := uint32(0)
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
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
	for m := mask; m != 0; m &= m - 1 {
		w.r32[d.slot][first(m)] = results[first(m)]
	}
	if all {
		w.setPred(d.pair, p, mask)
	}
	return next
}

// electLane selects the lowest lane of the member mask and returns its number.
func electLane(w *warp, f *frag, in *inst, mask uint32) outcome {
	if out := w.members(f, in, mask, &in.args[1]); out != next {
		return out
	}
	d, p := &in.args[0], uint32(0)
	var leaders [warpLanes]uint32
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		leaders[l] = uint32(bits.TrailingZeros32(w.r32[in.slot[1]][l] & mask))
		if leaders[l] == uint32(l) {
			p |= 1 << l
		}
	}
	for m := mask; m != 0; m &= m - 1 {
		w.r32[d.slot][first(m)] = leaders[first(m)]
	}
	w.setPred(d.pair, p, mask)
	return next
}
