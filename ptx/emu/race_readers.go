package emu

import "slices"

// The readers of a word. Most words are read by many warps and written by none, and many words
// have the same readers in the same order. Sets of readers are therefore lists that share their
// tails, and one access makes one list of all equal ones. A set keeps no read that is ordered
// before a later one: a write that is ordered after the later read is ordered after both.

// readers is the set of latest reads of a word. It also holds writes that need no order between
// them, strong writes and stores of the same value, and writes of bytes that the latest write
// left. A set never changes.
type readers struct {
	reader
	next *readers
	some bool // some are writes
}

// reader is an access with the lanes that read or wrote the word, and the bytes.
type reader struct {
	*access
	lanes uint32
	bytes uint8
}

// growth is the addition of a reader to a set.
type growth struct {
	old *readers
	reader
}

// recentReads holds the latest reads of a warp, by the numbers of their instructions.
type recentReads [16]*access

const (
	maxReaders = 1024    // of a word
	maxGrown   = 1 << 18 // sets that a cluster remembers
)

// add returns a set of readers with one more access.
func (r *races) add(old *readers, a *access, bytes uint8) *readers {
	g, l := growth{old, reader{a, r.by, bytes}}, first(r.by)
	if r.latest[l] != g {
		to, ok := r.grown[g]
		if !ok {
			if len(r.grown) > maxGrown {
				clear(r.grown)
			}
			to = r.grow(old, g.reader)
			r.grown[g] = to
		}
		r.latest[l], r.latestTo[l] = g, to
	}
	return r.latestTo[l]
}

// grow is add for a set that has not grown by this reader yet.
func (r *races) grow(old *readers, x reader) *readers {
	for o := old; o != nil; o = o.next {
		if o.access == x.access && o.bytes == x.bytes {
			if x.lanes&^o.lanes == 0 {
				return old
			}
			x.lanes |= o.lanes
		}
	}
	kept, last, tail := r.kept[:0], 0, old
	for o := old; o != nil && len(kept) < maxReaders; o = o.next {
		if r.outdated(&o.reader, &x) {
			last, tail = len(kept), o.next
			continue
		}
		kept = append(kept, o)
	}
	if len(kept) == maxReaders {
		last, tail = maxReaders/2, nil
	}
	for _, o := range slices.Backward(kept[:last]) {
		tail = r.with(tail, o.reader)
	}
	r.kept = kept
	return r.with(tail, x)
}

// with returns a set and one more reader.
func (r *races) with(old *readers, x reader) *readers {
	if len(r.room) == 0 {
		r.room = make([]readers, 64)
	}
	s := &r.room[0]
	r.room = r.room[1:]
	*s = readers{x, old, x.writes || old != nil && old.some}
	return s
}

// outdated reports whether a later access makes an earlier one superfluous in a set.
func (r *races) outdated(old, x *reader) bool {
	switch {
	case old.writes != x.writes || old.strong != x.strong || old.scope != x.scope || old.bytes&^x.bytes != 0:
		return false
	case old.component == x.component && old.site.cluster == x.site.cluster:
		return old.lanes&^x.lanes == 0 || r.unmet(old.access, old.lanes, x.access) == 0
	case x.writes:
		return false
	}
	return r.past(old.access, old.lanes, x.access)
}

// past reports whether an access by some lanes is ordered before the present lanes of a.
func (r *races) past(old *access, lanes uint32, a *access) bool {
	known := r.know(a.warp).Of(old.site.cluster, r.cluster)
	return old.knownIn(known.Seen) && r.uninformed(old, a) == 0 && r.unmet(old, lanes, a) == 0 && old.lacks(known, lanes) == 0
}

// keep forgets the accesses to the bytes of a new write, and keeps those to other bytes.
func (r *races) keep(s *shadowWord, mask uint8) {
	before := s.reads
	s.reads, s.read = nil, 0
	if mask == 0xf {
		return
	}
	add := func(x reader) {
		if x.bytes &^= mask; x.bytes != 0 {
			s.reads = r.with(s.reads, x)
			s.read |= x.bytes
		}
	}
	for x := before; x != nil; x = x.next {
		add(x.reader)
	}
	if s.write != nil {
		add(reader{s.write, s.lanes, s.written})
	}
}
