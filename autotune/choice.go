package autotune

import (
	"encoding/json"
	"fmt"

	"sonicmoe/internal/strict"
)

// Store is a source of choices: a *cache.Cache or a *File.
type Store interface {
	GetChoice(key string) (value []byte, ok bool)
}

// layered is a Store that searches several places, such as a directory and a bundle: see
// cache.GetChoiceFor.
type layered interface {
	GetChoiceFor(key string, use func(value []byte) bool) (value []byte, ok bool)
}

// Origin says where a point comes from.
type Origin uint8

// These are the origins of a point.
const (
	// CostModel means that no choice is stored, and the cost model's point is used.
	CostModel Origin = iota
	// Tuned means that the stored choice is valid and is used.
	Tuned
	// Stale means that the stored choice was made for other PTX than the generator writes now.
	// The cost model's point is used.
	Stale
	// Unreadable means that this version of the package cannot read the stored choice. The cost
	// model's point is used.
	Unreadable
	// Given means that the caller chose the point.
	Given
)

// String returns the origin in words.
func (o Origin) String() string {
	names := [...]string{"cost model", "tuned", "cost model (stale choice)", "cost model (unreadable choice)", "given"}
	if int(o) >= len(names) {
		return fmt.Sprintf("Origin(%d)", int(o))
	}
	return names[o]
}

// recordVersion is the version of the stored form of choices.
const recordVersion = 1

// record is the stored form of a choice.
type record[P comparable] struct {
	Version int
	Point   P
	// PTX is the [Digest] of the kernels of the point.
	PTX string
}

// Encode returns a choice in its stored form: the point and the digest of its PTX.
func Encode[P comparable](p P, digest string) ([]byte, error) {
	return json.Marshal(record[P]{recordVersion, p, digest})
}

// Pick reads the choice that is stored under a key. If the store searches several places, Pick
// takes the first valid choice. An old choice in the user's directory therefore does not hide a
// newer one in a bundle.
//
// digest emits the kernels of a point and returns their Digest. If digest fails, for example
// because no kernel has the point any more, the choice is stale. If the Origin is not Tuned,
// the point must not be used. The error, if any, then explains the first choice found.
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

// read is [Pick] for one stored value.
func read[P comparable](value []byte, key Key, digest func(P) (string, error)) (P, Origin, error) {
	var none P
	var r record[P]
	if err := strict.Unmarshal(value, &r); err != nil {
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
