package emu

import (
	"sonicmoe/ptx/emu/internal/causal"
	"sonicmoe/ptx/isa"
)

// A signal is the knowledge that a strong write leaves at a word. A strong read of the word
// acquires it. The write and the read may have release and acquire semantics themselves, or be
// relaxed and rely on a fence. The scope of the write must include the CTA of the reader, and the
// scope of the read the CTA of the writer.

// scope is the scope of a strong access or a fence.
type scope uint8

const (
	ctaScope scope = iota
	clusterScope
	gpuScope // gpuScope also stands for the system scope
	scopes
)

// String returns the PTX modifier of the scope.
func (s scope) String() string { return [...]string{".cta", ".cluster", ".gpu"}[s] }

// scopeOf returns the scope of an instruction. Without a modifier it is the GPU scope.
func scopeOf(in *inst) scope {
	switch {
	case in.has(".cta"):
		return ctaScope
	case in.has(".cluster") || in.form.ID == isa.FenceMbarrierInit:
		return clusterScope
	}
	return gpuScope
}

// strong reports whether the access is atomic, volatile, or relaxed or stronger.
func (in *inst) strong() bool { return in.polls || in.atomic }

// site is the place where a warp runs: its cluster and its CTA's rank.
type site struct {
	cluster int64
	rank    int
}

// apart returns the narrowest scope that includes both sites.
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

// signals holds the signals at each word, by address.
type signals map[uint64][]signal

// leave adds signal x at a word.
func (s signals) leave(at uint64, x signal) {
	for i := range s[at] {
		if have := &s[at][i]; have.from == x.from && have.scope == x.scope {
			have.past = have.past.Join(x.past)
			return
		}
	}
	s[at] = append(s[at], x)
}

// fences records what the fences of a warp publish and acquire.
type fences struct {
	// released[s] is what the warp knew at its latest fence of scope s or wider. A later relaxed
	// write publishes it.
	released [scopes]causal.Knowledge
	// heard[s] is the knowledge that the warp's relaxed reads have found, from writers that scope s
	// and no narrower scope includes. The warp's next fence of scope s or wider acquires it.
	heard [scopes]*causal.Horizon
	by    uint32 // mask of the lanes that read any of the signals
}

// fence executes fence.acq_rel, or a stronger fence, of scope s by lanes of a warp.
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

// releaseFenced publishes to k, at a relaxed arrival at the cluster barrier, what the warp knew at
// its latest fence.
func (r *races) releaseFenced(w *warp, lanes uint32, k *causal.Knowledge) {
	k.Join(r.given(w, lanes, &r.fences[r.number(w)].released[clusterScope]))
}

// synchronise records a lane's strong access to a word: what it acquires from the signals there,
// and the signal that it leaves. A store removes earlier signals of the word; an atomic keeps them.
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
