package autotune

import (
	"encoding/json"
	"fmt"
)

// Store is where choices are read from: a *cache.Cache or a *File.
type Store interface {
	GetChoice(key string) (value []byte, ok bool)
}

// layered is a Store of several places, such as a cache with a bundle behind
// it: see cache.GetChoiceFor.
type layered interface {
	GetChoiceFor(key string, use func(value []byte) bool) (value []byte, ok bool)
}

// Origin is where a point comes from.
type Origin uint8

// Origins of points.
const (
	// CostModel: no choice is stored, the cost model's point stands.
	CostModel Origin = iota
	// Tuned: the stored choice is valid.
	Tuned
	// Stale: a choice is stored, of another PTX than today's, and the cost
	// model's point stands.
	Stale
	// Unreadable: what is stored is no choice of this version, and the cost
	// model's point stands.
	Unreadable
	// Given: the caller named the point.
	Given
)

// String is the origin in words.
func (o Origin) String() string {
	names := [...]string{"cost model", "tuned", "cost model (stale choice)", "cost model (unreadable choice)", "given"}
	if int(o) >= len(names) {
		return fmt.Sprintf("Origin(%d)", int(o))
	}
	return names[o]
}

// recordVersion is the version of stored choices.
const recordVersion = 1

// record is a stored choice.
type record[P comparable] struct {
	Version int
	Point   P
	// PTX is the Digest of the point's kernels.
	PTX string
}

// Encode is a choice as it is stored: the point and the digest of its PTX.
func Encode[P comparable](p P, digest string) ([]byte, error) {
	return json.Marshal(record[P]{recordVersion, p, digest})
}

// Pick reads the choice stored under a key, of a store with several places the
// first that is valid: what one's own directory has kept from before an update
// does not hide what a bundle brings. digest emits a point's kernels and gives
// their Digest; its error, such as of a point that the kernels no longer have,
// makes the choice stale. With every Origin but Tuned the point is not to be
// used, and the error, if any, says why of the first choice.
func Pick[P comparable](s Store, key Key, digest func(P) (string, error)) (found P, origin Origin, err error) {
	origin = CostModel
	valid := func(value []byte) bool {
		p, o, why := read(value, key, digest)
		if o == Tuned || origin == CostModel {
			found, origin, err = p, o, why
		}
		return o == Tuned
	}
	if places, ok := s.(layered); ok {
		places.GetChoiceFor(key.String(), valid)
	} else if value, ok := s.GetChoice(key.String()); ok {
		valid(value)
	}
	return found, origin, err
}

// read is Pick of what is stored.
func read[P comparable](value []byte, key Key, digest func(P) (string, error)) (P, Origin, error) {
	var none P
	var r record[P]
	if err := json.Unmarshal(value, &r); err != nil {
		return none, Unreadable, fmt.Errorf("the choice %q is unreadable: %w", key, err)
	}
	if r.Version != recordVersion {
		return none, Unreadable, fmt.Errorf("the choice %q has version %d, want %d", key, r.Version, recordVersion)
	}
	now, err := digest(r.Point)
	if err != nil {
		return none, Stale, fmt.Errorf("the choice %q is stale: %v: %w", key, r.Point, err)
	}
	if now != r.PTX {
		return none, Stale, fmt.Errorf("the choice %q is stale: the PTX of %v has the digest %.12s, it was tuned with %.12s; tune again", key, r.Point, now, r.PTX)
	}
	return r.Point, Tuned, nil
}
