package emu

import (
	"iter"

	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/isa"
)

// bulkLoad is a load by TMA in flight.
type bulkLoad struct {
	warp   *warp
	in     *inst
	lane   int
	order  uint64
	to     *cta
	dst    uint32 // offset in to's window
	size   uint32
	bar    uint32 // offset in to's window
	src    uint64 // for a bulk load without a map: global address, or offset in from's window
	from   *cta   // nil for global memory
	tensor *layout.TensorMap
	coords []int32
	again  bool // a multicast that has already read global memory for another CTA
	// accesses are the recorded memory accesses, if races are looked for.
	accesses []*access
}

// bulkQueue holds the TMA stores of a warp's threads.
type bulkQueue struct {
	stores  []*bulkStore
	issued  uint32
	commits [warpLanes]uint32
	spare   [][]byte // buffers for the data of later stores
}

// bulkStore is one store by TMA: it first reads shared memory, then writes global memory.
type bulkStore struct {
	in     *inst
	lane   int
	group  uint32
	number uint32 // among the warp's stores
	src    uint32
	tensor *layout.TensorMap // nil for a store of size bytes to dst
	coords []int32
	dst    uint64
	size   uint32
	data   []byte // bytes that were read, run after run
	read   bool
	done   bool
	waited bool // a wait_group, with or without .read, has covered it
	over   bool // a wait_group without .read has covered it
}

// maxUnwritten bounds the stores that Late holds back.
const maxUnwritten = 32

func bulkForms() map[isa.ID]handler {
	return map[isa.ID]handler{
		isa.TMALoad:           {exec: tmaLoad},
		isa.TMALoadMulticast:  {exec: tmaMulticast},
		isa.BulkCopyCluster:   {exec: bulkCopyExec},
		isa.TMAStore:          {exec: tmaStore},
		isa.TMAPrefetch:       {exec: tmaPrefetch},
		isa.BulkLoad:          {exec: bulkLoadExec},
		isa.BulkStore:         {exec: bulkStoreExec},
		isa.BulkCommit:        {exec: bulkCommit},
		isa.BulkWait:          {exec: bulkWait},
		isa.PrefetchTensorMap: {exec: prefetchMap},

		isa.TensormapReplaceAddress: {exec: replaceInMap}, isa.TensormapReplaceRank: {exec: replaceInMap}, isa.TensormapReplaceStride: {exec: replaceInMap},
		isa.TensormapReplaceDim: {exec: replaceInMap}, isa.TensormapReplaceMode: {exec: replaceInMap}, isa.TensormapCopy: {exec: copyMap},
		isa.FenceTensormapAcquire: {exec: acquireMaps}, isa.FenceTensormapRelease: {exec: releaseMaps},
	}
}

// tensorMap decodes the map at a generic address, which is a kernel parameter or in global
// memory.
func (w *warp) tensorMap(in *inst, l int, at uint64) (*layout.TensorMap, bool) {
	var bytes []byte
	if params := w.cta.cluster.grid.params; at < paramWindow {
		bytes = w.cta.cluster.globalBytes(at, layout.TensorMapBytes)
		if bytes != nil && at%64 == 0 && w.touchMap(in, at, 1<<l, false, true) == failed {
			return nil, false
		}
	} else if off := at - paramWindow; off+layout.TensorMapBytes <= uint64(len(params)) {
		bytes = params[off : off+layout.TensorMapBytes]
	}
	switch {
	case bytes == nil:
		w.fault(in, IllegalDescriptor, 1<<l, "%s: tensor map at %#x, want the address of a kernel parameter (from mov or cvta.param) or of global memory", in.form.Op, at)
		return nil, false
	case at%64 != 0:
		w.fault(in, Misaligned, 1<<l, "%s: tensor map at address %#x, want a multiple of 64", in.form.Op, at)
		return nil, false
	}
	m, err := layout.DecodeTensorMap(bytes)
	if err != nil {
		w.fault(in, IllegalDescriptor, 1<<l, "%s: %v", in.form.Op, err)
		return nil, false
	}
	return &m, true
}

func prefetchMap(w *warp, _ *frag, in *inst, mask uint32) outcome {
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		if _, ok := w.tensorMap(in, l, w.address64(&in.args[0], l)); !ok {
			return failed
		}
	}
	return next
}

