package emu

import "slices"

// This file keeps the latest reads of each word. Most words are read by many warps and written by
// none, and many words have the same readers in the same order. Sets of readers are therefore
// linked lists that share their tails. When an access adds itself to many equal sets, the result is
// one list for all of them. A set does not keep a read that is ordered before a later read: a write
// that is ordered after the later read is also ordered after the earlier one.

// readers is an immutable set of accesses to a word, mostly its latest reads. It also holds writes
// that the latest write does not replace: strong writes, stores of the value that is already there,
// and writes of other bytes of the word.
type readers struct {
	reader
	next *readers
	some bool // the set has at least one write
	// n is the number of accesses in the list. scanned was n when grow last looked for accesses
	// that the set does not need.
	n, scanned uint16
}

// reader is an access to a word, with the lanes that performed it and the bytes that it read or
// wrote.
type reader struct {
	*access
	lanes uint32
	bytes uint8
}

// growth identifies the addition of a reader to a set. The result is remembered, so that equal sets
// stay one list.
type growth struct {
	old *readers
	reader
}

// recentReads holds the latest reads of a warp. The index is the instruction's number modulo the
// length.
type recentReads [16]*access

const (
	minScan    = 4       // shortest list, halved, in which grow looks for accesses that are not needed
	maxReaders = 1024    // largest number of readers of one word
	maxGrown   = 1 << 18 // largest number of additions that a cluster remembers
)

// add returns the set old with access a added.
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

// grow does the same as add, for an addition that is not remembered yet. It looks for accesses that
// the set no longer needs when the list is twice as long as after the last look: a list of many reads
// without an order would be walked at each of them.
func (r *races) grow(old *readers, x reader) *readers {
	if old != nil && old.access == x.access && old.bytes == x.bytes {
		if x.lanes&^old.lanes == 0 {
			return old
		}
		x.lanes |= old.lanes
		return r.with(old.next, x)
	}
	if old == nil || old.n < 2*max(old.scanned, minScan) {
		return r.with(old, x)
	}
	to := r.scan(old, x)
	to.scanned = to.n
	return to
}

// scan returns the set old with access x added, without the accesses that the set no longer needs.
func (r *races) scan(old *readers, x reader) *readers {
	for o := old; o != nil; o = o.next {
		if o.access == x.access && o.bytes == x.bytes {
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

// with returns a list whose head is reader x and whose tail is the list old.
func (r *races) with(old *readers, x reader) *readers {
	if len(r.room) == 0 {
		r.room = make([]readers, 64)
	}
	s := &r.room[0]
	r.room = r.room[1:]
	*s = readers{reader: x, next: old, some: x.writes, n: 1}
	if old != nil {
		s.some, s.n, s.scanned = s.some || old.some, old.n+1, old.scanned
	}
	return s
}

// outdated reports whether a set that has the later access x no longer needs the earlier access
// old.
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

// past reports whether access old happened before access a. Parameter lanes has the lanes that
// performed access old; field r.by has the lanes that perform access a.
func (r *races) past(old *access, lanes uint32, a *access) bool {
	known := r.know(a.warp).Of(old.site.cluster, r.cluster)
	return old.knownIn(known.Seen) && r.uninformed(old, a) == 0 && r.unmet(old, lanes, a) == 0 && old.lacks(known, lanes) == 0
}

// keep updates the readers of a word when a new write replaces the bytes in mask. It forgets
// accesses to these bytes, and keeps accesses to other bytes.
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
