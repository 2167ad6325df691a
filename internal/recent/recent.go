// Package recent keeps recently computed values in memory.
package recent

import (
	"errors"
	"sync"
)

// Cache keeps values by their keys, up to a total cost. It drops the values that were not used
// for the longest time, but never the last value, whatever its cost is. A Cache is safe for
// concurrent use.
type Cache[K comparable, V any] struct {
	max, cost int
	mu        sync.Mutex
	entries   []entry[K, V] // the most recently used last
	making    map[K]*call[V]
}

type entry[K comparable, V any] struct {
	key   K
	value V
	cost  int
}

// call is a call of Get that computes a value now.
type call[V any] struct {
	done  chan struct{}
	value V
	err   error
}

// errPanic is the error of the calls that waited for a call which panicked.
var errPanic = errors.New("the concurrent call that computed the value panicked")

// New returns an empty cache for values of a total cost of at most most.
func New[K comparable, V any](most int) *Cache[K, V] {
	return &Cache[K, V]{max: most, making: map[K]*call[V]{}}
}

// Get returns the value of a key. If the cache has none, function compute returns the value and its
// cost. Concurrent calls for one key compute the value once. The cache does not keep errors.
func (c *Cache[K, V]) Get(key K, compute func() (value V, cost int, err error)) (V, error) {
	c.mu.Lock()
	if v, ok := c.find(key); ok {
		c.mu.Unlock()
		return v, nil
	}
	if of := c.making[key]; of != nil {
		c.mu.Unlock()
		<-of.done
		return of.value, of.err
	}
	of := &call[V]{done: make(chan struct{}), err: errPanic}
	c.making[key] = of
	c.mu.Unlock()
	cost := 0
	defer func() { // runs even if compute panics
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.making, key)
		if of.err == nil {
			c.add(key, of.value, cost)
		}
		close(of.done)
	}()
	of.value, cost, of.err = compute()
	return of.value, of.err
}

// find returns the value of a key, if the cache holds it. The caller holds c.mu.
func (c *Cache[K, V]) find(key K) (v V, ok bool) {
	for i, e := range c.entries {
		if e.key == key {
			copy(c.entries[i:], c.entries[i+1:])
			c.entries[len(c.entries)-1] = e
			return e.value, true
		}
	}
	return v, false
}

// add keeps a value. The caller holds c.mu.
func (c *Cache[K, V]) add(key K, value V, cost int) {
	c.entries = append(c.entries, entry[K, V]{key, value, cost})
	c.cost += cost
	for c.cost > c.max && len(c.entries) > 1 {
		c.cost -= c.entries[0].cost
		c.entries[0] = entry[K, V]{}
		c.entries = c.entries[1:]
	}
}
