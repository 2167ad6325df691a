package emu

import (
	"iter"
	"sync"
)

// Races in global memory: what the warps of all clusters of a launch did to each
// word, and the signals that they left. What came before the launch is past, and
// what it leaves is past for the next, but for launches of a stream that may begin
// before the one before has ended (racelaunches.go).

const pageBytes = 4096

// globalRaces is the state of a launch. Its lock is held while an access goes
// over its words, and at strong ones while it runs.
type globalRaces struct {
	sync.Mutex
	pages   map[uint64]*[pageBytes / 4]shadowWord
	signals signals
}

func (g *globalRaces) page(at uint64) *[pageBytes / 4]shadowWord {
	p := g.pages[at/pageBytes]
	if p == nil {
		p = new([pageBytes / 4]shadowWord)
		g.pages[at/pageBytes] = p
	}
	return p
}

// touchGlobal notes an access to n bytes of global memory, or says with what it
// races. The launch's lock must be held.
func (r *races) touchGlobal(a *access, at, n uint64) *problem {
	if p := r.touchBefore(a, at, n); p != nil {
		return p
	}
	for n > 0 {
		k := min(n, pageBytes-at%pageBytes)
		if p := r.words(a, r.cl.grid.races.page(at)[at%pageBytes/4:], spot{at: at}, uint32(k)); p != nil {
			return p
		}
		at, n = at+k, n-k
	}
	return nil
}

// touchRuns notes the global memory of a bulk copy.
func (r *races) touchRuns(a *access, by uint32, runs iter.Seq[Run]) *problem {
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

// touchGlobals looks for races of the lanes' accesses of n bytes.
func (w *warp) touchGlobals(in *inst, o *operand, mask uint32, n uint64, a *access) outcome {
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
		if p := r.touchGlobal(a, at, n); p != nil {
			return w.deny(in, r.by, p)
		}
	}
	return next
}

// touchCopied is touchGlobals for what cp.async reads.
func (w *warp) touchCopied(in *inst, c *copyRecord, a *access) outcome {
	r := w.cta.cluster.races
	r.cl.grid.races.Lock()
	defer r.cl.grid.races.Unlock()
	r.start(c.lanes)
	for m := c.lanes; m != 0; m &= m - 1 {
		l := first(m)
		r.by = 1 << l
		if p := r.touchGlobal(a, c.src[l], uint64(c.bytes[l])); p != nil {
			return w.deny(in, 1<<l, p)
		}
	}
	return next
}
