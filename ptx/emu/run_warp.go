package emu

import (
	"iter"
	"math/bits"
	"slices"
	"sync"

	"sonicmoe/ptx/emu/internal/mma"
)

const (
	warpLanes = mma.Lanes
	fullMask  = 0xffffffff
)

// outcome says how the fragment that executed an instruction goes on.
type outcome uint8

const (
	next    outcome = iota // the fragment continues after the instruction
	jumped                 // the instruction has set pc, masks and fragments itself
	waiting                // the fragment executes the same instruction again after an event
	yielded                // the fragment continues after other warps have run
)

// execFunc executes an instruction for the lanes of mask, which is not 0.
type execFunc func(w *warp, f *frag, in *inst, mask uint32) outcome

// frag is a fragment: lanes of a warp that execute the same instruction together.
type frag struct {
	pc    int32
	mask  uint32
	calls []call // calls in progress, the outermost first
	stuck bool   // the fragment waits; since is the cluster's event count when the wait began
	apart bool   // the fragment waits for the rest of its warp at an aligned instruction
	begun bool   // the fragment has arrived at the named barrier, in generation gen
	tried bool   // the present try_wait has returned false once
	since uint64
	gen   uint64
}

// warp is the state of 32 threads: their registers, and one or more fragments.
type warp struct {
	cta   *cta
	id    int // number of the warp in its CTA
	live  uint32
	frags []*frag
	turns int

	local    []byte // local memory of all lanes, ownBytes for each lane
	ownBytes int
	carry    uint32 // carry flag of each lane
	r32      mma.Registers
	r64      [][warpLanes]uint64
	p        []uint32
	// offsets holds each lane's offset in the memory that the present instruction accesses.
	offsets [warpLanes]uint64
	// ok holds, for each slot, the mask of lanes that have written it.
	ok      [numBanks][]uint32
	origins map[slotRef]origin // of slots that lack a value in some lane, see mark

	regs    int // registers per thread, as setmaxnreg set them
	cluster clusterWait
	copies  copyQueue
	bulk    bulkQueue
	mma     mmaState

	polled   *inst // latest instruction that may poll
	products productQueue
	stage    int // ring stage whose mbarrier the warp passed last; for timelines
	// sync holds the operands of the latest mma.sync.
	sync mmaOperands
}

// warpPool and sharedPool keep the memory of ended clusters for later launches. For many launches,
// allocating and clearing it anew would take longer than the launch itself.
var (
	warpPool   = sync.Pool{New: func() any { w := &warp{}; w.products.done.L = &w.products.mu; return w }}
	sharedPool = sync.Pool{New: func() any { return &sharedMemory{} }}
)

