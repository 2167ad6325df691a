package cache

import (
	"bytes"
	"fmt"

	"sonicmoe/internal/store"
)

// GetChoice returns the value stored under a key, such as a tuned point. ok is false if no
// undamaged value is stored. The caller may change the value.
func (c *Cache) GetChoice(key string) (value []byte, ok bool) {
	value, o := modules{c}.GetChoice(key)
	return value, o == store.Hit
}

// GetChoiceFor is like [Cache.GetChoice], for a caller that cannot use every value. It returns
// the first value, over all cache layers, for which use returns true. If there is none, it
// returns the first value.
func (c *Cache) GetChoiceFor(key string, use func(value []byte) bool) (value []byte, ok bool) {
	value, o := modules{c}.GetChoiceFor(key, use)
	return value, o == store.Hit
}

// PutChoice stores a value and replaces an earlier one. A caller may ignore the error; the next
// process then tunes again.
func (c *Cache) PutChoice(key string, value []byte) error {
	if o := (modules{c}).PutChoice(key, value); o != store.Stored && o != store.Unchanged {
		return fmt.Errorf("cache: the choice %q is not stored: %s: %w", key, o, c.noTop())
	}
	return nil
}

// GetChoice is like [Cache.GetChoice], but returns the outcome.
func (c modules) GetChoice(key string) ([]byte, store.Outcome) {
	value, o := c.choice(key, sound)
	return value, c.counters.count(o)
}

// GetChoiceFor is like [Cache.GetChoiceFor], but returns the outcome.
func (c modules) GetChoiceFor(key string, use func(value []byte) bool) ([]byte, store.Outcome) {
	value, o := c.choice(key, use)
	return value, c.counters.count(o)
}

// choice finds the first value for which enough returns true. It does not change the
// statistics.
func (c *Cache) choice(key string, enough func(value []byte) bool) ([]byte, store.Outcome) {
	name := choiceKey(key)
	return lookup(c, fileName(store.KindChoice, name), func(data []byte) ([]byte, error) {
		_, value, err := decodeChoice(data, name)
		return value, err
	}, enough)
}

// PutChoice implements store.Store.
func (c modules) PutChoice(key string, value []byte) store.Outcome {
	if o := c.writeOutcome(); o != store.Stored {
		return o
	}
	if old, o := c.choice(key, sound); o == store.Hit && bytes.Equal(old, value) {
		return c.counters.count(store.Unchanged)
	}
	data, err := encodeChoice(key, value)
	return c.counters.count(c.put(fileName(store.KindChoice, choiceKey(key)), data, err))
}

// DeleteChoice removes a value from the directory that is written. If a read-only cache layer
// has a value of the same key, that value is found from then on.
func (c modules) DeleteChoice(key string) store.Outcome {
	return c.remove(fileName(store.KindChoice, choiceKey(key)))
}
