package store

import "fmt"

// Outcome is the result of an operation of the cache. No outcome is a reason to stop. A caller
// that got no entry compiles, and a caller whose entry was not stored continues.
type Outcome int

const (
	// Miss means that nothing is stored under the key.
	Miss Outcome = iota
	// Hit means that the entry was found and its checksum is right.
	Hit
	// Damaged means that the file is truncated, altered, misnamed, not a file of the cache, or
	// of another format version. Treat it like Miss.
	Damaged
	// Disabled means that the cache is off, or that none of its directories can be used.
	Disabled
	// Stored means that the entry is on disk.
	Stored
	// Unchanged means that the entry was on disk already.
	Unchanged
	// ReadOnly means that the cache may not write.
	ReadOnly
	// Failed means that writing failed. Cache.Err returns the reason.
	Failed
	// Deleted means that the file was removed.
	Deleted
)

var outcomeNames = [...]string{"miss", "hit", "damaged", "disabled", "stored", "unchanged", "read-only", "failed", "deleted"}

// String returns the outcome in lower case.
func (o Outcome) String() string {
	if o < 0 || int(o) >= len(outcomeNames) {
		return fmt.Sprintf("outcome %d", int(o))
	}
	return outcomeNames[o]
}
