package cache

// Get returns the entry of a key if a sound one is in any layer. The entry's
// slices are the caller's own. With every Outcome but Hit the entry is empty
// and the caller does the work itself.
func (c *Cache) Get(key Key) (Entry, Outcome) {
	e, o := c.module(key)
	return e, c.counters.count(o)
}

// module is Get uncounted.
func (c *Cache) module(key Key) (Entry, Outcome) {
	return lookup(c, fileName(KindModule, key), func(data []byte) (Entry, error) {
		return decodeEntry(data, key)
	})
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
	if old, o := c.module(key); o == Hit {
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
