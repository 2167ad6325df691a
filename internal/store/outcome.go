package store

import "fmt"

// Outcome is the result of an operation. No outcome is a reason to stop: a caller without
// an entry compiles, and a caller that could not store continues.
type Outcome int

const (
	// Miss means that nothing is stored under the key.
	Miss Outcome = iota
	// Hit means that the entry was found and its checksum is right.
	Hit
	// Damaged means that a file was found that is truncated, altered, misnamed, foreign or
	// of another format version. Treat it as a Miss.
	Damaged
	// Disabled means that the cache is off or that no directory can be used.
	Disabled
	// Stored means that the entry is on disk.
	Stored
	// Unchanged means that the entry was on disk already.
	Unchanged
	// ReadOnly means that the cache may not write.
	ReadOnly
	// Failed means that writing failed; Cache.Err has the reason.
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
