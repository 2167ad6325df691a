package autotune

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sonicmoe/internal/disk"
)

const (
	scratchPrefix = "sonicmoe-autotune-"
	// aliveFile is the name of a file in a session's directory. A session keeps the file locked as
	// long as the session exists.
	aliveFile = "alive"
	// scratchAge is the age at which the directory of a session that no longer exists is
	// removed.
	scratchAge = time.Hour
)

// newScratch creates a session's directory for machine code. remove removes the directory.
// newScratch also removes old directories of sessions that were killed.
func newScratch() (dir string, remove func() error, err error) {
	sweepScratch()
	if dir, err = os.MkdirTemp("", scratchPrefix); err != nil {
		return "", nil, fmt.Errorf("autotune: a directory for candidates: %w", err)
	}
	unlock, err := disk.Lock(context.Background(), disk.OS, filepath.Join(dir, aliveFile), 0)
	if err != nil {
		unlock = func() {} // without file locks only the age counts
	}
	return dir, func() error {
		unlock()
		return os.RemoveAll(dir)
	}, nil
}

// sweepScratch removes old directories of sessions that did not remove them. It ignores
// directories that it cannot read or remove.
func sweepScratch() {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), scratchPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range left {
		fi, err := os.Lstat(dir)
		if err != nil || !fi.IsDir() || disk.Owner(fi) > 0 && disk.Owner(fi) != os.Geteuid() {
			continue
		}
		age := time.Since(fi.ModTime())
		if age < scratchAge {
			continue
		}
		unlock, err := disk.Lock(context.Background(), disk.OS, filepath.Join(dir, aliveFile), 0)
		switch {
		case err == nil:
			unlock()
		case !errors.Is(err, disk.ErrNoLocks) || age < 24*scratchAge:
			continue
		}
		_ = os.RemoveAll(dir)
	}
}
