package main

import (
	_ "embed"
	"math/rand/v2"
	"slices"
)

// queries are the Queries at the end of Isaac Newton's Opticks (fourth edition,
// 1730), as plain ASCII.
//
//go:embed queries.txt
var queries string

// corpus is a text as symbols, the places of its bytes in their alphabet.
type corpus struct {
	alphabet []byte // ascending
	symbols  []uint8
	// trained is how many symbols training sees; the rest is held out.
	trained int
}

// newCorpus takes a text whose last tenth is held out. The text must have more
// than 10 times as many bytes as a model's context.
func newCorpus(text string) *corpus {
	c := &corpus{alphabet: []byte(text), symbols: make([]uint8, len(text)), trained: len(text) / 10 * 9}
	slices.Sort(c.alphabet)
	c.alphabet = slices.Compact(c.alphabet)
	for i := range c.symbols {
		at, _ := slices.BinarySearch(c.alphabet, text[i])
		c.symbols[i] = uint8(at)
	}
	return c
}

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

// draw takes random places from first to last-1 of the text.
func (c *corpus) draw(r *rand.Rand, tokens, context, first, last int) batch {
	b := batch{context: context}
	for range tokens {
		at := first + context + r.IntN(last-first-context)
		b.next = append(b.next, c.symbols[at])
		for i := range context {
			b.before = append(b.before, c.symbols[at-1-i])
		}
	}
	return b
}

// drawTrained takes places of the part to learn, drawHeldOut of the rest.
func (c *corpus) drawTrained(r *rand.Rand, tokens, context int) batch {
	return c.draw(r, tokens, context, 0, c.trained)
}

func (c *corpus) drawHeldOut(r *rand.Rand, tokens, context int) batch {
	return c.draw(r, tokens, context, c.trained, len(c.symbols))
}
