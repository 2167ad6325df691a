package emu

import (
	"iter"
	"sync"

	"sonicmoe/ptx/emu/layout"
)

// This file checks global memory for races, between all clusters of a launch. Earlier and later
// launches are ordered, except programmatic launches of a stream (race_launches.go).

const pageBytes = 4096

// globalRaces is the state of a launch's checks of global memory. Its lock is held while an access
// is compared with earlier ones, and while a strong access executes.
type globalRaces struct {
	sync.Mutex
	pages   map[uint64]*shadowPage
	signals signals
}

// shadowPage has the records of accesses (shadow words) for pageBytes of global or shared memory.
type shadowPage [pageBytes / 4]shadowWord

// shadow returns the shadow page of an address.
func (r *races) shadow(at uint64) *shadowPage {
	if n := at / pageBytes; r.page == nil || r.pageAt != n {
		pages := r.cl.grid.races.pages
		if pages[n] == nil {
			pages[n] = new(shadowPage)
		}
		r.page, r.pageAt = pages[n], n
	}
	return r.page
}

// touchGlobal records an access to n bytes of global memory. It returns the access's race, if there
// is one. The caller holds the lock of globalRaces.
func (r *races) touchGlobal(a *access, at, n uint64) *problem {
	if p := r.touchBefore(a, at, n); p != nil {
		return p
	}
	for n > 0 {
		k := min(n, pageBytes-at%pageBytes)
		if p := r.words(a, r.shadow(at)[at%pageBytes/4:], spot{at: at}, uint32(k)); p != nil {
			return p
		}
		at, n = at+k, n-k
	}
	return nil
}

// touchRuns records the accesses of a bulk copy to global memory, given as contiguous pieces.
func (r *races) touchRuns(a *access, by uint32, runs iter.Seq[layout.Run]) *problem {
	r.cl.grid.races.Lock()
	defer r.cl.grid.races.Unlock()
	r.start(by)
	for run := range runs {
		if run.InBounds {
			if p := r.touchGlobal(a, run.Global, uint64(run.Bytes)); p != nil {
				return p
			}
		}
	}
	return nil
}

// touchGlobals looks for races of an instruction by which each lane accesses n bytes.
func (w *warp) touchGlobals(in *inst, o *operand, mask uint32, n uint64, a *access) {
	r := w.cta.cluster.races
	r.cl.grid.races.Lock()
	defer r.cl.grid.races.Unlock()
	r.start(mask)
	for m := mask; m != 0; m &^= r.by {
		at := w.address64(o, first(m))
		r.by = m & -m
		if !a.strong {
			r.by = run(m, func(l int) bool { return w.address64(o, l) == at })
		}
		w.deny(in, r.by, r.touchGlobal(a, at, n))
	}
}

// touchCopied looks for races of the bytes that a cp.async reads.
func (w *warp) touchCopied(in *inst, c *copyRecord, a *access) {
	r := w.cta.cluster.races
	r.cl.grid.races.Lock()
	defer r.cl.grid.races.Unlock()
	r.start(c.lanes)
	for l := range lanesIn(c.lanes) {
		r.by = 1 << l
		w.deny(in, 1<<l, r.touchGlobal(a, c.src[l], uint64(c.bytes[l])))
	}
}
