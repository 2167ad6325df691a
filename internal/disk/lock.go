package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

const (
	firstPoll = time.Millisecond
	lastPoll  = 25 * time.Millisecond
)

var (
	// ErrBusy: somebody else held the lock all the time.
	ErrBusy = errors.New("locked by somebody else")
	// ErrForeign: what lies in the lock file's place is not this user's.
	ErrForeign = errors.New("not a lock file of this user")
	// ErrNoLocks: the file system has none.
	ErrNoLocks = errors.New("no file locks")
)

// Lock waits until nobody else, in this process or another, holds the lock of
// that file, at most for the given time. The file is made if there is none, and
// unlock removes it; the end of the process gives the lock back as well. unlock
// may be called more than once. Errors: ErrBusy, ErrForeign, ErrNoLocks, ctx's,
// and of a file that can't be made.
func Lock(ctx context.Context, fsys FS, path string, wait time.Duration) (unlock func(), err error) {
	deadline := time.Now().Add(wait)
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		f, err := acquire(fsys, path)
		if err != nil {
			return nil, err
		}
		if f != nil {
			return sync.OnceFunc(func() {
				// Removed before it is given back: whoever gets the lock of a file
				// that has no name any more asks again.
				_ = fsys.Remove(path)
				_ = f.Close()
			}), nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s: %w for %v", path, ErrBusy, wait)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// acquire takes the lock if it is free; nil without an error means that it is
// not.
func acquire(fsys FS, path string) (held File, err error) {
	f, err := fsys.OpenLock(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if held == nil {
			_ = f.Close()
		}
	}()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if owner := Owner(fi); !fi.Mode().IsRegular() || owner > 0 && owner != os.Geteuid() {
		return nil, fmt.Errorf("%s: %w: %v of user %d", path, ErrForeign, fi.Mode(), owner)
	}
	busy, err := f.TryLock()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrNoLocks, err)
	}
	if busy {
		return nil, nil
	}
	// The holder before may have removed the file after it was opened here.
	if now, err := fsys.Stat(path, false); err != nil || !fsys.SameFile(fi, now) {
		return nil, nil
	}
	return f, nil
}
