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
	// ErrBusy means that other holders kept the lock for the whole time that Lock waited.
	ErrBusy = errors.New("locked by somebody else")
	// ErrForeign means that the file at the path of the lock file does not belong to this user.
	ErrForeign = errors.New("not a lock file of this user")
	// ErrNoLocks means that the file system has no locks.
	ErrNoLocks = errors.New("no file locks")
)

// Lock takes the lock of the file at path. It waits, at most for the given time, until no
// holder in this or another process has the lock. It creates the file if it does not exist.
// unlock releases the lock, removes the file, and may be called more than once. The end of the
// process also releases the lock. The error is ErrBusy, ErrForeign, ErrNoLocks, the error of
// ctx, or the error of creating the file.
func Lock(ctx context.Context, fsys FS, path string, wait time.Duration) (unlock func(), err error) {
	deadline := time.Now().Add(wait)
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		f, err := acquire(fsys, path)
		if err != nil {
			return nil, err
		}
		if f != nil {
			return sync.OnceFunc(func() {
				// The file is removed before its lock is released. A process that then gets the
				// lock of the removed file sees that the file has no name, and tries again.
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

// acquire takes the lock if it is free. If it is not free, acquire returns a nil File and no
// error.
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
	// The previous holder may have removed the file after it was opened here.
	if now, err := fsys.Stat(path, false); err != nil || !fsys.SameFile(fi, now) {
		return nil, nil
	}
	return f, nil
}
