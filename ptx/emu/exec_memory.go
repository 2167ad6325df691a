package emu

import "sonicmoe/ptx/isa"

func memoryForms() handlers {
	return handlers{
		isa.LdParam:         {do: loadParam},
		isa.StParam:         {exec: storeLocal},
		isa.LdGlobal:        {exec: loadGlobal, prepare: prepareCached},
		isa.StGlobal:        {exec: storeGlobal},
		isa.LdShared:        {exec: loadShared},
		isa.LdSharedCluster: {exec: loadShared},
		isa.StShared:        {exec: storeShared},
	}
}

func prepareCached(in *inst) { in.uncached = in.has(".nc") }

func loadParam(w *warp, in *inst, mask uint32) {
	params := w.cta.cluster.grid.params
	a := &in.args[1]
	for l := range lanesIn(mask) {
		at, size := w.address64(a, l), uint64(in.size)*uint64(len(in.args[0].list))
		if at%size != 0 {
			w.fault(in, Misaligned, 1<<l, "%d bytes at parameter offset %d, want a multiple of %d", size, at, size)
		}
		if at+size > uint64(len(params)) || at+size < at {
			w.fault(in, OutOfBounds, 1<<l, "%d bytes at parameter offset %d, but there are %d bytes of parameters", size, at, len(params))
		}
		for i, s := range in.args[0].list {
			w.setElem(&in.args[0], s, l, readWord(params[at+uint64(i)*uint64(in.size):], int(in.size)))
		}
	}
}

func (w *warp) setElem(o *operand, slot int32, l int, v uint64) {
	if o.bank == bank64 {
		w.r64[slot][l] = v
	} else {
		w.r32[slot][l] = uint32(v)
	}
}

func (w *warp) elem(o *operand, slot int32, l int) uint64 {
	if o.bank == bank64 {
		return w.r64[slot][l]
	}
	return uint64(w.r32[slot][l])
}
