package cache

import (
	"fmt"
	"sync/atomic"
)

// Outcome says what an operation came to. None of them is a reason to stop:
// a caller that got no entry compiles, one that could not store goes on.
type Outcome int

const (
	// Miss: nothing is stored under the key.
	Miss Outcome = iota
	// Hit: the entry was found and its checksum holds.
	Hit
	// Damaged: a file was there, but truncated, altered, misnamed, foreign or
	// of another format version. Treat it as a Miss.
	Damaged
	// Disabled: the cache is off or none of its directories can be used.
	Disabled
	// Stored: the entry is on disk.
	Stored
	// Unchanged: what was to be stored is on disk already.
	Unchanged
	// ReadOnly: the cache may not write.
	ReadOnly
	// Failed: the disk did not take it; Cache.Err says why.
	Failed
	// Deleted: the file was removed.
	Deleted
)

var outcomeNames = [...]string{"miss", "hit", "damaged", "disabled", "stored", "unchanged", "read-only", "failed", "deleted"}

// String is the outcome in lower case.
func (o Outcome) String() string {
	if o < 0 || int(o) >= len(outcomeNames) {
		return fmt.Sprintf("outcome %d", int(o))
	}
	return outcomeNames[o]
}

// Stats counts what a Cache did since Open, modules and choices together.
type Stats struct {
	Hits, Misses, Damaged int64 // of Get and GetChoice
	Stored, Unchanged     int64 // of Put and PutChoice
	Failed                int64 // writes that the disk did not take
	Evicted               int64 // files removed to keep the size bound
	LockTimeouts          int64 // locks not had within Options.LockWait
	BytesRead             int64 // of hits
	BytesWritten          int64 // of stored files
}

type counters struct {
	hits, misses, damaged, stored, unchanged, failed, evicted, lockTimeouts, bytesRead, bytesWritten atomic.Int64
}

// count adds an outcome of Get or Put.
func (n *counters) count(o Outcome) Outcome {
	switch o {
	case Hit:
		n.hits.Add(1)
	case Miss:
		n.misses.Add(1)
	case Damaged:
		n.damaged.Add(1)
	case Stored:
		n.stored.Add(1)
	case Unchanged:
		n.unchanged.Add(1)
	case Failed:
		n.failed.Add(1)
	}
	return o
}

// Stats returns the counters as they are now.
func (c *Cache) Stats() Stats {
	n := &c.counters
	return Stats{
		Hits: n.hits.Load(), Misses: n.misses.Load(), Damaged: n.damaged.Load(),
		Stored: n.stored.Load(), Unchanged: n.unchanged.Load(), Failed: n.failed.Load(),
		Evicted: n.evicted.Load(), LockTimeouts: n.lockTimeouts.Load(),
		BytesRead: n.bytesRead.Load(), BytesWritten: n.bytesWritten.Load(),
	}
}
