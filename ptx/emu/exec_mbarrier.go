package emu

import (
	"sonicmoe/ptx/isa"
)

func mbarrierForms() handlers {
	all := handlers{}
	all.same(handler{do: mbarrierInit}, isa.MbarrierInit, isa.MbarrierInitShared)
	all.same(handler{do: mbarrierInval}, isa.MbarrierInval, isa.MbarrierInvalShared)
	all.same(handler{do: mbarrierArrive}, isa.MbarrierArrive, isa.MbarrierArriveCluster, isa.MbarrierArriveAny, isa.MbarrierArriveState,
		isa.MbarrierArriveCount, isa.MbarrierArriveCountState, isa.MbarrierArriveClusterAny, isa.MbarrierArriveCountCluster,
		isa.MbarrierArriveExpectTx, isa.MbarrierArriveExpectTxCluster, isa.MbarrierArriveExpectTxAny, isa.MbarrierArriveExpectTxState)
	all.same(handler{do: mbarrierTx}, isa.MbarrierExpectTx, isa.MbarrierCompleteTx)
	all.same(handler{exec: mbarrierTestWait}, isa.MbarrierTestWait, isa.MbarrierTestWaitParity, isa.MbarrierTestWaitParityAny)
	all.same(handler{exec: mbarrierTryWait, waits: waitsForPhase, at: phaseBarrier}, isa.MbarrierTryWait, isa.MbarrierTryWaitParity, isa.MbarrierTryWaitParityAny)
	return all
}

func mbarrierInit(w *warp, in *inst, mask uint32) {
	made := map[uint32]uint32{} // counts with which this instruction initialised mbarriers, by address
	again := false
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, isa.Shared, w.shared32(&in.args[0], l), l)
		count := w.r32[in.slot[1]][l]
		if made[at] == count && count != 0 {
			again = true
			continue
		}
		made[at] = count
		if at < c.shared.start || int(at)+mbarrierBytes > len(c.shared.bytes) {
			w.fault(in, OutOfBounds, 1<<l, "mbarrier at shared address %s, but the CTA has %#x to %#x", c.symbolic(at), c.shared.start, len(c.shared.bytes))
		}
		if err := c.shared.mbar.init(at, count); err != nil {
			w.barrierError(in, l, at, err)
		}
		c.shared.setBarrier(at, true)
		c.usesBarrier(mbarrierObject, uint64(at), toWrite, 0, false, nil)
		if r := w.cta.cluster.races; r != nil {
			r.made(w, in, c.shared.mbar[at])
		}
	}
	if again {
		w.find(in, Note, BarrierMisuse, mask, in.form.Op+": several lanes initialise one mbarrier at once, want one lane")
	}
	w.cta.cluster.progress()
}

func mbarrierInval(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		c, at := w.sharedOf(in, isa.Shared, w.shared32(&in.args[0], l), l)
		if b := c.shared.mbar[at]; b != nil && b.sync != nil {
			w.deny(in, 1<<l, w.cta.cluster.races.unmade(w, in, l, b, at))
		}
		if err := c.shared.mbar.inval(at); err != nil {
			w.barrierError(in, l, at, err)
		}
		c.shared.setBarrier(at, false)
		c.usesBarrier(mbarrierObject, uint64(at), toWrite, 0, false, nil)
	}
}

func (w *warp) barrierError(in *inst, l int, at uint32, err error) outcome {
	kind := BarrierMisuse
	if at%mbarrierBytes != 0 {
		kind = Misaligned
	}
	return w.fault(in, kind, 1<<l, "%s at %s: %v", in.form.Op, w.cta.symbolic(at), err)
}

// mbarrierAt returns the mbarrier at the address of an operand, which is the same in the given
// lanes.
func (w *warp) mbarrierAt(in *inst, space isa.Space, address uint32, lanes uint32) *mbarrier {
	l := first(lanes)
	c, at := w.sharedOf(in, space, address, l)
	b, err := c.shared.mbar.at(at)
	if err != nil {
		w.barrierError(in, l, at, err)
	}
	if r := c.cluster.races; r != nil {
		w.deny(in, 1<<l, r.uses(w, in, lanes, c, b, at))
	}
	return b
}

// mbarrierArrive executes mbarrier.arrive and mbarrier.arrive.expect_tx. The mbarrier may be in
// another CTA.
func mbarrierArrive(w *warp, in *inst, mask uint32) {
	var given, ended, b *mbarrier
	var last, lanes uint32 // the previous lane's address, and the lanes that have this address too
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		at := w.shared32(&in.args[1], l)
		if m == mask || at != last {
			lanes = run(m, func(l int) bool { return w.shared32(&in.args[1], l) == at })
			b, last = w.mbarrierAt(in, in.space, at, lanes), at
		}
		if b == ended {
			w.fault(in, BarrierMisuse, m, "mbarrier %s completes its phase before %s of this %s have arrived: want a larger arrival count", w.cta.symbolic(at), laneList(m), in.form.Op)
		}
		phase := b.phase
		b.now = note(b.now, arrival{w, in})
		if r := w.cta.cluster.races; r != nil && given != b {
			r.release(w, lanes, &b.sync.now)
			given = b
		}
		var state mbarrierState
		var err error
		switch {
		case len(in.args) < 3:
			state, err = b.arrive(1)
		case in.form.Args[2].Name == "count":
			state, err = b.arrive(w.r32[in.slot[2]][l])
		default:
			b.announced = note(b.announced, arrival{w, in})
			state, err = b.arriveExpectTx(w.r32[in.slot[2]][l])
		}
		if err != nil {
			w.barrierError(in, l, at, err)
		}
		if in.form.Args[0].Kind == isa.Reg {
			w.r64[in.slot[0]][l] = uint64(state)
		}
		w.usesMbarrier(in, at, toArrive, phase, b.phase != phase)
		if b.phase != phase {
			ended = b
			w.cta.cluster.event()
		}
	}
	w.cta.cluster.progress()
}

