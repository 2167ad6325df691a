package emu

import (
	"slices"

	"sonicmoe/ptx/emu/internal/causal"
	"sonicmoe/ptx/isa"
)

// This file defines which synchronisation objects a step of a schedule uses, which two uses of an
// object depend on each other, and which instructions use which object.

// object identifies a synchronisation object.
type object struct {
	kind    objectKind
	cluster int64
	rank    int
	at      uint64
}

type objectKind uint8

const (
	globalWord objectKind = iota
	sharedWord
	mbarrierObject
	namedBarrierObject
	clusterBarrierObject
	ctaLife // ctaLife stands for the life of a CTA; the CTA's exit and accesses by other CTAs use it
)

// use is a way in which a step uses an object.
type use uint8

const (
	toRead   use = iota // toRead reads the object and never waits
	toWrite             // toWrite writes the object, or reads and writes it in one operation
	toAdd               // toAdd adds to the object; two additions commute if their operation is the same
	toArrive            // toArrive arrives at the object; arrivals within one phase commute
	toWait              // toWait waits for the end of a phase
)

// objectUse records that a step uses an object.
type objectUse struct {
	object
	use   use
	like  string // operation of the addition, if use is toAdd
	phase uint64 // phase of the barrier, if use is toArrive
	ends  bool   // the arrival ends the phase
	in    *inst  // the instruction if it polls, else nil
	step  int
	actor int
	clock causal.Clock // the step and all steps that happened before it
	mark  uint64
}

// depends reports whether two uses of one object depend on each other: whether their order matters.
func (t *objectUse) depends(o *objectUse) bool {
	switch {
	case t.use > o.use:
		return o.depends(t)
	case t.use == toWrite || o.use == toWrite:
		return true
	case t.use == toRead:
		return o.use == toAdd || o.use == toArrive && o.ends
	case t.use == toAdd:
		return o.use == toAdd && t.like != o.like
	case t.use == toArrive:
		return o.use == toArrive && t.phase != o.phase || o.use == toWait && t.ends
	}
	return false
}

// uses records that the actor of the present step uses an object, and whether this use changed it.
func (cl *cluster) uses(t objectUse, changed bool) {
	s := cl.schedule
	if s == nil {
		return
	}
	if changed {
		s.versions[t.object]++
	}
	if slices.ContainsFunc(s.uses, func(o objectUse) bool {
		return o.object == t.object && o.use == t.use && o.phase == t.phase && o.ends == t.ends && o.like == t.like
	}) {
		return
	}
	s.uses = append(s.uses, t)
}

// word returns the object of the 32-bit word at an address of shared or global memory.
func (cl *cluster) word(at uint64) object {
	if at < memoryBase {
		return object{kind: sharedWord, cluster: cl.number, at: at &^ 3}
	}
	return object{kind: globalWord, at: at &^ 3}
}

// usesWord records that a step uses the word of a strong access: an atomic, or one with a scope.
func (w *warp) usesWord(in *inst, at uint64, loads, stores bool) {
	cl := w.cta.cluster
	t := objectUse{object: cl.word(at), in: in}
	switch {
	case !stores:
	case in.atomic && in.form.Args[0].Dir != isa.Out && !in.typ.Float():
		t.use, t.like = toAdd, in.mod("op")
	default:
		t.use = toWrite
	}
	cl.uses(t, stores && !loads)
}

// changedWord records that an atomic has changed the word at an address from old to now.
func (cl *cluster) changedWord(at, old, now uint64) {
	if old == now {
		return
	}
	cl.fresh = true
	cl.grid.changes.Add(1)
	if s := cl.schedule; s != nil {
		s.versions[cl.word(at)]++
	}
}

// usesBarrier records that a step uses a barrier of the CTA: an arrival in the given phase, or a
// wait. ends states that the arrival ends the phase.
func (c *cta) usesBarrier(kind objectKind, at uint64, how use, phase uint64, ends bool, in *inst) {
	if c.trace != nil && kind == mbarrierObject {
		switch {
		case how == toWrite:
			c.trace.phase(c, uint32(at), 0)
		case ends:
			c.trace.phase(c, uint32(at), phase+1)
		}
	}
	c.cluster.uses(objectUse{object: object{kind, c.cluster.number, c.rank, at}, use: how, phase: phase, ends: ends, in: in}, how == toArrive)
}

// usesMbarrier does the same as [cta.usesBarrier], for the mbarrier at an address of the cluster.
func (w *warp) usesMbarrier(in *inst, at uint32, how use, phase uint64, ends bool) {
	w.cta.cluster.ctas[at>>sharedRankBit].usesBarrier(mbarrierObject, uint64(at&sharedOffset), how, phase, ends, in)
}

// usesClusterBarrier does the same as [cta.usesBarrier], for the cluster barrier.
func (w *warp) usesClusterBarrier(how use, phase uint64) {
	cl := w.cta.cluster
	cl.ctas[0].usesBarrier(clusterBarrierObject, 0, how, phase, how == toArrive && cl.barrier.gen > phase, nil)
}

// meetsOthers reports whether the instruction uses a synchronisation object, so that a step begins
// at it.
func (in *inst) meetsOthers() bool {
	switch in.form.ID {
	case isa.FenceProxyAsync:
		return false
	case isa.Exit, isa.Ret, isa.CpAsyncMbarrierArriveNoInc, isa.CpAsyncMbarrierArriveNoIncShared, isa.CpAsyncMbarrierArrive:
		return true
	}
	return in.strong() || in.space == isa.SharedCluster || barriers[in.form.ID].exec != nil
}

// barriers holds the handlers of instructions that use a barrier of any kind.
var barriers = func() handlers {
	all := barrierForms()
	for id, h := range mbarrierForms() {
		all[id] = h
	}
	return all
}()
