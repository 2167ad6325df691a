//go:build unix

package disk_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/disktest"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// TestFileSystems checks that each implementation of FS follows the rules of FS.
func TestFileSystems(t *testing.T) {
	for name, fsys := range map[string]disk.FS{"os": disk.OS, "memory": disktest.NewMemory(), "faulty": disktest.Wrap(disk.OS)} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a", "b")
			require.NoError(t, fsys.MkdirAll(dir, 0o700))
			require.NoError(t, fsys.MkdirAll(dir, 0o700))
			path := filepath.Join(dir, "file")
			_, err := fsys.Open(path, false)
			require.ErrorIs(t, err, fs.ErrNotExist)
			_, err = fsys.Stat(path, false)
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.ErrorIs(t, fsys.Remove(path), fs.ErrNotExist)
			require.ErrorIs(t, fsys.Rename(path, path+"2"), fs.ErrNotExist)

			require.NoError(t, disk.WriteFile(fsys, path, 0o644, text("one")))
			require.NoError(t, disk.Replace(fsys, path, 0o600, text("three")))
			_, err = fsys.Create(path)
			require.ErrorIs(t, err, fs.ErrExist)
			f, err := fsys.Open(path, false)
			require.NoError(t, err)
			fi, err := f.Stat()
			require.NoError(t, err)
			assert.EqualValues(t, 5, fi.Size())
			b, err := io.ReadAll(f)
			require.NoError(t, err)
			assert.Equal(t, "three", string(b))
			_, err = f.Seek(1, io.SeekStart)
			require.NoError(t, err)
			b, err = io.ReadAll(f)
			require.NoError(t, err)
			assert.Equal(t, "hree", string(b))
			n, err := f.ReadAt(make([]byte, 9), 3)
			assert.Equal(t, 2, n)
			assert.ErrorIs(t, err, io.EOF)
			now, err := fsys.Stat(path, false)
			require.NoError(t, err)
			assert.True(t, fsys.SameFile(fi, now))
			require.NoError(t, f.Close())
			assert.Equal(t, fs.FileMode(0o600), now.Mode().Perm())

			then := time.Unix(1e9, 0)
			require.NoError(t, fsys.SetTime(path, then))
			now, err = fsys.Stat(path, false)
			require.NoError(t, err)
			assert.True(t, now.ModTime().Equal(then))
			list, err := fsys.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, list, 1)
			assert.Equal(t, "file", list[0].Name())
			require.NoError(t, fsys.RemoveAll(filepath.Dir(dir)))
			_, err = fsys.Stat(path, false)
			require.ErrorIs(t, err, fs.ErrNotExist)
		})
	}
}

// TestFailedWrites lets each operation of a write fail. The old content must then be complete,
// and no other file may be left. If the last step, the sync of the directory, failed, the new
// content may be there instead.
func TestFailedWrites(t *testing.T) {
	files := disktest.Wrap(disk.OS)
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, disk.WriteFile(files, path, 0o644, text("old")))
	files.Arm(0, 0, nil)
	require.NoError(t, disk.WriteFile(files, path, 0o644, text("old")))
	steps := files.Disarm()
	// The file's content depends on these operations. A failure of any other operation may have
	// no effect.
	needed := []disktest.Op{disktest.Create, disktest.Write, disktest.Chmod, disktest.Sync, disktest.Close, disktest.Rename, disktest.SyncDir}
	var ops []disktest.Op
	files.Before(func(op disktest.Op, _ string) error { ops = append(ops, op); return nil })
	require.NoError(t, disk.WriteFile(files, path, 0o644, text("old")))
	files.Before(nil)
	require.Len(t, ops, steps)
	for n := 1; n <= steps; n++ {
		files.Arm(n, 1, syscall.EIO)
		err := disk.WriteFile(files, path, 0o644, text("new"))
		files.Disarm()
		got, e := os.ReadFile(path)
		require.NoError(t, e)
		if slices.Contains(needed, ops[n-1]) {
			require.ErrorIs(t, err, syscall.EIO, "operation %d, %s", n, ops[n-1])
		}
		if err != nil {
			require.ErrorIs(t, err, syscall.EIO)
			if n < steps {
				assert.Equal(t, "old", string(got), "operation %d", n)
			}
		} else {
			assert.Equal(t, "new", string(got), "operation %d", n)
			require.NoError(t, disk.WriteFile(files, path, 0o644, text("old")))
		}
		list, e := os.ReadDir(filepath.Dir(path))
		require.NoError(t, e)
		assert.Len(t, list, 1, "operation %d", n)
	}
	failing := errors.New("no more text")
	require.ErrorIs(t, disk.WriteFile(files, path, 0o644, func(w io.Writer) error { return failing }), failing)
}