// box returns a lane's tensor operand, checked: the map and the coordinates.
func (w *warp) box(in *inst, o *operand, l int, shared uint32, store bool) (*layout.TensorMap, []int32, bool) {
	t, ok := w.tensorMap(in, l, w.r64[o.slot][l])
	if !ok {
		return nil, nil, false
	}
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
		return nil, nil, false
	}
	if outside, err := t.CheckChip(coords, store); err != nil {
		kind := IllegalInstruction
		if outside {
			kind = OutOfBounds
		}
		w.fault(in, kind, 1<<l, "%s: %v", in.form.Op, err)
		return nil, nil, false
	}
	return t, coords, true
}

func tmaLoad(w *warp, _ *frag, in *inst, mask uint32) outcome {
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		b := &bulkLoad{warp: w, in: in, lane: l}
		c, at, ok := w.sharedOf(in, isa.SharedCluster, w.shared32(&in.args[0], l), l)
		if !ok {
			return failed
		}
		b.to, b.dst = c, at
		if b.tensor, b.coords, ok = w.box(in, &in.args[1], l, at, false); !ok {
			return failed
		}
		b.size = b.tensor.BoxBytes()
		if w.startLoad(b, w.shared32(&in.args[2], l)) == failed {
			return failed
		}
	}
	return next
}

func bulkLoadExec(w *warp, _ *frag, in *inst, mask uint32) outcome {
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		c, at, ok := w.sharedOf(in, isa.SharedCluster, w.shared32(&in.args[0], l), l)
		if !ok {
			return failed
		}
		b := &bulkLoad{warp: w, in: in, lane: l, to: c, dst: at, src: w.address64(&in.args[1], l), size: w.r32[in.slot[2]][l]}
		if b.size%16 != 0 || b.src%16 != 0 || b.dst%16 != 0 {
			return w.fault(in, Misaligned, 1<<l, "bulk copy of %d bytes from %#x to shared %#x, want multiples of 16 in all three", b.size, b.src, b.dst)
		}
		if w.startLoad(b, w.shared32(&in.args[3], l)) == failed {
			return failed
		}
	}
	return next
}

// startLoad checks destination and barrier and queues the load.
func (w *warp) startLoad(b *bulkLoad, at uint32) outcome {
	if b.size == 0 {
		return next
	}
	if c := w.cta.cluster.counter; c != nil {
		c.load(b)
	}
	bar, ok := w.mbarrierAt(b.in, isa.SharedCluster, at, b.lane)
	if !ok {
		return failed
	}
	if r := w.cta.cluster.races; r != nil {
		if p := r.bulkLoad(b, bar, at); p != nil {
			return w.deny(b.in, 1<<b.lane, p)
		}
	}
	if p := b.to.shared.check(b.dst, b.size, 16); p != nil {
		return w.deny(b.in, 1<<b.lane, p)
	}
	fenced := uint64(0) // fences of another CTA do not count
	if b.to == w.cta {
		fenced = w.latestFence(1 << b.lane)
	}
	if p := b.to.shared.proxy.check("overwrites", b.dst, b.size, fenced); p != nil {
		return w.deny(b.in, 1<<b.lane, p)
	}
	if int(at>>sharedRankBit) != b.to.rank {
		return w.fault(b.in, BarrierMisuse, 1<<b.lane, "%s: the data goes to CTA %d but mbarrier %#x is in CTA %d, want one CTA", b.in.form.Op, b.to.rank, at, at>>sharedRankBit)
	}
	b.bar = at & sharedOffset
	cl := w.cta.cluster
	cl.order++
	b.order = cl.order
	if cl.grid.launch.Timing == Early {
		return b.complete()
	}
	cl.loads = append(cl.loads, b)
	cl.issued(b)
	return next
}

// global returns the global memory that the load reads.
func (b *bulkLoad) global(at uint64, n uint32) []byte {
	cl := b.warp.cta.cluster
	from := cl.globalBytes(at, uint64(n))
	if from == nil {
		b.warp.fault(b.in, OutOfBounds, 1<<b.lane, "%s: %s", b.in.form.Op, cl.grid.mem.explain(at, uint64(n)))
	}
	return from
}