// mbarrierTx executes expect_tx, which announces bytes, and complete_tx, which counts bytes as
// complete. Neither counts as an arrival.
func mbarrierTx(w *warp, in *inst, mask uint32) {
	for l := range lanesIn(mask) {
		at := w.shared32(&in.args[0], l)
		b := w.mbarrierAt(in, in.space, at, 1<<l)
		b.announced = note(b.announced, arrival{w, in})
		phase, change := b.phase, b.expectTx
		if in.form.ID == isa.MbarrierCompleteTx {
			change = b.completeTx
			b.now = note(b.now, arrival{w, in})
		}
		if err := change(w.r32[in.slot[1]][l]); err != nil {
			w.barrierError(in, l, at, err)
		}
		if w.usesMbarrier(in, at, toArrive, phase, b.phase != phase); b.phase != phase {
			w.cta.cluster.event()
		}
	}
	w.cta.cluster.progress()
}

// testPhase returns the lanes whose phase has completed. Parameter how says whether the instruction
// waits for the phase or only reads the mbarrier's state; a schedule of Explore records how the
// mbarrier was used.
func (w *warp) testPhase(in *inst, mask uint32, how use) (done uint32) {
	byState := in.byState()
	var last struct { // result of the previous lane, because usually all lanes test the same phase
		at    uint32
		phase uint64
		yes   bool
	}
	var passed *mbarrier // the mbarrier whose phase is complete for the lanes of passing
	passing := uint32(0)
	know := func() {
		if r := w.cta.cluster.races; r != nil && passing != 0 {
			r.waited(w, passing, passed)
		}
		passing = 0
	}
	for m := mask; m != 0; m &= m - 1 {
		l := first(m)
		at := w.shared32(&in.args[1], l)
		var phase uint64
		if byState {
			phase = w.r64[in.slot[2]][l]
		} else {
			phase = uint64(w.r32[in.slot[2]][l])
		}
		if m == mask || at != last.at || phase != last.phase {
			b := w.mbarrierAt(in, isa.Shared, at, run(m, func(l int) bool { return w.shared32(&in.args[1], l) == at }))
			yes, err := false, error(nil)
			if byState {
				yes, err = b.waitState(mbarrierState(phase))
			} else {
				yes, err = b.waitParity(uint32(phase))
			}
			if err != nil {
				w.barrierError(in, l, at, err)
			}
			know()
			passed = b
			if yes || how == toRead {
				w.usesMbarrier(in, at, how, b.phase, false)
			}
			last.at, last.phase, last.yes = at, phase, yes
		}
		if last.yes {
			done |= 1 << l
			passing |= 1 << l
		}
	}
	know()
	if done != 0 {
		w.passed(last.at)
	}
	return done
}

// mbarrierTryWait suspends the fragment until one of its lanes may continue. The other lanes then
// get false: the manual lets try_wait return false at any time. Except under Early and under a
// schedule, all lanes get false once before the fragment is suspended. This exposes kernels that
// ignore the result.
func mbarrierTryWait(w *warp, f *frag, in *inst, mask uint32) outcome {
	done := w.testPhase(in, mask, toWait)
	if done == 0 && (f.tried || w.cta.cluster.grid.launch.Timing == Early || w.cta.cluster.schedule != nil) {
		return waiting
	}
	f.tried = done == 0
	w.setPred(in.slot[0], done, mask)
	return next
}

// mbarrierTestWait executes mbarrier.test_wait, which never suspends.
func mbarrierTestWait(w *warp, _ *frag, in *inst, mask uint32) outcome {
	done := w.testPhase(in, mask, toRead)
	w.setPred(in.slot[0], done, mask)
	if done != mask {
		w.cta.cluster.polls++
		w.polls(in)
		return yielded
	}
	return next
}

// byState reports whether the instruction names the phase by an mbarrier state, not by a parity.
func (in *inst) byState() bool { return in.args[2].bank == bank64 }

// phaseBarrier returns the name of the mbarrier at which fragment f waits, for messages.
func phaseBarrier(w *warp, f *frag, in *inst) string {
	return "mbarrier " + w.cta.symbolic(w.shared32(&in.args[1], first(f.mask)))
}

func waitsForPhase(w *warp, f *frag, in *inst) need {
	l := first(f.mask)
	at := w.shared32(&in.args[1], l)
	parity := uint32(0)
	if in.byState() {
		phase, _, _ := mbarrierState(w.r64[in.slot[2]][l]).parts() // testPhase has checked the state
		parity = uint32(phase & 1)
	} else {
		parity = w.r32[in.slot[2]][l]
	}
	return w.cta.cluster.needPhase(w, f, w.cta, at&sharedOffset, parity)
}
