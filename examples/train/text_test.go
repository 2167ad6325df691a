package main

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCorpus(t *testing.T) {
	c := newCorpus(strings.Repeat("banana ", 40))
	assert.Equal(t, " abn", string(c.alphabet))
	assert.Equal(t, []uint8{2, 1, 3, 1, 3, 1, 0}, c.symbols[:7])
	assert.Equal(t, "banana ", c.text(c.symbols[:7]))
	for at, want := range map[int]bool{0: false, 62: false, 63: true, 69: true, 70: false, 133: true, 279: true} {
		assert.Equal(t, want, c.isHeldOut(at), at)
	}
	assert.Equal(t, 63, c.firstHeldOut())
}

// TestBatches checks that batches are parts of the text. Held-out parts must not be used in
// training and must be complete.
func TestBatches(t *testing.T) {
	const tokens, window = 200, 64 // a window is long enough that no two windows of the text are equal
	c := newCorpus(queries)
	check := func(b batch, held bool, seen map[int]bool) {
		assert.Len(t, b.next, tokens)
		for i, next := range b.next {
			var around []uint8
			for j := window - 1; j >= 0; j-- {
				around = append(around, b.before[i*window+j])
			}
			at := strings.Index(queries, c.text(append(around, next)))
			assert.Positive(t, at+1)
			assert.Equal(t, held, c.isHeldOut(at+window))
			seen[at] = true
		}
	}
	check(c.draw(rand.New(rand.NewPCG(1, 1)), tokens, window), false, map[int]bool{})
	seen := map[int]bool{}
	for _, b := range c.heldOut(tokens, window) {
		check(b, true, seen)
	}
	assert.Len(t, seen, len(queries)/10/tokens*tokens)
}
