package emu

import (
	"time"
)

// setSpecial sets the slot of a special register whose value does not change while the CTA runs.
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
	axis := int(s.name[len(s.name)-1]) - 'x' // index of the axis, for names that end in .x, .y or .z
	switch s.name {
	case "%tid.x":
		lanes(func(l int) uint32 { return uint32(thread(l) % g.block[0]) })
	case "%tid.y":
		lanes(func(l int) uint32 { return uint32(thread(l) / g.block[0] % g.block[1]) })
	case "%tid.z":
		lanes(func(l int) uint32 { return uint32(thread(l) / g.block[0] / g.block[1]) })
	case "%ntid.x", "%ntid.y", "%ntid.z":
		uniform(g.block[axis])
	case "%ctaid.x", "%ctaid.y", "%ctaid.z":
		uniform(c.index[axis])
	case "%nctaid.x", "%nctaid.y", "%nctaid.z":
		uniform(g.size[axis])
	case "%laneid", "%lanemask_lt", "%lanemask_le", "%lanemask_eq", "%lanemask_ge", "%lanemask_gt":
		lanes(laneSpecials[s.name])
	case "%smid":
		uniform(c.linear % g.sms())
	case "%cluster_ctarank":
		uniform(c.rank)
	case "%cluster_nctarank":
		uniform(g.cluster.Count())
	case "%clusterid.x", "%clusterid.y", "%clusterid.z":
		uniform(c.cluster.index[axis])
	case "%nclusterid.x", "%nclusterid.y", "%nclusterid.z":
		uniform(c.cluster.count[axis])
	case "%cluster_ctaid.x", "%cluster_ctaid.y", "%cluster_ctaid.z":
		uniform(c.inCluster[axis])
	case "%cluster_nctaid.x", "%cluster_nctaid.y", "%cluster_nctaid.z":
		uniform(g.cluster[axis])
	case "%warpid":
		uniform(w.id)
	case "%nwarpid":
		uniform(warpsPerSM)
	case "%nsmid":
		uniform(g.sms())
	default:
		w.setLaunchSpecial(s)
	}
}

// laneSpecials has the special registers whose value depends only on the lane.
var laneSpecials = map[string]func(lane int) uint32{
	"%laneid":      func(l int) uint32 { return uint32(l) },
	"%lanemask_lt": func(l int) uint32 { return 1<<l - 1 },
	"%lanemask_le": func(l int) uint32 { return 2<<l - 1 },
	"%lanemask_eq": func(l int) uint32 { return 1 << l },
	"%lanemask_ge": func(l int) uint32 { return ^uint32(0) << l },
	"%lanemask_gt": func(l int) uint32 { return ^uint32(1) << l },
}

// warpsPerSM is the value of %nwarpid.
const warpsPerSM = 64

// sms returns the number of multiprocessors, the value of %nsmid.
func (g *grid) sms() int {
	if g.launch.SMs > 0 {
		return g.launch.SMs
	}
	return 132
}

// setLaunchSpecial sets the slot of a special register that describes the launch or the memory that
// the driver reserves.
func (w *warp) setLaunchSpecial(s specialSlot) {
	g := w.cta.cluster.grid
	switch s.name {
	case "%gridid":
		for l := range warpLanes {
			w.r64[s.slot][l] = 1
		}
		w.ok[bank64][s.slot] = fullMask
	case "%envreg0", "%reserved_smem_offset_begin", "%reserved_smem_offset_0", "%reserved_smem_offset_1":
		w.fill32(s.slot, 0)
	case "%envreg1": // workspace that the driver provides to a cooperative launch
		w.fill32(s.slot, uint32(g.workspace>>32))
	case "%envreg2":
		w.fill32(s.slot, uint32(g.workspace))
	case "%reserved_smem_offset_end":
		w.fill32(s.slot, sharedGroups)
	case "%reserved_smem_offset_cap":
		w.fill32(s.slot, sharedBase)
	case "%dynamic_smem_size":
		w.fill32(s.slot, uint32(g.launch.SharedBytes))
	case "%total_smem_size":
		w.fill32(s.slot, uint32(g.smem+sharedUnit-1)/sharedUnit*sharedUnit)
	case "%aggr_smem_size":
		w.fill32(s.slot, sharedBase+uint32(g.smem+sharedAlign-1)/sharedAlign*sharedAlign)
	}
}

// clocks holds the special registers that advance. %clock and %clock64 count the cluster's warp
// instructions. %globaltimer is the host's time in nanoseconds.
var clocks = map[string]func(cl *cluster) uint64{
	"%clock":       func(cl *cluster) uint64 { cl.steps++; return cl.steps },
	"%clock_hi":    func(cl *cluster) uint64 { cl.steps++; return cl.steps >> 32 },
	"%clock64":     func(cl *cluster) uint64 { cl.steps++; return cl.steps },
	"%globaltimer": func(*cluster) uint64 { return uint64(time.Now().UnixNano()) },
}

// readClock returns the execution of a mov from a special register that advances.
func readClock(read func(cl *cluster) uint64) execFunc {
	return func(w *warp, _ *frag, in *inst, mask uint32) outcome {
		now := read(w.cta.cluster)
		for l := range lanesIn(mask) {
			w.setElem(&in.args[0], in.slot[0], l, now)
		}
		return next
	}
}
