package main

import (
	_ "embed"
	"math/rand/v2"
	"slices"
)

// queries is the part "Queries" at the end of Isaac Newton's Opticks (fourth edition, 1730), in
// plain ASCII. The text is in the public domain. The transcription is by Suzanne Lybarger,
// Steve Harris, Josephine Paolucci and Distributed Proofreaders, for Project Gutenberg.
//
//go:embed queries.txt
var queries string

// corpus is a text as symbols. A symbol is the index of a byte in the alphabet. The text is cut
// into stretches of equal length, and every tenth stretch is held out from training. Held-out
// stretches are thus spread over the text, whose parts differ.
type corpus struct {
	alphabet []byte // ascending
	symbols  []uint8
	stretch  int // length in bytes
}

const (
	stretches    = 40
	heldOutEvery = 10 // every tenth stretch is held out
)

// newCorpus returns the corpus of a text. The text must have more bytes than there are
// stretches.
func newCorpus(text string) *corpus {
	c := &corpus{alphabet: []byte(text), symbols: make([]uint8, len(text)), stretch: len(text) / stretches}
	slices.Sort(c.alphabet)
	c.alphabet = slices.Compact(c.alphabet)
	for i := range c.symbols {
		at, _ := slices.BinarySearch(c.alphabet, text[i])
		c.symbols[i] = uint8(at)
	}
	return c
}

// isHeldOut reports whether the symbol at a position is held out. Training never predicts a
// held-out symbol.
func (c *corpus) isHeldOut(at int) bool { return at/c.stretch%heldOutEvery == heldOutEvery-1 }

// firstHeldOut returns the first position of the first held-out stretch.
func (c *corpus) firstHeldOut() int { return (heldOutEvery - 1) * c.stretch }

// text returns symbols as text.
func (c *corpus) text(symbols []uint8) string {
	bytes := make([]byte, len(symbols))
	for i, s := range symbols {
		bytes[i] = c.alphabet[s]
	}
	return string(bytes)
}

// batch holds the positions of the text from which one pass learns.
type batch struct {
	// before [T, context] holds the symbols before each position, the nearest first. next [T]
	// holds the symbol at each position.
	before, next []uint8
	context      int
}

// draw returns a batch of random positions that are not held out.
func (c *corpus) draw(r *rand.Rand, tokens, context int) batch {
	b := batch{context: context}
	for len(b.next) < tokens {
		if at := context + r.IntN(len(c.symbols)-context); !c.isHeldOut(at) {
			b.add(c, at)
		}
	}
	return b
}

// heldOut returns all held-out positions in batches of the given number of tokens. It drops the
// last positions, which do not fill a batch.
func (c *corpus) heldOut(tokens, context int) []batch {
	var all []batch
	b := batch{context: context}
	for at := context; at < len(c.symbols); at++ {
		if c.isHeldOut(at) {
			b.add(c, at)
		}
		if len(b.next) == tokens {
			all, b = append(all, b), batch{context: context}
		}
	}
	return all
}

// add adds a position of the text to the batch.
func (b *batch) add(c *corpus, at int) {
	b.next = append(b.next, c.symbols[at])
	for i := range b.context {
		b.before = append(b.before, c.symbols[at-1-i])
	}
}