// TestPlaceIsTaken checks what Begin does with files at or near the path. It removes leftovers
// of earlier writers of the same file. It keeps temporary files that are new, that belong to
// other files, or that only have similar names. It refuses a pipe or a directory at the path,
// also through a link such as /dev/stdout. It replaces a link to a file or to nothing.
func TestPlaceIsTaken(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, syscall.Mkfifo(in("pipe"), 0o600))
	require.NoError(t, os.Mkdir(in("folder"), 0o700))
	require.NoError(t, os.WriteFile(in("file"), nil, 0o600))
	for link, to := range map[string]string{"to a pipe": "pipe", "to a folder": "folder", "to a file": "file", "to nothing": "none"} {
		require.NoError(t, os.Symlink(in(to), in(link)))
	}
	for _, name := range []string{"pipe", "folder", "to a pipe", "to a folder"} {
		before, err := os.Lstat(in(name))
		require.NoError(t, err)
		err = disk.WriteFile(disk.OS, in(name), 0o644, text("one"))
		require.ErrorIs(t, err, disk.ErrOccupied, name)
		assert.ErrorContains(t, err, in(name))
		after, err := os.Lstat(in(name))
		require.NoError(t, err)
		assert.True(t, os.SameFile(before, after), name)
	}
	for _, name := range []string{"file", "to a file", "to nothing", "new"} {
		require.NoError(t, disk.WriteFile(disk.OS, in(name), 0o644, text("one")), name)
	}
	left, err := filepath.Glob(in("*" + disk.TempSuffix))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestLeftOvers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "warm.tar")
	for name, age := range map[string]time.Duration{
		"warm.tar.123.tmp": 2 * disk.TempAge, "warm.tar.9.tmp": disk.TempAge / 2, "other.tar.5.tmp": 2 * disk.TempAge,
		"warm.tar.x.tmp": 2 * disk.TempAge, "warm.tar.tmp": 2 * disk.TempAge,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		then := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), then, then))
	}
	require.NoError(t, disk.WriteFile(disk.OS, path, 0o644, text("x")))
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	assert.Equal(t, "other.tar.5.tmp warm.tar warm.tar.9.tmp warm.tar.tmp warm.tar.x.tmp", strings.Join(names, " "))
}

// TestLock checks that a lock never has two holders, although each holder removes the lock
// file.
func TestLock(t *testing.T) {
	for name, fsys := range map[string]disk.FS{"os": disk.OS, "memory": disktest.NewMemory()} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, fsys.MkdirAll(dir, 0o700))
			path := filepath.Join(dir, "lock")
			var inside, worst, count atomic.Int64
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 25 {
						unlock, err := disk.Lock(context.Background(), fsys, path, time.Minute)
						if !assert.NoError(t, err) {
							return
						}
						worst.Store(max(worst.Load(), inside.Add(1)))
						runtime.Gosched()
						count.Add(1)
						inside.Add(-1)
						unlock()
						unlock()
					}
				})
			}
			all.Wait()
			assert.EqualValues(t, 1, worst.Load())
			assert.EqualValues(t, 200, count.Load())
			_, err := fsys.Stat(path, false)
			assert.ErrorIs(t, err, fs.ErrNotExist)
		})
	}
}

func TestLockErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := disk.Lock(t.Context(), disk.OS, path, 0)
	require.NoError(t, err)
	_, err = disk.Lock(t.Context(), disk.OS, path, 5*time.Millisecond)
	require.ErrorIs(t, err, disk.ErrBusy)
	assert.ErrorContains(t, err, path)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	_, err = disk.Lock(ctx, disk.OS, path, time.Minute)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	unlock()
	_, err = disk.Lock(t.Context(), disk.OS, filepath.Join(t.TempDir(), "no", "lock"), 0)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Mkdir(path, 0o700))
	_, err = disk.Lock(t.Context(), disk.OS, path, 0)
	require.Error(t, err)
	files := disktest.Wrap(disk.OS)
	files.Before(func(op disktest.Op, _ string) error {
		if op == disktest.TryLock {
			return syscall.ENOLCK
		}
		return nil
	})
	_, err = disk.Lock(t.Context(), files, filepath.Join(t.TempDir(), "lock"), time.Minute)
	require.ErrorIs(t, err, disk.ErrNoLocks)
	require.ErrorIs(t, err, syscall.ENOLCK)
	if os.Geteuid() == 0 {
		foreign := filepath.Join(t.TempDir(), "lock")
		require.NoError(t, os.WriteFile(foreign, nil, 0o600))
		require.NoError(t, os.Chown(foreign, 12345, 12345))
		_, err = disk.Lock(t.Context(), disk.OS, foreign, time.Minute)
		require.ErrorIs(t, err, disk.ErrForeign)
		assert.ErrorContains(t, err, "user 12345")
	}
}

func TestIsFull(t *testing.T) {
	assert.True(t, disk.IsFull(fmt.Errorf("writing: %w", &fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})))
	assert.False(t, disk.IsFull(syscall.EIO))
	assert.False(t, disk.IsFull(nil))
}
