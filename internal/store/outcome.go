package store

import "fmt"

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
