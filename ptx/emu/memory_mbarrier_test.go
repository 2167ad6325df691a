package emu

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newBarrier returns a fresh mbarrier that expects count arrivals in each phase.
func newBarrier(t *testing.T, count uint32) *mbarrier {
	t.Helper()
	table := mbarrierTable{}
	require.NoError(t, table.init(64, count))
	b, err := table.at(64)
	require.NoError(t, err)
	return b
}

// barrierStep is one operation on an mbarrier.
type barrierStep struct {
	do   func(b *mbarrier) error
	want string // text of the barrier's state after the step; if fails is set, a part of the error's text
	fail bool
}

func arrive(n uint32) func(*mbarrier) error {
	return func(b *mbarrier) error { _, err := b.arrive(n); return err }
}
func arriveExpect(n uint32) func(*mbarrier) error {
	return func(b *mbarrier) error { _, err := b.arriveExpectTx(n); return err }
}
func expect(n uint32) func(*mbarrier) error {
	return func(b *mbarrier) error { return b.expectTx(n) }
}
func complete(n uint32) func(*mbarrier) error {
	return func(b *mbarrier) error { return b.completeTx(n) }
}

func TestMbarrierTransitions(t *testing.T) {
	ok := func(do func(*mbarrier) error, want string) barrierStep { return barrierStep{do, want, false} }
	fails := func(do func(*mbarrier) error, want string) barrierStep { return barrierStep{do, want, true} }
	tests := []struct {
		name  string
		count uint32
		steps []barrierStep
	}{
		{"arrivals end a phase", 3, []barrierStep{
			ok(arrive(1), "phase 0 lacks 2 of 3 arrivals and 0 bytes"),
			ok(arrive(2), "phase 1 lacks 3 of 3 arrivals and 0 bytes"),
		}},
		{"bytes before arrivals are over", 1, []barrierStep{
			ok(arriveExpect(96), "phase 0 lacks 0 of 1 arrivals and 96 bytes"),
			ok(complete(64), "phase 0 lacks 0 of 1 arrivals and 32 bytes"),
			fails(complete(64), "announced too few bytes"),
			fails(arrive(1), "misses only 0 arrivals"),
			fails(arriveExpect(32), "misses only 0 arrivals"),
			ok(complete(32), "phase 1 lacks 1 of 1 arrivals and 0 bytes"),
		}},
		{"a copy faster than its expect_tx", 1, []barrierStep{
			ok(complete(64), "phase 0 lacks 1 of 1 arrivals and -64 bytes"),
			fails(arrive(1), "64 bytes more than expect_tx announced"),
			ok(arriveExpect(64), "phase 1 lacks 1 of 1 arrivals and 0 bytes"),
		}},
		{"expect_tx alone does not end a phase", 1, []barrierStep{
			ok(expect(16), "phase 0 lacks 1 of 1 arrivals and 16 bytes"),
			ok(arrive(1), "phase 0 lacks 0 of 1 arrivals and 16 bytes"),
			ok(expect(16), "phase 0 lacks 0 of 1 arrivals and 32 bytes"),
			ok(complete(32), "phase 1 lacks 1 of 1 arrivals and 0 bytes"),
		}},
		{"arrive.expect_tx of 0 bytes", 1, []barrierStep{
			ok(arriveExpect(0), "phase 1 lacks 1 of 1 arrivals and 0 bytes"),
		}},
		{"too many arrivals", 2, []barrierStep{
			fails(arrive(3), "count 3, but the phase misses only 2"),
			fails(arrive(0), "want 1 to 1048575"),
			fails(arrive(1<<20), "want 1 to 1048575"),
		}},
		{"transaction count overflows", 1, []barrierStep{
			ok(expect(1<<20-1), "phase 0 lacks 1 of 1 arrivals and 1048575 bytes"),
			fails(expect(1), "at most 1048575"),
			fails(expect(1<<31), "at most 1048575"),
			ok(complete(1<<20-1), "phase 0 lacks 1 of 1 arrivals and 0 bytes"),
			ok(complete(1<<20-1), "phase 0 lacks 1 of 1 arrivals and -1048575 bytes"),
			fails(complete(1), "at most 1048575"),
			fails(complete(1<<31), "at most 1048575"),
		}},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			b := newBarrier(t, c.count)
			for i, s := range c.steps {
				err := s.do(b)
				if s.fail {
					require.ErrorContains(t, err, s.want, "step %d", i)
					continue
				}
				require.NoError(t, err, "step %d", i)
				require.Equal(t, s.want, b.String(), "step %d", i)
			}
		})
	}
}

