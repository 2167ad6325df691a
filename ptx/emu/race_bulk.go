package emu

// This file checks bulk copies for races. A bulk load is done when the phase of its mbarrier
// completes, and a bulk store when its thread has waited for its group.

// bulkLoad records the memory that a load reads and writes. The accesses are done when the
// mbarrier's phase completes.
func (r *races) bulkLoad(b *bulkLoad, bar *mbarrier, at uint32) *problem {
	a := r.access(b.warp, b.in, componentOwn, true)
	a.component, a.async, a.bar, a.load = bar.sync.component, b.data == nil, at, b
	a.strong, a.scope = b.in.atomic, clusterScope
	b.accesses = append(b.accesses, a)
	r.start(1 << b.lane)
	if p := r.touch(a, b.to, b.dst, b.size); p != nil {
		return p
	}
	if b.data != nil {
		return nil
	}
	from := *a
	from.writes = false
	b.accesses = append(b.accesses, &from)
	if b.from == nil {
		return r.touchRuns(&from, 1<<b.lane, b.runs())
	}
	r.start(1 << b.lane)
	return r.touch(&from, b.from, uint32(b.src), b.size)
}

// bulkStore records the shared memory that a bulk store reads, and the global memory that it
// writes.
func (r *races) bulkStore(w *warp, st *bulkStore) *problem {
	a := r.access(w, st.in, componentStores, false)
	a.at, a.async = st.number, true
	r.start(1 << st.lane)
	for run := range st.runs() {
		if run.InBounds {
			if p := r.touch(a, w.cta, run.Shared, run.Bytes); p != nil {
				return p
			}
		}
	}
	to := r.access(w, st.in, componentWrites, true)
	to.at, to.async = st.number, true
	to.strong, to.scope = st.change != nil, gpuScope
	return r.touchRuns(to, 1<<st.lane, st.runs())
}

// completes records that a load has completed in the mbarrier's present phase.
func (r *races) completes(b *bulkLoad, bar *mbarrier) {
	r.cl.grid.races.Lock() // other clusters compare their accesses with the accesses of this load
	defer r.cl.grid.races.Unlock()
	for _, a := range b.accesses {
		a.at = uint32(bar.phase) + 1
	}
}
