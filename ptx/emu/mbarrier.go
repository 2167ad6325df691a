package emu

import "fmt"

// Limits of an mbarrier object.
const (
	mbarrierMaxCount = 1<<20 - 1 // arrivals a phase
	mbarrierMaxTx    = 1<<20 - 1 // magnitude of the transaction count
	mbarrierBytes    = 8
)

// mbarrier is one mbarrier object. It lives beside shared memory, in an
// mbarrierTable, rather than in the 8 bytes of its address: its layout there is
// opaque by contract, so no program can tell, and beside it there is room for
// a whole phase number and for telling a live object from stray bytes.
type mbarrier struct {
	phase    uint64 // completed phases
	expected int32  // arrivals of each phase
	pending  int32  // arrivals still missing in this phase
	tx       int32  // bytes still missing; negative when copies outrun expect_tx
	// seen: a wait has returned true for the phase before this one. Arriving
	// without it risks a waiter two phases late, which parity cannot tell.
	seen bool
	// now are those that took part in this phase, before in the one before: for
	// messages.
	now, before []arrival
	sync        *phases // nil: races are not looked for
}

// String says what the object waits for.
func (b *mbarrier) String() string {
	return fmt.Sprintf("phase %d, %d of %d arrivals and %d bytes missing", b.phase, b.pending, b.expected, b.tx)
}

// expectTx is mbarrier.expect_tx: this phase waits for n more bytes.
func (b *mbarrier) expectTx(n uint32) error {
	if n > mbarrierMaxTx || b.tx+int32(n) > mbarrierMaxTx {
		return fmt.Errorf("expect_tx of %d bytes with %d outstanding: one phase holds at most %d", n, b.tx, mbarrierMaxTx)
	}
	b.tx += int32(n)
	return nil
}

// completeTx is mbarrier.complete_tx and the signal of a finished bulk copy.
// More bytes than expected are legal only while arrivals are missing, one of
// which may still bring its expect_tx.
func (b *mbarrier) completeTx(n uint32) error {
	if n > mbarrierMaxTx || b.tx-int32(n) < -mbarrierMaxTx {
		return fmt.Errorf("complete_tx of %d bytes with %d outstanding: at most %d may run ahead of expect_tx", n, b.tx, mbarrierMaxTx)
	}
	if b.pending == 0 && b.tx < int32(n) {
		return fmt.Errorf("complete_tx of %d bytes where only %d are outstanding and every arrival is in: expect_tx announced too little", n, b.tx)
	}
	b.tx -= int32(n)
	b.check()
	return nil
}

// arrive is mbarrier.arrive with a count; it returns the state before it.
func (b *mbarrier) arrive(count uint32) (mbarrierState, error) {
	before := b.state()
	if count < 1 || count > mbarrierMaxCount {
		return 0, fmt.Errorf("arrive with count %d: must be 1 to %d", count, mbarrierMaxCount)
	}
	if int32(count) > b.pending {
		return 0, fmt.Errorf("arrive with count %d in a phase that misses %d arrivals (%v)", count, b.pending, b)
	}
	if int32(count) == b.pending && b.tx < 0 {
		return 0, fmt.Errorf("the last arrival of a phase in which copies completed %d bytes more than expect_tx announced", -b.tx)
	}
	b.pending -= int32(count)
	b.check()
	return before, nil
}

// arriveNoComplete is mbarrier.arrive.noComplete: an error if it would end the phase.
func (b *mbarrier) arriveNoComplete(count uint32) (mbarrierState, error) {
	if int64(count) == int64(b.pending) && b.tx == 0 {
		return 0, fmt.Errorf("arrive.noComplete with count %d would complete the phase (%v)", count, b)
	}
	return b.arrive(count)
}

// arriveExpectTx is mbarrier.arrive.expect_tx, in one step.
func (b *mbarrier) arriveExpectTx(n uint32) (mbarrierState, error) {
	if b.pending < 1 {
		return b.arrive(1)
	}
	if err := b.expectTx(n); err != nil {
		return 0, err
	}
	return b.arrive(1)
}

// arriveDrop is mbarrier.arrive_drop: later phases expect count arrivals less.
func (b *mbarrier) arriveDrop(count uint32) (mbarrierState, error) {
	if int64(count) >= int64(b.expected) {
		return 0, fmt.Errorf("arrive_drop with count %d of %d expected arrivals: at least one must remain", count, b.expected)
	}
	if int64(count) > int64(b.pending) {
		return b.arrive(count) // its error says why
	}
	b.expected -= int32(count)
	return b.arrive(count)
}

// arriveDropExpectTx is mbarrier.arrive_drop.expect_tx, in one step.
func (b *mbarrier) arriveDropExpectTx(n uint32) (mbarrierState, error) {
	if b.pending < 1 {
		return b.arrive(1)
	}
	if err := b.expectTx(n); err != nil {
		return 0, err
	}
	return b.arriveDrop(1)
}

