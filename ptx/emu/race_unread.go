package emu

import "fmt"

// A matrix descriptor for a tile that threads stored has no box to be compared with. If it is
// wrong, the products miss a part of the tile. With Launch.Unread, words that nothing has read
// when the CTA ends are a note, if a product has read other words of the same store instruction.

// storedTile counts the words of a CTA's shared memory that one instruction stored last.
type storedTile struct {
	store         *access
	product       *access // reads some of the words
	words, unread int
	firstUnread   uint32 // address
}

// unread notes the tiles of a CTA that products read in part.
func (r *races) unread(c *cta) {
	byLine := map[int]*storedTile{}
	var tiles []*storedTile
	for i := range c.shared.shadow {
		s := &c.shared.shadow[i]
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
				t.firstUnread = uint32(4 * i)
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
