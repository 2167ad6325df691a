package emu

import "fmt"

// Limits of an mbarrier object.
const (
	mbarrierMaxCount = 1<<20 - 1 // largest number of arrivals of a phase
	mbarrierMaxTx    = 1<<20 - 1 // largest magnitude of the transaction count
	mbarrierBytes    = 8
)

// mbarrier is the state of one mbarrier object. The emulator keeps it in an mbarrierTable instead
// of the 8 bytes at its address in shared memory. PTX leaves the layout of these bytes opaque, so
// no program can see the difference. An object in the table has room for a full phase number. Also,
// bytes that other code has stored in shared memory cannot be taken for an mbarrier.
type mbarrier struct {
	phase    uint64 // number of completed phases
	expected int32  // arrivals that each phase needs
	pending  int32  // arrivals that the present phase still lacks
	tx       int32  // bytes that the present phase still lacks; negative if copies complete before expect_tx
	// seen reports whether some wait has returned true for the previous phase. If a thread arrives
	// before a wait has returned true, a waiting thread may fall two phases behind, and the parity
	// does not show this.
	seen bool
	// Field now lists the arrivals in the present phase. Field before lists the arrivals in the
	// previous phase. Messages use both lists.
	now, before []arrival
	// announced lists the instructions that announced bytes in the present phase. bytes is the
	// number of bytes that copies have completed in the present phase.
	announced []arrival
	bytes     uint32
	sync      *phases // knowledge for the race checks; nil without race checks
}

// String says what the mbarrier waits for.
func (b *mbarrier) String() string {
	return fmt.Sprintf("phase %d lacks %d of %d arrivals and %d bytes", b.phase, b.pending, b.expected, b.tx)
}

// expectTx executes mbarrier.expect_tx: the present phase waits for n more bytes.
func (b *mbarrier) expectTx(n uint32) error {
	if n > mbarrierMaxTx || b.tx+int32(n) > mbarrierMaxTx {
		return fmt.Errorf("expect_tx of %d bytes with %d outstanding, want at most %d in one phase", n, b.tx, mbarrierMaxTx)
	}
	b.tx += int32(n)
	return nil
}

// completeTx executes mbarrier.complete_tx, and the signal of a completed bulk copy. More bytes
// than expected may complete only while arrivals are missing, because a missing arrival may still
// announce bytes with expect_tx.
func (b *mbarrier) completeTx(n uint32) error {
	if n > mbarrierMaxTx || b.tx-int32(n) < -mbarrierMaxTx {
		return fmt.Errorf("complete_tx of %d bytes with %d outstanding, want at most %d bytes ahead of expect_tx", n, b.tx, mbarrierMaxTx)
	}
	if b.pending == 0 && b.tx < int32(n) {
		return fmt.Errorf("complete_tx of %d bytes, but only %d are outstanding and no arrival is missing: expect_tx announced too few bytes", n, b.tx)
	}
	b.tx -= int32(n)
	b.bytes += n
	b.check()
	return nil
}

// arrive executes mbarrier.arrive with a count. It returns the state before the arrival.
func (b *mbarrier) arrive(count uint32) (mbarrierState, error) {
	before := b.state()
	if count < 1 || count > mbarrierMaxCount {
		return 0, fmt.Errorf("arrive has count %d, want 1 to %d", count, mbarrierMaxCount)
	}
	if int32(count) > b.pending {
		return 0, fmt.Errorf("arrive has count %d, but the phase misses only %d arrivals (%v)", count, b.pending, b)
	}
	if int32(count) == b.pending && b.tx < 0 {
		return 0, fmt.Errorf("the last arrival of the phase comes when copies have completed %d bytes more than expect_tx announced", -b.tx)
	}
	b.pending -= int32(count)
	b.check()
	return before, nil
}

// arriveExpectTx executes mbarrier.arrive.expect_tx as one step.
func (b *mbarrier) arriveExpectTx(n uint32) (mbarrierState, error) {
	if b.pending < 1 {
		return b.arrive(1)
	}
	if err := b.expectTx(n); err != nil {
		return 0, err
	}
	return b.arrive(1)
}

// check completes the phase if it lacks neither arrivals nor bytes.
func (b *mbarrier) check() {
	if b.pending == 0 && b.tx == 0 {
		b.phase++
		b.pending = b.expected
		b.seen = false
		b.now, b.before = b.before[:0], b.now
		b.announced, b.bytes = b.announced[:0], 0
		if b.sync != nil {
			b.sync.end()
		}
	}
}

// waitParity executes test_wait.parity and try_wait.parity. It reports whether the phase with the
// given parity is the one that completed last. For a fresh object, this is the phase of parity 1.
func (b *mbarrier) waitParity(parity uint32) (bool, error) {
	if parity > 1 {
		return false, fmt.Errorf("wait.parity has parity %d, want 0 or 1", parity)
	}
	done := uint32(b.phase&1) != parity
	b.seen = b.seen || done
	return done, nil
}

// waitState executes test_wait and try_wait with the state s that an arrive returned.
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
		return false, fmt.Errorf("wait with the state of phase %d in phase %d, want the state of this phase or the previous one", phase, now)
	}
}

// mbarrierState is the opaque value that an arrive returns. Bits 0 to 19 hold the pending count
// before the arrive, bits 20 to 59 the phase, and the bits above a mark by which waitState
// recognises a state.
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
		return 0, 0, fmt.Errorf("%#x is not a state that mbarrier.arrive returned", uint64(s))
	}
	return uint64(s) >> 20 & mbarrierPhaseMask, uint32(s & mbarrierMaxCount), nil
}

// mbarrierTable maps shared addresses to the mbarrier objects of one CTA.
type mbarrierTable map[uint32]*mbarrier

// init executes mbarrier.init.
func (t mbarrierTable) init(address, count uint32) error {
	if address%mbarrierBytes != 0 {
		return fmt.Errorf("mbarrier.init at %#x, want a multiple of %d", address, mbarrierBytes)
	}
	if count < 1 || count > mbarrierMaxCount {
		return fmt.Errorf("mbarrier.init at %#x with count %d, want 1 to %d", address, count, mbarrierMaxCount)
	}
	if b := t[address]; b != nil {
		return fmt.Errorf("mbarrier.init at %#x, which holds a live object (%v): want mbarrier.inval before", address, b)
	}
	t[address] = &mbarrier{expected: int32(count), pending: int32(count), seen: true}
	return nil
}

// at returns the mbarrier object at an address. It is an error if there is none.
func (t mbarrierTable) at(address uint32) (*mbarrier, error) {
	if b := t[address]; b != nil {
		return b, nil
	}
	if address%mbarrierBytes != 0 {
		return nil, fmt.Errorf("mbarrier at %#x, want a multiple of %d", address, mbarrierBytes)
	}
	return nil, fmt.Errorf("no mbarrier at %#x: mbarrier.init has not run there, or mbarrier.inval ended it", address)
}

// inval executes mbarrier.inval. Afterwards other data may occupy the 8 bytes.
func (t mbarrierTable) inval(address uint32) error {
	if _, err := t.at(address); err != nil {
		return err
	}
	delete(t, address)
	return nil
}
