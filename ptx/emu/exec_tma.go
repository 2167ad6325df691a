package emu

import (
	"fmt"

	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/isa"
)

func bulkForms() handlers {
	load := handler{do: bulkLoadExec, bulk: true}
	return handlers{
		isa.TMALoad:           {do: tmaLoad, bulk: true},
		isa.TMALoadCTA:        {do: tmaLoad, bulk: true},
		isa.TMALoadMulticast:  {do: tmaMulticast, bulk: true},
		isa.BulkCopyCluster:   {do: bulkCopyExec, bulk: true},
		isa.TMAStore:          {do: tmaStore, bulk: true},
		isa.TMAPrefetch:       {do: tmaPrefetch},
		isa.BulkPrefetch:      {do: bulkPrefetch},
		isa.BulkLoad:          load,
		isa.BulkLoadHint:      load,
		isa.BulkLoadCTA:       load,
		isa.BulkStore:         {do: bulkStoreExec, bulk: true},
		isa.TMAReduce:         {do: tmaStore, bulk: true},
		isa.BulkReduce:        {do: bulkStoreExec, bulk: true},
		isa.BulkReduceHalves:  {do: bulkStoreExec, bulk: true},
		isa.StAsync:           {do: storeAsync},
		isa.RedAsync:          {do: storeAsync, prepare: prepareAtomic},
		isa.BulkCommit:        {do: bulkCommit},
		isa.BulkWait:          {do: bulkWait},
		isa.PrefetchTensorMap: {do: prefetchMap},

		isa.TensormapReplaceAddress: {do: replaceInMap}, isa.TensormapReplaceRank: {do: replaceInMap}, isa.TensormapReplaceStride: {do: replaceInMap},
		isa.TensormapReplaceDim: {do: replaceInMap}, isa.TensormapReplaceMode: {do: replaceInMap}, isa.TensormapCopy: {do: copyMap},
		isa.FenceTensormapAcquire: {do: acquireMaps}, isa.FenceTensormapRelease: {do: releaseMaps},
	}
}

// tensorMap decodes the tensor map at a generic address, which is in a kernel parameter or in
// global memory.
func (w *warp) tensorMap(in *inst, l int, at uint64) *layout.TensorMap {
	var bytes []byte
	if params := w.cta.cluster.grid.params; at < paramWindow {
		bytes = w.cta.cluster.globalBytes(at, layout.TensorMapBytes)
		if bytes != nil && at%64 == 0 {
			w.touchMap(in, at, 1<<l, false, true)
		}
	} else if off := at - paramWindow; off+layout.TensorMapBytes <= uint64(len(params)) {
		bytes = params[off : off+layout.TensorMapBytes]
	}
	switch {
	case bytes == nil:
		w.fault(in, IllegalDescriptor, 1<<l, "%s: tensor map at %#x, want the address of a kernel parameter (from mov or cvta.param) or of global memory", in.form.Op, at)
	case at%64 != 0:
		w.fault(in, Misaligned, 1<<l, "%s: tensor map at address %#x, want a multiple of 64", in.form.Op, at)
	}
	m, err := layout.DecodeTensorMap(bytes)
	if err != nil {
		w.fault(in, IllegalDescriptor, 1<<l, "%s: %v", in.form.Op, err)
	}
	return &m
}

func prefetchMap(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		w.tensorMap(in, l, w.address64(&in.args[0], l))
	}
}

// box returns the tensor map and the coordinates of lane l's tensor operand, after checking them.
func (w *warp) box(in *inst, o *operand, l int, shared uint32, store bool) (*layout.TensorMap, []int32) {
	t := w.tensorMap(in, l, w.r64[o.slot][l])
	coords := make([]int32, len(o.list))
	for i, s := range o.list {
		coords[i] = int32(w.r32[s][l])
	}
	if err := t.CheckBox(coords, shared); err != nil {
		kind := IllegalDescriptor
		if shared%layout.BoxAlign != 0 {
			kind = Misaligned
		}
		w.fault(in, kind, 1<<l, "%s: %v", in.form.Op, err)
	}
	if outside, err := t.CheckChip(coords, store); err != nil {
		kind := IllegalInstruction
		if outside {
			kind = OutOfBounds
		}
		w.fault(in, kind, 1<<l, "%s: %v", in.form.Op, err)
	}
	if d, outside := t.Outside(coords); outside && in.form.ID != isa.TMAPrefetch { // kernels may prefetch past the end of a tensor
		w.find(in, Note, OutOfBounds, 1<<l, fmt.Sprintf("%s: no element of the box is inside the tensor: coordinate %d is %d, want %d to %d", in.form.Op, d, coords[d], 1-int64(t.Box[d]), t.Dims[d]-1))
	}
	return t, coords
}
