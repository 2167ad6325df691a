package cache

import (
	"slices"

	"sonicmoe/internal/store"
)

// modules gives other packages of this module access to the cache: it implements store.Store.
type modules struct{ *Cache }

func init() {
	store.Provide(func(c any) store.Store { return modules{c.(*Cache)} })
}

// Get implements store.Store.
func (c modules) Get(key store.Key) (store.Entry, store.Outcome) {
	e, o := c.module(key, sound)
	return e, c.counters.count(o)
}

// GetFor implements store.Store.
func (c modules) GetFor(key store.Key, use func(producer string) bool) (store.Entry, store.Outcome) {
	e, o := c.module(key, func(e store.Entry) bool {
		return slices.ContainsFunc(e.Images, func(im store.Image) bool { return use(im.Producer) })
	})
	return e, c.counters.count(o)
}

// module finds the first entry for which the function enough returns true. It does not change the
// statistics.
func (c *Cache) module(key store.Key, enough func(store.Entry) bool) (store.Entry, store.Outcome) {
	return lookup(c, fileName(store.KindModule, key), func(data []byte) (store.Entry, error) {
		return decodeEntry(data, key)
	}, enough)
}

// Put implements store.Store.
func (c modules) Put(key store.Key, e store.Entry) store.Outcome {
	if o := c.writeOutcome(); o != store.Stored {
		return o
	}
	mu := &c.merging[key[0]%byte(len(c.merging))]
	mu.Lock()
	defer mu.Unlock()
	if old, o := c.module(key, sound); o == store.Hit {
		if old.Covers(e) {
			return c.counters.count(store.Unchanged)
		}
		e = e.Merge(old)
	} else {
		e = e.Merge(store.Entry{}) // keeps one image for each producer
	}
	data, err := encodeEntry(key, e)
	return c.counters.count(c.put(fileName(store.KindModule, key), data, err))
}

// Delete implements store.Store.
func (c modules) Delete(key store.Key) store.Outcome {
	return c.remove(fileName(store.KindModule, key))
}
