// Package recent keeps recently computed values in memory.
package recent

import "sync"

// Cache keeps values by their keys, up to a total cost. It drops the values that were not used
// for the longest time, but never the last value, whatever its cost is. The zero value keeps
// only the last value. A Cache is safe for concurrent use.
type Cache[K comparable, V any] struct {
	max, cost int
	mu        sync.Mutex
	entries   []entry[K, V] // the most recently used last
}

type entry[K comparable, V any] struct {
	key   K
	value V
	cost  int
}

// New returns a cache for values whose total cost is at most most.
func New[K comparable, V any](most int) *Cache[K, V] { return &Cache[K, V]{max: most} }

// Find returns the value that was added with the key, if the cache still holds it.
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

// Add keeps the value of a key that Find did not find. If several goroutines look for the same
// key at once, Find may fail for each, and each may add the value.
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
