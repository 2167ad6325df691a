package cache

import (
	"bytes"
	"fmt"

	"sonicmoe/internal/store"
)

// GetChoice returns the value stored under a key, such as a tuned point under
// its problem, if there is a sound one. The value is the caller's own.
func (c *Cache) GetChoice(key string) (value []byte, ok bool) {
	value, o := modules{c}.GetChoice(key)
	return value, o == store.Hit
}

// GetChoiceFor is GetChoice for a caller that can't use every value: it returns
// the first value of any layer for which use returns true, and the first of all
// if there is none.
func (c *Cache) GetChoiceFor(key string, use func(value []byte) bool) (value []byte, ok bool) {
	value, o := modules{c}.GetChoiceFor(key, use)
	return value, o == store.Hit
}

// PutChoice stores a value in place of an earlier one. The error may be ignored:
// it costs the next process a search.
func (c *Cache) PutChoice(key string, value []byte) error {
	if o := (modules{c}).PutChoice(key, value); o != store.Stored && o != store.Unchanged {
		return fmt.Errorf("cache: the choice %q is not stored: %s: %w", key, o, c.noTop())
	}
	return nil
}

// GetChoice is the Cache's, with its outcome.
func (c modules) GetChoice(key string) ([]byte, store.Outcome) {
	value, o := c.choice(key, sound)
	return value, c.counters.count(o)
}

// GetChoiceFor is the Cache's, with its outcome.
func (c modules) GetChoiceFor(key string, use func(value []byte) bool) ([]byte, store.Outcome) {
	value, o := c.choice(key, use)
	return value, c.counters.count(o)
}

// choice looks for the first value that is good enough, uncounted.
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

// DeleteChoice removes a value from the directory that is written; one in a
// read-only layer then shows again.
func (c modules) DeleteChoice(key string) store.Outcome {
	return c.remove(fileName(store.KindChoice, choiceKey(key)))
}