func TestMbarrierParity(t *testing.T) {
	b := newBarrier(t, 1)
	wait := func(p uint32) bool {
		done, err := b.waitParity(p)
		require.NoError(t, err)
		return done
	}
	// For a fresh object, the phase with parity 1 counts as complete.
	assert.True(t, wait(1))
	assert.False(t, wait(0))
	for phase := range uint32(5) {
		_, err := b.arrive(1)
		require.NoError(t, err)
		assert.False(t, b.seen)
		assert.False(t, wait(phase&1^1))
		assert.False(t, b.seen, "a wait that fails has seen nothing")
		assert.True(t, wait(phase&1))
		assert.True(t, b.seen)
	}
	_, err := b.waitParity(2)
	assert.ErrorContains(t, err, "want 0 or 1")
}

func TestMbarrierRing(t *testing.T) {
	// A producer and a consumer use a ring of two stages in lock step.
	const stages, passes = 2, 9
	var full, empty [stages]*mbarrier
	for s := range stages {
		full[s], empty[s] = newBarrier(t, 1), newBarrier(t, 2)
	}
	for i := range passes {
		s, parity := i%stages, uint32(i/stages&1)
		done, err := empty[s].waitParity(parity ^ 1)
		require.NoError(t, err)
		require.True(t, done)
		_, err = full[s].arriveExpectTx(4096)
		require.NoError(t, err)
		done, _ = full[s].waitParity(parity)
		require.False(t, done)
		require.NoError(t, full[s].completeTx(4096))
		done, _ = full[s].waitParity(parity)
		require.True(t, done)
		_, err = empty[s].arrive(2)
		require.NoError(t, err)
	}
}

func TestMbarrierState(t *testing.T) {
	b := newBarrier(t, 2)
	first, err := b.arrive(1)
	require.NoError(t, err)
	_, n, err := first.parts()
	require.NoError(t, err)
	assert.Equal(t, uint32(2), n, "the count before the arrive")
	done, err := b.waitState(first)
	require.NoError(t, err)
	assert.False(t, done)
	_, err = b.arrive(1)
	require.NoError(t, err)
	done, err = b.waitState(first)
	require.NoError(t, err)
	assert.True(t, done)
	_, err = b.arrive(2)
	require.NoError(t, err)
	_, err = b.waitState(first)
	assert.ErrorContains(t, err, "state of phase 0 in phase 2")
	_, err = b.waitState(12345)
	assert.ErrorContains(t, err, "is not a state")
}

func TestMbarrierTable(t *testing.T) {
	table := mbarrierTable{}
	assert.ErrorContains(t, table.init(4, 1), "multiple of 8")
	assert.ErrorContains(t, table.init(8, 0), "count 0")
	assert.ErrorContains(t, table.init(8, 1<<20), "count 1048576")
	require.NoError(t, table.init(64, 1<<20-1))
	assert.ErrorContains(t, table.init(64, 1), "live object")
	_, err := table.at(72)
	assert.ErrorContains(t, err, "mbarrier.init has not run")
	_, err = table.at(66)
	assert.ErrorContains(t, err, "multiple of 8")
	require.NoError(t, table.inval(64))
	assert.Error(t, table.inval(64))
	assert.NoError(t, table.init(64, 1))
}