// sized returns a slice of n undefined elements. It reuses s's memory if that is large enough.
func sized[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// newWarp returns a warp with the registers and constants of a kernel. Registers may have values of
// an earlier launch, but ok marks them as not written.
func newWarp(k *Kernel) *warp {
	w := warpPool.Get().(*warp)
	w.r32 = sized(w.r32, k.slots[bank32])
	w.r64 = sized(w.r64, k.slots[bank64])
	w.p = sized(w.p, k.slots[bankPred])
	w.local = sized(w.local, k.localBytes*warpLanes)
	for b := range w.ok {
		w.ok[b] = sized(w.ok[b], k.slots[b])
	}
	w.mma.classes = sized(w.mma.classes, len(k.classes))
	w.mma.fragments = sized(w.mma.fragments, k.fragments)
	for _, c := range k.const32 {
		for l := range warpLanes {
			w.r32[c.slot][l] = c.value
		}
	}
	for _, c := range k.const64 {
		for l := range warpLanes {
			w.r64[c.slot][l] = c.value
		}
	}
	w.p[slotZero], w.p[slotTrue] = 0, fullMask
	return w
}

// reset prepares the warp to run in a CTA of the given number of threads.
func (w *warp) reset(c *cta, id, threads int) {
	k := c.cluster.grid.kernel
	w.settle()
	w.cta, w.id, w.turns, w.origins = c, id, 0, nil
	w.live = fullMask
	if n := threads - id*warpLanes; n < warpLanes {
		w.live = 1<<n - 1
	}
	w.frags = append(w.frags[:0], &frag{mask: w.live})
	for b := range w.ok {
		clear(w.ok[b])
	}
	w.ok[bankPred][slotZero], w.ok[bankPred][slotTrue] = fullMask, fullMask
	for _, s := range k.const32 {
		w.ok[bank32][s.slot] = fullMask
	}
	for _, s := range k.const64 {
		w.ok[bank64][s.slot] = fullMask
	}
	for _, s := range k.specials {
		w.setSpecial(s)
	}
	for _, s := range k.wideSymbols {
		at := c.cluster.grid.image + s.offset
		if s.shared {
			at = s.offset | uint64(c.rank)<<sharedRankBit
		}
		for l := range warpLanes {
			w.r64[s.slot][l] = at
		}
		w.ok[bank64][s.slot] = fullMask
	}
	w.ownBytes = k.localBytes
	w.local = w.local[:k.localBytes*warpLanes]
	fillBytes(w.local, poison)
	w.carry = 0
	for _, s := range k.symbols {
		w.fill32(s.slot, s.value|uint32(c.rank)<<sharedRankBit)
	}
	w.regs = k.Registers()
	w.cluster = clusterWait{}
	w.copies = copyQueue{free: w.copies.free}
	w.bulk = bulkQueue{spare: w.bulk.spare}
	w.mma.reset()
	w.stage, w.polled = noStage, nil
}

func (w *warp) fill32(slot int32, v uint32) {
	for l := range warpLanes {
		w.r32[slot][l] = v
	}
	w.ok[bank32][slot] = fullMask
}

// pick selects the fragment to run: the one with the lowest pc, so that fragments merge where paths
// join. From time to time it selects another one, so that none starves.
func (w *warp) pick() *frag {
	events := w.cta.cluster.events
	var best *frag
	w.turns++
	for i, f := range w.frags {
		if f.stuck && f.since == events {
			continue
		}
		if len(w.frags) > 1 && w.turns%16 == 0 && i == w.turns/16%len(w.frags) {
			return f
		}
		if best == nil || f.before(best) {
			best = f
		}
	}
	return best
}

// run executes up to limit instructions of a fragment. It returns the number executed.
func (w *warp) run(f *frag, limit int) int {
	code, counter, paused := w.cta.cluster.grid.kernel.code, w.cta.cluster.counter, w.cta.cluster.schedule != nil
	n := 0
	for n < limit {
		in := &code[f.pc]
		if paused && n > 0 && in.meets {
			return n
		}
		mask := f.mask
		if in.guard >= 0 {
			if bad := mask &^ w.ok[bankPred][in.guard]; bad != 0 && in.checkGuard {
				w.lacks(in, slotRef{bankPred, in.guard}, bad, "guard "+w.slotName(bankPred, in.guard)+" is read")
				return n
			}
			p := w.p[in.guard]
			if in.guardNot {
				p = ^p
			}
			if mask &= p; mask == 0 {
				n++
				f.pc++
				if len(w.frags) > 1 && w.meet(f) {
					return n
				}
				continue
			}
		}
		var out outcome
		if w.cta.cluster.finite {
			out = w.stepFinite(f, in, mask)
		} else {
			out = w.step(f, in, mask)
		}
		if out == waiting {
			f.stuck, f.since = true, w.cta.cluster.events
			return n
		}
		n++
		if counter != nil {
			counter.executed(in, mask)
		}
		f.stuck, f.apart = false, false
		if out == next || out == yielded {
			f.pc++
		}
		if f.mask == 0 || len(w.frags) > 1 && w.meet(f) || out == yielded {
			return n
		}
	}
	return n
}

// step checks and executes one instruction.
func (w *warp) step(f *frag, in *inst, mask uint32) outcome {
	if in.aligned && mask != w.live {
		return w.unaligned(f, in, mask)
	}
	lacking := uint32(0)
	if in.checks != nil {
		lacking = w.unknown(in, mask)
	}
	if in.accs {
		w.mma.touch(w, in)
	}
	out := in.exec(w, f, in, mask)
	if out == next || out == yielded {
		for _, r := range in.marks {
			w.ok[r.bank][r.slot] = w.ok[r.bank][r.slot]&^lacking | mask&^lacking
		}
	}
	return out
}

// unaligned handles an aligned instruction that not all lanes of the warp have reached. The
// fragment waits for lanes that may still reach it, as hardware reconverges. It is a fault if other
// lanes are missing.
func (w *warp) unaligned(f *frag, in *inst, mask uint32) outcome {
	missing := w.live &^ mask
	if mask == f.mask {
		late := uint32(0)
		for _, g := range w.frags {
			if g != f && g.before(f) {
				late |= g.mask
			}
		}
		if missing&^late == 0 {
			f.apart = true
			return waiting
		}
		missing &^= late
	}
	return w.fault(in, DivergentAligned, mask, "%s needs the whole warp, but %s did not execute it", in.form.Op, laneList(missing))
}

// meet merges f with other fragments at the same instruction. It reports whether another fragment
// should run first.
func (w *warp) meet(f *frag) bool {
	behind := false
	for i := 0; i < len(w.frags); i++ {
		g := w.frags[i]
		switch {
		case g == f:
		case g.sameAs(f):
			f.adopt(g)
			f.mask |= g.mask
			f.stuck = false
			w.frags = append(w.frags[:i], w.frags[i+1:]...)
			i--
		case g.before(f) && !(g.stuck && g.since == w.cta.cluster.events):
			behind = true
		}
	}
	return behind
}

// split sends the lanes of mask to the instruction at pc. The other lanes of f stay.
func (w *warp) split(f *frag, mask uint32, pc int32) {
	if mask == f.mask {
		f.pc = pc
		return
	}
	f.mask &^= mask
	f.pc++
	w.place(&frag{pc: pc, mask: mask, calls: f.calls})
}

// place adds a fragment to the warp. It merges the fragment with one at the same instruction, if
// any.
func (w *warp) place(x *frag) {
	for _, g := range w.frags {
		if g.mask != 0 && g.sameAs(x) {
			g.adopt(x)
			g.mask |= x.mask
			g.stuck = false
			return
		}
	}
	w.frags = append(w.frags, x)
}

// exit ends the lanes of mask.
func (w *warp) exit(f *frag, mask uint32) {
	w.live &^= mask
	f.mask &^= mask
	f.pc++
	if f.mask == 0 {
		for i, g := range w.frags {
			if g == f {
				w.frags = append(w.frags[:i], w.frags[i+1:]...)
				break
			}
		}
	}
	ended := w.cta.exited()
	w.cta.usesBarrier(ctaLife, 0, toArrive, 0, ended, nil)
	if r := w.cta.cluster.races; r != nil && ended {
		r.ends(w.cta)
	}
	w.cta.cluster.event()
}

// first returns the lowest lane of a mask.
func first(mask uint32) int { return bits.TrailingZeros32(mask) & 31 }

// lanesIn returns the lanes of a mask, from the lowest.
func lanesIn(mask uint32) iter.Seq[int] {
	return func(yield func(lane int) bool) {
		for m := mask; m != 0; m &= m - 1 {
			if !yield(first(m)) {
				return
			}
		}
	}
}

// uniform returns a register's value in the first lane of mask, and whether all lanes agree.
func uniform[T uint32 | uint64](r *[warpLanes]T, mask uint32) (T, bool) {
	v := r[first(mask)]
	for m := mask; m != 0; m &= m - 1 { // a loop over lanesIn is slower in a function that returns from the loop
		if r[first(m)] != v {
			return 0, false
		}
	}
	return v, true
}

// pred returns the lanes in which a predicate operand is true.
func (w *warp) pred(o *operand) uint32 {
	if o.negate {
		return ^w.p[o.slot]
	}
	return w.p[o.slot]
}

// shared32 returns lane l's shared address in an operand.
func (w *warp) shared32(o *operand, l int) uint32 { return w.r32[o.slot][l] + uint32(o.imm) }

// address64 returns lane l's 64-bit address in an operand.
func (w *warp) address64(o *operand, l int) uint64 { return w.r64[o.slot][l] + uint64(o.imm) }

// slotName returns the name that the register in a slot has in the PTX text.
func (w *warp) slotName(b bank, slot int32) string {
	counts := [numBanks]int32{1, 1, 2}
	for _, r := range w.cta.cluster.grid.kernel.entry.Registers {
		c := bankOf(r.Class)
		if c == b && counts[c] == slot {
			return "register " + r.Name
		}
		counts[c]++
	}
	return "a constant"
}
