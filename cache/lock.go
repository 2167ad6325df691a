package cache

import (
	"context"
	"errors"

	"sonicmoe/internal/disk"
)

// Lock waits until no other holder of key's lock is left, in this process or
// another, so that of many processes that start at once one compiles and the
// others find its entry: call Lock, Get again, compile and Put on a miss, then
// unlock.
//
// It is a courtesy. After Options.LockWait, when ctx is done, on a file system
// without locks and in a cache that can't write, Lock returns all the same,
// holding nothing. Nothing that the cache promises depends on it. unlock is
// never nil and may be called more than once.
func (c *Cache) Lock(ctx context.Context, key Key) (unlock func()) {
	if c.top == nil {
		return func() {}
	}
	unlock, err := disk.Lock(ctx, c.top.fs, c.top.path(key.String()+lockSuffix), c.lockWait)
	switch {
	case err == nil:
		return unlock
	case errors.Is(err, disk.ErrBusy):
		c.counters.lockTimeouts.Add(1)
		c.sayOnce(&c.lockOnce, "cache: another process compiles the same for long, or hangs; compiling beside it", err)
	case errors.Is(err, disk.ErrForeign):
		c.sayOnce(&c.lockOnce, "cache: a lock can't be had; going on without, which may cost a compilation", err)
	}
	return func() {}
}
