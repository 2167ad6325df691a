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

// Get is the value made from key, by make unless the cache has it; make tells what
// it costs to keep. Of goroutines that ask for the same at once, each makes it.
// Errors are not kept.
func (c *Cache[K, V]) Get(key K, make func() (value V, cost int, err error)) (V, error) {
	if v, ok := c.find(key); ok {
		return v, nil
	}
	v, cost, err := make()
	if err == nil {
		c.add(entry[K, V]{key, v, cost})
	}
	return v, err
}

func (c *Cache[K, V]) find(key K) (v V, ok bool) {
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

func (c *Cache[K, V]) add(e entry[K, V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = append(c.entries, e)
	c.cost += e.cost
	for c.cost > c.max && len(c.entries) > 1 {
		c.cost -= c.entries[0].cost
		c.entries[0] = entry[K, V]{}
		c.entries = c.entries[1:]
	}
}