// complete moves the bytes and signals the barrier.
func (b *bulkLoad) complete() outcome {
	cl, s := b.warp.cta.cluster, b.to.shared
	switch {
	case b.from != nil:
		copy(s.bytes[b.dst:][:b.size], b.from.shared.bytes[b.src:])
	case b.tensor == nil:
		from := b.global(b.src, b.size)
		if from == nil {
			return failed
		}
		copy(s.bytes[b.dst:][:b.size], from)
	default:
		ok := true
		b.tensor.Rows(b.coords, b.dst, func(r *layout.BoxRow) bool {
			var from []byte
			if r.Lo < r.Hi {
				if from = b.global(r.Global+uint64(r.Lo), r.Hi-r.Lo); from == nil {
					ok = false
					return false
				}
			}
			r.Load(s.bytes, from, b.tensor.Swizzle)
			return true
		})
		if !ok {
			return failed
		}
	}
	s.markWritten(b.dst, b.size)
	s.proxy.replaced(b.dst, b.size)
	bar, err := s.mbar.at(b.bar)
	if err == nil {
		bar.now = note(bar.now, arrival{b.warp, b.in})
		if r := cl.races; r != nil {
			r.completes(b, bar)
		}
		phase := bar.phase
		err = bar.completeTx(b.size)
		b.to.usesBarrier(anMbarrier, uint64(b.bar), toArrive, phase, bar.phase != phase, nil)
	}
	if err != nil {
		return b.warp.barrierError(b.in, b.lane, b.bar, err)
	}
	cl.event()
	return next
}

func tmaStore(w *warp, _ *frag, in *inst, mask uint32) outcome {
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		c, at, ok := w.sharedOf(in, isa.Shared, w.shared32(&in.args[1], l), l)
		if !ok {
			return failed
		}
		st := &bulkStore{in: in, lane: l, group: w.bulk.commits[l], src: at}
		if st.tensor, st.coords, ok = w.box(in, &in.args[0], l, at, true); !ok {
			return failed
		}
		st.size = st.tensor.BoxBytes()
		if p := c.shared.check(at, st.size, layout.BoxAlign); p != nil {
			return w.deny(in, 1<<l, p)
		}
		if w.startStore(st) == failed {
			return failed
		}
	}
	return w.limitStores()
}

// bulkStoreExec stores contiguous bytes.
func bulkStoreExec(w *warp, _ *frag, in *inst, mask uint32) outcome {
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		c, at, ok := w.sharedOf(in, isa.Shared, w.shared32(&in.args[1], l), l)
		if !ok {
			return failed
		}
		st := &bulkStore{in: in, lane: l, group: w.bulk.commits[l], src: at, dst: w.address64(&in.args[0], l), size: w.r32[in.slot[2]][l]}
		if st.size%16 != 0 || st.dst%16 != 0 || at%16 != 0 {
			return w.fault(in, Misaligned, 1<<l, "bulk copy of %d bytes from shared %#x to %#x, want multiples of 16 in all three", st.size, at, st.dst)
		}
		if p := c.shared.check(at, st.size, 16); p != nil {
			return w.deny(in, 1<<l, p)
		}
		if w.startStore(st) == failed {
			return failed
		}
	}
	return w.limitStores()
}

// runs returns the contiguous pieces of a store.
func (st *bulkStore) runs() iter.Seq[layout.Run] {
	if st.tensor != nil {
		return st.tensor.Runs(st.coords, st.src)
	}
	return func(yield func(layout.Run) bool) {
		yield(layout.Run{Global: st.dst, Shared: st.src, Bytes: st.size, InBounds: true})
	}
}

// runs returns the contiguous pieces of a load from global memory.
func (b *bulkLoad) runs() iter.Seq[layout.Run] {
	if b.tensor != nil {
		return b.tensor.Runs(b.coords, b.dst)
	}
	return func(yield func(layout.Run) bool) {
		yield(layout.Run{Global: b.src, Shared: b.dst, Bytes: b.size, InBounds: true})
	}
}

