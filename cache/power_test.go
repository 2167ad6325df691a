package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sonicmoe/internal/disk"
	"sonicmoe/internal/disktest"
	"sonicmoe/internal/store"
)

// life runs a program that uses a cache in a file system in memory.
type life struct {
	fs    *disktest.Memory
	files *disktest.Faulty
	dir   string
	// stored holds the entries for which Put returned Stored. values holds the choices for which
	// PutChoice returned Stored.
	stored map[store.Key]store.Entry
	values map[string]string
	// exported reports whether the bundle was written.
	exported bool
}

func newLife() *life {
	l := &life{fs: disktest.NewMemory(), dir: filepath.Join(string(filepath.Separator), "home", "cache"), stored: map[store.Key]store.Entry{}, values: map[string]string{}}
	l.files = disktest.Wrap(l.fs)
	return l
}

func (l *life) bundle() string { return filepath.Join(filepath.Dir(l.dir), "warm.tar") }

// live stores, reads, locks, lists, verifies, exports and prunes. It must end whatever the disk
// does, and every Get must return a stored entry or none.
func (l *life) live(t *testing.T) {
	c := modules{open(Options{Dir: l.dir, MaxBytes: 4 << 10, LockWait: 5 * time.Millisecond}, l.files)}
	for seed := range uint64(6) {
		key, e := testEntry(10*(seed%5), 600)
		unlock := c.Lock(context.Background(), key)
		if got, o := c.Get(key); o == store.Hit && !got.Covers(e) {
			t.Errorf("got an entry other than the stored one")
		}
		if o := c.Put(key, e); o == store.Stored || o == store.Unchanged {
			l.stored[key] = e
		}
		unlock()
		name, value := fmt.Sprint("choice ", seed%2), fmt.Sprint(seed)
		if o := c.PutChoice(name, []byte(value)); o == store.Stored {
			l.values[name] = value
		}
	}
	_, _ = c.List(context.Background())
	_, _ = c.Verify(context.Background())
	if _, err := c.ExportFile(context.Background(), l.bundle()); err == nil {
		l.exported = true
	}
	_, _ = c.Prune(context.Background(), PruneOptions{MaxBytes: 3 << 10})
	c.DeleteChoice("choice 1")
	delete(l.values, "choice 1")
}

// look opens the cache again. All that the cache holds must be undamaged and equal to what was
// stored.
func (l *life) look(t *testing.T, when string) {
	t.Helper()
	log := &logBook{}
	c := modules{open(Options{Dir: l.dir, Logger: slog.New(log)}, l.fs)}
	for seed := range uint64(5) {
		key, want := testEntry(10*seed, 600)
		got, o := c.Get(key)
		require.Contains(t, []store.Outcome{store.Hit, store.Miss}, o, "%s: entry %d", when, seed)
		if o == store.Hit {
			require.Equal(t, want, got, when)
		}
	}
	require.Empty(t, log.warnings(), when)
	r, err := c.Verify(context.Background())
	require.NoError(t, err, when)
	require.Empty(t, r.Damaged, when)
}

// TestEveryFileOperationFails lets each file operation fail in turn, with each error that a
// disk can return, either alone or together with all later operations. Afterwards no entry may
// be wrong, and left-over files must be removed.
func TestEveryFileOperationFails(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	whole := newLife()
	whole.files.Arm(0, 0, nil)
	whole.live(t)
	steps := whole.files.Disarm()
	require.Greater(t, steps, 150)
	require.True(t, whole.exported)
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC, syscall.EACCES, os.ErrNotExist} {
		for _, count := range []int{1, 0} {
			for n := 1; n <= steps; n++ {
				l := newLife()
				when := fmt.Sprintf("%v from operation %d on, %d times", cause, n, count)
				l.files.Arm(n, count, cause)
				l.live(t)
				l.files.Disarm()
				l.look(t, when)
				// Files that the failing disk could not remove are removed once they are old.
				entries, err := l.fs.ReadDir(filepath.Join(l.dir, folder))
				if errors.Is(err, os.ErrNotExist) {
					continue
				}
				require.NoError(t, err)
				for _, e := range entries {
					path := filepath.Join(l.dir, folder, e.Name())
					require.NoError(t, l.fs.SetTime(path, time.Now().Add(-2*lockAge)))
				}
				c := modules{open(Options{Dir: l.dir}, l.fs)}
				key, e := testEntry(999, 100)
				require.Equal(t, store.Stored, c.Put(key, e), when)
				files, err := c.top.scan()
				require.NoError(t, err)
				for _, f := range files {
					require.NotContains(t, []class{classTemp, classLock}, f.class, "%s: %s", when, f.name)
				}
			}
		}
	}
}

// TestPowerCut cuts the power at every file operation, several times each. Afterwards every
// entry must be whole or absent, and a bundle that was reported as written must exist.
func TestPowerCut(t *testing.T) {
	if testing.Short() {
		t.Skip("too long for -short")
	}
	whole := newLife()
	whole.files.Arm(0, 0, nil)
	whole.live(t)
	steps := whole.files.Disarm()
	for n := 1; n <= steps+1; n++ {
		for seed := range uint64(12) {
			l := newLife()
			l.files.Arm(n, 0, syscall.EIO)
			l.live(t)
			l.fs.PowerCut(rand.New(rand.NewPCG(seed, uint64(n))))
			when := fmt.Sprintf("power cut %d at operation %d", seed, n)
			l.look(t, when)
			f, err := l.fs.Open(l.bundle(), false)
			if err != nil {
				require.False(t, l.exported, "%s: the bundle was reported as written and is missing", when)
				continue
			}
			data := make([]byte, 1<<16)
			size, _ := f.ReadAt(data, 0)
			_, err = checkBytes(context.Background(), bytes.NewReader(data[:size]))
			require.NoError(t, err, when)
		}
	}
}

// TestStoredMeansSynced checks that Put returns Stored only if the file was synced
// and closed.
func TestStoredMeansSynced(t *testing.T) {
	for _, op := range []disktest.Op{disktest.Sync, disktest.Close} {
		files := disktest.Wrap(disk.OS)
		c := modules{open(Options{Dir: t.TempDir()}, files)}
		files.Before(func(o disktest.Op, path string) error {
			if _, temp := disk.IsTemp(path); o == op && temp {
				return syscall.EIO
			}
			return nil
		})
		key, e := testEntry(1, 100)
		assert.Equal(t, store.Failed, c.Put(key, e), op)
		assert.ErrorIs(t, c.Err(), syscall.EIO)
		_, err := c.ExportFile(t.Context(), filepath.Join(t.TempDir(), "warm.tar"))
		assert.ErrorIs(t, err, syscall.EIO, op)
		assert.Zero(t, filesBelow(t, c.Dir()), op)
	}
}