// asyncArrive is the part of cp.async.mbarrier.arrive done at once: without
// .noinc the phase waits for one arrival more. The deferred part, when the
// thread's copies are done, is arrive(1).
func (b *mbarrier) asyncArrive(noinc bool) error {
	if noinc {
		return nil
	}
	if b.pending == mbarrierMaxCount {
		return fmt.Errorf("cp.async.mbarrier.arrive raises the pending count over %d", mbarrierMaxCount)
	}
	b.pending++
	return nil
}

// check ends the phase when nothing is missing.
func (b *mbarrier) check() {
	if b.pending == 0 && b.tx == 0 {
		b.phase++
		b.pending = b.expected
		b.seen = false
		b.now, b.before = b.before[:0], b.now
		if b.sync != nil {
			b.sync.end()
		}
	}
}

// waitParity is test_wait.parity and try_wait.parity: whether the phase with
// that parity is the one just completed. On a fresh object parity 1 is true.
func (b *mbarrier) waitParity(parity uint32) (bool, error) {
	if parity > 1 {
		return false, fmt.Errorf("wait.parity with parity %d: must be 0 or 1", parity)
	}
	done := uint32(b.phase&1) != parity
	b.seen = b.seen || done
	return done, nil
}

// waitState is test_wait and try_wait with the state that an arrive returned.
func (b *mbarrier) waitState(s mbarrierState) (bool, error) {
	phase, _, err := s.parts()
	if err != nil {
		return false, err
	}
	switch now := b.phase & mbarrierPhaseMask; now {
	case phase:
		return false, nil
	case (phase + 1) & mbarrierPhaseMask:
		b.seen = true
		return true, nil
	default:
		return false, fmt.Errorf("wait on the state of phase %d in phase %d: only the current phase and the one before can be waited for", phase, now)
	}
}

// mbarrierState is the opaque result of an arrive: bits 0-19 the pending
// count, 20-59 the phase, both before the arrive, and a mark at the top.
type mbarrierState uint64

const (
	mbarrierPhaseMask = 1<<40 - 1
	mbarrierStateMark = 0xb
)

func (b *mbarrier) state() mbarrierState {
	return mbarrierState(mbarrierStateMark<<60 | b.phase&mbarrierPhaseMask<<20 | uint64(b.pending))
}

func (s mbarrierState) parts() (phase uint64, pending uint32, err error) {
	if s>>60 != mbarrierStateMark {
		return 0, 0, fmt.Errorf("%#x is no state that an mbarrier.arrive returned", uint64(s))
	}
	return uint64(s) >> 20 & mbarrierPhaseMask, uint32(s & mbarrierMaxCount), nil
}

// pendingCount is mbarrier.pending_count.
func (s mbarrierState) pendingCount() (uint32, error) {
	_, n, err := s.parts()
	return n, err
}

// mbarrierTable holds the live objects of one CTA by shared address.
type mbarrierTable map[uint32]*mbarrier

// init is mbarrier.init.
func (t mbarrierTable) init(address, count uint32) error {
	if address%mbarrierBytes != 0 {
		return fmt.Errorf("mbarrier.init at %#x: must be a multiple of %d", address, mbarrierBytes)
	}
	if count < 1 || count > mbarrierMaxCount {
		return fmt.Errorf("mbarrier.init at %#x with count %d: must be 1 to %d", address, count, mbarrierMaxCount)
	}
	if b := t[address]; b != nil {
		return fmt.Errorf("mbarrier.init at %#x, which holds a live object (%v): mbarrier.inval it first", address, b)
	}
	t[address] = &mbarrier{expected: int32(count), pending: int32(count), seen: true}
	return nil
}

// at finds the live object that an instruction names.
func (t mbarrierTable) at(address uint32) (*mbarrier, error) {
	if b := t[address]; b != nil {
		return b, nil
	}
	if address%mbarrierBytes != 0 {
		return nil, fmt.Errorf("mbarrier at %#x: must be a multiple of %d", address, mbarrierBytes)
	}
	return nil, fmt.Errorf("no mbarrier at %#x: mbarrier.init has not run there, or mbarrier.inval has", address)
}

// inval is mbarrier.inval; the bytes may then be used for anything.
func (t mbarrierTable) inval(address uint32) error {
	if _, err := t.at(address); err != nil {
		return err
	}
	delete(t, address)
	return nil
}

// overlapping finds a live object among the bytes that an ordinary access, or
// a copy, is about to touch; nothing but mbarrier instructions may.
func (t mbarrierTable) overlapping(address, bytes uint32) (at uint32, found bool) {
	if len(t) == 0 || bytes == 0 {
		return 0, false
	}
	if bytes/mbarrierBytes > uint32(len(t)) {
		for a := range t {
			if a+mbarrierBytes > address && a < address+bytes && (!found || a < at) {
				at, found = a, true
			}
		}
		return at, found
	}
	for a := address &^ (mbarrierBytes - 1); a < address+bytes; a += mbarrierBytes {
		if t[a] != nil {
			return a, true
		}
	}
	return 0, false
}
