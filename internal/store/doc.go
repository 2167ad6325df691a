// Package store is the part of package cache for other packages of this module, but not for
// users: modules by key, choices with outcomes, locks.
package store

import "context"

// Store has the methods of a *cache.Cache for this module's packages. [Of] returns it.
type Store interface {
	// Get returns the entry of a key if any layer has a valid one. The caller may change
	// the entry's slices. With every Outcome but Hit the entry is empty, and the caller
	// must compile.
	Get(key Key) (Entry, Outcome)
	// GetFor is Get for a caller that can use the images of some producers only. It
	// returns the first entry with such an image. If there is none, it returns the
	// first entry of all.
	GetFor(key Key, use func(producer string) bool) (Entry, Outcome)
	// Put stores an entry. Images of other producers for the same PTX that are already on
	// disk are kept, up to [MaxImages], the newest first. If every image is already there,
	// Put writes nothing (Unchanged).
	//
	// The caller may ignore the outcome: it should use its own entry in any case. If two
	// processes put at the same time, the images of one may be lost, which costs a
	// compilation later.
	Put(key Key, e Entry) Outcome
	// Delete removes an entry from the writable directory. The entry of a read-only layer
	// is then found again.
	Delete(key Key) Outcome
	// PutChoice sets or replaces a value.
	PutChoice(key string, value []byte) Outcome
	// Lock waits until no other holder of key's lock is left, in this or another process. It
	// lets one of many processes that start at once compile, so that the others find the
	// entry: call Lock, Get again, compile and Put on a miss, then unlock.
	//
	// The lock only avoids double work. After Options.LockWait, when ctx ends, on a file
	// system without locks, and in a cache that cannot write, Lock returns without the
	// lock. No promise of the cache depends on it. unlock is never nil and may be called
	// more than once.
	Lock(ctx context.Context, key Key) (unlock func())
}

// of is set by package cache, which this package cannot import.
var of func(cache any) Store

// Provide sets the function that returns the Store of a *cache.Cache. Package cache calls
// it.
func Provide(f func(cache any) Store) { of = f }

// Of returns the Store of a *cache.Cache that is not nil.
func Of(cache any) Store { return of(cache) }
