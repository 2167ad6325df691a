//go:build cgo

package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/driver"
)

// TestCallsOfWeights checks three things: each set of weights keeps its call between passes, two
// passes at the same time have two calls, and a layer never has more than mostCalls calls.
func TestCallsOfWeights(t *testing.T) {
	l := &layer{} // the calls of this layer never run
	first, second := l.borrow(1), l.borrow(1)
	assert.NotSame(t, first, second)
	l.giveBack(1, first)
	other := l.borrow(2)
	assert.NotSame(t, first, other)
	l.giveBack(2, other)
	assert.Same(t, first, l.borrow(1))
	l.giveBack(1, first)
	assert.Same(t, other, l.borrow(2))
	l.giveBack(2, other)
	for w1 := range uint64(3 * mostCalls) {
		l.giveBack(w1+10, l.borrow(w1+10))
	}
	assert.Equal(t, mostCalls, l.calls)
	assert.Len(t, l.idle, mostCalls-1, "one was never given back")
}

// TestHandlesAreGivenOnce checks that a closed handle stays an error, because its number is not
// used again.
func TestHandlesAreGivenOnce(t *testing.T) {
	first := keep(&layer{})
	require.Zero(t, sm_go_close(first))
	second := keep(&layer{})
	assert.NotEqual(t, first, second)
	_, err := find[*layer](first)
	assert.ErrorContains(t, err, "which is closed")
	assert.NotZero(t, sm_go_close(first))
	_, err = find[*layer](second)
	assert.NoError(t, err)
	assert.Zero(t, sm_go_close(second))
}

// TestStatusOfAPanic checks that a panic in the library becomes a status, as an error does.
func TestStatusOfAPanic(t *testing.T) {
	assert.Zero(t, guarded(func() error { return nil }))
	assert.EqualValues(t, 6, guarded(func() error { panic("a mistake") }))
	assert.EqualValues(t, 6, guarded(func() error { return errors.New("a failure") }))
	assert.EqualValues(t, 1, guarded(func() error { return driver.ErrInvalid }))
}