// startStore queues a store whose addresses are checked.
func (w *warp) startStore(st *bulkStore) outcome {
	in, c, lane := st.in, w.cta, uint32(1)<<st.lane
	if count := c.cluster.counter; count != nil {
		count.store(st)
	}
	w.bulk.issued++
	st.number = w.bulk.issued
	if r := c.cluster.races; r != nil {
		if p := r.bulkStore(w, st); p != nil {
			return w.deny(in, lane, p)
		}
	}
	for r := range st.runs() {
		if !r.InBounds {
			continue
		}
		if p := c.shared.proxy.check("reads", r.Shared, r.Bytes, w.latestFence(lane)); p != nil {
			return w.deny(in, lane, p)
		}
	}
	w.bulk.stores = append(w.bulk.stores, st)
	if w.cta.cluster.grid.launch.Timing == Early && w.finishStore(st, false) == failed {
		return failed
	}
	return next
}

// limitStores writes the oldest stores when more than maxUnwritten are held back.
func (w *warp) limitStores() outcome {
	held := 0
	for i := len(w.bulk.stores) - 1; i >= 0; i-- {
		if st := w.bulk.stores[i]; st.read && !st.done {
			if held++; held > maxUnwritten && w.finishStore(st, false) == failed {
				return failed
			}
		}
	}
	return next
}

// finishStore reads shared memory and, unless readOnly, writes global memory.
func (w *warp) finishStore(st *bulkStore, readOnly bool) outcome {
	s, cl := w.cta.shared, w.cta.cluster
	if !st.read {
		st.read = true
		if n := len(w.bulk.spare); n > 0 {
			st.data, w.bulk.spare = w.bulk.spare[n-1][:0], w.bulk.spare[:n-1]
		}
		for r := range st.runs() {
			if !r.InBounds {
				continue
			}
			if p := s.checkRead(r.Shared, r.Bytes, 1); p != nil && w.deny(st.in, 1<<st.lane, p) == failed {
				return failed
			}
			st.data = append(st.data, s.bytes[r.Shared:r.Shared+r.Bytes]...)
		}
	}
	if st.done || readOnly {
		return next
	}
	st.done = true
	data := st.data
	for r := range st.runs() {
		if !r.InBounds {
			continue
		}
		to := cl.globalBytes(r.Global, uint64(r.Bytes))
		if to == nil {
			return w.fault(st.in, OutOfBounds, 1<<st.lane, "%s: %s", st.in.form.Op, cl.grid.mem.explain(r.Global, uint64(r.Bytes)))
		}
		data = data[copy(to, data):]
	}
	w.bulk.spare, st.data = append(w.bulk.spare, st.data), nil
	cl.progress()
	return next
}

func bulkCommit(w *warp, _ *frag, _ *inst, mask uint32) outcome {
	for m := mask; m != 0; m &= m - 1 {
		w.bulk.commits[first(m)]++
	}
	return next
}

// bulkWait finishes all but the latest groups of each lane.
func bulkWait(w *warp, _ *frag, in *inst, mask uint32) outcome {
	keep := uint32(in.args[0].imm)
	kept := w.bulk.stores[:0]
	for _, st := range w.bulk.stores {
		if mask>>st.lane&1 == 1 && uint64(st.group)+uint64(keep) < uint64(w.bulk.commits[st.lane]) {
			if w.finishStore(st, in.has(".read")) == failed {
				return failed
			}
			st.waited, st.over = true, st.over || !in.has(".read")
		}
		if !st.done || !st.waited || !st.over && w.cta.cluster.races != nil {
			kept = append(kept, st)
		}
	}
	clear(w.bulk.stores[len(kept):])
	w.bulk.stores = kept
	if r := w.cta.cluster.races; r != nil {
		read, written := w.bulk.issued, w.bulk.issued
		for _, st := range kept {
			if !st.waited {
				read = min(read, st.number-1)
			}
			if !st.over {
				written = min(written, st.number-1)
			}
		}
		r.done(w, componentStores, read)
		r.done(w, componentWrites, written)
	}
	return next
}

// bulkAtExit finishes the stores of a finished CTA. A store without a wait may read shared
// memory after the CTA has given it back, which is a fault.
func (w *warp) bulkAtExit() {
	for _, st := range w.bulk.stores {
		if !st.waited {
			w.fault(st.in, AsyncPending, 1<<st.lane, "the CTA ended while a store of %d bytes from shared address %s may still read it: want cp.async.bulk.wait_group before",
				st.size, w.cta.symbolic(st.src))
			return
		}
		if w.finishStore(st, false) == failed {
			return
		}
	}
}
