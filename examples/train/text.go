package main

import (
	_ "embed"
	"math/rand/v2"
	"slices"
)

// queries are the Queries at the end of Isaac Newton's Opticks (fourth edition,
// 1730), as plain ASCII. The text is in the public domain; the transcription is
// by Suzanne Lybarger, Steve Harris, Josephine Paolucci and Distributed
// Proofreaders, for Project Gutenberg.
//
//go:embed queries.txt
var queries string

// corpus is a text as symbols, the places of its bytes in their alphabet. It is
// cut into stretches, and training sees nine of ten: the text's parts differ, so
// its end alone would not stand for all of it.
type corpus struct {
	alphabet []byte // ascending
	symbols  []uint8
	stretch  int // bytes
}

const (
	stretches    = 40
	heldOutEvery = 10 // every tenth stretch
)

// newCorpus takes a text of more than so many stretches of bytes.
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

// isHeldOut says whether the symbol at a place is never one to predict in
// training.
func (c *corpus) isHeldOut(at int) bool { return at/c.stretch%heldOutEvery == heldOutEvery-1 }

// firstHeldOut is where the first stretch begins that is held out.
func (c *corpus) firstHeldOut() int { return (heldOutEvery - 1) * c.stretch }

// text is how symbols read.
func (c *corpus) text(symbols []uint8) string {
	bytes := make([]byte, len(symbols))
	for i, s := range symbols {
		bytes[i] = c.alphabet[s]
	}
	return string(bytes)
}

// batch is what a pass learns from: places in a text.
type batch struct {
	// before [T, context] are the symbols before each place, the nearest first;
	// next [T] is the symbol there.
	before, next []uint8
	context      int
}

// draw takes random places of the text that are not held out.
func (c *corpus) draw(r *rand.Rand, tokens, context int) batch {
	b := batch{context: context}
	for len(b.next) < tokens {
		if at := context + r.IntN(len(c.symbols)-context); !c.isHeldOut(at) {
			b.add(c, at)
		}
	}
	return b
}

// heldOut are all places that are held out, in batches of so many; those at the
// end that fill none are left out.
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

// add adds a place.
func (b *batch) add(c *corpus, at int) {
	b.next = append(b.next, c.symbols[at])
	for i := range b.context {
		b.before = append(b.before, c.symbols[at-1-i])
	}
}
