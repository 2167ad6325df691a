// Package store is the part of package cache that other packages of this module may use, but
// users may not: modules by key, choices with outcomes, and locks.
package store

import "context"

// Store has the methods of a *cache.Cache that only this module's packages use. [Of] returns
// it.
type Store interface {
	// Get returns the entry of a key if a directory of the cache has a valid one. The caller
	// may change the entry's slices. With any Outcome but Hit the entry is empty, and the
	// caller must compile.
	Get(key Key) (Entry, Outcome)
	// GetFor is like Get, for a caller that can use only the images of some producers. It
	// returns the first entry, over all directories, that has such an image. If no entry has
	// one, it returns the first entry.
	GetFor(key Key, use func(producer string) bool) (Entry, Outcome)
	// Put stores an entry. Images of other producers for the same PTX that are already on disk
	// are kept, the newest first, up to [MaxImages]. If every image of e is already on disk,
	// Put writes nothing (Unchanged).
	//
	// The caller may ignore the outcome, because it should use its own entry in any case. If
	// two processes put at the same time, the images of one may be lost. This costs a
	// compilation later.
	Put(key Key, e Entry) Outcome
	// Delete removes an entry from the writable directory. If a read-only directory also has an
	// entry of the key, that entry is found from then on.
	Delete(key Key) Outcome
	// PutChoice stores a value under a key, or replaces the stored value.
	PutChoice(key string, value []byte) Outcome
	// Lock takes a lock of the key. It waits until no other holder, in this or another process,
	// has the lock. With the lock, only one of many processes that start at once compiles, and
	// the others find its entry: call Lock, then Get again; on a miss compile and Put; then
	// unlock.
	//
	// The lock only avoids double work, and no promise of the cache depends on it. Lock returns
	// without the lock after Options.LockWait, when ctx ends, on a file system without locks,
	// and for a cache that cannot write. unlock is never nil and may be called more than once.
	Lock(ctx context.Context, key Key) (unlock func())
}

// of is set by package cache, which this package cannot import.
var of func(cache any) Store

// Provide sets the function that returns the Store of a *cache.Cache. Package cache calls
// it.
func Provide(f func(cache any) Store) { of = f }

// Of returns the Store of a *cache.Cache that is not nil.
func Of(cache any) Store { return of(cache) }
