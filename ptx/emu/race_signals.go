package emu

import (
	"sonicmoe/ptx/emu/internal/causal"
	"sonicmoe/ptx/isa"
)

// A signal is the knowledge that a strong write leaves at a word, for a strong read of that
// word to acquire. The access itself may release or acquire, or a fence next to a relaxed
// access. The scopes of both sides must include each other.

// scope is the scope of an access or a fence.
type scope uint8

const (
	ctaScope scope = iota
	clusterScope
	gpuScope // gpuScope also stands for the system scope
	scopes
)

// String returns the scope's modifier in PTX.
func (s scope) String() string { return [...]string{".cta", ".cluster", ".gpu"}[s] }

// scopeOf returns the scope of an instruction; without a modifier it is the GPU's.
func scopeOf(in *inst) scope {
	switch {
	case in.has(".cta"):
		return ctaScope
	case in.has(".cluster") || in.form.ID == isa.FenceMbarrierInit:
		return clusterScope
	}
	return gpuScope
}

// strong reports whether the access is atomic, volatile, or relaxed and stronger.
func (in *inst) strong() bool { return in.polls || in.atomic }

// site is where a warp runs.
type site struct {
	cluster int64
	rank    int
}

// apart returns the narrowest scope that contains both sites.
func (s site) apart(o site) scope {
	switch {
	case s.cluster != o.cluster:
		return gpuScope
	case s.rank != o.rank:
		return clusterScope
	}
	return ctaScope
}

type signal struct {
	from  site
	scope scope
	past  *causal.Horizon
}

// signals holds the signals at words by address.
type signals map[uint64][]signal

// leave adds a signal to a word.
func (s signals) leave(at uint64, x signal) {
	for i := range s[at] {
		if have := &s[at][i]; have.from == x.from && have.scope == x.scope {
			have.past = have.past.Join(x.past)
			return
		}
	}
	s[at] = append(s[at], x)
}

// fences is what a warp has fenced, and what it has read from relaxed signals.
type fences struct {
	// released is what was known at the latest fence of each scope, or a wider one. A relaxed
	// write releases it.
	released [scopes]causal.Knowledge
	// heard is what relaxed reads found, from the same CTA, the same cluster and other
	// clusters. A fence of that scope acquires it.
	heard [scopes]*causal.Horizon
	by    uint32 // mask of the lanes that read any of the signals
}

// fence is fence.acq_rel, or stronger, of a scope by a warp.
func (r *races) fence(w *warp, lanes uint32, s scope) {
	o, k := &r.fences[r.number(w)], r.know(w)
	for i := range s + 1 {
		if by := lanes & o.by; by != 0 {
			r.acquireFar(w, by, o.heard[i])
		}
	}
	for i := range s + 1 {
		o.released[i].Join(k)
	}
	r.advance(w)
}

// releaseFenced is a release by a relaxed arrival at the cluster barrier.
func (r *races) releaseFenced(w *warp, lanes uint32, k *causal.Knowledge) {
	k.Join(r.given(w, lanes, &r.fences[r.number(w)].released[clusterScope]))
}

// synchronise records a lane's strong access to the word at an address: what it acquires from
// the signals there, and the signal that it leaves. A store removes earlier signals; an atomic
// keeps them.
func (r *races) synchronise(w *warp, l int, in *inst, words signals, at uint64, loads, stores bool) {
	w.usesWord(in, at, loads, stores)
	o, here, reach := &r.fences[r.number(w)], r.site(w), scopeOf(in)
	acquires := in.has(".acquire") || in.has(".acq_rel")
	heard := words[at]
	for _, g := range r.cl.grid.before {
		if at >= memoryBase && loads {
			heard = append(heard[:len(heard):len(heard)], g.races.signals[at]...)
		}
	}
	for _, s := range heard {
		apart := s.from.apart(here)
		switch {
		case !loads || s.scope < apart || reach < apart:
		case acquires:
			r.acquireFar(w, 1<<l, s.past)
		default:
			o.heard[apart] = o.heard[apart].Join(s.past)
			o.by |= 1 << l
		}
	}
	if !stores {
		return
	}
	if !in.atomic {
		delete(words, at)
	}
	if in.has(".release") || in.has(".acq_rel") {
		words.leave(at, signal{here, reach, r.given(w, 1<<l, r.know(w)).Published(r.cluster)})
		r.advance(w)
		return
	}
	for s := range scopes {
		if k := &o.released[s]; len(k.Seen) > 0 {
			words.leave(at, signal{here, min(s, reach), r.given(w, 1<<l, k).Published(r.cluster)})
		}
	}
}
