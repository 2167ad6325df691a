package emu

import "time"

// setSpecial fills the slot of a special register that does not change while
// the CTA runs.
func (w *warp) setSpecial(s specialSlot) {
	c := w.cta
	g := c.cluster.grid
	uniform := func(v int) { w.fill32(s.slot, uint32(v)) }
	lanes := func(value func(lane int) uint32) {
		for l := range warpLanes {
			w.r32[s.slot][l] = value(l)
		}
		w.ok[bank32][s.slot] = fullMask
	}
	thread := func(l int) int { return w.id*warpLanes + l }
	switch s.name {
	case "%tid.x":
		lanes(func(l int) uint32 { return uint32(thread(l) % g.block[0]) })
	case "%tid.y":
		lanes(func(l int) uint32 { return uint32(thread(l) / g.block[0] % g.block[1]) })
	case "%tid.z":
		lanes(func(l int) uint32 { return uint32(thread(l) / g.block[0] / g.block[1]) })
	case "%ntid.x", "%ntid.y", "%ntid.z":
		uniform(g.block[s.name[len(s.name)-1]-'x'])
	case "%ctaid.x", "%ctaid.y", "%ctaid.z":
		uniform(c.index[s.name[len(s.name)-1]-'x'])
	case "%nctaid.x", "%nctaid.y", "%nctaid.z":
		uniform(g.size[s.name[len(s.name)-1]-'x'])
	case "%laneid":
		lanes(func(l int) uint32 { return uint32(l) })
	case "%lanemask_lt":
		lanes(func(l int) uint32 { return 1<<l - 1 })
	case "%smid":
		sms := g.launch.SMs
		if sms <= 0 {
			sms = 132
		}
		uniform(c.linear % sms)
	case "%cluster_ctarank":
		uniform(c.rank)
	case "%cluster_nctarank":
		uniform(g.cluster)
	}
}

// clocks are the special registers that tick: %clock64 counts the cluster's
// warp instructions, %globaltimer is the host's time in nanoseconds.
var clocks = map[string]func(cl *cluster) uint64{
	"%clock64":     func(cl *cluster) uint64 { cl.steps++; return cl.steps },
	"%globaltimer": func(*cluster) uint64 { return uint64(time.Now().UnixNano()) },
}

// readClock makes the execution of mov from a ticking register.
func readClock(read func(cl *cluster) uint64) execFunc {
	return func(w *warp, _ *frag, in *inst, mask uint32) outcome {
		now := read(w.cta.cluster)
		for m := mask; m != 0; m &= m - 1 {
			w.r64[in.slot[0]][first(m)] = now
		}
		return next
	}
}
