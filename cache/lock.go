package cache

import (
	"context"
	"os"
	"time"
)

const (
	firstPoll = time.Millisecond
	lastPoll  = 25 * time.Millisecond
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
	name := c.top.path(key.String() + lockSuffix)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return func() {}
	}
	// Closing gives the lock back, and so does the end of the process. The
	// file stays: removing it would let two holders in.
	unlock = func() { f.Close() }
	if c.waitLock(ctx, f) {
		now := time.Now()
		_ = os.Chtimes(name, now, now) // Prune removes old ones
	}
	return unlock
}

// waitLock polls for f, because waiting in flock itself has no time limit.
func (c *Cache) waitLock(ctx context.Context, f *os.File) bool {
	deadline := time.Now().Add(c.lockWait)
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		busy, err := c.top.lock(f)
		if err != nil || !busy {
			return err == nil
		}
		if time.Now().After(deadline) {
			c.counters.lockTimeouts.Add(1)
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}
