package cache

import (
	"context"
	"errors"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/store"
)

// Lock implements store.Store.
func (c modules) Lock(ctx context.Context, key store.Key) (unlock func()) {
	if c.top == nil {
		return func() {}
	}
	unlock, err := disk.Lock(ctx, c.top.fs, c.top.path(key.String()+lockSuffix), c.lockWait)
	switch {
	case err == nil:
		return unlock
	case errors.Is(err, disk.ErrBusy):
		c.counters.lockTimeouts.Add(1)
		c.sayOnce(&c.lockOnce, "cache: another process has compiled the same module for long, or hangs; compiling it here too", err)
	case errors.Is(err, disk.ErrForeign):
		c.sayOnce(&c.lockOnce, "cache: a lock can't be had; continuing without it, which may cost a compilation", err)
	}
	return func() {}
}
