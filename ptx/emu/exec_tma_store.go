package emu

import (
	"fmt"
	"iter"

	"sonicmoe/ptx/emu/layout"
	"sonicmoe/ptx/isa"
)

// bulkQueue holds the TMA stores of a warp's threads, in the order of issue.
type bulkQueue struct {
	stores  []*bulkStore
	issued  uint32
	commits [warpLanes]uint32
	spare   [][]byte // buffers to reuse for the data of later stores
}

// bulkStore is one store by TMA. It first reads shared memory, and writes global memory later.
type bulkStore struct {
	in     *inst
	lane   int
	group  uint32
	number uint32 // number of the store among the warp's stores
	src    uint32
	tensor *layout.TensorMap // nil if the store writes size contiguous bytes to dst
	coords []int32
	dst    uint64
	size   uint32
	// change is the operation of a reduction on elements of `bytes` bytes. It is nil for a store.
	change func(old, v uint64) uint64
	bytes  int
	data   []byte // bytes read from shared memory, one contiguous run after the other
	read   bool
	done   bool
	waited bool // the thread has executed a wait_group, with or without .read, that covers the store
	over   bool // the thread has executed a wait_group without .read that covers the store
}

// maxUnwritten is the largest number of stores of a warp that Late holds back after it has read
// their shared memory.
const maxUnwritten = 32

func tmaStore(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, isa.Shared, w.shared32(&in.args[1], l), l)
		st := &bulkStore{in: in, lane: l, group: w.bulk.commits[l], src: at}
		st.tensor, st.coords = w.box(in, &in.args[0], l, at, true)
		st.size = st.tensor.BoxBytes()
		if in.form.ID == isa.TMAReduce {
			w.reduces(st, elementTypes[st.tensor.Elem])
		}
		w.deny(in, 1<<l, c.shared.check(at, st.size, layout.BoxAlign))
		w.startStore(st)
	}
	w.limitStores()
}

// bulkStoreExec executes a store of contiguous bytes, without a tensor map.
func bulkStoreExec(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, isa.Shared, w.shared32(&in.args[1], l), l)
		st := &bulkStore{in: in, lane: l, group: w.bulk.commits[l], src: at, dst: w.address64(&in.args[0], l), size: w.r32[in.slot[2]][l]}
		if st.size%16 != 0 || st.dst%16 != 0 || at%16 != 0 {
			w.fault(in, Misaligned, 1<<l, "bulk copy of %d bytes from shared %#x to %#x, want multiples of 16 in all three", st.size, at, st.dst)
		}
		w.deny(in, 1<<l, c.shared.check(at, st.size, 16))
		if in.form.ID != isa.BulkStore {
			w.reduces(st, in.typ)
		}
		w.startStore(st)
	}
	w.limitStores()
}

// elementTypes maps the element types of tensor maps that have reductions to PTX types.
var elementTypes = map[layout.ElemType]isa.Type{layout.ElemU32: isa.U32, layout.ElemS32: isa.S32,
	layout.ElemF16: isa.F16, layout.ElemF32: isa.F32, layout.ElemBF16: isa.BF16}

// reduces turns a store into a reduction of elements of type t.
func (w *warp) reduces(st *bulkStore, t isa.Type) {
	if t != isa.NoType {
		st.change, st.bytes = reduction(st.in.mod("op"), t), t.Bytes()
	}
	if st.change == nil {
		w.fault(st.in, IllegalInstruction, 1<<st.lane, "%s%s of %v elements is not emulated", st.in.form.Op, st.in.mod("op"), t)
	}
}

// runs returns the contiguous pieces in which a store writes global memory.
func (st *bulkStore) runs() iter.Seq[layout.Run] {
	if st.tensor != nil {
		return st.tensor.Runs(st.coords, st.src)
	}
	return func(yield func(layout.Run) bool) {
		yield(layout.Run{Global: st.dst, Shared: st.src, Bytes: st.size, InBounds: true})
	}
}

