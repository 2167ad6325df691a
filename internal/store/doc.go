// Package store is the part of package cache that this module's other packages
// use and its users do not: modules by key, choices with outcomes, locks.
package store

import "context"

// Store is what a *cache.Cache does for this module's packages. [Of] returns it.
type Store interface {
	// Get returns the entry of a key if a sound one is in any layer. The entry's
	// slices are the caller's own. With every Outcome but Hit the entry is empty
	// and the caller does the work itself.
	Get(key Key) (Entry, Outcome)
	// GetFor is Get for a caller that can use the images of some producers only:
	// it returns the first entry with such an image, and the first entry of all if
	// there is none.
	GetFor(key Key, use func(producer string) bool) (Entry, Outcome)
	// Put stores an entry. Images that are on disk for the same PTX and other
	// producers stay in addition to the entry's own; the newest few in all. Where
	// every image is there already nothing is written (Unchanged).
	//
	// The outcome is for counting and may be ignored: whatever it is, the entry in
	// the caller's hands is the one to use. Of two processes that put at the same
	// moment one may lose its images, which costs it a compilation later.
	Put(key Key, e Entry) Outcome
	// Delete removes an entry from the directory that is written. An entry of a
	// read-only layer then shows again.
	Delete(key Key) Outcome
	// PutChoice stores a value in place of an earlier one.
	PutChoice(key string, value []byte) Outcome
	// Lock waits until no other holder of key's lock is left, in this process or
	// another. Of many processes that start at once one then compiles and the
	// others find its entry: call Lock, Get again, compile and Put on a miss, then
	// unlock.
	//
	// It is a courtesy. After Options.LockWait, when ctx is done, on a file system
	// without locks and in a cache that can't write, Lock returns all the same,
	// holding nothing. Nothing that the cache promises depends on it. unlock is
	// never nil and may be called more than once.
	Lock(ctx context.Context, key Key) (unlock func())
}

// of is package cache's, which this package can't import.
var of func(cache any) Store

// Provide says how to get the Store of a *cache.Cache. Package cache calls it.
func Provide(f func(cache any) Store) { of = f }

// Of returns the Store of a *cache.Cache that is not nil.
func Of(cache any) Store { return of(cache) }
