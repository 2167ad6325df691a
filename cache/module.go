package cache

import "slices"

// Get returns the entry of a key if a sound one is in any layer. The entry's
// slices are the caller's own. With every Outcome but Hit the entry is empty
// and the caller does the work itself.
func (c *Cache) Get(key Key) (Entry, Outcome) {
	e, o := c.module(key, sound)
	return e, c.counters.count(o)
}

// GetFor is Get for a caller who has a use for some producers' images: the
// first entry that has one of those, and the first of all where none has.
func (c *Cache) GetFor(key Key, use func(producer string) bool) (Entry, Outcome) {
	e, o := c.module(key, func(e Entry) bool {
		return slices.ContainsFunc(e.Images, func(im Image) bool { return use(im.Producer) })
	})
	return e, c.counters.count(o)
}

// module looks for the first entry that is good enough, uncounted.
func (c *Cache) module(key Key, enough func(Entry) bool) (Entry, Outcome) {
	return lookup(c, fileName(KindModule, key), func(data []byte) (Entry, error) {
		return decodeEntry(data, key)
	}, enough)
}

// Put stores an entry. Images that are on disk for the same PTX and other
// producers are kept beside the entry's own; the newest few in all. Where
// every image is there already nothing is written (Unchanged).
//
// The outcome is for counting and may be ignored: whatever it is, the entry in
// the caller's hands is the one to use. Two processes that put at the same
// moment may lose one's images, which costs that one a compilation later.
func (c *Cache) Put(key Key, e Entry) Outcome {
	if o := c.writeOutcome(); o != Stored {
		return o
	}
	mu := &c.merging[key[0]%byte(len(c.merging))]
	mu.Lock()
	defer mu.Unlock()
	if old, o := c.module(key, sound); o == Hit {
		if old.covers(e) {
			return c.counters.count(Unchanged)
		}
		e = e.merge(old)
	} else {
		e = e.merge(Entry{}) // one image a producer
	}
	data, err := encodeEntry(key, e)
	return c.counters.count(c.put(fileName(KindModule, key), data, err))
}

// Delete removes an entry from the directory that is written; one in a
// read-only layer then shows again.
func (c *Cache) Delete(key Key) Outcome { return c.remove(fileName(KindModule, key)) }
