// Package recent keeps in memory what was made last, where making it again costs
// more than keeping it.
package recent

import "sync"

// Cache keeps values by what they were made from, up to a total cost: the latest
// used stay, and the last one whatever it costs. The zero value keeps the last one
// only. It is safe for concurrent use.
type Cache[K comparable, V any] struct {
	max, cost int
	mu        sync.Mutex
	entries   []entry[K, V] // the latest used last
}

type entry[K comparable, V any] struct {
	key   K
	value V
	cost  int
}

// New is a cache of values that cost so much in all.
func New[K comparable, V any](most int) *Cache[K, V] { return &Cache[K, V]{max: most} }

// Find is the value that was added with the key, if it is still there.
func (c *Cache[K, V]) Find(key K) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.entries {
		if e.key == key {
			copy(c.entries[i:], c.entries[i+1:])
			c.entries[len(c.entries)-1] = e
			return e.value, true
		}
	}
	return v, false
}

// Add keeps a value, made from key, that was not found. Of goroutines that look
// for the same at once, each finds nothing and may add it.
func (c *Cache[K, V]) Add(key K, value V, cost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = append(c.entries, entry[K, V]{key, value, cost})
	c.cost += cost
	for c.cost > c.max && len(c.entries) > 1 {
		c.cost -= c.entries[0].cost
		c.entries[0] = entry[K, V]{}
		c.entries = c.entries[1:]
	}
}
