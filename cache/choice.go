package cache

import "bytes"

// GetChoice returns the value stored under a key, such as a tuned point under
// its problem. The value is the caller's own.
func (c *Cache) GetChoice(key string) ([]byte, Outcome) {
	value, o := c.choice(key, sound)
	return value, c.counters.count(o)
}

// GetChoiceFor is GetChoice for a caller who has no use for every value: the
// first one that use says yes to, in any layer, and the first of all where it
// says yes to none.
func (c *Cache) GetChoiceFor(key string, use func(value []byte) bool) ([]byte, Outcome) {
	value, o := c.choice(key, use)
	return value, c.counters.count(o)
}

// choice looks for the first value that is good enough, uncounted.
func (c *Cache) choice(key string, enough func(value []byte) bool) ([]byte, Outcome) {
	name := choiceKey(key)
	return lookup(c, fileName(KindChoice, name), func(data []byte) ([]byte, error) {
		_, value, err := decodeChoice(data, name)
		return value, err
	}, enough)
}

// PutChoice stores a value, in place of an earlier one. Like Put's, its
// outcome may be ignored.
func (c *Cache) PutChoice(key string, value []byte) Outcome {
	if o := c.writeOutcome(); o != Stored {
		return o
	}
	if old, o := c.choice(key, sound); o == Hit && bytes.Equal(old, value) {
		return c.counters.count(Unchanged)
	}
	data, err := encodeChoice(key, value)
	return c.counters.count(c.put(fileName(KindChoice, choiceKey(key)), data, err))
}

// DeleteChoice removes a value from the directory that is written; one in a
// read-only layer then shows again.
func (c *Cache) DeleteChoice(key string) Outcome {
	return c.remove(fileName(KindChoice, choiceKey(key)))
}
