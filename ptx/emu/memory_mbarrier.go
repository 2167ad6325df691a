package emu

import "fmt"

// Limits of an mbarrier object.
const (
	mbarrierMaxCount = 1<<20 - 1 // arrivals per phase
	mbarrierMaxTx    = 1<<20 - 1 // largest magnitude of the transaction count
	mbarrierBytes    = 8
)

// mbarrier is one mbarrier object. It is kept outside shared memory, in an mbarrierTable, and
// not in the 8 bytes at its address. PTX leaves the layout of those bytes opaque, so no program
// can see the difference. This leaves room for a full phase number and separates live objects
// from stray bytes.
type mbarrier struct {
	phase    uint64 // number of completed phases
	expected int32  // arrivals that each phase needs
	pending  int32  // arrivals that the present phase still lacks
	tx       int32  // bytes that the present phase still lacks; negative if copies complete before expect_tx
	// seen reports whether a wait has returned true for the previous phase. Arriving before
	// that could leave a waiter two phases behind, which parity cannot detect.
	seen bool
	// now lists the arrivals of this phase, before those of the previous phase, for
	// messages.
	now, before []arrival
	// announced lists the instructions that announced bytes in this phase, and bytes is the
	// number of bytes that copies have brought.
	announced []arrival
	bytes     uint32
	sync      *phases // nil if races are not looked for
}

// String describes what the object waits for.
func (b *mbarrier) String() string {
	return fmt.Sprintf("phase %d lacks %d of %d arrivals and %d bytes", b.phase, b.pending, b.expected, b.tx)
}

// expectTx is mbarrier.expect_tx: this phase waits for n more bytes.
func (b *mbarrier) expectTx(n uint32) error {
	if n > mbarrierMaxTx || b.tx+int32(n) > mbarrierMaxTx {
		return fmt.Errorf("expect_tx of %d bytes with %d outstanding, want at most %d in one phase", n, b.tx, mbarrierMaxTx)
	}
	b.tx += int32(n)
	return nil
}

// completeTx is mbarrier.complete_tx, and the signal of a completed bulk copy. Completing more
// bytes than expected is legal only while arrivals are missing, because one of those may still
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

// arrive executes mbarrier.arrive with a count, and returns the state before the arrival.
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

// check completes the phase if no arrival and no byte is missing.
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

// waitParity is test_wait.parity and try_wait.parity: it reports whether the phase with the
// given parity is the one just completed. For a fresh object parity 1 is true.
func (b *mbarrier) waitParity(parity uint32) (bool, error) {
	if parity > 1 {
		return false, fmt.Errorf("wait.parity has parity %d, want 0 or 1", parity)
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
		return false, fmt.Errorf("wait with the state of phase %d in phase %d, want the state of this phase or the previous one", phase, now)
	}
}

// mbarrierState is the opaque result of an arrive: bits 0-19 hold the pending count and 20-59
// the phase, both before the arrive; the top bits hold a mark.
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

// mbarrierTable holds the live objects of one CTA by shared address.
type mbarrierTable map[uint32]*mbarrier

// init is mbarrier.init.
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

// at returns the live object at an address.
func (t mbarrierTable) at(address uint32) (*mbarrier, error) {
	if b := t[address]; b != nil {
		return b, nil
	}
	if address%mbarrierBytes != 0 {
		return nil, fmt.Errorf("mbarrier at %#x, want a multiple of %d", address, mbarrierBytes)
	}
	return nil, fmt.Errorf("no mbarrier at %#x: mbarrier.init has not run there, or mbarrier.inval ended it", address)
}

// inval executes mbarrier.inval. Afterwards the 8 bytes may hold anything.
func (t mbarrierTable) inval(address uint32) error {
	if _, err := t.at(address); err != nil {
		return err
	}
	delete(t, address)
	return nil
}
