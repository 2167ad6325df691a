//go:build cgo

package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestCallsOfWeights checks that each set of weights keeps its call between passes,
// that two passes at the same time have two calls, and that there are never more
// than mostCalls calls.
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
