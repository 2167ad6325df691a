package cache

import (
	"sync/atomic"

	"sonicmoe/internal/store"
)

// Stats counts the operations of a Cache since it was opened. Modules and choices are counted
// together.
type Stats struct {
	Hits, Misses, Damaged int64 // results of looking up modules and choices
	Stored, Unchanged     int64 // results of storing modules and choices
	Failed                int64 // writes that failed
	Evicted               int64 // files removed to keep the size limit
	LockTimeouts          int64 // locks that were not acquired within Options.LockWait
	BytesRead             int64 // bytes of the files of all hits
	BytesWritten          int64 // bytes of the stored files
}

type counters struct {
	hits, misses, damaged, stored, unchanged, failed, evicted, lockTimeouts, bytesRead, bytesWritten atomic.Int64
}

// count counts the outcome of Get or Put, and returns it.
func (n *counters) count(o store.Outcome) store.Outcome {
	switch o {
	case store.Hit:
		n.hits.Add(1)
	case store.Miss:
		n.misses.Add(1)
	case store.Damaged:
		n.damaged.Add(1)
	case store.Stored:
		n.stored.Add(1)
	case store.Unchanged:
		n.unchanged.Add(1)
	case store.Failed:
		n.failed.Add(1)
	}
	return o
}

// Stats returns the present values of the counters.
func (c *Cache) Stats() Stats {
	n := &c.counters
	return Stats{
		Hits: n.hits.Load(), Misses: n.misses.Load(), Damaged: n.damaged.Load(),
		Stored: n.stored.Load(), Unchanged: n.unchanged.Load(), Failed: n.failed.Load(),
		Evicted: n.evicted.Load(), LockTimeouts: n.lockTimeouts.Load(),
		BytesRead: n.bytesRead.Load(), BytesWritten: n.bytesWritten.Load(),
	}
}
