package emu

import "fmt"

// If threads instead of TMA stored a tile, a matrix descriptor cannot be compared with a box. But a
// wrong descriptor misses a part of the tile. With Launch.Unread, there is a note at the end of a
// CTA for words that nothing has read, if a product has read other words of the same store
// instruction.

// storedTile counts the words of a CTA's shared memory whose latest store was by one instruction.
type storedTile struct {
	store         *access
	product       *access // a product that reads some of the words, or nil
	words, unread int
	firstUnread   uint32 // address of the first word that nothing has read
}

// unread notes the tiles of CTA c of which products have read only a part.
func (r *races) unread(c *cta) {
	byLine := map[int]*storedTile{}
	var tiles []*storedTile
	for at, s := range c.shared.shadowWords() {
		if s.write == nil || s.write.async || s.write.copy || s.write.warp.cta != c {
			continue
		}
		t := byLine[s.write.in.line]
		if t == nil {
			t = &storedTile{store: s.write}
			byLine[s.write.in.line] = t
			tiles = append(tiles, t)
		}
		t.words++
		if s.reads == nil {
			if t.unread++; t.unread == 1 {
				t.firstUnread = at
			}
		}
		for x := s.reads; x != nil && t.product == nil; x = x.next {
			if x.in.product != nil {
				t.product = x.access
			}
		}
	}
	for _, t := range tiles {
		if t.product != nil && t.unread > 0 {
			a := t.store
			a.warp.find(a.in, Note, IllegalDescriptor, fullMask, fmt.Sprintf("%s: %d of %d bytes that this instruction stores in the CTA are never read, the first at shared memory %s, although wgmma (%s) reads others: want matrix descriptors that cover the tile, or no such stores",
				a.in.form.Op, 4*t.unread, 4*t.words, c.symbolic(t.firstUnread), r.cl.place(t.product.in)))
		}
	}
}