// startStore queues a store whose addresses have been checked.
func (w *warp) startStore(st *bulkStore) {
	in, c, lane := st.in, w.cta, uint32(1)<<st.lane
	if count := c.cluster.counter; count != nil {
		count.store(st)
	}
	w.bulk.issued++
	st.number = w.bulk.issued
	if r := c.cluster.races; r != nil {
		w.deny(in, lane, r.bulkStore(w, st))
	}
	for r := range st.runs() {
		if !r.InBounds {
			continue
		}
		w.deny(in, lane, c.shared.proxy.check("reads", r.Shared, r.Bytes, w.latestFence(lane)))
	}
	w.bulk.stores = append(w.bulk.stores, st)
	c.trace.store(w, st)
	if w.cta.cluster.grid.launch.Timing == Early {
		w.finishStore(st, false)
	}
}

// limitStores writes the oldest stores if more than maxUnwritten are held back.
func (w *warp) limitStores() {
	held := 0
	for i := len(w.bulk.stores) - 1; i >= 0; i-- {
		if st := w.bulk.stores[i]; st.read && !st.done {
			if held++; held > maxUnwritten {
				w.finishStore(st, false)
			}
		}
	}
}

// finishStore performs a store: it reads shared memory and, unless readOnly is set, writes global
// memory.
func (w *warp) finishStore(st *bulkStore, readOnly bool) {
	s, cl := w.cta.shared, w.cta.cluster
	if !st.read {
		st.read = true
		w.cta.trace.storeRead(st, readOnly)
		if n := len(w.bulk.spare); n > 0 {
			st.data, w.bulk.spare = w.bulk.spare[n-1][:0], w.bulk.spare[:n-1]
		}
		for r := range st.runs() {
			if !r.InBounds {
				continue
			}
			w.deny(st.in, 1<<st.lane, s.checkRead(r.Shared, r.Bytes, 1))
			st.data = append(st.data, s.bytes[r.Shared:r.Shared+r.Bytes]...)
		}
	}
	if st.done || readOnly {
		return
	}
	st.done = true
	w.cta.trace.ends(st)
	data := st.data
	for r := range st.runs() {
		if !r.InBounds {
			continue
		}
		to := cl.globalBytes(r.Global, uint64(r.Bytes))
		if to == nil {
			w.fault(st.in, OutOfBounds, 1<<st.lane, "%s: %s", st.in.form.Op, cl.grid.explain(r.Global, uint64(r.Bytes)))
		}
		if st.change == nil {
			data = data[copy(to, data):]
			continue
		}
		for i := 0; i < len(to); i, data = i+st.bytes, data[st.bytes:] {
			mu := cl.grid.mem.lock(r.Global + uint64(i))
			mu.Lock()
			writeWord(to[i:], st.bytes, st.change(readWord(to[i:], st.bytes), readWord(data, st.bytes)))
			mu.Unlock()
		}
	}
	w.bulk.spare, st.data = append(w.bulk.spare, st.data), nil
	cl.progress()
}

func bulkCommit(w *warp, _ *inst, mask uint32) {
	for l := range lanesIn(mask) {
		w.bulk.commits[l]++
	}
}

// bulkWait executes cp.async.bulk.wait_group n: it finishes all bulk groups of each lane except the
// latest n.
func bulkWait(w *warp, in *inst, mask uint32) {
	keep := uint32(in.args[0].imm)
	kept := w.bulk.stores[:0]
	for _, st := range w.bulk.stores {
		if mask>>st.lane&1 == 1 && uint64(st.group)+uint64(keep) < uint64(w.bulk.commits[st.lane]) {
			w.finishStore(st, in.has(".read"))
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
}

// bulkAtExit finishes a warp's stores when its CTA has finished. If a store has not been waited
// for, it is a note: the store may read shared memory that already belongs to another CTA.
func (w *warp) bulkAtExit() {
	for _, st := range w.bulk.stores {
		if !st.waited {
			w.find(st.in, Note, AsyncPending, 1<<st.lane, fmt.Sprintf("the CTA ended while a store of %d bytes from shared address %s may still read it: want cp.async.bulk.wait_group before",
				st.size, w.cta.symbolic(st.src)))
		}
		w.finishStore(st, false)
	}
}
